"""`sample` as one call: prompts in, n responses of the model to each."""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.lm import LocalLM, require_local
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.samples import earlier_output, prompts, sample_items
from jaxscore.systems.samples import sampling as task
from jaxscore.systems.samples.evaluations import choices
from jaxscore.systems.samples.in_order import InOrder
from jaxscore.systems.samples.prompts import Prompt
from jaxscore.systems.settings import check_list, check_setting, check_whole_number
from jaxscore.types.results import Generated

ASKED_PER_ROW = 16  # samples that are planned together, for each that is written side by side


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(choices.Settings):
    """Settings of `sample`.

    Attributes:
        n: samples of each prompt. Required.
        max_new_tokens: a sample ends there at the latest.
        temperature: the logits are divided by it; 0 is greedy, of which there is one sample.
        top_p: draw from the most probable tokens that hold this much probability.
        top_k: draw from this many most probable tokens; 0 is all.
        stop: a sample ends before the first of these strings.
        seed: from which and the prompt the seed of each sample comes.
        apply_chat_template: a prompt is what a user says, and the model reads the chat template's
            text of it.
        system_prompt: a message before all others, with the chat template.
    """

    n: int | None = None
    max_new_tokens: int = 1024
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    stop: Sequence[str] = ()
    seed: int = 0
    apply_chat_template: bool = False
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            InputError: naming the setting, its value and what is expected.
        """
        check_whole_number("n", self.n, 1)
        check_whole_number("max_new_tokens", self.max_new_tokens, 1)
        check_whole_number("top_k", self.top_k, 0)
        check_whole_number("seed", self.seed)
        choices.check_drawing(self.temperature, self.top_p)
        object.__setattr__(self, "stop", check_list("stop", self.stop))
        if not all(isinstance(one, str) for one in self.stop):
            raise InputError(f"setting stop is {self.stop!r}, expected a list of strings")
        check_setting("apply_chat_template", self.apply_chat_template, (True, False))
        if self.system_prompt is not None and not isinstance(self.system_prompt, str):
            raise InputError(f"setting system_prompt is {self.system_prompt!r}, expected a text")
        if self.temperature == 0 and self.n != 1:
            raise InputError(
                f"setting temperature is 0 and n is {self.n}: greedy samples of a prompt are all "
                "the same; give n 1, or a temperature above 0"
            )
        if self.system_prompt is not None and not self.apply_chat_template:
            raise InputError(
                "setting system_prompt: a system message has a place in a chat template alone; "
                "give --apply-chat-template too, or write it into the prompts"
            )

    def drawing(self) -> dict[str, Any]:
        """What `GenerationRequest` takes of them, without the seed."""
        names = ("max_new_tokens", "temperature", "top_p", "top_k", "stop")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass
class Work:
    """Prompts with the samples that are known; a run fills in what is missing.

    Attributes:
        prompts: as from `prompts.load`, with the seed of the settings.
        samples: of each prompt; None, or fewer than n, where some are still to be written.
        n: samples that each is to have.
        n_previous: records that the output file has already; they stay in it.
        facts: what each record says of the model, see `self_certainty.Work`.
        path: of the output file, for messages.
    """

    prompts: Sequence[Prompt]
    samples: list[task.Samples | None]
    n: int
    n_previous: int = 0
    facts: Mapping[str, Any] | None = None
    path: Path = Path("output")
    errors: dict[int, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """A prompt that cannot be used is finished."""
        self.errors |= {one.index: one.error for one in self.prompts if one.error}

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)

    @property
    def missing(self) -> list[Prompt]:
        """The prompts that lack samples."""
        return [one for one in self.prompts if self.record(one.index) is None]

    def record(self, index: int) -> dict[str, Any] | None:
        """Of a prompt that is finished; None while it lacks samples."""
        known = self.samples[index]
        if index in self.errors:
            return task.failed(self.prompts[index], self.errors[index])
        if known is None or len(known.texts) < self.n:
            return None
        return task.record(self.prompts[index], known)

    def records(self) -> Iterable[dict[str, Any]]:
        """What the output file holds by now."""
        known = [self.record(k) for k in range(len(self.prompts))]
        return task.finished(self.prompts, known, self.n_previous)


def made_with(facts: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """What each record says of how it was made, but for the dtype."""
    facts = dict(facts)
    return {
        "generator": facts.pop("model"),
        **facts,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "max_tokens": settings.max_new_tokens,
        "stop": [*settings.stop] or None,
        "seed": settings.seed if settings.temperature else None,
        "apply_chat_template": settings.apply_chat_template or None,
        "system": settings.system_prompt,
    }


def evaluate(
    lm: Any,
    items: Iterable[Any],
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Write n samples of each prompt.

    Args:
        lm: a `LocalLM` that generates; None is enough for a `Work` from which nothing is missing.
        items: objects with a `prompt` or `messages`, or `Work` that an earlier run has begun.
        on_item: takes each record in the input's order as soon as it is finished, but none that
            the work held already; no record is then in the result.

    Raises:
        NothingUsable: no prompt has samples.
        InputError: the model does not run in this process.
    """
    assert settings.n is not None  # `Settings` has made sure
    if isinstance(items, Work):
        work = items
    else:
        known = prompts.read(items, settings.seed)
        work = Work(known, [None] * len(known), settings.n)
    before = {k for k in range(work.n_previous) if work.record(k) is not None}
    told = InOrder(on_item, work.record, len(work.prompts), before)
    started = time.perf_counter()
    n_tokens = _sample(lm, work, settings, told.offer) if work.missing else 0
    told.offer()
    errors = [(one.name, work.errors.get(one.index)) for one in work.prompts]
    sample_items.refuse_if_all_failed(errors)
    failures = [Failure(name, error) for name, error in errors if error is not None]
    good = [one for k, one in enumerate(work.samples) if one is not None and k not in work.errors]
    ends = collections.Counter(end for one in good for end in one.finish)
    summary = {
        "n_items": len(work.prompts),
        "n_failed": len(failures),
        "n_samples": ends.total(),
        "n_empty": sum(not text for one in good for text in one.texts),
        **{f"n_ended_by_{name}": ends[name] for name in task.FINISHES},
        "n_tokens_written": n_tokens,
    }
    records = [] if on_item is not None else list(work.records())
    return Evaluation(
        summary=summary,
        items=records,
        n_items=len(work.prompts),
        rows=[row for one in records for row in _rows(one)],
        details={"summary": summary},
        long={"items": records},
        headline=_headline(summary, settings.n),
        remarks=_remarks(summary, settings),
        failures=failures,
        seconds=time.perf_counter() - started,
    )


def _sample(lm: Any, work: Work, settings: Settings, offer: Callable[[], None]) -> int:
    """Write what is missing; gives how many tokens that were."""
    lm = require_local("sample", lm, "generates")
    facts, dtype = work.facts or earlier_output.model_facts(lm), lm.describe()["dtype"]
    made = {**made_with(facts, settings), "dtype": dtype}
    task.check_dtype(work.prompts, work.samples, dtype, work.path)
    generator, before = lm.generator(), lm.statistics.tokens_written
    usable = [one for one in work.prompts if one.index not in work.errors]
    several = max(1, ASKED_PER_ROW * generator.side_by_side // work.n)
    for k in range(0, len(usable), several):
        # The same prompts together as in a run from the beginning, so that a sample has the same
        # row and block, and with them the same last bits, whatever an earlier run has left.
        together = usable[k : k + several]
        missing = {one.index for one in together if work.record(one.index) is None}
        if not missing:
            continue
        if lm.journal is None:  # which has what is not missing
            together = [one for one in together if one.index in missing]
        read = _model_inputs(lm, together, work, settings)
        asked = [
            request
            for prompt, text in read
            for request in task.requests(prompt, text, work.n, **settings.drawing())
        ]
        for place, own in _of_prompts(generator.stream(asked), work.n):
            prompt, text = read[place]
            if prompt.index not in missing:
                continue
            try:
                known = work.samples[prompt.index]
                work.samples[prompt.index] = task.take(known, own, text, made)
            except InputError as problem:
                work.errors[prompt.index] = str(problem)
            offer()
    return int(lm.statistics.tokens_written) - before


def _of_prompts(
    texts: Iterator[tuple[int, Generated]], n: int
) -> Iterator[tuple[int, list[Generated]]]:
    """Each prompt's place and its n samples, as soon as the last of them has ended."""
    found: dict[int, dict[int, Generated]] = {}
    for place, one in texts:
        prompt, k = divmod(place, n)
        found.setdefault(prompt, {})[k] = one
        if len(found[prompt]) == n:
            own = found.pop(prompt)
            yield prompt, [own[k] for k in range(n)]


def _model_inputs(
    lm: LocalLM, together: Sequence[Prompt], work: Work, settings: Settings
) -> list[tuple[Prompt, str]]:
    """What the model reads of each prompt; one that cannot be read fails alone."""
    out = []
    for prompt in together:
        try:
            text = prompts.model_input(
                lm.encoder,
                prompt,
                chat=settings.apply_chat_template,
                system=settings.system_prompt,
                most=lm.capabilities.max_positions,
            )
        except InputError as problem:
            work.errors[prompt.index] = str(problem)
        else:
            out.append((prompt, text))
    return out


def _headline(summary: Mapping[str, Any], n: int) -> str:
    n_items = summary["n_items"]
    good = n_items - summary["n_failed"]
    return (
        f"{good} of {n_items} prompts have {n} samples each, {summary['n_tokens_written']} tokens "
        f"written in this run; of {summary['n_samples']} samples {summary['n_ended_by_eos']} ended "
        f"by themselves, {summary['n_ended_by_stop']} at a stop string, "
        f"{summary['n_ended_by_length']} were cut by length"
    )


def _remarks(summary: Mapping[str, Any], settings: Settings) -> list[str]:
    """What is legal and still worth telling."""
    if not (n := summary["n_empty"]):
        return []
    told = f"{n} of {summary['n_samples']} samples are empty: the model ended at once"
    advice = "; a chat model reads its prompts with --apply-chat-template"
    return [told + ("" if settings.apply_chat_template else advice)]


def _rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per sample; one for a prompt without any."""
    own = {"prompt": record.get(prompts.PROMPT), "error": record.get("error")}
    ends = record.get("finish", [])
    pairs = zip(record["output"], ends, strict=True)
    rows = [
        {**own, "sample": k, "text": text, "finish": end} for k, (text, end) in enumerate(pairs, 1)
    ]
    return rows or [{**own, "sample": None, "text": None, "finish": None}]
