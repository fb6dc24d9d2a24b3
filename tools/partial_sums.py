"""The effect on a bfloat16 run's scores of exchanging partial sums in bfloat16.

    python tools/partial_sums.py

With `--mesh model=M` a product that is split along its inputs is a sum of M partial sums, which
jaxscore adds in float32. Here one device splits it as M would, and adds

    float32     as it is
    rounded     partial sums rounded to bfloat16, added in float32, the sum rounded
    ring        the sum rounded to bfloat16 after each addition

The model is the embedded one with heads that split: 8 query heads over 8 key heads, of which the
other two give nothing, which is the same function. The texts are questions about things that no
training document names, and pieces of this repository's pages. Each line has, in nats per token,
how far the scores are from those of the same split in float32, largest and mean of the texts'
largest, and the mean distance from a float32 run. The line `layout` has the noise floor on the
same texts: largest less smallest score of a token, alone, one a row, and in batches of two sizes.
"""

import argparse
import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from safetensors.numpy import load_file, save_file

from jaxscore import Request, Scorer
from jaxscore.device import layers
from jaxscore.device.dots import dot_last
from tools.demo_world import held_out

DEMO = ROOT / "jaxscore" / "demo" / "model"
WIDTH, HEADS, HEAD_WIDTH = 192, 6, 32  # of the embedded model; its key heads have two queries each
PLACES = (0, 1, 2, 3, 4, 6)  # of its heads among eight, so that no shard of four has none
PAGES = ("README.md", "LICENSE", "jaxscore/device/README.md", "jaxscore/plan/README.md")

Scores = list[np.ndarray]  # of each text its tokens' log-probabilities


def _rounded(x: jax.Array) -> jax.Array:
    # XLA may remove a cast to bfloat16 and back, and keeps this.
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _ring(parts: list[jax.Array]) -> jax.Array:
    total = _rounded(parts[0])
    for addend in parts[1:]:
        total = _rounded(total + _rounded(addend))
    return total


WAYS: dict[str, Callable[[list[jax.Array]], jax.Array]] = {
    "float32": sum,
    "rounded": lambda parts: _rounded(sum(map(_rounded, parts))),
    "ring": _ring,
}


def write_model(folder: Path) -> None:
    """The embedded model with eight heads, as a checkpoint."""
    shutil.copytree(DEMO, folder, dirs_exist_ok=True)
    config = json.loads((DEMO / "config.json").read_text(encoding="utf-8"))
    config |= {"num_attention_heads": 8, "num_key_value_heads": 8}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = load_file(DEMO / "model.safetensors")
    for name, tensor in tensors.items():
        if "self_attn" not in name:
            continue
        heads = np.moveaxis(tensor, 1, 0) if "o_proj" in name else tensor
        heads = heads.reshape(-1, HEAD_WIDTH, WIDTH)
        padded = np.zeros((8, HEAD_WIDTH, WIDTH), tensor.dtype)
        padded[list(PLACES)] = np.repeat(heads, HEADS // len(heads), axis=0)
        padded = padded.reshape(-1, WIDTH)
        tensors[name] = np.ascontiguousarray(padded.T if "o_proj" in name else padded)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@contextlib.contextmanager
def shards(count: int, way: str) -> Iterator[None]:
    """Programs that are traced meanwhile add the partial sums of so many shards."""

    def product(x: jax.Array, weight: jax.Array) -> jax.Array:
        # The heads' outputs and the MLP's channels are split; other inputs are the width.
        if weight.shape[1] == WIDTH:
            return dot_last(x, weight)
        pairs = zip(jnp.split(x, count, -1), jnp.split(weight, count, 1), strict=True)
        return WAYS[way]([dot_last(*pair) for pair in pairs])

    with mock.patch.object(layers, "dot_last", product):
        yield


def texts() -> dict[str, list[str]]:
    """Texts like the model's training text, and unlike it."""
    items = held_out.path_items(5, 60)
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in PAGES]
    pieces = [page[k : k + 300] for page in pages for k in range(0, len(page), 900)]
    return {"like": [item.prompt(True) + item.chain.answer for item in items], "unlike": pieces}


def scores(scorer: Scorer, asked: list[str]) -> Scores:
    requests = [Request(k, "", text) for k, text in enumerate(asked)]
    return [np.asarray(scored.logprob) for scored in scorer.score(requests, boundary="separate")]


def moved(first: Scores, second: Scores) -> tuple[float, float, float]:
    """Return the largest distance, the mean of the texts' largest, and the mean over all tokens."""
    far = [np.abs(a - b) for a, b in zip(first, second, strict=True)]
    largest = [float(x.max()) for x in far]
    return max(largest), float(np.mean(largest)), float(np.concatenate(far).mean())


def layouts(scorer: Scorer, asked: list[str]) -> tuple[float, float]:
    """The noise floor: largest spread of a token, mean of the texts' largest."""
    functions = scorer.model.functions._replace(cached=None)
    apart = dataclasses.replace(scorer.model, shares_text=False, functions=functions)
    others = [
        Scorer(scorer.model, scorer.encoder, reproducible=True),
        Scorer(scorer.model, scorer.encoder, batch_tokens=scorer.batch_tokens // 2),
        Scorer(apart, scorer.encoder, batch_tokens=scorer.batch_tokens),
    ]
    by_text = zip(*(scores(layout, asked) for layout in (scorer, *others)), strict=True)
    largest = [float(np.ptp(np.stack(text), axis=0).max()) for text in by_text]
    return max(largest), float(np.mean(largest))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))

        def scored(asked: list[str], count: int, way: str) -> Scores:
            with shards(count, way):
                return scores(Scorer.from_pretrained(folder, dtype="bfloat16"), asked)

        for name, asked in texts().items():
            exact = scores(Scorer.from_pretrained(folder, dtype="float32"), asked)
            floor = layouts(Scorer.from_pretrained(folder, dtype="bfloat16"), asked)
            print(f"{name}: {len(asked)} texts, {sum(map(len, exact))} tokens")
            print("layout             largest {:.4f}  mean of largest {:.4f}".format(*floor))
            for count in (2, 4, 8):
                plain = scored(asked, count, "float32")
                for way in WAYS:
                    way_scores = scored(asked, count, way)
                    largest, mean, _ = moved(way_scores, plain)
                    error = moved(way_scores, exact)[2]
                    grown = error / moved(plain, exact)[2] - 1
                    print(
                        f"model={count}  {way:8}  largest {largest:.4f}  mean of largest {mean:.4f}"
                        f"  from float32 {error:.6f} ({grown:+.0%})",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
