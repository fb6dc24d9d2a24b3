"""Audits around a run's scorer: other boundaries, and a blank before each answer.

    boundary   counts the requests that another boundary policy would change, as they pass, and
               scores those of a sample again under it
    blank      scores the answers of a sample with a blank before them too, in the run's own call,
               so that they share their prompts

They report how far the result moves. A sample is spread evenly over the run's units: what a system
has one number for, such as a question. Rounding errors have their audit in
`systems.rounding_audit`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from jaxscore.io import interrupts
from jaxscore.lm import LocalLM
from jaxscore.text.bounded_tokenizer import PIECE
from jaxscore.text.encoder import Boundary, audit_boundaries, compare_boundaries
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, failed

AUDITED_TOGETHER = 1024  # requests encoded at a time by the boundary audit
AUDITED_ALL, AUDITED_EVERY = 4096, 16  # so many first requests, and then one in so many
AUDITED_CHARACTERS = 1000  # longest continuation that is encoded again for each of its tokens
TOO_LONG = f"longer than {AUDITED_CHARACTERS} characters"
RESCORED_CHARACTERS = 100_000  # of a sampled stream's texts that are scored again, together
SAMPLED = 32  # units, evenly spread over the run's
BLANK = " "
PART_OF_ANSWERS = "a blank is part of the answers already"
JOINT_OR_SEPARATE = (  # advice of systems with these two boundaries
    "joint, the text as the model reads it; take separate to compare with programs that "
    "encode context and continuation apart"
)

Unit = TypeVar("Unit")
Pair = tuple[Request, ScoredRequest]
Score = Callable[[list[Request], Boundary], list[ScoredRequest]]


@dataclasses.dataclass(frozen=True)
class Answers(Generic[Unit]):
    """The answers that a system scores, as requests, and what it measures of them.

    Attributes:
        what: the units, such as "paths".
        units: each has one or more requests.
        requests: (unit, name of the boundary, answer separator) -> its requests.
        measure: (unit, scores of its requests, name of the boundary) -> name of a result -> its
            number, or None for a unit without one.
        separator: of the run, see `AnswerSettings`.
        depends_on_boundary: `requests` writes another text for another boundary.
        why_no_blanks: why no blank is tried; empty if one is.
        with_blank: sentence opening for the finding.
        statistic: the log-probability of an answer that the system compares.
    """

    what: str
    units: Sequence[Unit]
    requests: Callable[[Unit, str, str | None], list[Request]]
    measure: Callable[[Unit, Sequence[ScoredRequest], str], Mapping[str, float | None]]
    separator: str | None = None
    depends_on_boundary: bool = False
    why_no_blanks: str = ""
    with_blank: str = "With a blank before the answer"
    statistic: str = "mean_logprob"

    def groups(self, boundary: str) -> list[list[Request]]:
        """The requests of each unit."""
        return [self.requests(unit, boundary, self.separator) for unit in self.units]

    def places(self) -> list[int]:
        """Places of the sampled units."""
        return spread(len(self.units))

    def sampled(self) -> "Answers[Unit]":
        """The same of the sampled units alone."""
        return dataclasses.replace(self, units=[self.units[k] for k in self.places()])

    def blanks(self, boundary: str) -> list[Request | None]:
        """The requests with a blank before their answers, None for an answer that has one."""
        return [
            None if request.continuation[len(BLANK) :][:1].isspace() else request
            for unit in self.units
            for request in self.requests(unit, boundary, BLANK)
        ]

    def numbers(
        self, scored: Sequence[ScoredRequest], boundary: str
    ) -> dict[str, list[float | None]]:
        """Name of a result -> its number for each unit, from the scores of all requests."""
        left = iter(scored)
        found = [
            self.measure(unit, [next(left) for _ in own], boundary)
            for unit, own in zip(self.units, self.groups(boundary), strict=True)
        ]
        return {name: [numbers[name] for numbers in found] for name in found[0]} if found else {}


def each_request(requests: Sequence[Request]) -> Answers[Request]:
    """Requests that each have their log-probability as the result."""
    return Answers(
        what="requests",
        units=requests,
        requests=lambda request, *_: [request],
        measure=lambda _, own, __: {"mean log-probability per token": own[0].mean_logprob},
    )


def spread(n: int, most: int = SAMPLED) -> list[int]:
    """At most `most` of n places, evenly spread, in order."""
    return [k * n // min(n, most) for k in range(min(n, most))]


def means(ways: Mapping[str, Mapping[str, Sequence[float | None]]]) -> dict[str, dict[str, Any]]:
    """Means of each result over the units that have it in all ways of scoring.

    Args:
        ways: name of a way -> what `Answers.numbers` gives.

    Returns:
        Name of a result -> `n`, the number of units, and the mean by the name of each way. A
        result that no unit has is left out.
    """
    out: dict[str, dict[str, Any]] = {}
    for name in next(iter(ways.values())):
        rows = [
            row
            for row in zip(*(values[name] for values in ways.values()), strict=True)
            if all(value is not None and math.isfinite(value) for value in row)
        ]
        if rows:
            averages = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
            out[name] = {"n": len(rows), **dict(zip(ways, averages, strict=True))}
    return out


def blank_record(
    answers: Answers[Any], own: Sequence[ScoredRequest], blanks: Sequence[ScoredRequest],
    boundary: str,
) -> dict[str, Any]:  # fmt: skip
    """Effect of a blank before the answers of a sample, as a JSON object.

    Args:
        own, blanks: scores of the sample's requests, as they are and with the blank.

    Returns:
        `n_items`; `n_answers`, scored in both ways, and `n_raised`, whose probability the blank
        raises; `raises_most`; `results`, see `means`; `what` and `opening` of the finding;
        `finding`, a sentence if it raises most.
    """
    pairs = [
        (published_logprob, blank_logprob)
        for published, with_blank in zip(own, blanks, strict=True)
        if (published_logprob := getattr(published, answers.statistic)) is not None
        and (blank_logprob := getattr(with_blank, answers.statistic)) is not None
    ]
    n_raised = sum(blank_logprob > published_logprob for published_logprob, blank_logprob in pairs)
    results = means(
        {
            "as_published": answers.numbers(own, boundary),
            "with_blank": answers.numbers(blanks, boundary),
        }
    )
    return _blank(results, len(pairs), n_raised, answers.what, answers.with_blank)


def _blank(
    results: Mapping[str, Mapping[str, Any]], n_answers: int, n_raised: int, what: str, opening: str
) -> dict[str, Any]:
    out = {
        "n_items": max((result["n"] for result in results.values()), default=0),
        "n_answers": n_answers,
        "n_raised": n_raised,
        "raises_most": 2 * n_raised > n_answers,
        "results": results,
        "what": what,
        "opening": opening,
        "finding": None,
    }
    if out["raises_most"] and results:
        moved = " and the ".join(
            f"{name} is {result['with_blank']:.4g} instead of {result['as_published']:.4g}"
            for name, result in results.items()
        )
        out["finding"] = (
            f"{opening} the {moved}; see --answer-separator (a sample of {out['n_items']} {what}; "
            f"the blank raises the probability of {n_raised} of {n_answers} answers)"
        )
    return out


def united_blanks(blanks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One record of the `blank_record`s of several runs: their samples together.

    If no sample was scored, it says why the first one was not.
    """
    scored = [blank for blank in blanks if "results" in blank]
    if not scored:
        return dict(blanks[0]) if blanks else {}
    n_answers, n_raised = (sum(one[name] for one in scored) for name in ("n_answers", "n_raised"))
    results = _united([blank["results"] for blank in scored])
    return _blank(results, n_answers, n_raised, scored[0]["what"], scored[0]["opening"])


def _united(samples: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The `means` over the units of several samples."""
    out: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        parts = [sample[name] for sample in samples if name in sample]
        n = sum(part["n"] for part in parts)
        out[name] = {"n": n}
        for way in [way for way in parts[0] if way != "n"]:  # in order, which a set has not
            out[name][way] = math.fsum(part["n"] * part[way] for part in parts) / n
    return out


def boundary_line(boundary: str, audit: Mapping[str, Any] | None) -> str | None:
    """A boundary audit in a line, and its effect in a second one; None without an audit.

    Args:
        boundary: of the run.
        audit: as of `BoundaryAudit.counts`.
    """
    if audit is None:
        return None
    n_audited = _n_audited(audit)
    if not n_audited:
        return None
    parts = [f"{name} would change {count}" for name, count in audit["changed"].items()]
    left_out = ""
    if n := audit.get("n_too_long"):
        left_out = f"; {n} longer than {AUDITED_CHARACTERS} characters are not audited"
    if n := audit.get("n_passed_over"):
        left_out += f"; a sample, {n} others are not audited"
    line = f"{boundary}: of {n_audited} requests {', '.join(parts)}{left_out}"
    if (effect := audit.get("effect")) is None:
        return line
    moved = [
        f"{name} over {result['n']} {effect['what']}: "
        + ", ".join(f"{result[way]:.4g} ({way})" for way in (boundary, *audit["changed"]))
        for name, result in effect["results"].items()
    ]
    moved.append(f"believe {effect['advice']}")
    return f"{line}\n{'; '.join(moved)}"


def _n_audited(audit: Mapping[str, Any]) -> int:
    """Number of audited requests: `n_<what>`, the first count."""
    return next((int(n) for name, n in audit.items() if name.startswith("n_")), 0)


def united_boundaries(audits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Unite the audits of several runs, in the form of `BoundaryAudit.counts`.

    Args:
        audits: with their effects, also of boundaries that change nothing. If one that audited
            requests lacks its effect, as in manifests of earlier versions, the result lacks it.
    """
    out: dict[str, Any] = {}
    for name in dict.fromkeys(name for audit in audits for name in audit if name != "effect"):
        parts = [audit[name] for audit in audits if name in audit]
        if name == "changed":
            out[name] = {way: sum(part[way] for part in parts) for way in parts[0]}
        else:
            out[name] = sum(parts)
    effects = [audit["effect"] for audit in audits if "effect" in audit]
    is_known = all("effect" in audit or not _n_audited(audit) for audit in audits)
    if effects and is_known and any(out["changed"].values()):
        results = _united([effect["results"] for effect in effects])
        out["effect"] = {**effects[0], "results": results}
    return out


class BoundaryAudit:
    """Counts what other boundaries change, and scores a sample of it again.

    Attributes:
        changed: name of each other boundary -> audited requests that it would change; empty if
            nothing is audited.
        n_audited, n_too_long: requests that were compared, and those that were left out because
            their continuation is longer than `AUDITED_CHARACTERS`.
        n_passed_over: requests beyond the first `AUDITED_ALL` that are not in the sample of each
            `AUDITED_EVERY`-th one.
    """

    def __init__(
        self,
        lm: LocalLM,
        boundary: str,
        policies: Mapping[str, Boundary],
        *,
        most: int | None,
        advice: str,
        score: Score,
    ) -> None:
        """Nothing is audited yet.

        Args:
            boundary: name of the run's, a key of `policies`.
            policies: name of each boundary to compare -> policy of `jaxscore.text.encoder`; only
                the run's own for no audit.
            most: positions of the model if longer texts fail, otherwise None.
            advice: which boundary to believe, by name first, and what the others are for.
            score: scores requests under a policy, without counting them.
        """
        self.boundary, self._policies = boundary, policies
        self.changed = {name: 0 for name in policies if name != boundary}
        self.n_audited = self.n_too_long = self.n_passed_over = 0
        self._lm, self._most, self._advice, self._score = lm, most, advice, score
        self._sample: Answers[Any] | None = None
        self._sampled: list[Pair] = []
        self._effect: dict[str, Any] | None = None
        self._effect_known = False

    def watch(
        self, requests: Iterable[Request], rewritten: Mapping[str, Sequence[Request]] | None = None
    ) -> Iterator[Request]:
        """Pass requests through, and count those that change.

        Args:
            rewritten: name of another boundary -> all requests as a run with it writes them, if
                their text depends on the boundary.
        """
        if not self.changed:
            yield from requests
            return
        part: list[Request] = []
        for request in requests:
            part.append(request)
            if len(part) == AUDITED_TOGETHER:
                yield from self._count(part, rewritten or {})
                part = []
        if not interrupts.interrupt_requested():  # the last requests are not scored any more
            yield from self._count(part, rewritten or {})

    def retain(self, sample: Answers[Any], pairs: Sequence[Pair]) -> None:
        """Take the requests of a sample with their scores, to score them again."""
        self._sample, self._sampled = sample, [*pairs]

    def sample_stream(
        self, requests: Iterable[Request], n_requests: int | None, chosen: dict[int, Request]
    ) -> Iterator[Request]:
        """Pass requests through, and put a sample in `chosen` while it is short."""
        places, left = set(spread(n_requests or SAMPLED)), RESCORED_CHARACTERS
        for place, request in enumerate(requests):
            length = len(request.context) + len(request.continuation)
            if self.changed and place in places and length <= left:
                left -= length
                chosen[place] = request
            yield request

    def counts(self, what: str) -> dict[str, Any] | None:
        """The audit as a JSON object, or None; `what` (answers, queries) names its count."""
        if not self.changed:
            return None
        counts: dict[str, Any] = {f"n_{what}": self.n_audited, "changed": dict(self.changed)}
        if self.n_too_long:
            counts["n_too_long"] = self.n_too_long
        if self.n_passed_over:
            counts["n_passed_over"] = self.n_passed_over
        if any(self.changed.values()) and (effect := self.effect()):
            counts["effect"] = effect
        return counts

    def line(self) -> str | None:
        """See `boundary_line`."""
        return boundary_line(self.boundary, self.counts("requests"))

    def effect(self) -> dict[str, Any] | None:
        """How far the other boundaries move the result, over the sample.

        Scores again what they change of the sample, and nothing if they change nothing.

        Returns:
            `what` the units of the sample are, `results` of each boundary, see `means`, and
            `advice`; None without an audit, or if nothing was scored.
        """
        if not self._effect_known and self.changed and self._sample is not None:
            sample = self._sample
            own = [
                scored if self._is_short(request) else failed(request.id, TOO_LONG)
                for request, scored in self._sampled
            ]
            ways = {self.boundary: sample.numbers(own, self.boundary)}
            for name, n_changed in self.changed.items():
                scored = self._under(name, own) if n_changed else own
                ways[name] = sample.numbers(scored, name)
            if results := means(ways):
                self._effect = {"what": sample.what, "results": results, "advice": self._advice}
        self._effect_known = True
        return self._effect

    def _under(self, boundary: str, own: Sequence[ScoredRequest]) -> list[ScoredRequest]:
        """Scores of the sample's requests under another boundary.

        Args:
            own: their scores under the run's boundary; a failed request is not scored again.
        """
        out = list(own)
        if self._sample is None:
            return out
        policy = self._policies[boundary]
        others = [request for request, _ in self._sampled]
        if self._sample.depends_on_boundary:
            others = [request for group in self._sample.groups(boundary) for request in group]
        places = [place for place, scored in enumerate(own) if scored.error is None]
        pairs = [(self._sampled[place][0], others[place]) for place in places]
        differs = self.compare(pairs, policy)
        again = [place for place, differ in zip(places, differs, strict=True) if differ]
        found = self._score([others[place] for place in again], policy)
        for place, scored in zip(again, found, strict=True):
            out[place] = scored
        return out

    def compare(self, pairs: Sequence[tuple[Request, Request]], policy: Boundary) -> list[bool]:
        """Whether the second request of each pair, encoded by `policy`, has other tokens."""
        own = self._policies[self.boundary]
        return compare_boundaries(self._lm.encoder, pairs, own, policy, self._most)

    def _is_short(self, request: Request) -> bool:
        """Whether the other boundaries can encode a request in bounded time."""
        if "reencoded" not in (self._policies[name] for name in self.changed):
            return True
        return len(request.continuation) <= AUDITED_CHARACTERS and len(request.context) <= PIECE

    def _count(
        self, part: list[Request], rewritten: Mapping[str, Sequence[Request]]
    ) -> list[Request]:
        first = self.n_audited + self.n_too_long + self.n_passed_over
        chosen = [
            (place, request)
            for place, request in enumerate(part, first)
            if place < AUDITED_ALL or place % AUDITED_EVERY == 0
        ]
        audited = [(place, request) for place, request in chosen if self._is_short(request)]
        self.n_passed_over += len(part) - len(chosen)
        self.n_audited += len(audited)
        self.n_too_long += len(chosen) - len(audited)
        others = {self._policies[name]: name for name in self.changed if name not in rewritten}
        own = self._policies[self.boundary]
        requests = [request for _, request in audited]
        found = audit_boundaries(self._lm.encoder, requests, own, list(others), self._most)
        for policy, count in found.items():
            self.changed[others[policy]] += count
        for name in rewritten.keys() & self.changed.keys():
            pairs = [(request, rewritten[name][place]) for place, request in audited]
            self.changed[name] += sum(self.compare(pairs, self._policies[name]))
        return part
