"""Prompts in, text out: greedy or seeded sampling with a key/value cache.

Requests of like length are decoded side by side in groups. What all prompts of a run begin with
is computed once and kept as a trunk that every step of every group sees; what the prompts of a
group share beyond it is computed once for the group.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxscore import packing
from jaxscore.arrangement import EVERYWHERE, KEYS_VALUES, specs_of
from jaxscore.device import generate
from jaxscore.device.dots import on_cpu
from jaxscore.device.past import Past
from jaxscore.forest import TokenSequence, build
from jaxscore.models.model import Cached
from jaxscore.programs import keys_and_values, trunk_past
from jaxscore.progress import Progress
from jaxscore.requests import Generated, GenerationRequest
from jaxscore.scorer import Scorer
from jaxscore.text import is_text
from jaxscore.window import Variant

GROUPS = (1, 8, 32)  # requests decoded side by side
# Bytes of a group's keys and values: 32 requests of 1024 tokens take 1.2 GB of GPT-2 in bfloat16
# and 4.3 GB of Llama-3 8B.
MOST_CACHE_CPU, MOST_CACHE_ACCELERATOR = 2**31, 2**32
LONG_ROW = 1024  # prompts that fill one are laid out in such rows, short ones in shorter rows
STEPS = 32  # tokens between two looks at what was written
SHORTEST_TRUNK = 64  # tokens; a shorter one, or one for a single group, saves too little


class Generator:
    """Writes text with a scorer's model.

    Example:
        >>> generator = Generator(Scorer.from_pretrained("demo"))
        >>> [written] = generator.generate([GenerationRequest("0", "The cat", max_new_tokens=10)])
        >>> written.text
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.model, self.encoder = scorer.model, scorer.encoder
        eos = self.model.eos_ids
        own = self.encoder.tokenizer.eos_token_id
        self.eos_ids = eos or (() if own is None else (int(own),))

    def generate(self, requests: Iterable[GenerationRequest]) -> list[Generated]:
        """Continue each prompt.

        Args:
            requests: in any order; what their prompts share is computed once.

        Returns:
            One result a request, in order; one that cannot be generated has `error` set. A text
            ends at one of the checkpoint's EOS ids, before a stop string, at its
            `max_new_tokens`, or where the model has no positions left.
        """
        requests = list(requests)
        out: list[Generated | None] = [None] * len(requests)
        texts = [request.prompt if is_text(request.prompt) else "" for request in requests]
        waiting = []
        for k, ids in enumerate(self.encoder.prompt_ids(texts)):
            if complaint := self._complaint(requests[k], ids):
                nothing = np.zeros(0, np.int32)
                out[k] = Generated(requests[k].id, "", nothing, None, complaint)
            else:
                n_new = min(requests[k].max_new_tokens, self._room(ids))
                waiting.append(_Writing(k, requests[k], ids, n_new))
        with Progress(self.scorer.progress, "writing") as progress:
            progress.extend(sum(one.n_new for one in waiting), len(waiting), None)
            run = self._one_by_one if self.model.cached is None else self._in_groups
            for one in run(waiting, progress):
                out[one.index] = self._result(one)
        return [one for one in out if one is not None]

    def _room(self, ids: np.ndarray) -> int:
        """Tokens that may follow; the last one is never fed, which only our own cache knows."""
        return self.model.max_positions - len(ids) + (self.model.cached is not None)

    def _complaint(self, request: GenerationRequest, ids: np.ndarray) -> str | None:
        if not is_text(request.prompt):
            return "its prompt has half a surrogate pair, which is no character"
        if not len(ids):
            return "its prompt has no tokens, so nothing comes after it"
        if self._room(ids) < 1:
            return (
                f"its prompt has {len(ids)} tokens, the model takes {self.model.max_positions} "
                "positions, which leaves none to write in; shorten it"
            )
        if int(ids.max()) >= self.model.vocab_size:
            return (
                f"token id {int(ids.max())} is beyond the model's vocabulary of "
                f"{self.model.vocab_size}; tokenizer and model do not belong together"
            )
        r = request
        whole = isinstance(r.max_new_tokens, int | np.integer)
        hot = not 0 <= r.temperature < math.inf  # which NaN is too
        if not whole or r.max_new_tokens < 1 or hot or not 0 < r.top_p <= 1:
            return (
                f"max_new_tokens {r.max_new_tokens}, temperature {r.temperature} and top_p "
                f"{r.top_p}: expected a whole number of at least 1, at least 0 and finite, and "
                "above 0 up to 1"
            )
        if "" in r.stop:
            return "a stop string is empty, so the text would end before it begins"
        longer, n_new = self.model.longer, min(r.max_new_tokens, self._room(ids))
        if longer is not None and len(ids) <= longer[0] < len(ids) + n_new - 1:
            return (
                f"its prompt of {len(ids)} tokens and {n_new} new ones go beyond the "
                f"{longer[0]} up to which this model has other rotary frequencies; ask for at "
                f"most {longer[0] - len(ids) + 1} new tokens"
            )
        return None

    def _one_by_one(
        self, waiting: Sequence["_Writing"], progress: Progress
    ) -> Iterator["_Writing"]:
        """By transformers' own `generate`."""
        write = self.model.write
        assert write is not None  # a model has either
        for one in waiting:
            r = one.request
            seed = r.seed % 2**32
            found = write(self.model.params, one.ids, one.n_new, r.temperature, r.top_p, seed)
            one.take(found, self.eos_ids, self._decode)
            progress.advance(one.n_new)
            yield one

    def _in_groups(self, waiting: list["_Writing"], progress: Progress) -> Iterator["_Writing"]:
        variants: dict[int, tuple[Variant, list[_Writing]]] = {}
        for one in waiting:
            variant = self.scorer.variant(len(one.ids))
            variants.setdefault(id(variant), (variant, []))[1].append(one)
        for variant, some in variants.values():
            yield from self._by_variant(variant, some, progress)

    def _by_variant(
        self, variant: Variant, waiting: list["_Writing"], progress: Progress
    ) -> Iterator["_Writing"]:
        cached = _cached(variant)
        shared = _common_prefix([one.ids for one in waiting])
        if shared < SHORTEST_TRUNK or len(waiting) <= GROUPS[-1]:
            shared = 0
        trunk: tuple[Past, ...] = ()
        if shared:
            ids = waiting[0].ids[:shared]
            trunk = (trunk_past(variant.programs, variant.model, ids, progress),)
        slot = jax.eval_shape(lambda: cached.no_past(1, 1))
        slot_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in slot)
        most = MOST_CACHE_CPU if on_cpu() else MOST_CACHE_ACCELERATOR
        for group in _groups(waiting, shared, most // slot_bytes):
            yield from self._write_group(variant, group, shared, trunk, progress)

    def _write_group(
        self,
        variant: Variant,
        whole: "_Group",
        shared: int,
        trunk: tuple[Past, ...],
        progress: Progress,
    ) -> list["_Writing"]:
        """All texts of one group, in its order."""
        group, B, slots = whole.members, whole.rows, whole.slots
        past = self._prefill(variant, group, B, slots, shared, trunk, progress)

        def column(values: Iterable[Any], fill: Any, dtype: Any) -> jax.Array:
            padded = [*values, *[fill] * (B - len(group))]
            return variant.programs.put(np.array(padded, dtype))

        sampling = generate.Sampling(
            column((one.request.temperature for one in group), 0.0, np.float32),
            column((one.request.top_p for one in group), 1.0, np.float32),
            column((one.request.seed % 2**32 for one in group), 0, np.uint32),
        )
        state = generate.Decoding(
            past,
            token=column((one.ids[-1] for one in group), 0, np.int32),
            done=column((False for _ in group), True, bool),
            left=column((one.n_new for one in group), 0, np.int32),
            drawn=column((0 for _ in group), 0, np.int32),
        )
        greedy = all(one.request.temperature == 0 for one in group)
        step = functools.partial(
            generate.decode,
            _cached(variant).extend,
            variant.model.unembedding,
            steps=STEPS,
            greedy=greedy,
        )
        eos = variant.programs.put(np.array(self.eos_ids or (-1,), np.int32))
        while not all(one.ended for one in group):
            # A stop string ends a text that the device would go on with.
            ended = column((one.ended for one in group), True, bool)
            state = state._replace(done=state.done | ended)
            state, tokens = variant.programs.run(
                ("decode", B, slots, _slots(trunk), greedy),
                step,
                (variant.model.params, state, sampling, trunk, eos),
                progress,
                donate=(1,),
                outputs=(specs_of(state), EVERYWHERE)
                if variant.programs.arrangement
                else EVERYWHERE,
            )
            for one, row in zip(group, np.asarray(tokens), strict=False):
                if not one.ended:
                    one.take(row[row != generate.NONE], self.eos_ids, self._decode)
        progress.advance(sum(one.n_new for one in group))
        return group

    def _prefill(
        self,
        variant: Variant,
        group: Sequence["_Writing"],
        B: int,
        slots: int,
        shared: int,
        trunk: tuple[Past, ...],
        progress: Progress,
    ) -> Past:
        """The keys and values of every prompt of the group without its last token."""
        cached = _cached(variant)
        rest = [one.ids[shared:] for one in group]
        forest = build([TokenSequence(ids, len(ids) - 1) for ids in rest])
        own = np.zeros(B, np.int32)
        own[: len(rest)] = [len(ids) - 1 for ids in rest]
        programs = variant.programs
        empty = programs.run(
            ("empty cache", B, slots),
            lambda: cached.no_past(B, slots),
            (),
            progress,
            outputs=KEYS_VALUES,
        )
        past = Past(*empty, *programs.put((np.int32(shared), own)))
        # Few shapes: each is a program, and seconds, for tokens that take much less.
        budget, n_tokens = self.scorer.batch_tokens, forest.n_nodes
        plan = packing.plan_uniform(
            forest,
            row_length=_power(max(int(own.max()), LONG_ROW if n_tokens > LONG_ROW else 1)),
            width=self.model.width,
            batch_tokens=budget if 2 * n_tokens > budget else budget // packing.TAIL,
        )
        edges: dict[int, list[int]] = {}  # what each answers, several where prompts are equal
        for k, (a, b) in enumerate(zip(forest.offsets, forest.offsets[1:], strict=False)):
            if b > a:
                edges.setdefault(int(forest.edge_of[a]), []).append(k)
        for batch in plan.batches():
            kept = variant.programs.run(
                ("prefill", *batch.shape, _slots(trunk)),
                keys_and_values(cached),
                (
                    variant.model.params,
                    *programs.put((batch.ids, batch.position + shared, batch.subtree_end)),
                    *trunk,
                ),
                progress,
                outputs=KEYS_VALUES,
            )
            source, mine = np.zeros((B, slots), np.int32), np.zeros(B, bool)
            for query, row in zip(batch.query, batch.edge, strict=False):
                path = _path(batch, int(query))
                for k in (k for edge in row for k in edges.get(int(edge), ())):
                    source[k, : len(path)], mine[k] = path, True
            past = variant.programs.run(
                ("store", *batch.shape, B, slots),
                generate.store,
                (past, kept, *programs.put((source, mine))),
                progress,
                donate=(0,),
                outputs=specs_of(past),
            )
        return past

    def _decode(self, ids: list[int]) -> str:
        return self.encoder.tokenizer.decode(ids, skip_special_tokens=True)

    def _result(self, one: "_Writing") -> Generated:
        if one.error:
            return Generated(one.request.id, "", np.zeros(0, np.int32), None, one.error)
        ids = np.array(one.written, np.int32)
        return Generated(one.request.id, one.text, ids, one.finish)


def _cached(variant: Variant) -> Cached:
    cached = variant.model.cached
    assert cached is not None  # transformers' classes have a way of their own
    return cached


@dataclasses.dataclass
class _Writing:
    """A request on its way: its place among the requests, and what is written so far."""

    index: int
    request: GenerationRequest
    ids: np.ndarray
    n_new: int
    written: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    finish: str | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.error is not None

    def take(
        self, ids: np.ndarray, eos: tuple[int, ...], decode: Callable[[list[int]], str]
    ) -> None:
        """Add tokens, and see whether the text ends with them."""
        for id in ids.tolist():
            if id == generate.BROKEN:
                self.error = NOT_FINITE
                return
            if id in eos:
                self.finish = "eos"
                break
            self.written.append(id)
            if len(self.written) == self.n_new:
                self.finish = "length"
                break
        self.text = decode(self.written)
        found = [at for stop in self.request.stop if (at := self.text.find(stop)) >= 0]
        if found:
            self.text, self.finish = self.text[: min(found)], "stop"


NOT_FINITE = "the model gave logits that are not finite; check the weights, or use float32"


@dataclasses.dataclass(frozen=True)
class _Group:
    """Requests side by side in a cache of [`rows`, `slots`]."""

    slots: int
    least_rows: int
    members: list[_Writing]

    @property
    def rows(self) -> int:
        return next(n for n in GROUPS if n >= max(self.least_rows, len(self.members)))


def _groups(waiting: list[_Writing], shared: int, most_slots: int) -> list[_Group]:
    """Requests side by side whose caches are of like length, alike prompts together.

    The longest come first. One joins those before it where it fills a quarter of their cache's
    length, and where they are full another such cache follows if it fills half of one: few
    shapes are compiled, and no cache is mostly empty. A length that lets more requests go side
    by side is always a new one.
    """

    def slots(one: _Writing) -> int:
        # The prompt's last token is fed first and the last one written never is.
        return _power(len(one.ids) - shared + one.n_new - 2)

    def most(slots: int) -> int:
        return max(n for n in GROUPS if n == 1 or n * slots <= most_slots)

    order = sorted(waiting, key=lambda one: (-slots(one), one.ids.astype(">u4").tobytes()))
    groups: list[_Group] = []
    for one in order:
        need = slots(one)
        size = groups[-1].slots if groups else 0
        if not groups or need * 4 < size or most(need) > most(size):
            groups.append(_Group(need, 1, []))
        elif len(groups[-1].members) == most(size):
            groups.append(_Group(size, most(size), []) if need * 2 >= size else _Group(need, 1, []))
        groups[-1].members.append(one)
    return groups


def _power(n: int) -> int:
    """The power of two that holds n, a row at least."""
    return max(packing.SHORTEST_ROW, 1 << (max(n, 1) - 1).bit_length())


def _common_prefix(prompts: Sequence[np.ndarray]) -> int:
    """Tokens that all begin with, their last ones left out."""
    if not prompts:
        return 0
    n = min(map(len, prompts)) - 1
    first = prompts[0][:n]
    for ids in prompts[1:]:
        differs = np.flatnonzero(ids[:n] != first[:n])
        n = int(differs[0]) if len(differs) else n
    return n


def _path(batch: packing.RowBatch, query: int) -> np.ndarray:
    """Indices in the flattened rows of a token's path, from its root to itself."""
    row, column = divmod(query, batch.shape[1])
    seen = np.flatnonzero(batch.subtree_end[row, : column + 1] > column)
    return row * batch.shape[1] + seen


def _slots(trunk: tuple[Past, ...]) -> int:
    return trunk[0].key.shape[2] if trunk else 0
