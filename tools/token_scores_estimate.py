"""Value and gradient of `token_scores` on a v5e, relative to `log_softmax` with autodiff.

    python tools/token_scores_estimate.py --width 768 --terms logprob

Needs the extra `tpu-compiler` and no TPU. Nothing runs: cycles are what the compiler estimates for
each fusion, those in the body of a loop times its steps, and nothing overlaps. A kernel counts as
its products at the chip's peak, float32 as six of bfloat16.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jaxscore.engine import set_variables

set_variables("tpu")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import SingleDeviceSharding

from jaxscore import token_scores
from jaxscore.device.backends import BACKENDS
from jaxscore.device.lm_head.token_scores import TERMS
from jaxscore.engine import targets
from jaxscore.engine.footprint import text_of
from tools.requirements import require

FLOPS_PER_CYCLE = 4 * 128 * 128 * 2  # of a v5e in bfloat16: four units


def plain(hidden: Any, ids: Any, unembed: Any, terms: tuple[str, ...]) -> list[Any]:
    """Terms of whole logits, to be differentiated by JAX."""
    precision = lax.Precision.HIGHEST if hidden.dtype == jnp.float32 else None
    logits = lax.dot_general(
        hidden, unembed, (((1,), (1,)), ((), ())), precision=precision,
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    logp = jax.nn.log_softmax(logits)
    values = {"logprob": jnp.take_along_axis(logp, ids[:, None], axis=1)[:, 0]}
    if "entropy" in terms:
        values["entropy"] = -(jnp.exp(logp) * logp).sum(1)
    if "self_certainty" in terms:
        values["self_certainty"] = -logp.mean(1)
    return [values[term] for term in terms]


def ours(hidden: Any, ids: Any, unembed: Any, terms: tuple[str, ...]) -> list[Any]:
    return list(token_scores(hidden, ids, unembed, terms=terms).values())


def estimated_cycles(text: str) -> int:
    """Cycles of a compiled program.

    Raises:
        ValueError: a loop whose number of steps is not in the program.
    """
    bodies: dict[str, list[str]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            current = head[2]
            bodies[current] = []
            entry = current if head[1] else entry
        elif line.startswith("}"):
            current = ""
        elif current:
            bodies[current].append(line)

    def steps(line: str) -> int:
        if trip_count := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line):
            return int(trip_count[1])
        condition = bodies[named("condition", line)]
        limits = [
            int(n) for line in condition for n in re.findall(r"s32\[\]\S* constant\((\d+)\)", line)
        ]
        if not limits:
            raise ValueError(f"no number of steps: {line.strip()[:100]}")
        return max(limits)

    def named(attribute: str, line: str) -> str:
        match = re.search(rf"{attribute}=%?([\w.\-]+)", line)
        if match is None:
            raise ValueError(f"no {attribute}: {line.strip()[:100]}")
        return match[1]

    def cycles(name: str) -> int:
        total = 0
        for line in bodies[name]:
            if " while(" in line:
                total += steps(line) * cycles(named("body", line))
            elif " conditional(" in line:
                branches = re.search(r"branch_computations=\{([^}]*)\}", line)
                names = branches[1].split(",") if branches else []
                total += max((cycles(branch.strip().lstrip("%")) for branch in names), default=0)
            elif " call(" in line:
                total += cycles(named("to_apply", line))
            elif estimate := re.search(r'"estimated_cycles":"(\d+)"', line):
                total += int(estimate[1])
        return total

    return cycles(entry)


def estimate(shape: tuple[int, int, int], dtype: str, terms: tuple[str, ...]) -> dict[str, float]:
    """Estimate megacycles of value and gradient of both ways, and their ratio.

    Args:
        shape: positions, vocabulary and width.
        dtype: dtype of hidden states and unembedding.
        terms: see `token_scores`.
    """
    positions, vocabulary, width = shape
    device = targets.tpu("v5e:1x1").devices[0]
    where = SingleDeviceSharding(device)
    args = (
        jax.ShapeDtypeStruct((positions, width), dtype, sharding=where),
        jax.ShapeDtypeStruct((vocabulary, width), dtype, sharding=where),
        jax.ShapeDtypeStruct((positions,), jnp.int32, sharding=where),
    )

    def program(function: Any) -> int:
        def loss(hidden: Any, unembed: Any, ids: Any) -> Any:
            return sum(value.sum() for value in function(hidden, ids, unembed, terms))

        lowered = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*args)
        return estimated_cycles(text_of(lowered.compile()))

    backend = mock.patch(
        "jaxscore.device.lm_head.token_scores.current_backend", return_value=BACKENDS["tpu"]
    )
    with backend, targets.compiling_for(device):
        fused = program(ours)
        unfused = program(plain)
    flops = 2 * positions * vocabulary * width * (6 if dtype == "float32" else 1)
    kernel = flops / FLOPS_PER_CYCLE
    return {
        "token_scores": (fused + kernel) / 1e6, "log_softmax": unfused / 1e6,
        "ratio": (fused + kernel) / unfused,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--positions", type=int, default=2048, help="default 2,048")
    parser.add_argument("--vocabulary", type=int, default=50257, help="default 50,257")
    parser.add_argument("--width", type=int, default=768, help="of the hidden states (default 768)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--terms", nargs="+", choices=TERMS, default=TERMS, help="default: all")
    args = parser.parse_args(arguments)
    require("libtpu", "tpu-compiler")
    shape = (args.positions, args.vocabulary, args.width)
    print(json.dumps(estimate(shape, args.dtype, tuple(args.terms))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
