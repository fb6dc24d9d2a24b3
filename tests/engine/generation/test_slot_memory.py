"""A cache has the slots that the device's memory holds; what does not fit is refused."""

import dataclasses
import math

import pytest
from jax.errors import JaxRuntimeError

from jaxscore.engine.devices import placed_bytes
from jaxscore.engine.generation import slots
from jaxscore.engine.generation.prefill import MOST_PREFILL
from jaxscore.engine.generation.slots import MOST_CACHE_CPU, SHARE, cache_limit, slot_bytes
from jaxscore.engine.programs import Programs, prefix_slots
from jaxscore.errors import InputError
from jaxscore.io import processes
from tests.engine.generation.test_generator import random_model
from tests.engine.generation.test_slots import (
    CONFIGS,
    decoders,
    reported,
    requests,
    scorer,
    writing,
)
from tests.engine.test_dispatch import NO_ROOM
from tests.journal.test_texts import asked, journal, writer  # noqa: F401  fixtures

STEPS = 32


@pytest.fixture(scope="module")
def model():
    return random_model(CONFIGS["gpt2like"], "float32")


def limit(model, n_slots):
    """Memory of a device in which a cache and its prompts may take so many slots."""
    return placed_bytes(model.params) + math.ceil(n_slots * slot_bytes(model) / SHARE)


def test_a_device_that_does_not_say_leaves_the_constant(model):
    most = MOST_CACHE_CPU // slot_bytes(model) // 64
    fits = cache_limit(model, 0, STEPS)
    assert fits(most, 64)
    assert not fits(most + 1, 64)


@pytest.mark.parametrize("shared", [0, 70])
@pytest.mark.parametrize(("rows", "slots"), [(32, 64), (8, 512)])
def test_the_cache_counts_beside_a_blocks_tokens_prompts_and_prefix(model, rows, slots, shared):
    prefix = prefix_slots(model, shared) if shared else 0
    need = rows * (slots + STEPS) + MOST_PREFILL + prefix
    assert cache_limit(model, shared, STEPS, limit(model, need))(rows, slots)
    assert not cache_limit(model, shared, STEPS, limit(model, need - 1))(rows, slots)


def test_there_is_room_for_gathered_weights(model):
    devices = model.devices._replace(gathered_bytes=2**20)
    gathering = dataclasses.replace(model, devices=devices)
    need = limit(model, 8 * (64 + STEPS) + MOST_PREFILL)
    assert cache_limit(gathering, 0, STEPS, need + 2**20)(8, 64)
    assert not cache_limit(gathering, 0, STEPS, need + 2**20 - 1)(8, 64)


def test_more_memory_than_the_constant_asks_for_changes_nothing(model, monkeypatch):
    monkeypatch.setattr(slots, "MOST_CACHE_CPU", 8 * 64 * slot_bytes(model))
    fits = cache_limit(model, 0, STEPS, 1 << 50)
    assert fits(8, 64)
    assert not fits(9, 64)


def test_of_several_processes_the_first_decides(model, monkeypatch):
    reported = limit(model, MOST_PREFILL + 8 * (64 + STEPS))
    for own, first, fit in (
        (None, reported, False),
        (1 << 50, reported, False),
        (reported, 0, True),
    ):
        monkeypatch.setattr(slots, "limit_bytes", lambda own=own: own)
        monkeypatch.setattr(
            processes,
            "broadcast_from_first",
            lambda _, own=first: own.to_bytes(8, "little"),
        )
        assert cache_limit(model, 0, STEPS)(8, 64)
        assert cache_limit(model, 0, STEPS)(9, 64) == fit


def test_a_lane_has_fewer_rows_where_memory_is_small_and_the_same_texts(monkeypatch):
    want, _ = writing(scorer(), requests())
    one = scorer()
    need = MOST_PREFILL + 8 * (64 + STEPS)
    monkeypatch.setattr(slots, "limit_bytes", lambda: limit(one.model, need))
    got, _ = writing(one, requests())
    assert {name[1] for name in decoders(one)} == {8}
    assert reported(got) == reported(want)


@pytest.mark.parametrize("name", ["empty cache", "prefix", "prefill", "begin", "decode"])
def test_memory_that_runs_out_is_named_and_what_has_ended_is_kept(
    writer,  # noqa: F811
    journal,  # noqa: F811
    monkeypatch,
    name,
):
    want, run = writer(None).generate(asked()), Programs.run
    own = journal()
    one, calls = writer(own), []

    def short(self, what, *args, **options):
        calls.append(what[0])
        if what[0] == name and (name != "decode" or calls.count(name) == 4):
            raise JaxRuntimeError(NO_ROOM)
        return run(self, what, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Programs, "run", short)
        with pytest.raises(
            InputError, match=r"[0-9]+ x [0-9]+ tokens, .* take [0-9.]+ k?B"
        ) as reported:
            one.generate(asked())
    for remedy in ("--quantize int8", "--mesh model=N", "fewer new tokens", "longest prompts"):
        assert remedy in str(reported.value)
    assert "--batch-tokens" not in str(reported.value)
    kept = [text.request for some in one.batches for text in some]
    assert len(own.read_texts(kept)) == len(kept)
    assert bool(kept) == (name == "decode")
    assert writer(own).generate(asked()) == want


def test_int8_is_no_remedy_where_it_is_taken(model):
    one = dataclasses.replace(model, quantized="int8")
    with pytest.raises(InputError) as reported, slots.explain_out_of_memory(one, 8, 64):
        raise JaxRuntimeError(NO_ROOM)
    assert "--quantize" not in str(reported.value)


def test_another_error_stays_what_it_is(model):
    with (
        pytest.raises(JaxRuntimeError, match="INTERNAL"),
        slots.explain_out_of_memory(model, 8, 64),
    ):
        raise JaxRuntimeError("INTERNAL: no")
