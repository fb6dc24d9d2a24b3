"""Audits: a model that counts and times requests, and the facts of a run beyond its records.

    AuditedLM    an `LM` around the model: time, boundaries, a draw of requests, warnings
    effects_of   the system run again on a sample, with another boundary or answer separator
    Facts        the result of both; facts of shards add up

A system is not aware of audits: it scores with the model that it gets.
"""

import contextlib
import dataclasses
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, cast

from jaxscore.errors import InputError
from jaxscore.io import interrupts
from jaxscore.io.json_output import to_json_value
from jaxscore.lm import LM, Capabilities, LocalLM
from jaxscore.shell.items import Items
from jaxscore.shell.prompts import NO_LAYOUTS, JointSettings, lacks_space
from jaxscore.shell.rounding_audit import Draw, Noise, OtherLayouts, Spread, united_noise
from jaxscore.shell.system import Aside, Record, System, result_of, units
from jaxscore.text.bounded_tokenizer import PIECE
from jaxscore.text.encoder import audit_boundaries
from jaxscore.text.tokenize_requests import CHUNK_CHARACTERS, bounded_groups
from jaxscore.types.requests import Request

END = object()
TOGETHER = 1024  # maximum number of requests that are encoded again at a time
ALL, EVERY = 4096, 16  # audit so many first requests, and then one in so many
LONGEST = 1000  # characters of a continuation that is encoded again for each of its tokens
SAMPLED, SAMPLED_CHARACTERS = 32, 100_000  # items of a sample, and of their texts
# Count of records whose page has tokens or contexts that no output has.
ON_PAGE_ALONE = "records_with_page_texts"
NO_SHARING = (
    "not tried with a space before the answers: the model would compute whole prompts again; see "
    "--answer-separator"
)
# Counts of `JointSettings`: all requests, and those without a space before the continuation
JOINTS, WITHOUT_SPACE = "joints.n_requests", "joints.without_space"


@dataclasses.dataclass(frozen=True)
class Effect:
    """The effect of other ways of scoring on a sample.

    Attributes:
        n_items: number of results of the sample that all ways have.
        means: means of the system's result, by the name of each way; the run's own first.
        n_answers: requests that the first and the last way score, as different texts.
        n_raised: those that are more probable in the last way.
        rise: mean increase of the log-probability over these requests, nats.
    """

    n_items: int = 0
    means: Mapping[str, float] = dataclasses.field(default_factory=dict)
    n_answers: int = 0
    n_raised: int = 0
    rise: float = 0.0

    def __add__(self, other: Self) -> Self:
        if not self.n_items or not other.n_items:
            return self if self.n_items else other
        n = self.n_items + other.n_items
        means = {
            way: (self.n_items * mean + other.n_items * other.means[way]) / n
            for way, mean in self.means.items()
        }
        n_answers = self.n_answers + other.n_answers
        total = self.n_answers * self.rise + other.n_answers * other.rise
        n_raised = self.n_raised + other.n_raised
        return type(self)(n, means, n_answers, n_raised, total / max(n_answers, 1))

    @property
    def raises_most(self) -> bool:
        """True if most answers are more probable in the last way."""
        return 2 * self.n_raised > self.n_answers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of a run that its records do not have. `a + b` are those of both runs as one.

    Attributes:
        seconds: wall time of the model.
        warnings: sentence with {n} -> how often; a name of `counts` in braces becomes that count.
        counts: numbers that a system adds up in addition to its records, by name.
        boundaries: `audited`, `too_long`, `passed_over`, and for each other boundary the audited
            requests that it would change; empty without an audit.
        boundary, blank: effects on a sample, None if not scored.
        noise: the rounding-error audit; None without one, or where nothing was scored.
        n_runs: number of runs that these are the facts of.
    """

    seconds: float = 0.0
    warnings: Counter[str] = dataclasses.field(default_factory=Counter)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    boundaries: Counter[str] = dataclasses.field(default_factory=Counter)
    boundary: Effect | None = None
    blank: Effect | None = None
    noise: Noise | None = None
    n_runs: int = 0

    def __add__(self, other: Self) -> Self:
        def plus(a: Any, b: Any) -> Any:
            return b if a is None else a if b is None else a + b

        noises = [facts.noise.record() for facts in (self, other) if facts.noise is not None]
        return type(self)(
            seconds=self.seconds + other.seconds,
            warnings=_sum(self.warnings, other.warnings),
            counts=_sum(self.counts, other.counts),
            boundaries=_sum(self.boundaries, other.boundaries),
            boundary=plus(self.boundary, other.boundary),
            blank=plus(self.blank, other.blank),
            noise=united_noise(noises),
            n_runs=self.n_runs + other.n_runs,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the facts as a manifest has them."""
        fields: dict[str, Any] = to_json_value(self)
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read the facts of a manifest."""
        counters: Any = {
            name: Counter(fields[name]) for name in ("warnings", "counts", "boundaries")
        }
        effects: Any = {
            name: fields[name] and Effect(**fields[name]) for name in ("boundary", "blank")
        }
        noise = fields["noise"]
        if noise is not None:
            spread = {
                k: Spread(float(v["largest"]), float(v["mean"])) for k, v in noise["spread"].items()
            }
            noise = Noise(**{**noise, "layouts": tuple(noise["layouts"]), "spread": spread})
        return cls(
            seconds=fields["seconds"], n_runs=fields["n_runs"], noise=noise, **counters, **effects
        )


def _sum(a: Counter[str], b: Counter[str]) -> Counter[str]:
    """Counts of both; a count of 0 stays, unlike with Counter's own sum."""
    return Counter({name: a[name] + b[name] for name in {**a, **b}})


class AuditedLM:
    """A model that notes what passes; what is not watched is the model's own.

    Attributes:
        warnings: a system counts here what a reader of its numbers should know: sentence with {n}
            -> how often.
        counts: numbers that a system adds up in addition to its records. The report's JSON file
            has those whose names have a dot: `a.b` is field `b` of object `a`.
        about: entries that a system adds to the report's settings, such as a template's digest.
        results: requests of items with their results, if they are retained.
    """

    def __init__(self, lm: LM, settings: Any, *, retains: bool = False) -> None:
        """Nothing has passed yet.

        Args:
            retains: keep all results, and audit nothing.

        Raises:
            InputError: an audit of rounding errors for a model that has no other layouts.
        """
        self.warnings: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.about: dict[str, Any] = {}
        self.results: list[tuple[Request, Any]] | None = [] if retains else None
        self._lm, self._settings = cast(LocalLM, lm), settings  # local methods need a capability
        n_drawn = 0 if retains else getattr(settings, "audit_noise", 0)
        if n_drawn and not lm.capabilities.has_other_layouts:
            raise InputError(NO_LAYOUTS)
        self._draw = Draw(n_drawn, getattr(settings, "seed", 0))
        is_audited = lm.capabilities.is_local and not retains
        self._policies = settings.policies() if is_audited else {}
        self._boundaries = Counter(dict.fromkeys(["audited", *list(self._policies)[1:]], 0))
        self._has_joints = isinstance(settings, JointSettings) and "blank" in settings.variants()
        if self._has_joints:
            self.counts.update(dict.fromkeys((JOINTS, WITHOUT_SPACE), 0))
        self._n_requests = 0
        self._seconds, self._has_labels = 0.0, False
        self._options: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lm, name)

    # The members of `LM` are here by name: since Python 3.12 `isinstance` ignores `__getattr__`.

    @property
    def capabilities(self) -> Capabilities:
        """See `LM.capabilities`."""
        return self._lm.capabilities

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings about the model."""
        return self._lm.remarks

    def describe(self) -> dict[str, Any]:
        """See `LM.describe`."""
        return self._lm.describe()

    def score(self, requests: Iterable[Any], **options: Any) -> list[Any]:
        """Score as `LM.score` does."""
        return list(self._watched(self._lm.score, requests, options))

    def stream(self, requests: Iterable[Any], **options: Any) -> Iterator[Any]:
        """Score as `LM.stream` does."""
        return self._watched(self._lm.stream, requests, options)

    def label(self, requests: Iterable[Any], **options: Any) -> list[Any]:
        """Label as `LM.label` does."""
        self._has_labels = True
        return list(self._watched(self._lm.label, requests, options, is_text=False))

    def generate(self, requests: Iterable[Any]) -> list[Any]:
        """Generate as `LM.generate` does."""
        with self.timed():
            return self._lm.generate(requests)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of a block as the model's."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - started

    def facts(self) -> Facts:
        """Return the facts so far; scores the drawn requests again in other layouts."""
        warnings = self.warnings.copy()
        warnings.update(dict.fromkeys(self._lm.remarks, 1))  # known after the results
        return Facts(
            seconds=self._seconds,
            warnings=warnings,
            counts=self.counts,
            boundaries=self._boundaries if len(self._policies) > 1 else Counter(),
            noise=self._noise(),
            n_runs=1,
        )

    def _watched(
        self,
        call: Callable[..., Iterable[Any]],
        requests: Iterable[Any],
        options: dict[str, Any],
        *,
        is_text: bool = True,
    ) -> Iterator[Any]:
        waiting: deque[Any] = deque()
        kept = ("boundary", "truncate", "special_tokens", "text_windows")
        self._options = {name: options[name] for name in kept if name in options}

        def passing() -> Iterator[Any]:
            left = interrupts.until_interrupt(requests)
            for batch in bounded_groups(left, _n_characters, TOGETHER, CHUNK_CHARACTERS):
                if is_text and not interrupts.interrupt_requested():
                    self._count([each for each in batch if not isinstance(each, Aside)])
                waiting.extend(batch)
                yield from batch

        with self.timed():
            results = iter(call(passing(), **options))
        while True:
            with self.timed():  # not the time in which the system makes records
                result = next(results, END)
            if result is END:
                return
            request = waiting.popleft()
            if not isinstance(request, Aside):
                self._draw.add(request, result)
                if self.results is not None:
                    self.results.append((request, result))
            yield result

    def _count(self, requests: Sequence[Request]) -> None:
        """Count the requests without a space, and those that other boundaries would change."""
        if self._has_joints:
            self.counts[JOINTS] += len(requests)
            self.counts[WITHOUT_SPACE] += sum(
                lacks_space(request.context, request.continuation) for request in requests
            )
        run_policy, *others = self._policies.values() or [None]
        if not others:
            return
        first, self._n_requests = self._n_requests, self._n_requests + len(requests)
        chosen = [r for k, r in enumerate(requests, first) if k < ALL or k % EVERY == 0]
        audited = [request for request in chosen if self._is_short(request)]
        counts = Counter(
            audited=len(audited),
            too_long=len(chosen) - len(audited),
            passed_over=len(requests) - len(chosen),
        )
        groups: dict[tuple[str, ...], list[Request]] = {}
        for request in audited:
            groups.setdefault(getattr(request, "boundaries", ()), []).append(request)
        for rewritten, group in groups.items():
            counts.update(dict.fromkeys(rewritten, len(group)))
            left = {p: name for name, p in self._policies.items() if name not in rewritten}
            changed = audit_boundaries(
                self._lm.encoder,
                group,
                run_policy,
                [p for p in others if p in left],
                self._most_positions,
            )
            counts.update({left[policy]: n for policy, n in changed.items()})
        self._boundaries.update(counts)

    @property
    def _most_positions(self) -> int | None:
        is_cut = self._settings.truncate is not None or "text_windows" in self._options
        return None if is_cut else self._lm.capabilities.max_positions

    def _is_short(self, request: Request) -> bool:
        """Return True if other boundaries can encode a request in bounded time."""
        if "reencoded" not in self._policies.values():
            return True
        return len(request.continuation) <= LONGEST and len(request.context) <= PIECE

    def _noise(self) -> Noise | None:
        pairs = self._draw.pairs
        if not pairs:
            return None
        if self._has_labels:
            return OtherLayouts(self._lm).labels(pairs, truncate=self._settings.truncate)
        return OtherLayouts(self._lm).scores(pairs, **self._options)


def _n_characters(request: Any) -> int:
    return sum(len(getattr(request, name, "")) for name in ("context", "continuation"))


def variants_of(settings: Any, counts: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return the other ways to score a sample; with spaces only if requests lack them."""
    variants: dict[str, dict[str, Any]] = settings.variants()
    if counts.get(WITHOUT_SPACE) == 0:
        variants.pop("blank", None)
    return variants


def effects_of(
    system: System,
    lm: Any,
    items: Items,
    settings: Any,
    facts: Facts,
    records: Sequence[Record],
) -> dict[str, Effect]:
    """Score a sample of the items in other ways, in no counter and no journal.

    A model that would compute whole prompts again scores no sample.

    Args:
        facts: the run's. A boundary that changes no request is not scored again: its numbers are
            the run's, so that shards add up.
        records: the run's, one for each of all objects.

    Returns:
        `boundary` and `blank`, each if it has another way.
    """
    variants, changed = variants_of(settings, facts.counts), facts.boundaries
    if not variants or not lm.capabilities.is_local or not lm.capabilities.shares_prefixes:
        return {}
    sample, numbers, left = [], [], SAMPLED_CHARACTERS
    n = min(len(items), SAMPLED)
    positions = {k * len(items) // n for k in range(n)}
    longest = LONGEST if changed.get("too_long") else left  # as the audit leaves them out
    usable = ((k, e.item) for k, e in enumerate(items.entries()) if e.error is None)
    for position, (index, item) in enumerate(usable):
        if position in positions and (size := len(str(item))) <= min(left, longest):
            sample.append(item)
            numbers.append(_results(system, records[index]))
            left -= size
    unchanged = _way(system, lm, sample, settings) if "blank" in variants else (numbers, [])
    out = {}
    for variant_kind, ways in variants.items():
        other = {
            name: _way(system, lm, sample, variant) if changed.get(name, 1) else unchanged
            for name, variant in ways.items()
        }
        name = "as_published" if variant_kind == "blank" else next(iter(settings.policies()))
        has_joints = variant_kind == "blank" and WITHOUT_SPACE in facts.counts
        logprob = "sum_logprob" if has_joints else "mean_logprob"
        out[variant_kind] = _effect({name: unchanged, **other}, logprob)
    return out


# The result of each unit of each item, and all requests with their results.
Way = tuple[list[list[float | None]], list[tuple[Request, Any]]]


def _way(system: System, lm: Any, sample: Sequence[Any], settings: Any) -> Way:
    watched = AuditedLM(lm, settings, retains=True)
    with lm.uncounted():
        records = list(system.score(watched, sample, settings))
    return [_results(system, record) for record in records], watched.results or []


def _results(system: System, record: Record) -> list[float | None]:
    """The result of each unit of a record, whose infinities may be text."""
    field, _ = result_of(system)
    values = [unit.get(field) for unit in units(system, record)]
    return [float(value) if isinstance(value, str) else value for value in values]


def _effect(ways: Mapping[str, Way], logprob: str = "mean_logprob") -> Effect:
    rows = [
        row
        for of_item in zip(*(numbers for numbers, _ in ways.values()), strict=True)
        if len({len(numbers) for numbers in of_item}) == 1  # it fails in all ways or in none
        for row in zip(*of_item, strict=True)
        if all(value is not None and math.isfinite(value) for value in row)
    ]
    means = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)] if rows else []
    (_, first), *_, (_, last) = ways.values()
    # If one way refuses an item, its requests and those of the other ways are not pairs.
    pairs = zip(first, last, strict=True) if len(first) == len(last) else ()
    rises = [
        after - before
        for (asked, a), (other, b) in pairs
        if (asked.context, asked.continuation) != (other.context, other.continuation)
        and None not in (before := getattr(a, logprob), after := getattr(b, logprob))
    ]
    n_raised = sum(rise > 0 for rise in rises)
    rise = math.fsum(rises) / max(len(rises), 1)
    return Effect(len(rows), dict(zip(ways, means, strict=False)), len(rises), n_raised, rise)
