"""`self-certainty`: how far from uniform are a model's predictions while it reads an output?

    self-certainty = mean over the output's tokens of KL(uniform || p(. | x, y<i))
                   = -1/(nV) sum_i sum_j log(V p(j | x, y<i))        (arXiv 2502.18581)

An item has one input and many outputs, and gets a `confidence_list`, one number per output.
"""

import collections
import dataclasses
import itertools
import math
from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Estimate, estimate
from jaxscore.analysis.margins import Decisions
from jaxscore.engine import WINDOW
from jaxscore.errors import InputError
from jaxscore.io.items import NAME_FIELDS, item_label, read_lenient_rows
from jaxscore.io.json_input import require_field
from jaxscore.lm import LocalLM
from jaxscore.report import markdown
from jaxscore.systems.drawn_tokens import ID_FIELDS, DrawnTokens, length_limit
from jaxscore.systems.evaluation import Evaluation
from jaxscore.systems.remarks import Remark
from jaxscore.systems.rounding_audit import Noise
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.selection import noise as stated_noise
from jaxscore.systems.selection.answers import AUTO, NO_READABLE_ANSWER, RULE_HELP, form_lines
from jaxscore.systems.self_certainty import right_responses
from jaxscore.systems.self_certainty.report import report
from jaxscore.systems.self_certainty.work import ConfidenceWork, MergedWork, Place
from jaxscore.systems.settings import IntervalSettings, setting
from jaxscore.systems.system import ArrayOutput, Compared, Decision, Metric, System
from jaxscore.text.encoder import Boundary
from jaxscore.types.results import ScoredRequest

HELP = """\
How certain was the model of each of its outputs? The self-certainty is the mean
of KL(uniform || prediction) over an output's tokens, in nats per token:
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
  Beside OUT lie OUT.run.json: what made it, and how many outputs failed; and
  OUT_report.html, a page for a browser: charts, and each item's outputs in
  order of certainty.

--gold FIELD tells how well four confidences find the right outputs:
self-certainty, negative mean entropy, mean log-probability and negative
perplexity. FIELD of each item holds the right answer, a list of acceptable
answers, or a list of true or false for each output. Items also get
  right                true or false for each output; null without gold
  answer_forms         the form of each output's answer, as in `select`, of an
                       item that is not read as published
  mean_logprob_list, mean_entropy_list (nats per token), perplexity_list
  AUROC, PRR, AURC, ECE, the risk at each coverage and the share of right ones
  among the most confident of N are in OUT_report.md and OUT_report.json
  (OUT.report.md where OUT does not end in .json). If no output has a readable
  answer, `right` is null, no AUROC is reported, and the exit code is 1.

The file grows while the command runs. The same command continues it: it scores
the outputs without a confidence, and again every item whose input or outputs
have changed. It also continues a file that the published script has left half
done. That script reads every prediction one token late (--alignment upstream)
and cuts long texts silently.

  python -m jaxscore self-certainty --input samples.json
      writes samples-confidence-list.json

exit code: 0 all scored, 1 some outputs have no confidence or none is graded,
           2 unusable input.
"""
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
BATCHES_TOGETHER = 64  # planned at once: few enough that results reach the file soon


class Item(TypedDict, total=False):
    """An input with its outputs."""

    model_input: str
    input: str
    output: list[str]
    generator: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(IntervalSettings):
    """Settings of `self-certainty`."""

    input_field: str = setting(
        "model_input",
        aliases=("--input-field-name",),
        metavar="NAME",
        expected="the name of a field",
        help="default: model_input",
    )
    output_field: str = setting(
        "output",
        aliases=("--output-field-name",),
        metavar="NAME",
        expected="the name of a field",
        help="default: output",
    )
    gold: str | None = setting(
        None,
        metavar="FIELD",
        expected="the name of a field",
        help="field of the items with the right answer, a list of acceptable ones, or true or "
        "false for each output: tell how well four confidences find the right outputs",
    )
    answer_rule: Literal["auto", "published", "json", "answer", "boxed", "number"] = setting(
        AUTO, help=RULE_HELP
    )
    alignment: Literal["formula", "upstream"] = setting(
        "formula",
        help="formula: the prediction of each token, made before it (default); upstream: the one "
        "made after it, as the published script counts",
    )
    batch_size: int | None = setting(
        None,
        least=1,
        metavar="N",
        advanced=True,
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

    @property
    def list_fields(self) -> tuple[str, ...]:
        """See `Settings.list_fields`."""
        return (self.output_field, *ID_FIELDS)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them; settings of grading only if outputs are graded."""
        unused = {"batch_size"} if self.gold else {"batch_size", "gold", "answer_rule"}
        return {name: value for name, value in super().record().items() if name not in unused}


def _known(record: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Place and confidence of the outputs of a stored record that have one."""
    values = record["confidence_list"]
    n = len(_text(record)[1])
    if len(values) != n:
        raise InputError(f'field "confidence_list" has {len(values)} entries, expected {n}')
    return [(place, value) for place, value in enumerate(values) if value is not None]


def _top(record: Mapping[str, Any]) -> int | None:
    """Place of the most certain output, the first of equal ones."""
    return max(_known(record), key=lambda one: one[1], default=(None, 0.0))[0]


def _top_output(record: Mapping[str, Any]) -> str | None:
    return None if (top := _top(record)) is None else f"output {top + 1}"


def _top_right(record: Mapping[str, Any]) -> bool | None:
    top, right = _top(record), record["right"]
    return None if top is None or len(right) != len(record["confidence_list"]) else right[top]


def _lead(record: Mapping[str, Any]) -> float:
    known = [value for _, value in _known(record)]
    return margins.lead(known) if known else math.inf


def _within_noise(record: Mapping[str, Any]) -> bool | None:
    floor, lead = stated_noise(record), _lead(record)
    return None if floor is None or not math.isfinite(lead) else margins.within(lead, floor)


def _settings(record: Mapping[str, Any]) -> Mapping[str, Any]:
    made = record.get("confidence_settings")
    return made if isinstance(made, dict) else {}


def _text(record: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """Input and outputs of a stored record."""
    made = _settings(record)
    asked = record.get(str(made.get("input_field", "model_input")), record.get("input"))
    output_field = str(made.get("output_field", "output"))
    return asked, require_field(dict(record), output_field, list, "the item")


class Record(TypedDict, total=False):
    """What an item gets; the fields from `right` on, and the three lists before, with gold."""

    confidence_list: Annotated[
        list[float | None],
        Metric("self-certainty of an output, nats per token", "confidence"),
        Decision(
            "most certain output", False, STATISTIC, _top_output, _lead, _within_noise,
            "top_output",
        ),
    ]  # fmt: skip
    processed_index: int
    confidence_settings: dict[str, Any]
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


def evaluate(
    lm: LocalLM,
    work: ConfidenceWork,
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Score each output.

    After a noise audit, records that `on_item` has taken get the noise floor too.
    """
    run = ScoringRun(
        lm,
        settings,
        boundary=settings.alignment,
        policies=ALIGNMENTS,
        special_tokens=False,
        audit_boundary=False,
    )
    n_before = sum(
        len(known.values) - len(known.errors) - len(known.missing) for known in work.known
    )
    counts = _score(run, lm, work, on_item)
    if run.noise is not None:
        work.note_noise(run.noise.spread["mean_self_certainty"].largest)
    work.pass_on(on_item)
    summary = _summary(work, settings)
    details: dict[str, Any] = {"summary": summary}
    headline, lines = _headline(summary), []
    is_unreadable = work.right is not None and work.right.is_unreadable
    if work.right is not None:
        details |= right_responses.report(
            work.inputs, work.known, work.right, settings.n_bootstrap, settings.seed
        )
        no_line = "no AUROC: no output has a readable answer"
        headline += f"; {no_line if is_unreadable else _quality_line(details['quality'])}"
        lines = _quality_lines(details["quality"])
    records = work.records()
    no_effect = f"--batch-size {settings.batch_size}: of no effect; see --batch-tokens"
    n_without = sum(
        work.drawn_ids(work.inputs[place], output) is None
        for place, output in work.scorable_outputs()
    )
    remarks = {
        no_effect: settings.batch_size is not None,
        Remark(NO_READABLE_ANSWER, if_all=True): is_unreadable,
        Remark("{n} outputs were scored after an input cut at its left", n=counts.n_cut): (
            counts.n_cut
        ),
        Remark(STALE_IDS, n=counts.n_stale): counts.n_stale,
        Remark(WITHOUT_IDS, n=n_without): n_without,
        Remark(OTHER_TOKENS, n=counts.n_differ): counts.n_differ,
    }
    return Evaluation(
        summary=summary,
        items=records if on_item is None else [],
        n_items=len(work.entries),
        rows=[] if on_item is not None or isinstance(work, MergedWork) else _rows(work),
        details=details,
        long={"items": records if on_item is None else []},
        headline=headline,
        failures=work.failures(),
        remarks=[remark for remark, applies in remarks.items() if applies],
        lines=lines,
        counts={"outputs_from_before": n_before},
        is_complete=summary["n_scored"] > 0 and not is_unreadable,
        page_items=records,
        **run.measured(),
    )


def mark(records: Sequence[Mapping[str, Any]], noise: Noise, settings: Settings) -> list[Decisions]:
    """Raise the noise floors that records state; `select` decides by them. See `System.mark`."""
    spread = noise.spread["mean_self_certainty"].largest
    for record in records:
        if (floor := stated_noise(record)) is not None:
            record["confidence_settings"]["noise"] = max(floor, spread)
    return []


def merge(records: Sequence[dict[str, Any]], settings: Settings) -> Evaluation:
    """Evaluate the items of all records as one run would; see `System.merge`."""
    no_model: Any = None  # nothing is left to compute
    return evaluate(no_model, MergedWork(records, settings), settings)


@dataclasses.dataclass
class _Counts:
    """Counts of the outputs that this run scored.

    Attributes:
        n_cut: outputs whose input was cut.
        n_stale: outputs whose ids are not those of their text.
        n_differ: outputs without ids that certainly have other ids than were drawn.
    """

    n_cut: int = 0
    n_stale: int = 0
    n_differ: int = 0


def _score(
    run: ScoringRun,
    lm: LocalLM,
    work: ConfidenceWork,
    on_item: Callable[[Mapping[str, Any]], None] | None,
) -> _Counts:
    """Score what is missing."""
    counts = _Counts()
    missing = set(wanted := work.missing_outputs())
    if not missing:
        return counts
    made, scorable = work.made(lm), work.scorable_outputs()
    window = window_size(work, scorable, lm.batch_tokens)
    # What is not missing costs nothing if the journal has it.
    places = wanted if lm.journal is None else _whole_windows(scorable, missing, window)
    drawn = DrawnTokens(lm)
    sent, requests = itertools.tee(work.requests(places, drawn))
    stream = run.stream(requests, window=window, n_requests=len(places))
    for (place, output), request, scored in zip(places, sent, stream, strict=True):
        if (place, output) in missing:
            work.known[place].take(output, scored, made)
            counts.n_cut += scored.truncated > 0
            if request.token_ids is None and scored.error is None:
                inputs = work.inputs[place]
                if work.drawn_ids(inputs, output) is not None:
                    counts.n_stale += 1
                else:
                    counts.n_differ += _differ(drawn, lm, work, (place, output), scored)
            work.pass_on(on_item)
    return counts


def _differ(
    drawn: DrawnTokens, lm: LocalLM, work: ConfidenceWork, at: Place, scored: ScoredRequest
) -> bool:
    """Return True if an output that was encoded again certainly has other ids than were drawn."""
    place, output = at
    inputs = work.inputs[place]
    text, ids = inputs.outputs[output], scored.token_ids
    if work.settings.alignment != "formula":  # each token is scored in place of the one before it
        [ids] = lm.encoder.prompt_ids([text], special_tokens=False)
    return drawn.differ(inputs.context, text, ids.tolist(), length_limit(inputs.given, output))


def _whole_windows(scorable: Sequence[Place], missing: Set[Place], window: int) -> list[Place]:
    """The windows of a run from the beginning in which something is missing.

    What is missing then has the same neighbours, and with them the same last bits, as in a run
    that was left alone; the journal has what is not missing.
    """
    windows = (scorable[first : first + window] for first in range(0, len(scorable), window))
    return [place for own in windows if not missing.isdisjoint(own) for place in own]


def window_size(work: ConfidenceWork, places: Sequence[Place], batch_tokens: int) -> int:
    """How many outputs to plan together: about `BATCHES_TOGETHER` batches of text.

    Results come back a window at a time, so it bounds what an interruption costs; outputs of one
    item share its input within a window.
    """
    per_item = collections.Counter(place for place, _ in places)
    characters = sum(len(work.inputs[place].context) for place in per_item)
    characters += sum(len(work.inputs[place].outputs[output]) for place, output in places)
    at_most = BATCHES_TOGETHER * batch_tokens * CHARACTERS_PER_TOKEN
    fitting = int(at_most * len(places) / max(1, characters))
    return min(WINDOW, max(fitting, *per_item.values()))


def _summary(work: ConfidenceWork, settings: Settings) -> dict[str, Any]:
    """Counts, and the mean over all outputs.

    Its interval resamples items, since outputs of one item are not independent.
    """
    places, values, n_outputs = array("q"), array("d"), 0
    for place, (inputs, known) in enumerate(zip(work.inputs, work.known, strict=True)):
        n_outputs += len(inputs.outputs)
        for value in known.values:
            if value is not None:
                places.append(place)
                values.append(value)
    n_bootstrap, seed = settings.n_bootstrap, settings.seed
    return {
        "n_items": len(work.entries),
        "n_outputs": n_outputs,
        "n_scored": len(values),
        "mean_self_certainty": estimate(values, n_bootstrap, seed, np.array(places)),
    }


def _headline(summary: Mapping[str, Any]) -> str:
    """The mean with its interval, and over how many outputs."""
    mean: Estimate = summary["mean_self_certainty"]
    n_outputs, n_scored = summary["n_outputs"], summary["n_scored"]
    if mean.mean is None:
        return f"no confidence: none of {n_outputs} outputs was scored"
    return (
        f"mean self-certainty {mean.mean:.6g} nats per token{mean.span('.6g')}, {n_scored} of "
        f"{n_outputs} outputs"
    )


def _quality_line(quality: Mapping[str, Any]) -> str:
    """How well self-certainty finds the right outputs, in one line."""
    found = quality["confidences"].get(right_responses.SELF_CERTAINTY)
    if found is None or found["undefined"]:
        why = found["undefined"] if found else "no output has gold and a confidence"
        return f"no AUROC: {why}"
    auroc = found["auroc"]
    span = "" if auroc["low"] is None else f" ({auroc['low']:.3f} to {auroc['high']:.3f})"
    return (
        f"AUROC {auroc['value']:.3f}{span}, {quality['n_right']} of {quality['n_responses']} "
        "outputs are right"
    )


def _quality_lines(quality: Mapping[str, Any]) -> list[str]:
    """A table of the confidences, unless there are too few outputs, and the forms of answers."""
    rows = [["", "AUROC", "PRR", "AURC", "ECE"]]
    for name, one in quality["confidences"].items():
        values = [*(one[figure]["value"] for figure in ("auroc", "prr", "aurc")), one["ece"]]
        rows.append([name, *("-" if value is None else f"{value:.3f}" for value in values)])
    table = [markdown.aligned(rows)] if quality["n_responses"] > 1 else []
    return [*table, *form_lines(quality)]


def _rows(work: ConfidenceWork) -> list[dict[str, Any]]:
    """One row per output."""
    return [
        {
            "item": entry.name,
            "output": output + 1,
            "self_certainty": value,
            "error": known.errors.get(output),
        }
        for entry, known in zip(work.entries, work.known, strict=True)
        for output, value in enumerate(known.values)
    ]


SYSTEM = System(
    name="self-certainty",
    what="items",
    help=HELP,
    item=Item,
    settings=Settings,
    record=Record,
    read_rows=read_lenient_rows,
    work=ConfidenceWork,
    evaluate=evaluate,
    array=ArrayOutput("-confidence-list", lambda settings, entries: "-confidence-list"),
    report=report,
    merge=merge,
    merge_rereads=True,
    mark=mark,
    merge_rewrites=True,
    has_report_files="gold",
    model_field="generator",
    needs=("is_local", "scores", "has_distribution"),
    compared=(
        Compared(
            signature=("confidence_list",),
            without=("confidence",),
            text=_text,
            id=NAME_FIELDS,
            name=lambda record, place: item_label(place, dict(record)),
            fixed=("alignment",),
        ),
    ),
)
