"""`usc-select`: the response that a model called the most consistent.

Universal self-consistency (Chen et al., arXiv 2311.17311) shows a model several responses,
numbered from 0, and asks which agrees most with the others. Here its reply is read.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxscore.errors import InputError
from jaxscore.tasks.samples import answer_text, sample_items
from jaxscore.tasks.samples.sample_items import Item, Result

CHOSEN = re.compile(r"Response\s+(\d+)")
DATASET_TYPES = ("open", "close")


def load(path: Path) -> list[Item]:
    """The items of a file, see `samples.load`: `output` holds the reply, `responses` the choice."""
    return sample_items.load(path)


def chosen(reply: str) -> int | None:
    """The number of the last `Response k` in a reply; None where there is none."""
    numbers = CHOSEN.findall(reply)
    if not numbers:
        return None
    try:
        return int(numbers[-1])
    except ValueError:  # more digits than Python reads
        return sys.maxsize


def evaluate(items: Sequence[Item], dataset_type: str) -> list[Result]:
    """Each item with the chosen response as its `output`.

    Response 0 where the reply names none or one that is not there. For the `close` type, a choice
    without an extractable answer gives way to the first response with one, if there is any: of
    all of them, where the published script looks at eight. Boxes are no answers here, as there.
    """
    return [_evaluate(item, closed=dataset_type == "close") for item in items]


def _evaluate(item: Item, *, closed: bool) -> Result:
    try:
        reply = sample_items.responses(item, "output", 1)[0]
        if reply is None:
            raise InputError('field "output": the reply is no text')
        texts = sample_items.responses(item, "responses")
        index = chosen(reply)
        note = None
        if index is None:
            note = "the reply names no response, so the first is taken"
        elif index >= len(texts):
            note = f"the reply names response {index} of {len(texts)}, so the first is taken"
        index = index if index is not None and index < len(texts) else 0
        answered = [text is not None and answer_text.extract(text) is not None for text in texts]
        if closed and not answered[index] and any(answered):
            index = answered.index(True)
        if texts[index] is None:
            raise InputError(f'field "responses": number {index} is chosen and is no text')
    except InputError as problem:
        record = {**item.fields, "output": [], "error": str(problem)}
        return Result(item.name, record, str(problem))
    record = {**item.fields, "output": [texts[index]]}
    return Result(item.name, record, answered=answered[index], note=note)
