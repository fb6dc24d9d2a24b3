"""`usc-generate` as one call: a model's own choice between its responses."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.lm import require_local
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.samples import earlier_output, sample_items
from jaxscore.systems.samples import usc_prompt as task
from jaxscore.systems.samples.evaluations import choices
from jaxscore.systems.samples.in_order import InOrder
from jaxscore.systems.settings import check_whole_number
from jaxscore.text import chat_template

ASKED_PER_ROW = 4  # items that are planned together, for each that is written side by side


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(choices.Settings):
    """Settings of `usc-generate`.

    Attributes:
        n: the first n responses are shown; an item with fewer has all of them shown. Required.
        max_new_tokens: a reply ends there at the latest.
        temperature: 0 is greedy, above it tokens are drawn.
        top_p: draw from the most probable tokens that hold this much probability.
        seed: of the draws; item k, from 0, draws with seed + k.
    """

    n: int | None = None
    max_new_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            InputError: naming the setting, its value and what is expected.
        """
        check_whole_number("n", self.n, 1)
        check_whole_number("max_new_tokens", self.max_new_tokens, 1)
        check_whole_number("seed", self.seed)
        choices.check_drawing(self.temperature, self.top_p)


@dataclasses.dataclass
class Work:
    """Items with the replies that are known; a run fills in what is missing.

    Attributes:
        items: as from `usc_prompt.load`.
        replies: the record of each item; None where it is still to be asked.
        n_previous: records that the output file has already; they stay in it.
        facts: what each record says of the model, see `self_certainty.Work`.
        path: of the output file, for messages.
    """

    items: Sequence[task.Item]
    replies: list[dict[str, Any] | None]
    n_previous: int = 0
    facts: Mapping[str, Any] | None = None
    path: Path = Path("output")

    def __post_init__(self) -> None:
        """An item that cannot be used is finished."""
        for item in self.items:
            if item.error:
                self.replies[item.index] = task.failed(item, item.error)

    def __iter__(self) -> Iterator[task.Item]:
        return iter(self.items)

    @property
    def missing(self) -> list[task.Item]:
        """The items that are still to be asked."""
        return [item for item in self.items if self.replies[item.index] is None]

    def records(self) -> Iterable[dict[str, Any]]:
        """What the output file holds by now."""
        return task.finished(self.items, self.replies, self.n_previous)


def made_with(facts: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """What each record says of how it was made, but for the dtype."""
    facts = dict(facts)
    return {
        "generator": facts.pop("model"),
        **facts,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_new_tokens,
        "seed": settings.seed if settings.temperature else None,
    }


def evaluate(
    lm: Any,
    items: Iterable[Any],
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Ask about each item.

    Args:
        lm: a `LocalLM` that generates; None is enough for a `Work` from which nothing is missing.
        items: objects as the input file has them, or `Work` that an earlier run has begun.
        on_item: takes each record in the input's order as soon as it is finished, but none that
            the work held already; no record is then in the result.

    Raises:
        NothingUsable: no item has a reply.
        InputError: the model does not run in this process.
    """
    assert settings.n is not None  # `Settings` has made sure
    if isinstance(items, Work):
        work = items
    else:
        known = task.read(items, settings.n)
        work = Work(known, [None] * len(known))
    before = {k for k, record in enumerate(work.replies[: work.n_previous]) if record is not None}
    told = InOrder(on_item, work.replies.__getitem__, len(work.items), before)
    started = time.perf_counter()
    written = _Written()
    if work.missing:
        _generate(lm, work, settings, written, told.offer)
    told.offer()
    records = [record for record in work.replies if record is not None]
    errors = [
        (item.name, record.get("error")) for item, record in zip(work.items, records, strict=True)
    ]
    sample_items.refuse_if_all_failed(errors)
    failures = [Failure(name, error) for name, error in errors if error is not None]
    n_replies = len(records) - len(failures)
    summary = {
        "n_items": len(records),
        "n_replies": n_replies,
        "n_failed": len(failures),
        "n_tokens_written": written.n_tokens,
        "n_ended_at_the_limit": written.n_cut,
    }
    kept = [] if on_item is not None else records
    return Evaluation(
        summary=summary,
        items=kept,
        n_items=len(records),
        rows=[_row(item, one) for item, one in zip(work.items, kept, strict=False)],
        details={"summary": summary},
        long={"items": kept},
        headline=f"{n_replies} of {len(records)} items have a reply, {written.n_tokens} tokens "
        "written in this run",
        failures=failures,
        remarks=_remarks(settings, written),
        seconds=time.perf_counter() - started,
    )


@dataclasses.dataclass
class _Written:
    """Tokens that the model wrote in this run, and how many of its replies ended at the limit."""

    n_tokens: int = 0
    n_cut: int = 0


def _generate(
    lm: Any,
    work: Work,
    settings: Settings,
    written: _Written,
    offer: Callable[[], None],
) -> None:
    """Ask for the replies that are missing."""
    lm = require_local("usc-generate", lm, "generates")
    facts, dtype = work.facts or earlier_output.model_facts(lm), lm.describe()["dtype"]
    made = {**made_with(facts, settings), "dtype": dtype}
    task.check_dtype(work.items, work.replies, dtype, work.path)
    generator, tokenizer = lm.generator(), lm.encoder.tokenizer
    before = lm.statistics.tokens_written
    usable = [item for item in work.items if not item.error]
    several = ASKED_PER_ROW * generator.side_by_side
    for k in range(0, len(usable), several):
        # The same items together as in a run from the beginning, so that a reply has the same
        # row and block, and with them the same last bits, whatever an earlier run has left.
        together = usable[k : k + several]
        missing = [item for item in together if work.replies[item.index] is None]
        if not missing:
            continue
        if lm.journal is None:  # which has what is not missing
            together = missing
        rendered = [
            chat_template.render(tokenizer, [{"role": "user", "content": item.prompt}])
            for item in together
        ]
        asked = task.requests(
            together,
            rendered,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            seed=settings.seed,
        )
        for place, one in generator.stream(asked):
            item = together[place]
            if work.replies[item.index] is not None:
                continue
            work.replies[item.index] = task.evaluate(item, rendered[place], one, made)
            written.n_cut += one.finish == "length"
            offer()
    written.n_tokens = lm.statistics.tokens_written - before


def _remarks(settings: Settings, written: _Written) -> list[str]:
    out = []
    if settings.temperature == 0 and settings.top_p != 1:
        out.append(f"top_p {settings.top_p}: of no effect, since temperature 0 is greedy")
    if written.n_cut:
        out.append(f"{written.n_cut} replies ended at the limit, not by themselves")
    return out


def _row(item: task.Item, record: Mapping[str, Any]) -> dict[str, Any]:
    reply = record["output"][0] if record["output"] else None
    return {
        "item": item.name,
        "responses": len(record["responses"]),
        "reply": reply,
        "error": record.get("error"),
    }
