"""What is read in the text of a compiled program, by lines as XLA writes them."""

import importlib.metadata
import importlib.util

import pytest
from jax.errors import JaxRuntimeError

from jaxscore.engine.program_text import (
    Collective,
    collectives,
    joined_slices,
    kernels,
    shape_bytes,
    text_of,
)
from jaxscore.errors import InputError

TEXT = """\
HloModule jit_one, is_scheduled=true

%body.7 (arg: (s32[], f32[512])) -> (s32[], f32[512]) {
  %psum.1 = f32[1,4096,896]{2,1,0:T(8,128)S(1)} all-reduce(%x), channel_id=1, to_apply=%add
  %all-reduce.4 = (f32[512,4]{1,0}, s32[512]{0:T(512)}) all-reduce(%x, %y), channel_id=2
  %start = (bf16[8,128]{1,0}, bf16[16,128]{1,0}) all-gather-start(%z), channel_id=3
  %done = bf16[16,128]{1,0} all-gather-done(%start)
  %attention.1 = bf16[512,64]{1,0} custom-call(%psum.1), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(one)/while/body/interval_attention/pallas_call"}
  %attention.2 = bf16[512,64]{1,0} custom-call(%psum.1), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(one)/interval_attention/pallas_call"}
  %whole = bf16[512,64]{1,0:S(1)} custom-call(%done.1, %done.2), custom_call_target="ConcatBitcast"
  %two = f32[512]{0} fusion(%psum.1), kind=kCustom, metadata={op_name="jit(one)/while/body/gather"}
}

ENTRY %main.18 (h.1: f32[512,4096]) -> f32[512] {
  %while.3 = (s32[], f32[512]) while(%tuple), condition=%condition, body=%body.7
  ROOT %last = f32[512]{0} sort(%while.3)
}
"""


class Unreadable:
    """A program of another compiler than JAX expects."""

    def as_text(self):
        raise JaxRuntimeError("INTERNAL: RET_CHECK failure")


def test_a_program_that_jax_cannot_read(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JaxRuntimeError, match="RET_CHECK"):
        text_of(Unreadable())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", {"jax": "0.10.2", "libtpu": "9.9"}.get)
    with pytest.raises(InputError, match=r"libtpu 9\.9 .* pip install 'jax\[tpu\]==0\.10\.2'"):
        text_of(Unreadable())


def test_collectives():
    assert collectives(TEXT) == [
        Collective("all-gather", 1, 16 * 128 * 2),
        Collective("all-reduce", 2, 4 * 4096 * 896 + 4 * 512 * 4 + 4 * 512),
    ]
    assert collectives("%x = f32[4]{0} add(%all-reduce.1, %y)") == []


def test_joined_slices():
    assert joined_slices(TEXT) == 1


def test_kernels():
    assert kernels(TEXT) == ["interval_attention"]
    assert kernels(TEXT.replace("pallas_call", "other")) == []


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[]{:T(128)}", 4),
        ("bf16[2,3]{1,0:T(8,128)(2,1)}", 12),
        ("pred[8]{0}", 8),
        ("s4[16]{0}", 8),
        ("(f8e4m3fn[4]{0}, u8[3]{0})", 7),
        ("()", 0),
    ],
)
def test_bytes_of_a_shape(shape, size):
    assert shape_bytes(shape) == size
