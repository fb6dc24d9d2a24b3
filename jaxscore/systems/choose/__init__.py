"""Multiple choice: which of several texts a model finds the most probable after a context.

sum   the highest ln p(option | context)
norm  the highest ln p(option | context) per UTF-8 byte of the option
token the highest ln p(option | context) per token of the option
PMI   the highest ln p(option | context) - ln p(option | premise), the pointwise mutual
      information with the context (Holtzman et al. 2021, arXiv 2104.08315)
"""

import dataclasses
import itertools
import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypedDict, cast

import numpy as np

from jaxscore.analysis import margins, paired
from jaxscore.analysis.bootstrap import Column, Estimate, summarise
from jaxscore.analysis.forecasts import brier, calibration, skill, softmax
from jaxscore.errors import InputError
from jaxscore.io.json_output import where
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.shell.fields import PAIRED, Decision, Mean, Metric, Result
from jaxscore.shell.flags import flag
from jaxscore.shell.prompts import Example, JointSettings
from jaxscore.shell.report import Report
from jaxscore.shell.settings import SliceSettings
from jaxscore.shell.system import Aside, Summary, System, failed
from jaxscore.systems.choose.item import FROM_ONE_HINT, LETTERS, Item
from jaxscore.systems.choose.orders import check_orders, mean_places, order_fields, orders_of
from jaxscore.systems.choose.report import report
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest

FROM_ONE = (
    "gold indices count from 0, and yours seem to count from 1: no item's gold is the first "
    "option; subtract 1 if they do"
)
RULES = ("", "_norm", "_pmi", "_token")  # endings of `choice`, `acc` and `skill`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(JointSettings, SliceSettings):
    """Settings of `choose`."""

    boundary: Literal["joint", "separate"] = flag(
        "joint",
        help="joint: encode context and option as one text (default); separate: encode each and "
        "join the ids",
    )
    pmi_context: str = flag(
        "Answer:",
        metavar="TEXT",
        help="the premise of acc_pmi, a text that asks for an answer without the question "
        "(default: 'Answer:'); '' scores each option after the BOS, as lm-evaluation-harness does",
    )
    options_as: Literal["texts", "letters"] = flag(
        "texts",
        help="texts: score each option (default); letters: list the options in the prompt, in "
        "lines such as 'A. Oslo', and score their letters, as published for MMLU",
    )

    calibrate: tuple[str, ...] | None = flag(
        None,
        metavar="TEXT",
        help="whole contexts that say nothing of the item, such as 'N/A': an option's probability "
        "is divided by its mean probability after them (arXiv 2102.09690)",
    )

    orders: str | None = flag(
        None,
        metavar="all|cyclic|N",
        help="with --options-as letters, also ask with the options in other orders: all of them, "
        "each rotation, or N in total, drawn by --seed (default: the file's order)",
    )

    def __post_init__(self) -> None:
        """Check all values; see `AnswerSettings`."""
        super().__post_init__()
        if self.orders is not None:
            check_orders(self.orders)
            if not self.has_letters:
                raise InputError("orders: prompts have no order of texts; add --options-as letters")

    @property
    def has_letters(self) -> bool:
        """True if the letters of the options are scored."""
        return self.options_as == "letters"

    def omitted_fields(self) -> frozenset[str]:
        """Declared fields that no record of a run with these settings has."""
        prompt = () if self.has_letters else ("prompt",)
        orders = () if self.orders else ORDERED
        return frozenset((*prompt, *orders, *(() if self.calibrate else CALIBRATED)))

    def variants(self) -> dict[str, dict[str, Self]]:
        """See `AnswerSettings.variants`; letters have a space already."""
        variants = super().variants()
        if self.has_letters:
            variants.pop("blank", None)
        return variants

    def orders_of(self, item: Item) -> list[tuple[int, ...]]:
        """The orders in which an item is asked, the file's first."""
        return orders_of(len(item.options), self.orders, self.seed)

    def prompts_of(self, item: Item) -> list[str]:
        """The text before the options in each order, without system prompt and examples."""
        prompts = [item.context]
        if self.has_letters:
            prompts = [item.lettered(order) for order in self.orders_of(item)]
        return [self.joined(prompt, " x")[0] for prompt in prompts]

    def continuations_of(self, item: Item) -> list[str]:
        """The texts that are scored, one for each option."""
        if self.has_letters:
            return [self.joined("x", f" {letter}")[1] for letter in LETTERS[: len(item.options)]]
        return [self.joined(item.context, option)[1] for option in item.options]

    def example_of(self, item: Item) -> Example:
        """An item with its right option as a few-shot example."""
        return Example(self.prompts_of(item)[0], self.continuations_of(item)[item.gold], item.key)


def _option_index(record: Mapping[str, Any], field: str) -> int:
    """Index that a stored record has for an option.

    Raises:
        InputError: there is no such option, or the options and their scores differ in number.
    """
    index, n = record[field], len(record["options"])
    if len(sums := record["sum_logprob"]) != n:
        raise InputError(f'field "sum_logprob" has {len(sums)} entries, expected {n}')
    if not 0 <= index < n:
        raise InputError(f'field "{field}" is {index!r}, expected the place of one of {n} options')
    return index


def _chosen(field: str) -> Callable[[Mapping[str, Any]], str]:
    """The text of the option that a rule chose."""
    return lambda record: record["options"][_option_index(record, field)]


def _lead(record: Mapping[str, Any]) -> float:
    return margins.lead(record["sum_logprob"])


def _right_from_wrong(record: Mapping[str, Any]) -> float:
    is_right = right_options(record["options"], _option_index(record, "gold"))
    return margins.right_from_wrong(record["sum_logprob"], is_right)


def _gold_logprob(record: Mapping[str, Any]) -> float:
    return record["sum_logprob"][_option_index(record, "gold")]


STATISTIC = "log-probability"
ORDERED = ("order_choices", "order_changes", "place_probability")
CALIBRATED = ("content_free", "probability_calibrated", "choice_calibrated", "acc_calibrated")


class Record(TypedDict, total=False):
    """One output line; the fields from `gold` on only if the item has a gold option."""

    id: str | int
    context: Annotated[str, PAIRED]
    prompt: str
    options: Annotated[list[str], PAIRED]
    category: str
    sum_logprob: list[float]
    n_tokens: list[int]
    n_bytes: list[int]
    pmi: list[float] | None
    probability: list[float]
    choice: Annotated[
        int,
        Decision(
            "option chosen by log-probability", False, STATISTIC, _chosen("choice"), _lead,
            "within_noise",
        ),
    ]  # fmt: skip
    choice_norm: Annotated[
        int,
        Decision("option chosen by log-probability per byte", value=_chosen("choice_norm")),
    ]
    choice_pmi: Annotated[int | None, Decision("option chosen by PMI", value=_chosen("choice_pmi"))]
    choice_token: Annotated[
        int,
        Decision("option chosen by log-probability per token", value=_chosen("choice_token")),
    ]
    margin: float
    content_free: list[float] | None
    probability_calibrated: list[float] | None
    choice_calibrated: Annotated[
        int | None,
        Decision("option chosen by calibrated probability", value=_chosen("choice_calibrated")),
    ]
    gold: Annotated[
        int,
        PAIRED,
        Metric("log-probability of the right option, nats", "gold_logprob", _gold_logprob),
    ]
    acc: Annotated[
        bool,
        Decision(
            "the option chosen by log-probability is right", True, STATISTIC, None,
            _right_from_wrong, "acc_within_noise",
        ),
        Result("accuracy"),
        Mean("acc"),
    ]  # fmt: skip
    acc_norm: Annotated[
        bool,
        Decision("the option chosen by log-probability per byte is right", is_right=True),
        Mean("acc_norm"),
    ]
    acc_pmi: Annotated[
        bool | None,
        Decision("the option chosen by PMI is right", is_right=True),
        Mean("acc_pmi"),
    ]
    acc_token: Annotated[
        bool,
        Decision("the option chosen by log-probability per token is right", is_right=True),
        Mean("acc_token", in_table=False),
    ]
    acc_calibrated: Annotated[
        bool | None,
        Decision("the option chosen by calibrated probability is right", is_right=True),
        Mean("acc_calibrated"),
    ]
    chance: Annotated[float, Mean("Chance")]
    skill: float
    skill_norm: float
    skill_pmi: float | None
    skill_token: float
    brier: Annotated[float, Mean("Brier score", in_table=False)]
    gold_bpb: Annotated[
        float,
        Metric("bits per byte of the right option"),
        Mean("Bits per byte of the right option"),
    ]
    order_choices: list[int]
    order_changes: Annotated[float, Metric("share of orders in which another text is chosen")]
    place_probability: list[float]
    within_noise: bool
    acc_within_noise: bool
    truncated: list[int]


SHARES = tuple(f"acc{rule}" for rule in RULES)
MEANS = {
    name: Column(name, share=name in SHARES)
    for name in (*SHARES, "chance", *(f"skill{rule}" for rule in RULES), "brier", "gold_bpb")
}


def _problem(result: ScoredRequest) -> str | None:
    """Return why tokens of an option lack a log-probability, or None if all have one."""
    if result.error is not None:
        return result.error
    if not result.n_tokens:
        return "it adds no token to the context, and so lacks a probability"
    if result.n_scored < result.n_tokens:
        return (
            "its first token has nothing before it and so no probability; give a context, or a "
            "model whose tokenizer writes a BOS"
        )
    return None


def _failed(item: Item, error: str) -> dict[str, Any]:
    """Return the record of an item that cannot be scored, without `id`."""
    asked = {"context": item.context, "options": list(item.options), "category": item.category}
    return {**asked, "error": error}


def _record(
    item: Item,
    settings: Settings,
    results: Sequence[ScoredRequest],
    before: Sequence[Sequence[float | None]],
) -> dict[str, Any]:
    """Return the record of an item without `id`: `error` and no scores if an option failed.

    Args:
        results: one for each option, in each order.
        before: log-probabilities of the options after the premise, and after each text of
            `calibrate`, nats; None for an option that has none.
    """
    options = item.options
    record: dict[str, Any] = {
        "context": item.context,
        **({"prompt": settings.prompts_of(item)[0]} if settings.has_letters else {}),
        "options": list(options),
        "category": item.category,
    }
    for index, result in enumerate(results):
        if (problem := _problem(result)) is not None:
            return _failed(item, f"option {index % len(options) + 1}: {problem}")
    totals = [float(result.sum_logprob or 0.0) for result in results]
    rows = [totals[k : k + len(options)] for k in range(0, len(totals), len(options))]
    is_cut = any(result.truncated for result in results)
    sums, results = rows[0], results[: len(options)]
    lengths = [1 if settings.has_letters else n_bytes(option) for option in options]
    prior, *free = before
    pmi = None
    if None not in prior:
        pmi = [total - float(less or 0.0) for total, less in zip(sums, prior, strict=True)]
    per_byte = [total / length for total, length in zip(sums, lengths, strict=True)]
    per_token = [total / result.n_tokens for total, result in zip(sums, results, strict=True)]
    scores: dict[str, Any] = dict(zip(RULES, (sums, per_byte, pmi, per_token), strict=True))
    # Of equal options argmax takes the first.
    chosen = {
        rule: None if values is None else int(np.argmax(values)) for rule, values in scores.items()
    }
    probability = softmax(sums)
    record |= {
        "sum_logprob": sums,
        "n_tokens": [result.n_tokens for result in results],
        "n_bytes": lengths,
        "pmi": pmi,
        "probability": probability.tolist(),
        **{f"choice{rule}": choice for rule, choice in chosen.items()},
        "margin": margins.lead(sums),
    }
    if settings.calibrate:
        record |= _calibrated(sums, free)
    if item.gold is not None:
        correct = right_options(options, item.gold)
        right = {rule: None if k is None else correct[k] for rule, k in chosen.items()}
        record |= {"gold": item.gold, **{f"acc{rule}": hit for rule, hit in right.items()}}
        record["chance"] = sum(correct) / len(sums)
        record |= {
            f"skill{rule}": None if hit is None else skill(hit, sum(correct), len(sums))
            for rule, hit in right.items()
        }
        record["brier"] = brier(probability, truth(options, item.gold))
        asked = settings.continuations_of(item)[item.gold]
        record["gold_bpb"] = -sums[item.gold] / math.log(2) / len(asked.encode())
        if settings.calibrate:
            choice = record["choice_calibrated"]
            record["acc_calibrated"] = None if choice is None else correct[choice]
    if settings.orders:
        record |= order_fields(options, settings.orders_of(item), rows)
    if is_cut:
        record["truncated"] = [result.truncated for result in results]
    return record


def _calibrated(sums: Sequence[float], free: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Calibrated probabilities of an item (Zhao et al. 2021, arXiv 2102.09690).

    Args:
        free: log-probabilities of the options after each text of `calibrate`.
    """
    fields = CALIBRATED[:3]
    if any(None in after for after in free):
        return dict.fromkeys(fields)
    content_free = np.mean([softmax(cast(Sequence[float], after)) for after in free], axis=0)
    with np.errstate(divide="ignore"):  # an option that is never probable there wins
        probability = softmax(np.minimum(np.array(sums) - np.log(content_free), 1e6))
    values = (content_free.tolist(), probability.tolist(), int(np.argmax(probability)))
    return dict(zip(fields, values, strict=True))


def n_bytes(option: str) -> int:
    """UTF-8 bytes of an option without the blanks before it, unless it is all blanks.

    lm-evaluation-harness writes the blank between context and option itself and does not count it.
    """
    return len((option.lstrip() or option).encode())


def right_options(options: Sequence[str], gold: int) -> list[bool]:
    """Return True for each option whose text equals the gold option's."""
    return [option == options[gold] for option in options]


def truth(options: Sequence[str], gold: int) -> list[float]:
    """Probability of each option if the answer is certain; equal options share it equally."""
    correct = right_options(options, gold)
    return [is_right / sum(correct) for is_right in correct]


def _count_ties(good: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """By rule, the number of items whose best value several options have."""
    ties = dict.fromkeys(("choice", "choice_norm", "choice_pmi"), 0)
    for record in good:
        sums = record["sum_logprob"]
        per_byte = [a / b for a, b in zip(sums, record["n_bytes"], strict=True)]
        for name, scores in zip(ties, (sums, per_byte, record["pmi"]), strict=True):
            ties[name] += scores is not None and margins.lead(scores) == 0
    return ties


def _counts_from_one(records: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if gold indices seem to be counted from 1.

    No item's gold is the first option. In addition an index is the number of options, or the model
    chooses the option before the gold one more often than the gold one: significantly (sign test,
    p < 0.01), or where right options at random places would seldom leave out the first one.
    """
    before = exact = 0
    chance, is_beyond = 1.0, False
    for record in records:
        if "error" in record:
            is_beyond = is_beyond or record["error"].endswith(FROM_ONE_HINT)
        elif (gold := record.get("gold")) is not None:
            if not gold:
                return False
            before += record["choice"] == gold - 1
            exact += record["choice"] == gold
            chance *= 1 - 1 / len(record["options"])
    is_likely = before > exact and (paired.mcnemar(before, exact) < 0.01 or chance < 0.02)
    return is_beyond or is_likely


def _warnings(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Warnings about the records of scored items; which fields others have depends on the file."""
    n_items = n_without_gold = n_without_pmi = n_repeated = 0
    ids = array("q")  # digests, which are smaller
    for record in records:
        n_items += 1
        ids.append(hash(repr(record["id"])))
        n_repeated += len(set(record["options"])) < len(record["options"])
        n_without_gold += record.get("gold") is None
        n_without_pmi += record["pmi"] is None
    _, n_of_id = np.unique(np.array(ids), return_counts=True)
    counts = {
        "say no gold option; they are in no accuracy": n_without_gold,
        "have an option without a probability after the premise, so no PMI": n_without_pmi,
        "have the same option more than once; the first one is chosen, and each that equals "
        "the gold option is right": n_repeated,
        "share their id with another item": int(n_of_id[n_of_id > 1].sum()),
    }
    return [f"{n} of {n_items} scored items {what}" for what, n in counts.items() if n]


def unequal_spaces(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a finding on items whose options differ in their leading spaces, or nothing."""
    n_items, counts = 0, Counter[str]()
    for record in records:
        if "error" in record:
            continue
        n_items += 1
        spaces = [len(option) - len(option.lstrip(" ")) for option in record["options"]]
        if len(set(spaces)) == 1:
            continue
        counts["differ"] += 1
        if (gold := record.get("gold")) is not None:
            others = {*spaces[:gold], *spaces[gold + 1 :]}
            counts["with"] += spaces[gold] > 0 and others == {0}
            counts["without"] += spaces[gold] == 0 and 0 not in others
    if not counts["differ"]:
        return []
    golds = [
        f"in {counts[name]} {which}"
        for name, which in (
            ("with", "the right option alone has one"),
            ("without", "the right option alone has none"),
        )
        if counts[name]
    ]
    which = f" ({', '.join(golds)})" if golds else ""
    return [
        f"The options of {counts['differ']} of {counted(n_items, 'scored items')} differ in their "
        f"leading spaces{which}, so the choice may follow the space and not the text; add "
        "--answer-separator ' '"
    ]


def headline(summary: Mapping[str, Any]) -> str:
    """The accuracies, the first with its interval, and the chance level."""
    if not summary["n_scored"]:
        return "no item was scored"
    means: Mapping[str, Estimate] = summary["overall"]
    acc, chance = means["acc"], means["chance"]
    if acc.mean is None or chance.mean is None:
        return f"{counted(summary['n_scored'], 'items')} scored, none with a gold option"
    span = acc.span(".4f", " (", ")")
    others = "".join(
        f", {name} {mean:.4f}"
        for name in ("acc_norm", "acc_pmi", "acc_calibrated")
        if name in means and (mean := means[name].mean) is not None
    )
    return f"acc {acc.mean:.4f}{span}{others}, chance {chance.mean:.4f}, {counted(acc.n, 'items')}"


class Choose(System):
    """Which of several texts does a model find the most probable after a context, and
    is it the right one?

    input, one object per line:
      {"id": "q1", "context": "Q: Where is Oslo?\\nA:",
       "options": [" Norway", " Spain"], "gold": 0, "category": "places"}
      `gold` is the index of the right option from 0, its text or its letter; it may
      be left out, and so may `id` and `category`. Options may also be columns A, B,
      C ..., or {"text": [...], "label": [...]}. A space between the context and an
      option belongs to the option. A JSON array, .csv, .tsv (`options` as JSON
      text), .parquet or a folder of datasets' save_to_disk holds the same; --column
      options=choices reads a field from the column `choices`.

    spaces: `Answer:` and `Paris` make other tokens than `Answer: Paris`.
      If options of an item differ in their spaces, or a space would make most of
      them more probable, the output says so first; --answer-separator ' ' adds it.

    letters: --options-as letters lists the options before the "Answer:" of a
      context, or in place of its `{options}`, and scores " A" and " B":
        Q: Where is Oslo?
        A. Norway
        B. Spain
        A:
      `prompt` has the text. --orders also asks in other orders. --fewshot shows
      items that have `gold`.

    chosen is the first option with the highest
      acc       sum of log-probability of its tokens
      acc_norm  sum per UTF-8 byte, spaces before the option not counted
                (lm-evaluation-harness' acc_bytes; its acc_norm counts characters)
      acc_pmi   sum, less the sum after --pmi-context (arXiv 2104.08315), which
                follows no system prompt and no examples
      acc_token sum per token
      acc_calibrated, with --calibrate: probability divided by its mean after TEXTs

    output, one line per item, in order:
      id, context, options, category, sum_logprob[], n_tokens[], n_bytes[], pmi[],
      probability[] (softmax of the sums), choice, choice_norm, choice_pmi,
      choice_token, margin (of the best sum over the next); with gold also gold,
      acc, acc_norm, acc_pmi, acc_token, chance, skill and skill_... by the same
      rules, brier, gold_bpb (bits per byte of the right option, its space counted,
      as OLMES does, arXiv 2508.13144); with --calibrate content_free[],
      probability_calibrated[], choice_calibrated, acc_calibrated; with --orders
      order_choices[] (the option chosen in each order, the file's first),
      order_changes (share of orders in which that is another text) and
      place_probability[] (mean over the orders); other fields of the input line. An
      OUT that ends in .csv, .tsv or .parquet is a table with these columns.
      Next to OUT are OUT.report.md and OUT.report.json (accuracy, skill and
      calibration, also by category), OUT.report.html, a page for a browser with
      wrong items first, and OUT.run.json. With --audit-noise an item has
      `within_noise` and `acc_within_noise`: whether rounding could change the
      choice by the sum, and whether it is right.

    exit code: 0 all scored, 1 some items failed (their lines hold `error`),
               2 unusable input.
    """

    name = "choose"
    item, settings, record = Item, Settings, Record

    def score(self, lm: Any, items: Sequence[Item], settings: Settings) -> Iterator[dict[str, Any]]:
        """Score each option of each item whole, after the context and after the premise.

        Raises:
            InputError: settings that the model cannot do.
        """
        settings.check_model(lm.capabilities)
        prompting = settings.prompting(lm, map(settings.example_of, settings.drawn()))
        settings.note(lm, prompting, (item.key for item in items) if prompting.examples else ())

        def texts_of(item: Item) -> list[str]:
            return [prompting.continuation_of(text) for text in settings.continuations_of(item)]

        texts = list(dict.fromkeys(text for item in items for text in texts_of(item)))
        premises = (settings.pmi_context, *(settings.calibrate or ()))
        waiting: deque[tuple[Item, str | None]] = deque()  # why it cannot be scored

        def requests() -> Iterator[Request]:
            bare = dataclasses.replace(prompting, system=None, examples=())
            premise, *calibrate = (settings.joined(text, "x")[0] for text in premises)
            contexts = [bare.context_of(premise), *map(prompting.context_of, calibrate)]
            for k, text in enumerate(texts, start=1):
                for context in contexts:
                    yield Aside(f"premise.{k}", context, text)
            for number, item in enumerate(items, start=1):
                try:
                    prompts = settings.prompts_of(item)
                    prompting.check_blank(prompts[0], settings.options()["boundary"])
                    contexts = [prompting.context_of(prompt, item.key) for prompt in prompts]
                except InputError as problem:
                    waiting.append((item, str(problem)))
                    continue
                waiting.append((item, None))
                for context in contexts:
                    for k, text in enumerate(texts_of(item), start=1):
                        yield Request(f"{number}.{k}", context, text)

        n = None  # of the requests
        if settings.orders is None:
            n = len(premises) * len(texts) + sum(len(item.options) for item in items)
        results = lm.stream(requests(), n_requests=n, **settings.options())
        priors = {
            text: [
                result.sum_logprob if _problem(result) is None else None
                for result in itertools.islice(results, len(premises))
            ]
            for text in texts
        }
        scored: list[ScoredRequest] = []  # of the first item that waits
        for result in results:
            scored.append(result)
            while (error := waiting[0][1]) is not None:
                yield _failed(waiting.popleft()[0], error)
            item, _ = waiting[0]
            if len(scored) == len(item.options) * len(settings.orders_of(item)):
                waiting.popleft()
                before = zip(*(priors[text] for text in texts_of(item)), strict=True)
                yield _record(item, settings, scored, list(before))
                scored = []
        yield from (_failed(item, str(error)) for item, error in waiting)

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Accuracies, skill and calibration, over the items with a gold option."""
        good = where(records, lambda record: "error" not in record)
        with_gold = where(good, lambda record: record.get("gold") is not None)
        columns = MEANS
        if settings.calibrate:
            columns = {**columns, "acc_calibrated": Column("acc_calibrated", share=True)}
        if settings.orders:
            columns = {**columns, "order_changes": Column("order_changes")}
        numbers = {
            "n_scored": len(good),
            "n_with_gold": len(with_gold),
            "ties": _count_ties(good),
            **summarise(with_gold, columns, settings.n_bootstrap, settings.seed, "category"),
        }
        curve = calibration(
            (record["probability"] for record in with_gold),
            (truth(record["options"], record["gold"]) for record in with_gold),
        )
        return Summary(
            headline=headline(numbers),
            numbers=numbers,
            details={
                "calibration": curve,
                **({"places": mean_places(good)} if settings.orders else {}),
            },
            failures=failed(records),
            warnings=[*_warnings(good), *([FROM_ONE] if _counts_from_one(records) else [])],
        )

    def findings(self, run: Report) -> list[str]:
        """Options that differ in their spaces, and so in more than their words."""
        settings: Any = run.chosen
        has_separator = settings.answer_separator is not None
        if has_separator or settings.has_letters or settings.apply_chat_template:
            return []
        return unequal_spaces(run.records)

    def report(self, run: Report) -> Document:
        """Wrong items first; see `choose.report`."""
        return report(run.source(items=run.records))


SYSTEM = Choose()
