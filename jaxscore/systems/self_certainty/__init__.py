"""`self-certainty`: the divergence of a model's predictions for an output from uniform ones.

    self-certainty = mean over the output's tokens of KL(uniform || p(. | x, y<i))
                   = -1/(nV) sum_i sum_j log(V p(j | x, y<i))        (arXiv 2502.18581)

An item has one input and many outputs, and gets a `confidence_list`, one number per output.
"""

import dataclasses
import functools
import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import numpy as np

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Estimate, estimate
from jaxscore.engine import WINDOW
from jaxscore.errors import InputError
from jaxscore.io.items import item_label
from jaxscore.io.json_input import require_field
from jaxscore.io.json_output import Lazy
from jaxscore.report import markdown
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.shell.fields import Decision, Metric, NoiseFloor, Paired, Place
from jaxscore.shell.flags import flag
from jaxscore.shell.items import Entry, Items, check_usable
from jaxscore.shell.made import check_made, record_facts
from jaxscore.shell.report import Report
from jaxscore.shell.settings import IntervalSettings
from jaxscore.shell.system import Layout, LenientSystem, Summary
from jaxscore.systems.drawn_tokens import ID_FIELDS, DrawnTokens, length_limit
from jaxscore.systems.selection import read_noise
from jaxscore.systems.selection.answers import (
    AUTO,
    NO_READABLE_ANSWER,
    RULE_HELP,
    Rule,
    form_lines,
)
from jaxscore.systems.selection.symbolic import UNVERIFIED
from jaxscore.systems.self_certainty import right_responses
from jaxscore.systems.self_certainty.confidences import Confidence, Inputs, read_inputs
from jaxscore.systems.self_certainty.report import report
from jaxscore.systems.self_certainty.right_responses import RightResponses
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest

# Value of --alignment -> policy of the encoder; the published script reads one token late.
ALIGNMENTS: dict[str, Boundary] = {"formula": "separate", "upstream": "after"}
CHARACTERS_PER_TOKEN = 3
STATISTIC = "self-certainty"
STALE_IDS = (
    "{n} outputs have token_ids that are not those of the texts in this tokenizer: the text was "
    "edited, another model drew them, or they are padded; these texts were encoded again"
)
WITHOUT_IDS = (
    "{n} outputs have no token_ids: their texts were encoded again, which may give other tokens "
    "than were drawn; sample keeps the ids"
)
OTHER_TOKENS = (
    "{n} outputs without token_ids certainly have other tokens than were drawn; of the others the "
    "text does not show it"
)
CUT = "{n} outputs were scored after an input cut at its left"
UNSTATED = (
    "{n} items do not record how they were computed and are kept unchanged; the published script "
    "computes in half precision and with the equivalent of --alignment upstream"
)
BATCHES_TOGETHER = 64  # planned at once: few enough that results reach the file soon


class Item(TypedDict, total=False):
    """An input with its outputs."""

    id: str | int
    model_input: str
    input: str
    output: list[str]
    generator: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(IntervalSettings):
    """Settings of `self-certainty`."""

    fixed = ("alignment",)
    input_field: str = flag(
        "model_input",
        "--input-field-name",
        metavar="NAME",
        expected="the name of a field",
        help="default: model_input",
    )
    output_field: str = flag(
        "output",
        "--output-field-name",
        metavar="NAME",
        expected="the name of a field",
        help="default: output",
    )
    gold: str | None = flag(
        None,
        metavar="FIELD",
        expected="the name of a field",
        help="field of the items with the right answer, a list of acceptable ones, or true or "
        "false for each output: tell how well four confidences find the right outputs",
    )
    answer_rule: Rule = flag(AUTO, help=RULE_HELP)
    alignment: Literal["formula", "upstream"] = flag(
        "formula",
        help="formula: the prediction of each token, made before it (default); upstream: the one "
        "made after it, as the published script counts",
    )
    batch_size: int | None = flag(
        None,
        least=1,
        metavar="N",
        is_advanced=True,
        help="no effect, accepted since the published script has it; see --batch-tokens",
    )

    def __post_init__(self) -> None:
        """Check all values; see `IntervalSettings`."""
        super().__post_init__()
        if self.gold is None and self.answer_rule != AUTO:
            raise InputError(
                f"setting answer_rule is {self.answer_rule} without gold: no answer is read; name "
                "the field with the right answer"
            )
        if self.gold is not None and self.alignment != "formula":
            raise InputError(
                f"setting gold with alignment {self.alignment}: its log-probabilities are of other "
                "tokens than the outputs have; take alignment formula"
            )

    def options(self) -> dict[str, Any]:
        """See `ScoringSettings.options`."""
        policy = ALIGNMENTS[self.alignment]
        return {"boundary": policy, "truncate": self.truncate, "special_tokens": False}

    @property
    def list_fields(self) -> tuple[str, ...]:
        """See `Settings.list_fields`."""
        return (self.output_field, *ID_FIELDS)

    def record(self) -> dict[str, Any]:
        """Return the settings for a report; those of grading only if outputs are graded."""
        unused = {"batch_size"} if self.gold else {"batch_size", "gold", "answer_rule"}
        return {name: value for name, value in super().record().items() if name not in unused}


def _scored_outputs(record: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return the (position, confidence) of the scored outputs of a stored record."""
    values = record["confidence_list"]
    n = len(_text(record)[1])
    if len(values) != n:
        raise InputError(f'field "confidence_list" has {len(values)} entries, expected {n}')
    return [(k, value) for k, value in enumerate(values) if value is not None]


def _top(record: Mapping[str, Any]) -> int | None:
    """Return the position of the most certain output, the first of equal ones."""
    return max(_scored_outputs(record), key=lambda pair: pair[1], default=(None, 0.0))[0]


def _top_output(record: Mapping[str, Any]) -> str | None:
    return None if (top := _top(record)) is None else f"output {top + 1}"


def _top_right(record: Mapping[str, Any]) -> bool | None:
    top, right = _top(record), record["right"]
    return None if top is None or len(right) != len(record["confidence_list"]) else right[top]


def _lead(record: Mapping[str, Any]) -> float:
    values = [value for _, value in _scored_outputs(record)]
    return margins.lead(values) if values else math.inf


def _within_noise(record: Mapping[str, Any]) -> bool | None:
    floor, lead = read_noise(record), _lead(record)
    return None if floor is None or not math.isfinite(lead) else margins.within(lead, floor)


def _settings(record: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = record.get("confidence_settings")
    return settings if isinstance(settings, dict) else {}


def _text(record: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Return the input and the outputs of a stored record."""
    settings = _settings(record)
    context = record.get(str(settings.get("input_field", "model_input")), record.get("input"))
    output_field = str(settings.get("output_field", "output"))
    return context, require_field(dict(record), output_field, list, "the item")


class Record(TypedDict, total=False):
    """The fields added to an item; `right`, `answer_forms` and the three lists only with gold."""

    confidence_list: Annotated[
        list[float | None],
        Paired(_text),
        Metric("self-certainty of an output, nats per token", "confidence"),
        Decision(
            "most certain output", False, STATISTIC, _top_output, _lead, _within_noise,
            "top_output",
        ),
    ]  # fmt: skip
    processed_index: Annotated[int, Place()]
    confidence_settings: Annotated[dict[str, Any], NoiseFloor("noise", "mean_self_certainty")]
    confidence_errors: list[str]
    mean_logprob_list: list[float | None]
    mean_entropy_list: list[float | None]
    perplexity_list: list[float | None]
    right: Annotated[
        list[bool | None] | None,
        Decision(
            "the most certain output is right", True, STATISTIC, _top_right, _lead,
            name="top_right",
        ),
    ]  # fmt: skip
    answer_forms: list[str | None]


class Scorable(NamedTuple):
    """An item, the positions of its scorable outputs, and if they are still to be scored."""

    inputs: Inputs
    places: list[int]
    is_missing: bool


def window_size(items: Iterable[Scorable], batch_tokens: int) -> int:
    """Return the number of outputs to plan together: about `BATCHES_TOGETHER` batches of text.

    Outputs of one item share its input within a window.
    """
    n, most_outputs, characters = 0, 1, 0
    for inputs, positions, _ in items:
        n, most_outputs = n + len(positions), max(most_outputs, len(positions))
        characters += len(inputs.context) if positions else 0
        characters += sum(len(inputs.outputs[k]) for k in positions)
    max_characters = BATCHES_TOGETHER * batch_tokens * CHARACTERS_PER_TOKEN
    return min(WINDOW, max(int(max_characters * n / max(1, characters)), most_outputs))


Planned = tuple[Inputs, int, bool]  # an item, the position of an output, and if it is missing


def _plan(items: Iterable[Scorable], window: int, *, whole_windows: bool) -> Iterator[Planned]:
    """Yield the outputs to score.

    Args:
        whole_windows: if True, include the finished outputs of a window, which the journal has:
            each output then has the batch neighbours of an uninterrupted run, and the same bits.
    """
    outputs = ((inputs, k, missing) for inputs, positions, missing in items for k in positions)
    while chunk := list(itertools.islice(outputs, window)):
        is_needed = any(is_missing for _, _, is_missing in chunk)
        yield from (output for output in chunk if output[2] or (whole_windows and is_needed))


def _requests(plan: Iterable[Planned], drawn: DrawnTokens) -> Iterator[tuple[Request, bool]]:
    """Yield (request, is_missing) for each output, with its drawn ids if it has them."""
    last, context = None, None
    for inputs, k, is_missing in plan:
        ids = None
        if inputs.token_ids[k] is not None:
            if inputs is not last:
                last, context = inputs, drawn.context_ids(inputs.fields)
            ids = drawn.request_ids(inputs.fields, k, context)
        name = f"{inputs.name}, output {k + 1}"
        yield Request(name, inputs.context, inputs.outputs[k], ids), is_missing


def _provenance(model: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the `confidence_settings` of records; None for settings that do not apply.

    Args:
        model: see `made.record_facts`; unknown facts are left out.
    """
    facts, names = dict(model), ("alignment", "input_field", "output_field")
    dtype = {"dtype": facts.pop("dtype")} if "dtype" in facts else {}
    out = {**facts, **{name: getattr(settings, name) for name in names}}
    if settings.truncate is None:  # lets a run with truncation continue one without
        out["truncate"] = None
    return {**out, **dtype}


def _headline(summary: Mapping[str, Any]) -> str:
    """Return the mean with its interval and the number of outputs."""
    mean: Estimate = summary["mean_self_certainty"]
    n_outputs, n_scored = summary["n_outputs"], summary["n_scored"]
    if mean.mean is None:
        return f"no confidence: none of {n_outputs} outputs was scored"
    return (
        f"mean self-certainty {mean.mean:.6g} nats per token{mean.span('.6g')}, {n_scored} of "
        f"{counted(n_outputs, 'outputs')}"
    )


def _quality_line(quality: Mapping[str, Any]) -> str:
    """Return a line with the AUROC of self-certainty for right outputs."""
    figures = quality["confidences"].get(right_responses.SELF_CERTAINTY)
    if figures is None or figures["undefined"]:
        reason = figures["undefined"] if figures else "no output has gold and a confidence"
        return f"no AUROC: {reason}"
    auroc = figures["auroc"]
    span = "" if auroc["low"] is None else f" ({auroc['low']:.3f} to {auroc['high']:.3f})"
    right = f"{quality['n_right']} of {quality['n_responses']} outputs are right"
    return "; ".join(
        [f"AUROC {auroc['value']:.3f}{span}, {right}", *right_responses.unreadable(quality)]
    )


def _quality_lines(quality: Mapping[str, Any]) -> list[str]:
    """Return a table of the confidences, given two outputs or more, and the forms of answers."""
    rows = [["", "AUROC", "PRR", "AURC", "ECE"]]
    for name, row in quality["confidences"].items():
        values = [*(row[figure]["value"] for figure in ("auroc", "prr", "aurc")), row["ece"]]
        rows.append([name, *("-" if value is None else f"{value:.3f}" for value in values)])
    table = [markdown.aligned(rows)] if quality["n_responses"] > 1 else []
    return [*right_responses.unreadable(quality), *table, *form_lines(quality)]


class SelfCertainty(LenientSystem):
    """Compute how certain the model was of each of its outputs. Self-certainty is the
    mean of KL(uniform || prediction) over an output's tokens, in nats per token:
    -1/(nV) sum log(V p(j | x, y<i)).

    input, a .json array, or a table (see --input) with these columns:
      [{"model_input": "Question: ...", "output": ["first response", "second"],
        "generator": "MODEL"}]
      `input` is read where `model_input` is absent. Without --model, the model is
      the first item's `generator`. Prompt and output are encoded apart and no
      special token is added, so `model_input` is the text as the model saw it, the
      tokens of its chat template included. `token_ids` (a list for each output) and
      `prompt_token_ids`, as sample writes them, are scored in place of the text's
      if they decode to it: a text that is encoded again may have other tokens.

    output, the same items with
      confidence_list      one number per output; null where it has none (no tokens,
                           no text, longer than the model's positions)
      confidence_errors    why an output has none
      processed_index      from 0
      confidence_settings  model, alignment, dtype, the names of the two fields;
                           `truncate` where the input was cut; with --audit-noise
                           `noise`: how far, in nats, rounding moves a confidence.
                           `select` and `vote` mark what that could change.
      Next to OUT are OUT.run.json: how it was made, and how many outputs failed;
      a readable report, OUT_report.md, its numbers, OUT_report.json (OUT.report.md
      where OUT does not end in .json), and OUT_report.html, a page for a browser:
      charts, and each item's outputs, the most certain first.

    --gold FIELD reports how well four confidences find the right outputs:
    self-certainty, negative mean entropy, mean log-probability and negative
    perplexity. FIELD of each item holds the right answer, a list of acceptable
    answers, or a list of true or false for each output. Items also get
      right                true or false for each output; null without gold
      answer_forms         the form of each output's answer, as in `select`, of an
                           item that is not read as published
      mean_logprob_list, mean_entropy_list (nats per token), perplexity_list
      AUROC, PRR, AURC, ECE, the risk at each coverage and the share of right ones
      among the most confident of N are in the report. Answers are read as in
      `select` and compared as in `vote`. Outputs without a readable answer count as
      wrong, and are counted next to these numbers. If no output has one, `right` is
      null, no AUROC is reported, and the exit code is 1.

    The same command continues an interrupted run from its journal. It also
    continues an output, and an incomplete file of the published script: it scores
    the items that lack a confidence or have changed. That script reads every
    prediction one token late (--alignment upstream) and cuts long texts silently.

      python -m jaxscore self-certainty --input samples.json
          writes samples-confidence-list.json

    exit code: 0 all scored, 1 some outputs have no confidence or none is graded,
               2 unusable input.
    """

    name = "self-certainty"
    item, settings, record = Item, Settings, Record
    layout = Layout(is_ascii=True, ending="-confidence-list")

    def needs(self, settings: Any) -> tuple[str, ...]:
        """See `System.needs`."""
        return ("is_local", "scores", "has_distribution")

    def check(self, items: Items, settings: Settings) -> None:
        """Refuse items without an output list, and without gold if it is requested."""
        items.require_usable()
        check_usable((inputs.name, inputs.error) for inputs in _inputs(items, settings))
        if settings.gold is not None:
            right_responses.read_golds(_inputs(items, settings), settings.gold)

    def recall(
        self, entry: Entry, record: dict[str, Any], settings: Settings, facts: Mapping[str, Any]
    ) -> bool | None:
        """See `System.recall`: an item keeps all of its confidences or none."""
        inputs = read_inputs(entry.name, entry.item, settings)
        if inputs.error is not None:
            return True
        values = record.get("confidence_list")
        is_same = (
            record.get(inputs.input_field) == inputs.context
            and record.get(settings.output_field) == inputs.outputs
            and all(record.get(name) == inputs.fields.get(name) for name in ID_FIELDS)
            and isinstance(values, list)
            and len(values) <= len(inputs.outputs)
        )
        if not is_same:
            return None
        confidence = Confidence.of_record(inputs, record, measures=settings.gold is not None)
        if confidence.settings is not None:
            check_made(entry.name, confidence.settings, _provenance(facts, settings))
        return not confidence.missing

    def score(self, lm: Any, items: Any, settings: Settings) -> Iterator[dict[str, Any]]:
        """Score each output."""
        measures, right = settings.gold is not None, None
        results: Iterator[tuple[Request, ScoredRequest]] = iter(())
        if settings.gold is not None:
            all_inputs = list(_inputs(items, settings))
            right = right_responses.grade_responses(all_inputs, settings.gold, settings.answer_rule)

        def scorable() -> Iterator[Scorable]:
            for index, inputs in enumerate(_inputs(items, settings)):
                places = Confidence.unknown(inputs, measures=measures).missing
                yield Scorable(inputs, places, index not in items.recalled)

        if len(items.recalled) < items.n_all:
            provenance, drawn = _provenance(record_facts(lm), settings), DrawnTokens(lm)
            window = window_size(scorable(), lm.batch_tokens)

            def plan() -> Iterator[Planned]:
                return _plan(scorable(), window, whole_windows=lm.journal is not None)

            n = sum(1 for _ in plan())
            sent, asked = itertools.tee(_requests(plan(), drawn))
            stream = lm.stream(
                (request for request, _ in asked), window=window, n_requests=n, **settings.options()
            )
            results = (
                (request, scored)
                for (request, is_missing), scored in zip(sent, stream, strict=True)
                if is_missing
            )
        for index, inputs in enumerate(_inputs(items, settings)):
            if index in items.recalled:
                earlier = items.recalled[index]
                confidence = Confidence.of_record(inputs, earlier, measures=measures)
            else:
                confidence = Confidence.unknown(inputs, measures=measures)
                for output in confidence.missing:
                    request, scored = next(results)
                    confidence.take(output, scored, provenance)
                    lm.warnings.update(
                        _warnings(lm, drawn, inputs, output, request, scored, settings)
                    )
            record = confidence.record(inputs, index)
            yield record if right is None else {**record, **right.fields(index)}
        next(results, None)  # exhaust the stream, which ends the measured time

    def rows(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one row per output."""
        name = item_label(record["processed_index"], {**record})
        errors = dict(error.split(": ", 1) for error in record.get("confidence_errors", ()))
        return [
            {"item": name, "output": k, "self_certainty": value, "error": errors.get(f"output {k}")}
            for k, value in enumerate(record["confidence_list"], start=1)
        ]

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Return the mean over all outputs, and with gold the quality of the confidences."""
        n_items = n_outputs = n_without_ids = n_unstated = 0
        places, values, failures = array("q"), array("d"), []
        for n_items, record in enumerate(records, start=1):
            inputs = read_inputs(item_label(n_items - 1, {**record}), record, settings)
            confidence = Confidence.of_record(inputs, record, measures=False)
            scored = [k for k, value in enumerate(confidence.values) if value is not None]
            places.extend([n_items] * len(scored))
            values.extend(value for value in confidence.values if value is not None)
            n_outputs += len(confidence.values)
            n_without_ids += sum(inputs.token_ids[k] is None for k in scored)
            n_unstated += bool(scored) and confidence.settings is None
            failures += [(inputs.name, str(e)) for e in record.get("confidence_errors", ())]
        # Outputs of one item are not independent.
        mean = estimate(values, settings.n_bootstrap, settings.seed, np.array(places))
        numbers = {
            "n_items": n_items,
            "n_outputs": n_outputs,
            "n_scored": len(values),
            "mean_self_certainty": mean,
        }
        details, right = self._quality(records, settings)
        is_unreadable = right is not None and right.is_unreadable
        headline = _headline(numbers)
        if right is not None:
            no_line = "no AUROC: no output has a readable answer"
            headline += f"; {no_line if is_unreadable else _quality_line(details['quality'])}"
            failures += [(item_label(k, {**records[k]}), e) for k, e in right.errors.items()]
        warnings = {
            f"--batch-size {settings.batch_size}: of no effect; see --batch-tokens": (
                settings.batch_size is not None
            ),
            NO_READABLE_ANSWER: is_unreadable,
            UNVERIFIED: right is not None and right.is_unverified,
            WITHOUT_IDS.replace("{n}", str(n_without_ids)): n_without_ids,
            UNSTATED.replace("{n}", str(n_unstated)): n_unstated,
        }
        return Summary(
            headline=headline,
            numbers=numbers,
            details=details,
            failures=failures,
            warnings=[text for text, applies in warnings.items() if applies],
            lines=[] if right is None else _quality_lines(details["quality"]),
            is_complete=len(values) > 0 and not is_unreadable,
        )

    def _quality(
        self, records: Sequence[Mapping[str, Any]], settings: Settings
    ) -> tuple[dict[str, Any], RightResponses | None]:
        """Return the report's details on right outputs, and these; empty and None without gold."""
        if settings.gold is None:
            return {}, None
        # The last record is usually needed again.
        get = functools.lru_cache(1)(records.__getitem__)
        indices = range(len(records))
        inputs = Lazy(indices, lambda k: read_inputs(item_label(k, {**get(k)}), get(k), settings))
        confidences = Lazy(
            indices, lambda k: Confidence.of_record(inputs[k], get(k), measures=True)
        )
        right = right_responses.grade_responses(inputs, settings.gold, settings.answer_rule)
        n_bootstrap, seed = settings.n_bootstrap, settings.seed
        return right_responses.report(inputs, confidences, right, n_bootstrap, seed), right

    def report(self, run: Report) -> Document:
        """Return the report, least certain items first; see `self_certainty.report`."""
        return report(run.source(items=run.records))


def _inputs(items: Any, settings: Settings) -> Iterator[Inputs]:
    return (read_inputs(entry.name, entry.item, settings) for entry in items.entries())


def _warnings(
    lm: Any,
    drawn: DrawnTokens,
    inputs: Inputs,
    output: int,
    request: Request,
    scored: ScoredRequest,
    settings: Settings,
) -> list[str]:
    """Return warnings about an output that was scored."""
    out = [CUT] if scored.truncated > 0 else []
    if request.token_ids is not None or scored.error is not None:
        return out
    if inputs.token_ids[output] is not None:
        return [*out, STALE_IDS]
    text, ids = inputs.outputs[output], scored.token_ids
    if settings.alignment != "formula":  # the scored tokens are shifted by one
        [ids] = lm.encoder.prompt_ids([text], special_tokens=False)
    limit = length_limit(inputs.fields, output)
    differs = drawn.differ(inputs.context, text, ids.tolist(), limit)
    return [*out, OTHER_TOKENS] if differs else out


SYSTEM = SelfCertainty()
