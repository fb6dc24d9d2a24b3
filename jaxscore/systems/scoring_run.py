"""One evaluation's requests to a model, and what every report says about them."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from jaxscore.engine.rounding_audit import Draw, Noise, OtherLayouts
from jaxscore.errors import InputError
from jaxscore.lm import LM, Capabilities, LocalLM
from jaxscore.systems.answer_sample import (
    PART_OF_ANSWERS,
    SAMPLED,
    Sample,
    blank_record,
    blank_scores,
    compared,
    spread,
)
from jaxscore.systems.prompt_settings import NO_LAYOUTS
from jaxscore.text.boundary_audit import boundary_audit, compare_boundaries
from jaxscore.text.bounded_tokenizer import PIECE
from jaxscore.text.encoder import Boundary
from jaxscore.text.tokenize_requests import Truncate
from jaxscore.types.requests import LabelRequest, Request
from jaxscore.types.results import LabelScores, ScoredRequest, failed

AUDITED_TOGETHER = 1024  # requests encoded at a time by the boundary audit
AUDITED_ALL, AUDITED_EVERY = 4096, 16  # so many first requests, and then one in so many
AUDITED_CHARACTERS = 1000  # longest continuation that is encoded again for each of its tokens
TOO_LONG = f"longer than {AUDITED_CHARACTERS} characters"
RESCORED_CHARACTERS = 100_000  # of a sampled stream's texts that are scored again, together
JOINT_OR_SEPARATE = (  # advice of systems with these two boundaries
    "joint, the text as the model reads it; take separate to compare with programs that "
    "encode context and continuation apart"
)
NO_BLANKS = "an endpoint computes whole prompts for it"
NO_BLANKS_REMARK = f"not tried with a blank before the answers: {NO_BLANKS}; see --answer-separator"


class ScoringRun:
    """Passes requests to a model and measures the run.

    Attributes:
        seconds: wall time inside `score`, `stream` and `label`.
        n_audited, n_too_long: requests that the boundary audit compared, and those that it left
            out because their continuation is longer than `AUDITED_CHARACTERS`.
        n_passed_over: requests beyond the first `AUDITED_ALL` that are not in its sample, which
            is each `AUDITED_EVERY`-th one.
        changed: name of each other boundary -> audited requests that it would change.
        blank: what a blank before the answers would do, see `answer_sample.blank_record`; or why
            it is not known, as `not_scored`; empty without a sample.
    """

    def __init__(
        self,
        lm: LM | None,
        *,
        boundary: str = "joint",
        policies: Mapping[str, Boundary] | None = None,
        truncate: Truncate | None = None,
        special_tokens: bool = True,
        seed: int = 0,
        audit_noise: int = 0,
        audit_boundary: bool = True,
        advice: str = "",
    ) -> None:
        """Nothing is scored yet.

        Args:
            lm: scores the requests, or None if there is nothing left to score. Without a
                tokenizer the boundary is not audited.
            boundary: the setting's name, a key of `policies`.
            policies: names of the boundaries that the system has -> policies of
                `jaxscore.text.encoder`; None for systems that score no continuation.
            truncate, special_tokens: as of `Scorer.score`.
            seed: draws the requests of the noise audit.
            audit_noise: requests that are scored again in other layouts; 0 for none.
            audit_boundary: whether to count the requests that another boundary would change, and
                to say by how much the result would move.
            advice: which of `policies` to believe, by name first, and what the others are for.

        Raises:
            InputError: a noise audit of a model that has no other layouts.
        """
        self.boundary, self.truncate = boundary, truncate
        self._lm = cast(LocalLM, lm)  # of which local methods need a capability
        self._can = Capabilities() if lm is None else lm.capabilities
        self.special_tokens = special_tokens
        self._policies = dict(policies or {})
        if audit_noise and lm is not None and not self._can.has_other_layouts:
            raise InputError(NO_LAYOUTS)
        others = [name for name in self._policies if name != boundary]
        self._audited = audit_boundary and self._can.is_local and bool(others)
        self.changed = dict.fromkeys(others, 0) if self._audited else {}
        self.n_audited = self.n_too_long = self.n_passed_over = 0
        self._advice = advice
        self._sample: Sample | None = None
        self._rewritten: Mapping[str, Sequence[Request]] = {}
        self._sampled: list[tuple[Request, ScoredRequest]] = []  # the sample's requests
        self._effect: dict[str, Any] | None = None
        self._effect_known = False
        self.blank: dict[str, Any] = {}
        self._draw = Draw(audit_noise, seed)
        self._asked_labels = False
        self._noise: Noise | None = None
        self._noise_known = False
        self.seconds = 0.0

    @property
    def policy(self) -> Boundary:
        """The encoder's name of the boundary."""
        return self._policies[self.boundary]

    @property
    def vocabulary(self) -> int | None:
        """Columns of the model's distribution, or None if unknown."""
        return self._can.vocab_size

    @property
    def _most(self) -> int | None:
        """Tokens of a text that does not fail for its length; None if longer ones are cut."""
        return self._can.max_positions if self.truncate is None else None

    def score(
        self,
        requests: Iterable[Request],
        sample: Sample | None = None,
        rewritten: Mapping[str, Sequence[Request]] | None = None,
    ) -> list[ScoredRequest]:
        """Scores of all requests, in their order, see `Scorer.score`.

        Args:
            sample: of the requests, which is scored in other ways too; None for none. It is not
                scored by a model that would compute its prompts again.
            rewritten: name of another boundary -> all requests as a run with it writes them, if
                their text depends on the boundary.
        """
        started = time.perf_counter()
        self._rewritten = rewritten or {}
        watched = list(self._draw.watch(self._watch(requests)))
        if sample is not None and not self._can.shares_prefixes:
            self.blank = {"not_scored": sample.why_no_blanks or NO_BLANKS}
            sample = None
        if sample is None:
            scored = list(self._draw.results(self._scores(watched, self.policy)))
        else:
            blanks = self._blanks(sample, [watched[place] for place in sample.places])
            found = self._scores([*watched, *blanks], self.policy)
            scored = list(self._draw.results(found[: len(watched)]))
            self._sample = sample
            self._sampled = [(watched[place], scored[place]) for place in sample.places]
            if blanks:
                self._lm.statistics.sampled_with_blank += len(blanks)
                own = [one for _, one in self._sampled]
                others = blank_scores(sample, found[len(watched) :])
                self.blank = blank_record(sample, own, others, self.boundary)
        self.seconds += time.perf_counter() - started
        return scored

    def _blanks(self, sample: Sample, own: list[Request]) -> list[Request]:
        """Select the sample's requests with a blank to score; none if the blank changes nothing."""
        why = sample.why_no_blanks or "no sampled answer is without a blank before it"
        self.blank = {"not_scored": why}
        pairs = [
            (one, other)
            for one, other in zip(own, sample.blanks, strict=False)
            if other is not None
        ]
        if not pairs:
            return []
        if not any(
            compare_boundaries(self._lm.encoder, pairs, self.policy, self.policy, self._most)
        ):
            self.blank = {"not_scored": PART_OF_ANSWERS}
            return []
        return [other for _, other in pairs]

    def _scores(self, requests: list[Request], policy: Boundary) -> list[ScoredRequest]:
        return self._lm.score(
            requests, boundary=policy, truncate=self.truncate, special_tokens=self.special_tokens
        )

    def stream(
        self,
        requests: Iterable[Request],
        *,
        window: int | None = None,
        n_requests: int | None = None,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> Iterator[ScoredRequest]:
        """Like `score`, for more than fits in memory.

        Args:
            window, n_requests, measures, top: as of `LM.stream`.
        """
        started = time.perf_counter()
        watched = self._draw.watch(self._watch(requests))
        kept: dict[int, Request] = {}
        if self._audited:
            watched = _keeping(watched, spread(n_requests or SAMPLED), kept)
        found = self._lm.stream(
            watched,
            boundary=self.policy,
            truncate=self.truncate,
            special_tokens=self.special_tokens,
            window=window,
            n_requests=n_requests,
            measures=measures,
            top=top,
        )
        for place, one in enumerate(self._draw.results(found)):
            if place in kept:
                self._sampled.append((kept.pop(place), one))
            yield one
        self.seconds += time.perf_counter() - started

    def label(self, requests: Iterable[LabelRequest]) -> list[LabelScores]:
        """Compute the next-token distribution over a few ids after each prompt."""
        started = time.perf_counter()
        self._asked_labels = True
        watched = list(self._draw.watch(requests))
        scored = list(self._draw.results(self._lm.label(watched, truncate=self.truncate)))
        self.seconds += time.perf_counter() - started
        return scored

    def noise(self) -> Noise | None:
        """The noise floor of what was scored; None without an audit or without scores."""
        if not self._noise_known and self._draw.pairs:
            layouts = OtherLayouts(self._lm)
            if self._asked_labels:
                self._noise = layouts.labels(self._draw.pairs, truncate=self.truncate)
            else:
                self._noise = layouts.scores(
                    self._draw.pairs,
                    boundary=self.policy,
                    truncate=self.truncate,
                    special_tokens=self.special_tokens,
                )
        self._noise_known = True
        return self._noise

    @property
    def findings(self) -> list[str]:
        """How the result is to be read, see `Evaluation.findings`."""
        finding = self.blank.get("finding")
        return [] if finding is None else [finding]

    @property
    def remarks(self) -> list[str]:
        """That the sample was not scored with blanks, if the model would compute it again."""
        return [NO_BLANKS_REMARK] if self.blank.get("not_scored") == NO_BLANKS else []

    def boundary_counts(self, what: str) -> dict[str, Any] | None:
        """The boundary audit as JSON has it; `what` (answers, queries) names its count."""
        if not self._audited:
            return None
        counts: dict[str, Any] = {f"n_{what}": self.n_audited, "changed": dict(self.changed)}
        if self.n_too_long:
            counts["n_too_long"] = self.n_too_long
        if self.n_passed_over:
            counts["n_passed_over"] = self.n_passed_over
        if effect := self.effect():
            counts["effect"] = effect
        return counts

    def effect(self) -> dict[str, Any] | None:
        """How far the other boundaries move the result, over the sample.

        Scores again what they change of the sample, and nothing if they change nothing.

        Returns:
            `what` the items of the sample are, `results` of each boundary, see
            `answer_sample.compared`, and `advice`; None if no boundary changes anything, or
            nothing was scored.
        """
        if not self._effect_known and any(self.changed.values()) and self._sampled:
            own = [
                scored if self._is_short(request) else failed(request.id, TOO_LONG)
                for request, scored in self._sampled
            ]
            measure = _mean_logprobs if self._sample is None else self._sample.measure
            ways = {self.boundary: measure(own, self.boundary)}
            for name in self.changed:
                ways[name] = measure(self._under(name, own), name)
            if results := compared(ways):
                what = "requests" if self._sample is None else self._sample.what
                self._effect = {"what": what, "results": results, "advice": self._advice}
        self._effect_known = True
        return self._effect

    def _under(self, boundary: str, own: Sequence[ScoredRequest]) -> list[ScoredRequest]:
        """Scores of the sample's requests under another boundary.

        Args:
            own: their scores under the run's boundary; a failed request is not scored again.
        """
        out = list(own)
        if not self.changed[boundary]:
            return out
        policy = self._policies[boundary]
        others = [request for request, _ in self._sampled]
        if self._sample is not None and boundary in self._rewritten:
            others = [self._rewritten[boundary][place] for place in self._sample.places]
        places = [place for place, scored in enumerate(own) if scored.error is None]
        pairs = [(self._sampled[place][0], others[place]) for place in places]
        differs = compare_boundaries(self._lm.encoder, pairs, self.policy, policy, self._most)
        again = [place for place, differ in zip(places, differs, strict=True) if differ]
        with self._lm.uncounted():
            found = self._scores([others[place] for place in again], policy)
        for place, scored in zip(again, found, strict=True):
            out[place] = scored
        return out

    def boundary_line(self) -> str | None:
        """The boundary audit in a line, and its effect in a second one; None without an audit."""
        if not self.n_audited:
            return None
        parts = [f"{name} would change {count}" for name, count in self.changed.items()]
        left_out = (
            f"; {self.n_too_long} longer than {AUDITED_CHARACTERS} characters are not audited"
            if self.n_too_long
            else ""
        )
        if self.n_passed_over:
            left_out += f"; a sample, {self.n_passed_over} others are not audited"
        line = f"{self.boundary}: of {self.n_audited} requests {', '.join(parts)}{left_out}"
        if (effect := self.effect()) is None:
            return line
        moved = [
            f"{name} over {one['n']} {effect['what']}: "
            + ", ".join(f"{one[way]:.4g} ({way})" for way in (self.boundary, *self.changed))
            for name, one in effect["results"].items()
        ]
        moved.append(f"believe {effect['advice']}")
        return f"{line}\n{'; '.join(moved)}"

    def _watch(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The same requests, audited as they pass."""
        if not self._audited:
            yield from requests
            return
        part: list[Request] = []
        for request in requests:
            part.append(request)
            if len(part) == AUDITED_TOGETHER:
                yield from self._count(part)
                part = []
        yield from self._count(part)

    def _is_short(self, request: Request) -> bool:
        """Whether the other boundaries can encode a request in bounded time."""
        if "reencoded" not in (self._policies[name] for name in self.changed):
            return True
        return len(request.continuation) <= AUDITED_CHARACTERS and len(request.context) <= PIECE

    def _count(self, part: list[Request]) -> list[Request]:
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
        encoder, most = self._lm.encoder, self._most
        others = {
            self._policies[name]: name for name in self.changed if name not in self._rewritten
        }
        requests = [request for _, request in audited]
        found = boundary_audit(encoder, requests, self.policy, list(others), most)
        for policy, count in found.items():
            self.changed[others[policy]] += count
        for name in self._rewritten.keys() & self.changed.keys():
            pairs = [(request, self._rewritten[name][place]) for place, request in audited]
            policy = self._policies[name]
            self.changed[name] += sum(compare_boundaries(encoder, pairs, self.policy, policy, most))
        return part


def _keeping(
    requests: Iterable[Request], places: Iterable[int], kept: dict[int, Request]
) -> Iterator[Request]:
    """The same requests; those at some places are kept, while their texts are short together."""
    wanted, left = set(places), RESCORED_CHARACTERS
    for place, request in enumerate(requests):
        length = len(request.context) + len(request.continuation)
        if place in wanted and length <= left:
            left -= length
            kept[place] = request
        yield request


def _mean_logprobs(scored: Iterable[ScoredRequest], boundary: str) -> dict[str, list[float | None]]:
    """The measure of a system whose result is the log-probability of its requests."""
    return {"mean log-probability per token": [one.mean_logprob for one in scored]}
