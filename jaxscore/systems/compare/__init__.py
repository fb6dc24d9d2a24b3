"""Finished runs of one system: paired differences with intervals and tests, and flips."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.engine import provenance
from jaxscore.errors import InputError, one_line
from jaxscore.report.document import Document, Source
from jaxscore.shell import settings as base
from jaxscore.shell.flags import ONE, flag
from jaxscore.shell.rendered import Rendered
from jaxscore.systems.compare import differences, open_run
from jaxscore.systems.compare.by_bytes import check_bytes, compare_bytes
from jaxscore.systems.compare.columns import UNKNOWN, Run
from jaxscore.systems.compare.differences import Agreement, Difference, Draws, Places, Values
from jaxscore.systems.compare.open_run import OpenRun
from jaxscore.systems.compare.pairs import (
    SAME_ID,
    SAME_TOKENS,
    Matched,
    Pairing,
    check_system,
    pair_records,
    pair_runs,
)
from jaxscore.systems.compare.report import report
from jaxscore.types.results import data_frame

HELP = """\
Compare finished runs of one system on the same items: paired differences with
intervals and tests, and what flipped. No model runs.

  python -m jaxscore compare a.jsonl b.jsonl
  python -m jaxscore compare reference.jsonl q8.jsonl q4.jsonl   (one table)

input, files that these commands wrote; OUT.run.json next to a file describes
how it was made:
  score, choose, perplexity, preferences    OUT.jsonl or OUT.parquet
  paths           OUT.json                  chronologic   eval_results_….json
  probsem         …_results.json            judge         eval_…_judge_….json
  self-certainty  …-confidence-list.json    metrics       eval_…_out.json
  select, vote, usc-select, livecode-select, livecode-parse: their output; two
  of these five are compared with each other too.

pairs, items with the same id and the same text; items without ids, such as rows
of a table, are paired by their text. Outputs without texts (score): the texts
of the input that the manifest names, if it is unchanged, otherwise the scored
tokens. Runs whose items cannot be checked so are refused. --by-id pairs by id
alone, such as the same items under two prompts.

output, for each number n, the means of A and B, B - A with a 95% interval, and
p, corrected by Holm's method for the number of tests:
  numbers    bootstrap of pairs; exact sign-flip test, of more than 16 pairs by
             draws. Parts of an item (paths, answers, outputs) are drawn and
             flipped together.
  decisions  right or wrong: McNemar's exact test, Newcombe's interval; which
             flipped, by how much, and how many flips lie within the noise
             floor, if the runs were made with --audit-noise
  --bytes    bits per byte of runs of score or perplexity by models with other
             tokenizers: a token's bits are spread evenly over its bytes. Of all
             bytes, and of those that both runs scored; by white space, digits,
             punctuation and letters of each script; by value of a field of the
             items (--by topic); and the 20 spans of 32 bytes that differ most.
             perplexity lacks tokens: only the totals.
  OUT.report.md is the report, OUT.report.html the page for a browser,
  OUT.report.json their data, OUT.run.json how they were made; if OUT ends in
  .json they are OUT_report.md, OUT_report.html, OUT_report.json and
  OUT.json.run.json. OUT itself is not written. The default is A's name, -vs-
  and B's name, next to A.
  Of three and more runs, each is compared with A in one table per number; p is
  corrected for the tests of all runs. Flips are in the comparison of two.

exit code: 0 compared, also if items have no partner (they are listed);
           1 some items failed in a run (they are left out), 2 unusable input,
           two systems, settings that count otherwise, or no pair.
"""
MOST_CHANGED = 50  # pairs of each number that the report lists
NAMED = 5  # names of items in a warning


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(base.Settings):
    """Settings of `compare`."""

    limit: int | None = flag(None, least=1, is_flag=False)
    """Number of first pairs that are compared; the flag is that of every command."""
    by_id: bool = flag(
        False,
        help="pair items by id alone, as for the same items under two prompts",
    )
    bytes: bool = flag(
        False,
        help="compare bits per byte of runs of score or perplexity, whose models may have "
        "different tokenizers: of all bytes and those that both scored, by class of character, "
        "and the spans that differ most",
    )
    by: tuple[str, ...] | None = flag(
        None,
        words=ONE,
        expected=base.BY,
        metavar="FIELD",
        help="with --bytes: add a table by value of this field of the items, such as a topic; may "
        "be repeated",
    )
    force: bool = flag(
        False,
        help="compare runs that differ in a setting which decides what is counted, such as "
        "--boundary",
    )
    seed: int = flag(0, help="of the intervals and of drawn tests (default 0)")
    n_bootstrap: int = flag(
        1000,
        least=1,
        metavar="N",
        help="draws for the 95% intervals (default 1000)",
        is_advanced=True,
    )
    n_resamples: int = flag(
        9999,
        least=1,
        metavar="N",
        help="patterns of signs that a test draws where they are too many to enumerate; no p is "
        "below 1 / (N + 1) then (default 9999)",
        is_advanced=True,
    )

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        if self.by and not self.bytes:
            raise InputError(
                f"--by {self.by[0]}: tables by value of a field are those of --bytes; add that, or "
                "leave --by out"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ComparedRuns(Rendered):
    """The differences between two finished runs.

    Attributes:
        summary: name of a number or decision -> its `Difference`; `n_pairs` and `n_tests`.
        pairs: one record per pair: its name, and each number and decision of both runs, as
            `brier_a` and `brier_b`.
        headline: the first difference as a line.
        failures: the (name, reason) of items that failed in a run.
        remarks: facts that matter to readers of the numbers.
        settings: the settings of the comparison, with versions and date.
        details, listed: the fields of the JSON file before these and after them.
    """

    summary: Mapping[str, Any]
    pairs: Sequence[dict[str, Any]]
    headline: str
    failures: Sequence[tuple[str, str]]
    remarks: Sequence[str]
    settings: Mapping[str, Any]
    details: Mapping[str, Any]
    listed: Mapping[str, Any]

    @property
    def system(self) -> str:
        """The command."""
        return "compare"

    @property
    def items(self) -> list[dict[str, Any]]:
        """All records."""
        return [*self.pairs]

    def data(self) -> dict[str, Any]:
        """See `Rendered.data`."""
        return {
            **self.details,
            "remarks": self.remarks,
            "failures": [{"name": name, "error": why} for name, why in self.failures],
            "settings": self.settings,
            **self.listed,
        }

    @functools.cached_property
    def document(self) -> Document:
        """The report with results, charts and flips; see `compare.report`."""
        n = len(self.pairs)
        return report(Source(self.system, self.data(), self.headline, n, results=self.pairs))

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per pair.

        Raises:
            InputError: pandas is not installed.
        """
        return data_frame(self.items)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<Report {self.system}: {len(self.pairs)} items{failed}; {self.headline}>"


def compare(
    opened_a: OpenRun, opened_b: OpenRun, settings: Settings, about: Mapping[str, Any] | None = None
) -> ComparedRuns:
    """Compare two finished runs of one system on the same items.

    Args:
        about: further settings of the result.

    Raises:
        InputError: they are of two systems or differ in what they count, or no item of one is in
            the other.
    """
    opened = (opened_a, opened_b)
    check_system(*opened)
    if settings.bytes:
        check_bytes(opened_a)
    differing = open_run.differences(opened_a.facts, opened_b.facts)
    fixed = {name for run in opened for name in run.reader.system.settings.fixed}
    named = [f"{d['setting']} ({d['a']} and {d['b']})" for d in differing if d["setting"] in fixed]
    forced = (
        f"the runs differ in {', '.join(named)}, so their numbers do not count the same"
        if named
        else ""
    )
    if forced and not settings.force:
        raise InputError(
            f"{forced}; run one again with the setting of the other, or compare them with --force"
        )
    pairing = pair_runs(*opened, by_id=settings.by_id, limit=settings.limit)
    draws = Draws(settings.n_bootstrap, settings.n_resamples, settings.seed)
    by_bytes = compare_bytes(pairing, draws, settings.by or ()) if settings.bytes else None
    columns = by_bytes.columns if by_bytes else _paired_columns(pairing)
    results = differences.corrected(
        [
            (differences.difference_of_shares if is_right else differences.difference_of_means)(
                name, title, values, draws
            )
            for name, (title, is_right, values) in columns.items()
        ]
    )
    n_tests = sum(result.p is not None for result in results)
    verdicts = [result.verdict(n_tests, opened_b.label) for result in results]
    agreements = _agreements(pairing, draws)
    a, b, matched = pairing.a, pairing.b, pairing.matched
    pairs = by_bytes.pairs if by_bytes else pair_records(a, b, matched)
    return ComparedRuns(
        summary={
            **{result.name: result for result in results},
            "n_pairs": len(pairs),
            "n_tests": n_tests,
        },
        pairs=pairs,
        headline=verdicts[0] if verdicts else "no number and no decision is in both runs",
        failures=[
            *_failures(opened_a, a),
            *_failures(opened_b, b),
            *(by_bytes.failures if by_bytes else []),
        ],
        remarks=[
            *([f"{forced}; they are compared by --force"] if forced else []),
            *(by_bytes.warnings if by_bytes else []),
            *_warnings(pairing, by_bytes=settings.bytes),
        ],
        settings=provenance.of_run({**settings.record(), **(about or {})}),
        details={
            **_details(pairing, differing, results, verdicts, agreements),
            **({"by_class": by_bytes.by_class, "by": by_bytes.by} if by_bytes else {}),
        },
        listed={
            **({"spans": by_bytes.spans} if by_bytes else {}),
            "flips": {each.name: each.flips for each in agreements},
            "most_changed": _most_changed(columns, matched, a),
            "without_partner": {"a": matched.only_a, "b": matched.only_b},
            "other_text": matched.other_text,
        },
    )


def _places(pairing: Pairing) -> Places:
    groups, matched = pairing.a.groups, pairing.matched
    return Places(matched.a, matched.b, None if groups is None else groups[matched.a])


def _paired_columns(pairing: Pairing) -> dict[str, tuple[str, bool, Values]]:
    """Return name -> (title, True for a right decision, values), in the report's order."""
    a, b, reader = pairing.a, pairing.b, pairing.opened[0].reader
    columns: dict[str, tuple[str, bool, Values]] = {}
    places = _places(pairing)
    for name, (_, decision) in reader.decisions.items():
        if decision.is_right and name in a.choices and name in b.choices:
            right_a, right_b = (differences.right_column(run.choices[name]) for run in (a, b))
            values = differences.paired_values(right_a, right_b, places)
            columns[name] = (decision.title, True, values)
    for name in dict.fromkeys((*reader.metrics, *a.numbers)):
        if name in a.numbers and name in b.numbers:
            values = differences.paired_values(a.numbers[name], b.numbers[name], places)
            columns[name] = (reader.title_of(name), False, values)
    return columns


def _agreements(pairing: Pairing, draws: Draws) -> list[Agreement]:
    a, b, places = pairing.a, pairing.b, _places(pairing)
    return [
        differences.agreement(
            name, decision, (a.choices[name], b.choices[name]), places, a.names, draws
        )
        for name, (_, decision) in pairing.opened[0].reader.decisions.items()
        if name in a.choices and name in b.choices
    ]


def _details(
    pairing: Pairing,
    differing: Sequence[Mapping[str, Any]],
    results: Sequence[Difference],
    verdicts: Sequence[str],
    agreements: Sequence[Agreement],
) -> dict[str, Any]:
    """Return the fields of the report's file that come before its failures and settings."""
    matched = pairing.matched
    names = dict.fromkeys(run.reader.system.name for run in pairing.opened)
    return {
        "system": " and ".join(names),
        "what": pairing.title,
        "runs": {side: _about(run) for side, run in zip("ab", pairing.opened, strict=True)},
        "differences": differing,
        "pairs": {
            "compared": len(matched.a),
            "units_a": pairing.a.n,
            "units_b": pairing.b.n,
            "failed_pairs": matched.n_failed_pairs,
            "only_a": len(matched.only_a),
            "only_b": len(matched.only_b),
            "other_text": len(matched.other_text),
            "repeated": matched.n_repeated,
            "matched_by": pairing.matched_by,
        },
        "results": [
            {**vars(result), "verdict": verdict}
            for result, verdict in zip(results, verdicts, strict=True)
        ],
        "decisions": [
            {name: value for name, value in vars(each).items() if name != "flips"}
            for each in agreements
        ],
    }


def _about(opened: OpenRun) -> dict[str, Any]:
    """Return the facts of a run for the top of the report; the differences have the rest."""
    names = ("command", "model", "dtype", "boundary")
    return {
        "path": None if opened.path is None else one_line(str(opened.path)),
        "has_manifest": opened.has_manifest,
        **{name: opened.facts[name] for name in names if opened.facts.get(name) is not None},
    }


def _failures(opened: OpenRun, run: Run) -> list[tuple[str, str]]:
    """Return a run's failures: those of its report, and records that cannot be read."""
    failed = [(run.names[k], error) for k, error in run.errors.items()]
    if opened.failures is not None:
        unread = ((run.names[k], run.errors[k]) for k in sorted(run.unread))
        failed = [*opened.failures, *unread]
    return [(f"{opened.label}: {name}", error) for name, error in failed]


def _most_changed(
    columns: Mapping[str, tuple[str, bool, Values]], matched: Matched, a: Run
) -> dict[str, list[dict[str, Any]]]:
    """Return the largest differences of each number, with the names of their items."""
    out = {}
    for name, (_, is_right, values) in columns.items():
        moved = np.abs(values.b - values.a)
        if is_right or not moved.any():
            continue
        largest = np.argsort(-moved, kind="stable")[:MOST_CHANGED]
        out[name] = [
            {
                "name": a.names[int(matched.a[values.pair[k]])],
                "a": float(values.a[k]),
                "b": float(values.b[k]),
                "difference": float(values.b[k] - values.a[k]),
            }
            for k in largest.tolist()
            if moved[k] > 0
        ]
    return out


def _warnings(pairing: Pairing, *, by_bytes: bool) -> Iterator[str]:
    """Yield warnings about valid but suspicious runs."""
    a, b, matched, title, rule = (
        pairing.a, pairing.b, pairing.matched, pairing.title, pairing.matched_by
    )  # fmt: skip
    n = len(matched.a)

    def n_other(values_a: Sequence[Any], values_b: Sequence[Any]) -> int:
        pairs = zip(matched.a.tolist(), matched.b.tolist(), strict=True)
        return sum(values_a[i] != values_b[j] for i, j in pairs)

    label_a, label_b = (opened.label for opened in pairing.opened)
    for opened in pairing.opened:
        if not opened.facts:
            yield f"{opened.label} lacks a manifest next to it, so its settings are unknown"
    if rule == SAME_TOKENS:
        yield (
            f"the {title} are matched by id and by their scored tokens: their texts are neither in "
            "the results nor in an unchanged input that the manifests name"
        )
    if rule == SAME_ID:
        texts = "their texts were not compared"
        if pairing.opened[0].reader.has_texts:
            texts = f"the texts of {n_other(a.texts, b.texts)} of {n} pairs differ"
        yield f"the {title} are matched by id alone (--by-id): {texts}"
    for which, names in (
        (f"{label_a} alone has", matched.only_a),
        (f"{label_b} alone has", matched.only_b),
        ("the runs have the same ids and other texts of", matched.other_text),
    ):
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            counted, are = f"{len(names)} {title}", "they are"
            if len(names) == 1:
                counted, are = f"1 {title.removesuffix('s')}", "it is"
            yield f"{which} {counted}: {', '.join(names[:NAMED])}{more}; {are} left out"
    if matched.n_repeated:
        yield (
            f"{matched.n_repeated} of the {title} of {label_a} have the id and text of an earlier "
            "one; these are paired in order"
        )
    if by_bytes:
        return
    n_a, n_b = a.n_tokens[matched.a], b.n_tokens[matched.b]
    if n_differ := int(((n_a != n_b) & (n_a != UNKNOWN) & (n_b != UNKNOWN)).sum()):
        yield (
            f"the runs score different numbers of tokens in {n_differ} of {n} pairs, as with two "
            "tokenizers: their means per token are not over the same tokens"
        )
    others, others_b = (opened.reader.others for opened in pairing.opened)
    if others == others_b and (n_differ := n_other(a.others, b.others)):
        yield f"{n_differ} of {n} pairs differ in {' or '.join(others)}"
    for side, run, other in ((label_a, a, b), (label_b, b, a)):
        shared = {*other.numbers, *other.choices}
        alone = [one_line(name) for name in (*run.numbers, *run.choices) if name not in shared]
        if alone:
            yield f"{side} alone has the numbers or decisions {', '.join(alone)}"
