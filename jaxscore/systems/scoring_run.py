"""One evaluation's requests to a model: scored, timed and audited."""

import functools
import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, cast

from jaxscore.errors import InputError
from jaxscore.io import interrupts
from jaxscore.lm import LM, Capabilities, LocalLM
from jaxscore.systems.audits import (
    JOINT_OR_SEPARATE,
    PART_OF_ANSWERS,
    Answers,
    BoundaryAudit,
    Pair,
    blank_record,
    each_request,
)
from jaxscore.systems.prompt_settings import NO_LAYOUTS
from jaxscore.systems.rounding_audit import Draw, Noise, OtherLayouts
from jaxscore.systems.settings import ScoringSettings
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import LabelRequest, Request
from jaxscore.types.results import LabelScores, ScoredRequest, failed

NO_BLANKS = "the model would compute whole prompts again"
NO_BLANKS_REMARK = f"not tried with a blank before the answers: {NO_BLANKS}; see --answer-separator"


class ScoringRun:
    """Passes requests to a model and measures the run.

    Attributes:
        policy: the boundary, as `jaxscore.text.encoder` names it.
        boundaries: the audit of the other boundaries.
        blank: what a blank before the answers would do, see `audits.blank_record`; or why it is
            not known, as `not_scored`; empty without `score_answers`.
        seconds: wall time of scoring and labelling.
    """

    def __init__(
        self,
        lm: LM | None,
        settings: ScoringSettings,
        *,
        policies: Mapping[str, Boundary] | None = None,
        boundary: str | None = None,
        special_tokens: bool = True,
        audit_boundary: bool = True,
        advice: str = JOINT_OR_SEPARATE,
    ) -> None:
        """Nothing is scored yet.

        Args:
            lm: scores the requests, or None if there is nothing left to score. Without a
                tokenizer the boundary is not audited.
            settings: truncation, and seed and size of the audit of rounding errors.
            policies: names of the boundaries that the system has -> policies of
                `jaxscore.text.encoder`; None for systems that score no continuation.
            boundary: a key of `policies`; None is the setting of this name.
            special_tokens: as of `Scorer.score`.
            audit_boundary: whether to count the requests that another boundary would change, and
                to say by how much the result would move.
            advice: which of `policies` to believe, by name first, and what the others are for.

        Raises:
            InputError: an audit of rounding errors for a model that has no other layouts.
        """
        self._lm = cast(LocalLM, lm)  # local methods need a capability
        self._can = Capabilities() if lm is None else lm.capabilities
        if settings.audit_noise and lm is not None and not self._can.has_other_layouts:
            raise InputError(NO_LAYOUTS)
        self._draw = Draw(settings.audit_noise, settings.seed)
        self._is_audited = settings.audit_noise > 0
        self._truncate, self._special_tokens = settings.truncate, special_tokens
        self._has_labels = False
        policies = dict(policies or {})
        boundary = str(boundary or getattr(settings, "boundary", ""))
        self.policy: Boundary = policies.get(boundary, "joint")
        if not (audit_boundary and self._can.is_local):
            policies = {boundary: policies[boundary]} if policies else {}
        self.boundaries = BoundaryAudit(
            self._lm,
            boundary,
            policies,
            most=self._can.max_positions if settings.truncate is None else None,
            advice=advice,
            score=self._score_uncounted,
        )
        self.blank: dict[str, Any] = {}
        self.seconds = 0.0

    def score(self, requests: Iterable[Request]) -> list[ScoredRequest]:
        """Scores of all requests, in their order, see `Scorer.score`."""
        started = time.perf_counter()
        watched = list(self._draw.watch(self.boundaries.watch(requests)))
        scored = list(self._draw.results(self._scores(watched, self.policy)))
        self.seconds += time.perf_counter() - started
        return scored

    def score_answers(self, answers: Answers[Any]) -> list[list[Pair]]:
        """Requests of each unit with their scores; a sample is scored in other ways too.

        A model that would compute its prompts again scores no sample.
        """
        started = time.perf_counter()
        boundary, audit = self.boundaries.boundary, self.boundaries
        groups = answers.groups(boundary)
        requests = [request for group in groups for request in group]
        rewritten = {}
        if answers.depends_on_boundary:
            written = {name: answers.groups(name) for name in audit.changed}
            rewritten = {
                name: [request for group in other for request in group]
                for name, other in written.items()
                if other != groups
            }
        watched = list(self._draw.watch(audit.watch(requests, rewritten)))
        sample = answers.sampled()
        blanks = self._blanks(sample)
        extra = [request for request in blanks if request is not None]
        found = self._scores([*watched, *extra], self.policy)
        left = zip(requests, self._draw.results(found[: len(watched)]), strict=True)
        pairs = [[next(left) for _ in group] for group in groups]
        sampled = [pair for k in answers.places() for pair in pairs[k]]
        if self._can.shares_prefixes:
            audit.retain(sample, sampled)
        if extra:
            self._lm.statistics.sampled_with_blank += len(extra)
            more = iter(found[len(watched) :])
            with_blank = [
                failed("", "the answer begins with a blank") if request is None else next(more)
                for request in blanks
            ]
            own = [scored for _, scored in sampled]
            self.blank = blank_record(sample, own, with_blank, boundary)
        self.seconds += time.perf_counter() - started
        return pairs

    def _blanks(self, sample: Answers[Any]) -> list[Request | None]:
        """The sample's requests with a blank to score; none if the blank changes nothing."""
        if not self._can.shares_prefixes:
            self.blank = {"not_scored": sample.why_no_blanks or NO_BLANKS}
            return []
        if sample.why_no_blanks:
            self.blank = {"not_scored": sample.why_no_blanks}
            return []
        blanks = sample.blanks(self.boundaries.boundary)
        own = [request for group in sample.groups(self.boundaries.boundary) for request in group]
        pairs = [
            (request, blank)
            for request, blank in zip(own, blanks, strict=True)
            if blank is not None
        ]
        if not pairs:
            self.blank = {"not_scored": "no sampled answer is without a blank before it"}
            return []
        if not any(self.boundaries.compare(pairs, self.policy)):
            self.blank = {"not_scored": PART_OF_ANSWERS}
            return []
        return blanks

    def _scores(self, requests: list[Request], policy: Boundary) -> list[ScoredRequest]:
        return self._lm.score(
            requests,
            boundary=policy,
            truncate=self._truncate,
            special_tokens=self._special_tokens,
        )

    def _score_uncounted(self, requests: list[Request], policy: Boundary) -> list[ScoredRequest]:
        """Scores for an audit: in no counter and no journal."""
        with self._lm.uncounted():
            return self._scores(requests, policy)

    def stream(
        self,
        requests: Iterable[Request],
        *,
        window: int | None = None,
        n_requests: int | None = None,
        n_unaudited: int = 0,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> Iterator[ScoredRequest]:
        """Like `score`, for more than fits in memory.

        Args:
            n_unaudited: so many first requests are of no item, and are in no audit.
            window, n_requests, measures, top: as of `LM.stream`.
        """
        started = time.perf_counter()
        chosen: dict[int, Request] = {}
        left = interrupts.until_interrupt(requests)
        unaudited = itertools.islice(left, n_unaudited)
        n_audited = None if n_requests is None else n_requests - n_unaudited
        audited = self.boundaries.sample_stream(self.boundaries.watch(left), n_audited, chosen)
        found = self._lm.stream(
            itertools.chain(unaudited, self._draw.watch(audited)),
            boundary=self.policy,
            truncate=self._truncate,
            special_tokens=self._special_tokens,
            window=window,
            n_requests=n_requests,
            measures=measures,
            top=top,
        )
        sampled: list[Pair] = []
        yield from itertools.islice(found, n_unaudited)
        for place, scored in enumerate(self._draw.results(found)):
            if place in chosen:
                sampled.append((chosen.pop(place), scored))
            yield scored
        if sampled:
            self.boundaries.retain(each_request([request for request, _ in sampled]), sampled)
        self.seconds += time.perf_counter() - started

    def label(self, requests: Iterable[LabelRequest]) -> list[LabelScores]:
        """Compute the next-token distribution over a few ids after each prompt."""
        started = time.perf_counter()
        self._has_labels = True
        watched = list(self._draw.watch(requests))
        scored = list(self._draw.results(self._lm.label(watched, truncate=self._truncate)))
        self.seconds += time.perf_counter() - started
        return scored

    @functools.cached_property
    def noise(self) -> Noise | None:
        """The noise floor of what was scored; None without an audit or without scores."""
        pairs = self._draw.pairs
        if not pairs:
            return None
        if self._has_labels:
            return OtherLayouts(self._lm).labels(pairs, truncate=self._truncate)
        return OtherLayouts(self._lm).scores(
            pairs,
            boundary=self.policy,
            truncate=self._truncate,
            special_tokens=self._special_tokens,
        )

    def measured(self) -> dict[str, Any]:
        """Fields of the `Evaluation`: audits, time and vocabulary."""
        finding = self.blank.get("finding")
        return {
            "findings": [] if finding is None else [finding],
            "boundary": self.boundaries.line(),
            "boundary_effect": self.boundaries.effect(),
            "noise": self.noise,
            "audited": self._is_audited,
            "seconds": self.seconds,
            "vocabulary": self._can.vocab_size,
        }

    @property
    def remarks(self) -> list[str]:
        """That the sample was not scored with blanks, if the model would compute it again."""
        return [NO_BLANKS_REMARK] if self.blank.get("not_scored") == NO_BLANKS else []
