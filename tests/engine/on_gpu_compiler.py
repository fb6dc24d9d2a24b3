"""Run by test_gpu_compiler.py in a process of its own, which compiles for GPUs that are not here.

stdin has a JSON list of cases: a GPU, a kernel of `interval.ATTENTION`, the channels of a head, and
fields of a `ScoreRule`.
Answers with a JSON list on stdout: for each case registers and spilled bytes of the attention
kernel, as NVIDIA's assembler reports them.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from jaxscore.engine import set_variables

set_variables("gpu")
DUMP = tempfile.TemporaryDirectory()
# JAX 0.12 compiles each kernel by itself, and writes its PTX only if the emitter `ptx` is named.
FLAGS = f"--xla_dump_to={DUMP.name} --xla_dump_emitter_re=ptx"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
os.environ["MOSAIC_GPU_DUMP_TO"] = DUMP.name

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxscore.device.attention.interval import ATTENTION
from jaxscore.device.attention.score_rule import Alibi, ScoreRule
from jaxscore.engine import targets

HEADS, KEY_HEADS, TOKENS = 8, 2, 4096


def ptxas() -> Path:
    """The assembler of the package nvidia-cuda-nvcc."""
    import nvidia

    [found] = [path for place in nvidia.__path__ for path in Path(place).glob("*/bin/ptxas")]
    return found


def compile_kernel(gpu: str, kernel: str, width: int, rule: ScoreRule) -> str:
    """PTX of the module with the kernel, for bfloat16."""
    device = targets.gpu(gpu, 1).devices[0]
    where = SingleDeviceSharding(device)

    def array(shape: tuple[int, ...], dtype: type) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    q, k = (array((1, TOKENS, heads, width), jnp.bfloat16) for heads in (HEADS, KEY_HEADS))
    place, window = array((1, TOKENS), jnp.int32), array((), jnp.int32)

    def run(q, k, v, position, end, window):
        return ATTENTION[kernel](q, k, v, position, end, window, rule=rule, dtype=jnp.bfloat16)

    for old in Path(DUMP.name).glob("*.ptx"):
        old.unlink()
    with targets.compiling_for(device):
        jax.jit(run).lower(q, k, k, place, place, window).compile()
    [text] = [
        text
        for path in Path(DUMP.name).glob("*.ptx")
        if "interval_attention" in (text := path.read_text(encoding="utf-8"))
    ]
    return text


def assembled(text: str) -> dict[str, int]:
    """Registers and spilled bytes of the kernel."""
    [chip] = re.findall(r"^\.target (\w+)", text, re.MULTILINE)
    path = Path(DUMP.name) / "kernel.ptx"
    path.write_text(text, encoding="utf-8")
    words = [ptxas(), "-v", f"-arch={chip}", path, "-o", os.devnull]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    said = done.stderr.partition("Compiling entry function 'interval_attention")[2]
    stores, loads = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)[0]
    registers = re.findall(r"Used (\d+) registers", said)[0]
    return {"spilled": max(int(stores), int(loads)), "registers": int(registers)}


out = []
for gpu, kernel, width, fields in json.load(sys.stdin):
    alibi = Alibi(tuple(2.0**-n for n in range(1, HEADS + 1))) if fields.pop("alibi", 0) else None
    text = compile_kernel(gpu, kernel, width, ScoreRule(width**-0.5, alibi=alibi, **fields))
    products = len(re.findall(r"\bmma|wgmma\.mma|tcgen05\.mma", text))
    out.append(assembled(text) | {"tensor_cores": products})
print(json.dumps(out))
