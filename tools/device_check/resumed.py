"""Texts of a run that goes on: those that it had not, written as in the run that was not ended."""

import dataclasses

import numpy as np

from jaxscore.engine.engine import Engine
from jaxscore.engine.progress import Progress
from jaxscore.engine.text_writer import TextWriter
from jaxscore.engine.writing import Writing
from jaxscore.models.model import Model
from jaxscore.plan.token_requests import TokenRequest
from jaxscore.text.decoder import TextDecoder
from tools.device_check.options import Options
from tools.device_check.verdict import say

N_TEXTS, LONGEST = 600, 96  # more than two groups of 256 rows; new tokens
N_SMALL, LONGEST_SMALL = 80, 40  # the same of a CPU's 32 rows


def held(name: str, model: Model, options: Options) -> bool:
    """Whether texts are the same where every other one is known and its row is idle.

    Each text is drawn at temperature 1, so that a moved bit changes tokens sooner or later. What
    stands in the rows of its neighbours, and in its own row before it, differs between the runs.
    """
    engine = Engine(model)
    writer = TextWriter(engine, _Silent())
    asked = requests(options, model.vocab_size)
    whole, known = _written(writer, asked, {}), range(0, len(asked), 2)
    again = _written(writer, asked, {k: whole[k] for k in known})
    missing = [k for k in range(len(asked)) if k not in known]
    other = sum(whole[k].written != again[k].written for k in missing)
    return say(
        not other and all(one.error is None for one in whole),
        f"{name}: {other} of {len(missing)} texts differ in a run that has the others already",
    )


def requests(options: Options, vocab_size: int) -> list[TokenRequest]:
    """Prompts of uneven lengths, and texts that end at uneven lengths."""
    draw = np.random.default_rng(4)
    n, longest = (N_SMALL, LONGEST_SMALL) if options.small else (N_TEXTS, LONGEST)
    return [
        TokenRequest(
            draw.integers(0, vocab_size, int(draw.integers(2, 30))).astype(np.int32),
            n_new=int(draw.integers(1, longest)),
            temperature=1.0,
            top_p=1.0,
            seed=k,
            stop=(),
            eos_ids=(),
        )
        for k in range(n)
    ]


def _written(
    writer: TextWriter, asked: list[TokenRequest], known: dict[int, Writing]
) -> list[Writing]:
    texts = [
        dataclasses.replace(known[k]) if k in known else Writing(request)
        for k, request in enumerate(asked)
    ]
    with Progress(False) as progress:
        for _ in writer.write(texts, progress):
            pass
    return texts


class _Silent(TextDecoder):
    """Ids alone are compared, so no tokenizer is needed."""

    def __init__(self) -> None:
        super().__init__(None)

    def text(self, ids: object) -> str:
        return ""

    shown = text
