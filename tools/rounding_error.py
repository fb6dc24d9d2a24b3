"""Rounding error of a model's scores: against PyTorch, of each --dtype, and between layouts.

    python tools/rounding_error.py --model FOLDER

FOLDER is a Hugging Face checkpoint, or `demo`. The texts are pieces of this repository's pages.
PyTorch computes with eager attention, one text at a time, and the softmax of its logits in float64.
Two tables are printed, in nats:

    distance    for each pair of computations |difference| of the tokens' log-probabilities
                (largest, 99th percentile, mean) and of the texts' mean log-probabilities (largest)
    layouts     the noise floor, as `--audit-noise` measures it: largest less smallest value of a
                number over several layouts of the same texts
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np

from jaxscore import Request, Scorer
from jaxscore.models.weights.folder import resolve
from jaxscore.shell.rounding_audit import Noise, OtherLayouts
from tools.requirements import require

TORCH = {f"PyTorch {dtype}": dtype for dtype in ("float64", "float32", "bfloat16")}
JAXSCORE: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8, float32": {"dtype": "float32", "quantize": "int8"},
    "int8, bfloat16": {"dtype": "bfloat16", "quantize": "int8"},
}
PAIRS = (
    ("float32", "PyTorch float32"),
    ("float32", "PyTorch float64"),
    ("PyTorch float32", "PyTorch float64"),
    ("bfloat16", "PyTorch float64"),
    ("PyTorch bfloat16", "PyTorch float64"),
    ("int8, float32", "PyTorch float64"),
    ("int8, bfloat16", "PyTorch float64"),
)

Scores = list[np.ndarray]  # log-probabilities of each text's tokens but the first, nats


def page_texts(count: int, characters: int) -> list[str]:
    """Pieces of the repository's pages, evenly spaced over all of them."""
    pages = sorted(path for top in ROOT.iterdir() if top.is_dir() and top.name[0] != "."
                   for path in top.rglob("README.md"))  # fmt: skip
    prose = "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *pages])
    starts = np.linspace(0, len(prose) - characters, count).astype(int)
    return [prose[start : start + characters] for start in starts]


def jax_scores(
    model: str, texts: Sequence[str], layouts: int, **settings: str
) -> tuple[list[np.ndarray], Scores, Noise | None]:
    """Score the texts with jaxscore.

    Args:
        layouts: score the first so many texts again in other layouts.

    Returns:
        Token ids of each text, log-probabilities, and the spread over the layouts.
    """
    requests = [Request(k, "", text) for k, text in enumerate(texts)]
    with Scorer.from_pretrained(model, **settings) as scorer:
        results = scorer.score(requests, boundary="separate", special_tokens=False)
        pairs = list(zip(requests, results, strict=True))[:layouts]
        noise = OtherLayouts(scorer).scores(pairs, boundary="separate", special_tokens=False)
    return [r.token_ids for r in results], [r.logprob[1:] for r in results], noise


def torch_scores(folder: Path, ids: Sequence[np.ndarray], dtype: str) -> Scores:
    """Score token ids with transformers' eager model."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    model.requires_grad_(False).eval()
    scores = []
    for text_ids in ids:
        tokens = torch.from_numpy(np.asarray(text_ids, np.int64))[None]
        logits = model(tokens[:, :-1], use_cache=False).logits[0].double()
        chosen = logits.log_softmax(-1).gather(1, tokens[0, 1:, None])
        scores.append(chosen[:, 0].numpy())
    return scores


def distance(a: Scores, b: Scores) -> tuple[float, float, float, float]:
    """|a - b| in nats.

    Returns:
        Largest, 99th percentile and mean over tokens; largest difference of a text's mean.
    """
    differences = [x.astype(np.float64) - y for x, y in zip(a, b, strict=True)]
    tokens = np.abs(np.concatenate(differences))
    means = max(abs(float(difference.mean())) for difference in differences)
    return float(tokens.max()), float(np.percentile(tokens, 99)), float(tokens.mean()), means


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="checkpoint folder (default: demo)")
    parser.add_argument("--texts", type=int, default=40, help="number of texts (default: 40)")
    parser.add_argument("--characters", type=int, default=800, help="of a text (default: 800)")
    parser.add_argument("--layouts", type=int, default=40, help="texts to audit (default: 40)")
    args = parser.parse_args(arguments)
    require("torch", "test")
    folder = resolve(args.model, None)
    texts = page_texts(args.texts, args.characters)
    scores: dict[str, Scores] = {}
    noises: dict[str, Noise] = {}
    ids: list[np.ndarray] = []
    for name, settings in JAXSCORE.items():
        layouts = 0 if "quantize" in settings else args.layouts
        ids, scores[name], noise = jax_scores(args.model, texts, layouts, **settings)
        if noise is not None:
            noises[name] = noise
    for name, dtype in TORCH.items():
        scores[name] = torch_scores(folder, ids, dtype)
    print(f"{args.model}: {len(texts)} texts, {sum(map(len, scores['float32']))} scored tokens\n")
    print("| distance | | largest | 99 % below | mean | largest of a text's mean |")
    print("|---|---|---|---|---|---|")
    for pair in PAIRS:
        numbers = distance(*(scores[name] for name in pair))
        print("|", " | ".join([*pair, *(f"{number:.2g}" for number in numbers)]), "|")
    print("\n| layouts | number | largest | mean of the texts' largest |\n|---|---|---|---|")
    for name, noise in noises.items():
        for number in ("token_logprob", "mean_logprob"):
            spread = noise.spread[number]
            print(f"| {name} | {number} | {spread.largest:.2g} | {spread.mean:.2g} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
