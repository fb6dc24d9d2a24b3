"""Prompts in, text out: greedy or seeded sampling with a key/value cache.

Requests of like length are decoded side by side in groups. What all prompts of a run begin with
is computed once and kept as a trunk that every step of every group sees; what the prompts of a
group share beyond it is computed once for the group. A reproducible scorer has each request
written alone instead.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxscore.device import generate
from jaxscore.device.attention.past import Past
from jaxscore.device.dots import on_cpu
from jaxscore.engine import interrupt, processes
from jaxscore.engine.mesh import EVERYWHERE, KEYS_VALUES, specs_of
from jaxscore.engine.programs import keys_and_values, trunk_past
from jaxscore.engine.progress import Progress
from jaxscore.engine.writing import TokenRequest, Writing, Written
from jaxscore.journal import row_format
from jaxscore.models.model import Cached
from jaxscore.plan import decode_groups, packing
from jaxscore.plan.decode_groups import Group, power
from jaxscore.plan.forest import Forest, TokenSequence, build
from jaxscore.plan.window import Variant
from jaxscore.requests import Generated, GenerationRequest
from jaxscore.scorer import Scorer
from jaxscore.text.encoder import is_text

# Requests that are written side by side, and what writes them.
Batch = tuple[Sequence[Writing], Callable[[], None]]

# Bytes of a group's keys and values: 32 requests of 1024 tokens take 1.2 GB of GPT-2 in bfloat16
# and 4.3 GB of Llama-3 8B.
MOST_CACHE_CPU, MOST_CACHE_ACCELERATOR = 2**31, 2**32
LONG_ROW = 1024  # prompts that fill one are laid out in such rows, short ones in shorter rows
STEPS = 32  # tokens between two looks at what was written


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

        Raises:
            InputError: the scorer's journal cannot be used.
        """
        requests = list(requests)
        texts = [request.prompt if is_text(request.prompt) else "" for request in requests]
        distinct: dict[bytes, Writing] = {}  # equal requests are one, as they are in a journal
        own: list[Writing] = []
        for request, ids in zip(requests, self.encoder.prompt_ids(texts), strict=True):
            one = Writing(self._asked(request, ids), error=self._complaint(request, ids))
            if one.error is None:
                one = distinct.setdefault(row_format.text_key(one.request), one)
            own.append(one)
        waiting = list(distinct.values())
        keys = sorted(row_format.text_key(one.request) for one in waiting)
        self.scorer.note_plan(hashlib.sha256(b"".join(keys)).digest())
        processes.agree("prompts", bytes.fromhex(self.scorer.plan_hash))
        self._restore(waiting)
        self.scorer.sequences += sum(one.error is None for one in own)
        self.scorer.sequences_restored += sum(one.finish is not None for one in own)
        with Progress(self.scorer.progress, "writing") as progress, interrupt.finishing():
            progress.extend(sum(one.request.n_new for one in waiting), len(waiting), None)
            ours = self.model.cached is not None
            batches = self._in_groups(waiting, progress) if ours else self._one_by_one(waiting)
            for batch, write in batches:
                if interrupt.wished():
                    raise KeyboardInterrupt
                if missing := [one for one in batch if not one.ended]:
                    write()
                    self._keep(missing)
                progress.advance(sum(one.request.n_new for one in batch))
        return [_result(request.id, one) for request, one in zip(requests, own, strict=True)]

    def _asked(self, request: GenerationRequest, ids: np.ndarray) -> TokenRequest:
        return TokenRequest(
            ids,
            min(request.max_new_tokens, self._room(ids)),
            request.temperature,
            request.top_p,
            request.seed % 2**32,
            request.stop,
            self.eos_ids,
        )

    def _restore(self, waiting: Sequence[Writing]) -> None:
        """What a journal has is ended before it is begun."""
        if self.scorer.journal is not None:
            found = self.scorer.journal.found_texts([one.request for one in waiting])
            for k, written in found.items():
                waiting[k].restore(written, self._decode)

    def _keep(self, finished: Sequence[Writing]) -> None:
        if self.scorer.journal is not None:
            self.scorer.journal.keep_texts(
                (one.request, Written(np.array(one.written, np.int32), one.finish))
                for one in finished
                if one.finish is not None
            )

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

    def _one_by_one(self, waiting: Sequence[Writing]) -> Iterator[Batch]:
        """By transformers' own `generate`."""
        for one in waiting:
            yield [one], functools.partial(self._write_alone, one)

    def _write_alone(self, one: Writing) -> None:
        write, r = self.model.write, one.request
        assert write is not None  # a model has either
        found = write(self.model.params, r.ids, r.n_new, r.temperature, r.top_p, r.seed)
        one.take(found, self._decode)

    def _in_groups(self, waiting: Sequence[Writing], progress: Progress) -> Iterator[Batch]:
        variants: dict[int, tuple[Variant, list[Writing]]] = {}
        for one in waiting:
            variant = self.scorer.variant(len(one.request.ids))
            variants.setdefault(id(variant), (variant, []))[1].append(one)
        for variant, some in variants.values():
            yield from self._by_variant(variant, some, progress)

    def _by_variant(
        self, variant: Variant, waiting: Sequence[Writing], progress: Progress
    ) -> Iterator[Batch]:
        """The groups of one variant.

        What a journal had is laid out all the same, so that what is missing has the same
        neighbours, and with them the same last bits, as in a run that was left alone.
        """
        alone = self.scorer.reproducible
        shared = 0 if alone else decode_groups.trunk_length(waiting)
        if alone:
            groups = decode_groups.each_alone(waiting)
        else:
            groups = decode_groups.groups(waiting, shared, _most_slots(variant))
        trunk: tuple[Past, ...] = ()
        for group in groups:
            if shared and not trunk and not group.ended:
                ids = waiting[0].request.ids[:shared]
                trunk = (trunk_past(variant.programs, variant.model, ids, progress),)
            yield (
                group.members,
                functools.partial(self._write_group, variant, group, shared, trunk, progress),
            )

    def _write_group(
        self,
        variant: Variant,
        whole: Group,
        shared: int,
        trunk: tuple[Past, ...],
        progress: Progress,
    ) -> None:
        """All texts of one group; those that have ended before are written for their neighbours."""
        group = [Writing(one.request) if one.ended else one for one in whole.members]
        B, slots = whole.rows, whole.slots
        past = self._prefill(variant, group, B, slots, shared, trunk, progress)

        def column(values: Iterable[Any], fill: Any, dtype: Any) -> jax.Array:
            padded = [*values, *[fill] * (B - len(group))]
            return variant.programs.put(np.array(padded, dtype))

        sampling = generate.Sampling(
            column((one.request.temperature for one in group), 0.0, np.float32),
            column((one.request.top_p for one in group), 1.0, np.float32),
            column((one.request.seed for one in group), 0, np.uint32),
        )
        state = generate.Decoding(
            past,
            token=column((one.request.ids[-1] for one in group), 0, np.int32),
            done=column((False for _ in group), True, bool),
            left=column((one.request.n_new for one in group), 0, np.int32),
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
                    one.take(row[row != generate.NONE], self._decode)

    def _prefill(
        self,
        variant: Variant,
        group: Sequence[Writing],
        B: int,
        slots: int,
        shared: int,
        trunk: tuple[Past, ...],
        progress: Progress,
    ) -> Past:
        """The keys and values of every prompt of the group without its last token."""
        cached = _cached(variant)
        rest = [one.request.ids[shared:] for one in group]
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
        plan = self._prefill_plan(forest, int(own.max()))
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

    def _prefill_plan(self, forest: Forest, longest: int) -> packing.Plan:
        """Rows for the prompts of a group, in few shapes: each is a program, and seconds."""
        budget, n_tokens = self.scorer.batch_tokens, forest.n_nodes
        if self.scorer.reproducible:  # one prompt in one row
            length = budget = power(longest)
        else:
            length = power(max(longest, LONG_ROW if n_tokens > LONG_ROW else 1))
            budget = budget if 2 * n_tokens > budget else budget // packing.TAIL
        width = self.model.width
        return packing.plan_uniform(forest, row_length=length, width=width, batch_tokens=budget)

    def _decode(self, ids: list[int]) -> str:
        return self.encoder.tokenizer.decode(ids, skip_special_tokens=True)


def _result(id: str | int, one: Writing) -> Generated:
    if one.error:
        return Generated(id, "", np.zeros(0, np.int32), None, one.error)
    return Generated(id, one.text, np.array(one.written, np.int32), one.finish)


def _cached(variant: Variant) -> Cached:
    cached = variant.model.cached
    assert cached is not None  # transformers' classes have a way of their own
    return cached


def _most_slots(variant: Variant) -> int:
    """Of a group's cache, all its rows together."""
    slot = jax.eval_shape(lambda: _cached(variant).no_past(1, 1))
    slot_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in slot)
    return (MOST_CACHE_CPU if on_cpu() else MOST_CACHE_ACCELERATOR) // slot_bytes


def _path(batch: packing.RowBatch, query: int) -> np.ndarray:
    """Indices in the flattened rows of a token's path, from its root to itself."""
    row, column = divmod(query, batch.shape[1])
    seen = np.flatnonzero(batch.subtree_end[row, : column + 1] > column)
    return row * batch.shape[1] + seen


def _slots(trunk: tuple[Past, ...]) -> int:
    return trunk[0].key.shape[2] if trunk else 0
