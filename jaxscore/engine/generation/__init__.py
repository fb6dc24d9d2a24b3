"""Generation of text from prompts, greedy or sampled with a seed."""

import contextlib
import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from jaxscore.device import jax_settings
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.engine.engine import Engine
from jaxscore.engine.generation.prefill import Prefill
from jaxscore.engine.generation.slots import (
    STEPS,
    SlotTable,
    cache_limit,
    explain_out_of_memory,
    most_rows,
)
from jaxscore.engine.generation.state import (
    ABANDONED,
    TextState,
    check_request,
    check_types,
    n_free_positions,
)
from jaxscore.engine.journal_writer import read_journal
from jaxscore.engine.programs import Variant, prefix_cache
from jaxscore.engine.progress import Progress
from jaxscore.io import interrupts, processes
from jaxscore.journal import pack_text, unpack_text
from jaxscore.models.model import Model
from jaxscore.plan import decode_slots
from jaxscore.plan.decode_slots import DecodeGroup
from jaxscore.plan.requests import GeneratedTokens, TokenRequest, TokenSequence, check_sequences
from jaxscore.text.bounded_tokenizer import TextError, encode_each
from jaxscore.text.decoder import TokenBytes
from jaxscore.text.encoder import TextEncoder
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated, Results


class Scheduler:
    """Continuous batching: groups texts into slot tables, and runs these one after another.

    The common prefix of all prompts is computed once, and every step of every slot table attends
    to it; further common prefixes of a group's prompts are computed once for the group. Groups
    with caches of the same shape share a slot table, in which a text starts in the row of a
    finished one. A reproducible engine has a group and a slot table for each request instead.
    transformers' Flax classes generate one text at a time.
    """

    def __init__(self, engine: Engine, token_bytes: TokenBytes) -> None:
        self.engine, self.token_bytes = engine, token_bytes

    def generate(
        self, states: Sequence[TextState], progress: Progress
    ) -> Iterator[list[TextState]]:
        """Generate distinct texts; yield those that just finished, after each block of steps.

        Journaled texts, which are already finished, are scheduled like all others: a missing text
        then has the same row and the same last bits as in an uninterrupted run.

        Raises:
            InputError: a slot table does not fit in the device's memory.
            KeyboardInterrupt: an interrupt was requested; all texts that had started are finished.
        """
        if self.engine.model.functions.cached is None:
            yield from self._one_by_one([state for state in states if not state.finished])
            return
        by_variant: dict[int, list[TextState]] = {}
        for state in states:
            index = self.engine.planner.variant(len(state.request.ids))
            by_variant.setdefault(index, []).append(state)
        for index, members in by_variant.items():
            yield from self._in_slot_tables(self.engine.variants[index], members, progress)

    def _one_by_one(self, states: Sequence[TextState]) -> Iterator[list[TextState]]:
        """Generate with transformers' own `generate`."""
        write = self.engine.model.functions.write
        for state in states:
            assert write is not None  # model pairs have neither, but are never given to a generator
            if interrupts.interrupt_requested_anywhere():
                raise KeyboardInterrupt
            with jax_settings.isolated():
                token_ids = write(self.engine.model.params, state.request)
            state.append(token_ids, self.token_bytes)
            state.notify_watcher()
            yield [state]

    def _in_slot_tables(
        self, variant: Variant, states: Sequence[TextState], progress: Progress
    ) -> Iterator[list[TextState]]:
        shared, tables = self._plan(variant, states)
        prefill = None
        for groups in tables:
            members = [(group, [states[k] for k in group.members]) for group in groups]
            if all(state.finished for _, texts in members for state in texts):
                continue
            if interrupts.interrupt_requested_anywhere():  # before the prefix, which takes seconds
                raise KeyboardInterrupt
            if prefill is None:  # the prefix is computed only if a text is missing
                prefix = self._prefix(variant, states[0].request.ids[:shared], progress)
                prefill = Prefill(variant, self.engine.planner, shared, prefix, progress)
            yield from SlotTable(prefill, members, self.token_bytes).generate()

    def _prefix(self, variant: Variant, ids: np.ndarray, progress: Progress) -> tuple[KVCache, ...]:
        """Compute the prefix cache of the common prefix; return an empty tuple without one."""
        if not len(ids):
            return ()
        with explain_out_of_memory(variant.model, 1, len(ids)):
            return (prefix_cache(variant.programs, variant.model, ids, progress),)

    def _plan(
        self, variant: Variant, states: Sequence[TextState]
    ) -> tuple[int, list[list[DecodeGroup]]]:
        """Return the number of tokens in the prefix cache, and the groups of each slot table."""
        requests = [state.request for state in states]
        if self.engine.planner.reproducible:
            return 0, [[group] for group in decode_slots.one_group_each(requests)]
        rows = most_rows(variant.model)
        shared = decode_slots.shared_prefix_length(requests, rows)
        most_tokens = self.engine.planner.batch_tokens
        fits = cache_limit(variant.model, shared, STEPS, most_tokens=most_tokens)
        groups = decode_slots.group_requests(requests, shared, fits, rows)
        return shared, decode_slots.group_by_cache_shape(groups)


# (index of the request, ids generated so far, True if the text has finished) -> True to continue
Watch = Callable[[int, list[int], bool], bool]

NO_IDS = np.zeros(0, np.int32)
PLACEHOLDER = TokenRequest(NO_IDS, 0, 0.0, 1.0, 0, (), ())  # for a request with an error


class EngineOwner(Protocol):
    """Protocol of a `Scorer`, as far as a generator uses it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def encoder(self) -> TextEncoder: ...
    @property
    def model(self) -> Model: ...


class Generator:
    """Generates text with a scorer's model.

    Example:
        >>> generator = Generator(Scorer.from_pretrained("demo"))
        >>> [result] = generator.generate([GenerationRequest("0", "The cat", max_new_tokens=10)])
        >>> result.text
    """

    def __init__(self, scorer: EngineOwner) -> None:
        self.scorer, self.encoder = scorer, scorer.encoder
        tokenizer = self.encoder.tokenizer
        default = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self.eos_ids = self.model.checkpoint.eos_ids or default
        self._engine, self._token_bytes = scorer.engine, TokenBytes(tokenizer)
        self._scheduler = Scheduler(self._engine, self._token_bytes)

    @property
    def model(self) -> Model:
        """The scorer's current model; `Scorer.update` replaces its weights."""
        return self.scorer.model

    @property
    def side_by_side(self) -> int:
        """Maximum number of texts in one batch.

        A few times as many requests in one call keep the batch full, since the next text takes the
        row of a finished one.
        """
        return most_rows(self.model)

    def generate(self, requests: Iterable[GenerationRequest]) -> list[Generated]:
        """Continue each prompt.

        Args:
            requests: requests in any order; common prefixes of their prompts are computed once.

        Returns:
            One result for each request, in order, with `error` set if it cannot be generated. A
            text finishes at an EOS, at the token that completes a stop string, after
            `max_new_tokens`, or at the model's last position.

        Raises:
            InputError: the scorer's journal cannot be used, or a batch does not fit in the
                device's memory. Finished texts are in the journal.
            KeyboardInterrupt: an interrupt was requested. With a journal, texts that had started
                finish first and are journaled; without one they are lost.
        """
        # Wait for started texts only if they are kept; several processes must stop together.
        waits = self._engine.active_journal is not None or processes.is_distributed()
        results = dict(self._stream(list(requests), None, finish_started=waits))
        return Results(results[index] for index in range(len(results)))

    def stream(
        self, requests: Iterable[GenerationRequest], *, watch: Watch | None = None
    ) -> Iterator[tuple[int, Generated]]:
        """Generate like `generate`, but yield each result with its request's index once finished.

        Args:
            requests: see `generate`; all are planned together.
            watch: `watch(index, ids, finished)` is called after each block of steps for each text
                in generation, with all its ids so far, but not for a journaled text. If it returns
                False, the text is abandoned: its result has the error "abandoned", it is not
                journaled, and its row goes to the next text.

        Raises:
            InputError: the scorer's journal cannot be used, or a batch does not fit in the
                device's memory. Finished texts are in the journal.
            ValueError: `watch` in a multi-process run, whose processes must all run the same steps.
        """
        if watch is not None and processes.is_distributed():
            raise ValueError("watch needs a run of one process, but this run has several")
        return self._stream(list(requests), watch, finish_started=True)

    def _stream(
        self, requests: list[GenerationRequest], watch: Watch | None, *, finish_started: bool
    ) -> Iterator[tuple[int, Generated]]:
        states = self._states(requests)
        finished = self._engine.in_use(self._finished(states, watch, finish_started))
        return (
            (index, _result(getattr(requests[index], "id", index), state))
            for index, state in finished
        )

    def _states(self, requests: list[GenerationRequest]) -> list[TextState]:
        """Return the initial state of each request, with an error if it cannot be generated."""
        errors = [check_types(request) for request in requests]
        prompts: list[Any] = [
            NO_IDS if error else request.prompt
            for request, error in zip(requests, errors, strict=True)
        ]
        texts = [k for k, prompt in enumerate(prompts) if isinstance(prompt, str)]
        encode = functools.partial(self.encoder.request_ids, max_positions=self.model.max_positions)
        for k, ids in zip(texts, encode_each(encode, [requests[k] for k in texts]), strict=True):
            prompts[k] = NO_IDS if isinstance(ids, TextError) else ids
            errors[k] = str(ids) if isinstance(ids, TextError) else None
        invalid = check_sequences(
            [TokenSequence(ids, 0) for ids in prompts],
            vocab_size=self.model.vocab_size,
            max_positions=sys.maxsize,  # `check_request` names the positions left for new tokens
            placeholders=self.model.checkpoint.placeholders,
        )
        out = []
        for k, (request, prompt, error) in enumerate(zip(requests, prompts, errors, strict=True)):
            error = error or invalid.get(k)
            ids = NO_IDS if error else np.array(prompt, np.int32)
            error = error or check_request(request, ids, self.model)
            tokens = PLACEHOLDER if error else self._token_request(request, ids)
            out.append(TextState(tokens, error=error))
        return out

    def _token_request(self, request: GenerationRequest, ids: np.ndarray) -> TokenRequest:
        eos_ids = self.eos_ids if request.eos_ids is None else tuple(request.eos_ids)
        return TokenRequest(
            ids,
            min(request.max_new_tokens, n_free_positions(ids, self.model)),
            request.temperature,
            request.top_p,
            request.seed % 2**32,
            tuple(request.stop),
            eos_ids,
            min(request.top_k, self.model.vocab_size),
            request.repetition_penalty,
        )

    def _finished(
        self, states: Sequence[TextState], watch: Watch | None, finish_started: bool
    ) -> Iterator[tuple[int, TextState]]:
        """Yield each text with its index, once finished; equal requests share one text.

        Args:
            finish_started: if True, started texts finish after the first Ctrl-C; otherwise it
                aborts.
        """
        by_digest: dict[bytes, list[int]] = {}
        for index, state in enumerate(states):
            if state.error:
                yield index, state
            else:
                by_digest.setdefault(state.request.digest(), []).append(index)
        shared = [_SharedText(states[indices[0]], indices, watch) for indices in by_digest.values()]
        statistics = self._engine.statistics
        statistics.note_plan(hashlib.sha256(b"".join(sorted(by_digest))).digest())
        processes.verify_same("prompts", bytes.fromhex(statistics.plan_hash))
        distinct = [text.state for text in shared]
        requests = [state.request for state in distinct]
        restored = read_journal(
            self._engine.active_journal,
            lambda journal: journal.read_texts(requests),
            pack_text,
            unpack_text,
        )
        for k, journaled in restored.items():
            distinct[k].restore(journaled, self._token_bytes)
        statistics.count_texts(
            sum(len(text.indices) for text in shared),
            sum(len(text.indices) for text in shared if text.state.finished),
        )
        by_state = {id(text.state): text for text in shared}
        handler = interrupts.finish_on_interrupt() if finish_started else contextlib.nullcontext()
        with Progress(self._engine.progress, "writing") as progress, handler:
            progress.extend(sum(s.request.n_new for s in distinct), len(distinct), None)
            for finished in self._generated(distinct, progress):
                progress.advance(sum(state.request.n_new for state in finished))
                for state in finished:
                    yield from by_state[id(state)].results()

    def _generated(
        self, states: Sequence[TextState], progress: Progress
    ) -> Iterator[list[TextState]]:
        """Yield journaled texts, then the texts that finish in each block, once journaled."""
        yield [state for state in states if state.finished]
        for finished in self._scheduler.generate(states, progress):
            self._engine.statistics.tokens_written += sum(len(s.token_ids) for s in finished)
            journal = self._engine.active_journal
            if journal is not None and processes.is_first():
                journal.write_texts(
                    (
                        state.request,
                        GeneratedTokens(
                            np.array(state.token_ids, np.int32), state.finish_reason, state.eos_id
                        ),
                    )
                    for state in finished
                    if state.finish_reason is not None
                )
            yield finished


class _SharedText:
    """Text that several equal requests share, with the indices of these requests."""

    def __init__(self, state: TextState, indices: Sequence[int], watch: Watch | None) -> None:
        self.state, self.indices, self._watch = state, indices, watch
        self._abandoned: set[int] = set()  # indices for which the watcher has returned False
        if watch is not None:
            state.watch = self._is_wanted

    def results(self) -> Iterator[tuple[int, TextState]]:
        """Yield the finished text for each index."""
        abandoned = dataclasses.replace(self.state, error=ABANDONED)
        for index in self.indices:
            yield index, abandoned if index in self._abandoned else self.state

    def _is_wanted(self, ids: list[int], finished: bool) -> bool:
        """Call the watcher for each index; return False once all have abandoned the text."""
        assert self._watch is not None
        for index in self.indices:
            if index in self._abandoned:
                continue
            if not self._watch(index, list(ids), finished) and not finished:
                self._abandoned.add(index)
        return len(self._abandoned) < len(self.indices)


def _result(request_id: str | int, state: TextState) -> Generated:
    if state.error:
        return Generated(request_id, "", NO_IDS, None, state.error)
    ids = np.array(state.token_ids, np.int32)
    return Generated(request_id, state.text, ids, state.finish_reason, eos_id=state.eos_id)
