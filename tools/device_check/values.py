"""Every token of the expected values in tests/cases, prefixes, and greedy text."""

import json
import math
from pathlib import Path
from unittest import mock

import numpy as np

from jaxscore import Request, Scorer
from jaxscore.engine import planner
from jaxscore.engine.generation import Generator
from jaxscore.plan.requests import TokenSequence
from jaxscore.types.requests import GenerationRequest
from tools.device_check.checks import Options, guarded, largest_difference, report

CASES = Path(__file__).resolve().parents[2] / "tests" / "cases"
NAMES = ("tiny-qwen2", "tiny-llama3", "tiny-gpt2")


def run(options: Options) -> None:
    """Run each check for each model, while there is time."""
    for name in NAMES[:1] if options.small else NAMES:
        for check in (agrees, prefixes_agree, greedy_is_best):
            title = f"{name}, {check.__name__}"
            if options.has_time(title):
                guarded(title, check, name)


def loaded(name: str, dtype: str = "float32") -> Scorer:
    return Scorer.from_pretrained(str(CASES / "models" / name), dtype=dtype)


def agrees(name: str) -> bool:
    """Check every expected token to 1e-4 in float32, and together as alone to 1e-5."""
    text = (CASES / "expected" / name / "tokens.json").read_text(encoding="utf-8")
    want = [item for item in json.loads(text) if item.get("logprob")]
    requests = [Request(k, "", item["text"]) for k, item in enumerate(want)]
    worst = {}
    for dtype in ("float32", "bfloat16"):
        scorer = loaded(name, dtype)
        together = scorer.score(requests)
        worst[dtype] = largest_difference(
            (getattr(got, column)[-len(item[column]) :], item[column])
            for got, item in zip(together, want, strict=True)
            for column in ("logprob", "entropy", "self_certainty")
        )
        if dtype == "float32":
            alone = [scorer.score([request])[0] for request in requests]
            layout = largest_difference(
                (a.logprob[-len(item["logprob"]) :], b.logprob[-len(item["logprob"]) :])
                for a, b, item in zip(together, alone, want, strict=True)
            )
    return report(
        worst["float32"] < 1e-4 and layout < 1e-5 and math.isfinite(worst["bfloat16"]),
        f"{name}: expected values, float32 {worst['float32']:.1e}, bfloat16 "
        f"{worst['bfloat16']:.1e}; together and alone {layout:.1e}",
    )


def prefixes_agree(name: str) -> bool:
    """Check that scores are the same if a shared prefix is computed once, or in each row."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 900, n) for n in (300, 420)]
    asked = [
        TokenSequence(np.concatenate([prompt, rng.integers(5, 900, 20)]).astype(np.int32), 310)
        for prompt in prompts
        for _ in range(60)
    ]
    results, prefixes = [], 0
    for least in (0.0, 1e30):
        both = {"LEAST_SAVED_CPU": least, "LEAST_SAVED_ACCELERATOR": least}
        with mock.patch.multiple(planner, **both):
            scorer = loaded(name)
            results.append(scorer.score_sequences(asked))
        prefixes += sum(program.name[0] == "prefix" for program in scorer.engine.programs.compiled)
    worst = largest_difference((a.logprob, b.logprob) for a, b in zip(*results, strict=True))
    return report(
        worst < 1e-5 and prefixes > 0, f"{name}: {prefixes} prefixes and none {worst:.1e}"
    )


def greedy_is_best(name: str) -> bool:
    """Check that each greedily written token has the highest score after those before it."""
    scorer = loaded(name)
    shared = "The next section is a test about the towns of Tellany. " * 12
    prompts = ["The cat", "Arlen moved from", *(f"{shared}Question {k}:" for k in range(40))]
    written = Generator(scorer).generate(
        [GenerationRequest(k, prompt, 24) for k, prompt in enumerate(prompts)]
    )
    sequences = [
        TokenSequence(np.concatenate([ids, text.token_ids]), len(ids))
        for ids, text in zip(scorer.encoder.prompt_ids(prompts), written, strict=True)
    ]
    scored = scorer.score_sequences(sequences)
    tokens = sum(len(text.greedy) for text in scored)
    other = sum(int((~text.greedy).sum()) for text in scored)
    return report(
        not other and tokens > 100, f"{name}: {other} of {tokens} written tokens are not the best"
    )
