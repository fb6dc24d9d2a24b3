"""Text in, scores out: requests encoded, checked, scored and told again as results."""

import contextlib
import dataclasses
import itertools
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from jaxscore.engine import memory, provenance
from jaxscore.engine.defaults import BATCH_TOKENS, FIRST_WINDOWS, WINDOW, WINDOW_TOKENS
from jaxscore.engine.devices import use_device
from jaxscore.engine.engine import Engine
from jaxscore.engine.generation.generator import Generator
from jaxscore.engine.journal_writer import RunJournal
from jaxscore.engine.loading import load_checkpoint
from jaxscore.engine.progress import RunStatistics
from jaxscore.errors import check_choice, near
from jaxscore.io.local_path import local_path
from jaxscore.journal.database import Journal
from jaxscore.lm import Capabilities
from jaxscore.models.choices import DtypeOption, ImplementationOption, Quantize
from jaxscore.models.model import Model
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.plan.row_batches import SHORTEST_ROW
from jaxscore.text import chat_template, prefix_order
from jaxscore.text.encoder import BOUNDARIES, Boundary, TextEncoder
from jaxscore.text.result_assembly import assemble_choice, assemble_label_scores, assemble_scores
from jaxscore.text.tokenize_requests import (
    Chunk,
    RequestTokenizer,
    Truncate,
    Window,
    WindowTokenizer,
    split_chunks,
)
from jaxscore.types.requests import ChatRequest, GenerationRequest, LabelRequest, requests_from
from jaxscore.types.results import Choice, Generated, LabelScores, Results, ScoredRequest


class Scorer:
    """Scores text under one model.

    Example:
        >>> scorer = Scorer.from_pretrained("demo")
        >>> [scored] = scorer.score([Request("0", "The cat", " sat down")])
        >>> scored.sum_logprob, scored.mean_entropy

    Attributes:
        engine: what runs the model.
        encoder: text to token ids.
        about: everything but the requests that decides the numbers, as JSON has it; empty for a
            model that did not come from a checkpoint.
    """

    def __init__(
        self,
        model: Model,
        encoder: TextEncoder,
        *,
        batch_tokens: int = BATCH_TOKENS,
        progress: bool = False,
        journal: Journal | None = None,
        reproducible: bool = False,
    ) -> None:
        """See `from_pretrained` and `Engine` for the arguments that they share."""
        self.engine = Engine(
            model,
            batch_tokens=batch_tokens,
            progress=progress,
            journal=journal,
            reproducible=reproducible,
        )
        self.encoder = encoder
        # At the interpreter's exit too, or when nothing refers to this any more.
        weakref.finalize(self, self.engine.run_journal.close)
        self._preparer = RequestTokenizer(encoder, model.max_positions, self.engine.complaints)
        self.about: dict[str, Any] = {}
        self._origin: tuple[Any, ...] = (model.model_type, None, None, None)

    @property
    def model(self) -> Model:
        return self.engine.model

    @property
    def models(self) -> tuple[Model, ...]:
        """The model; two where texts are scored under two."""
        return (self.model,)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            scores=True,
            labels=True,
            generates=True,
            takes_messages=True,
            is_local=True,
            has_other_layouts=True,
            has_distribution=True,
            shares_prefixes=True,
            truncates=True,
            boundaries=BOUNDARIES,
            vocab_size=self.model.vocab_size,
            max_positions=self.model.max_positions,
        )

    @property
    def remarks(self) -> Sequence[str]:
        """What a reader of the results should know about the model."""
        return ()

    @property
    def batch_tokens(self) -> int:
        """Tokens in each batch, padding included."""
        return self.engine.planner.batch_tokens

    @property
    def reproducible(self) -> bool:
        """Whether the bits of a request's scores depend on that request alone."""
        return self.engine.planner.reproducible

    @property
    def progress(self) -> bool:
        """Whether a bar is shown on stderr; may be set between two runs."""
        return self.engine.pipeline.progress

    @progress.setter
    def progress(self, shown: bool) -> None:
        self.engine.pipeline.progress = shown

    @property
    def statistics(self) -> RunStatistics:
        """What was counted so far."""
        return self.engine.statistics

    @property
    def journal(self) -> Journal | None:
        """Holds what was scored before, and keeps what is scored; may be set between two runs."""
        return self.engine.run_journal.journal

    @journal.setter
    def journal(self, journal: Journal | None) -> None:
        self.engine.run_journal.journal = journal

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        device: str | None = None,
        dtype: DtypeOption = "auto",
        implementation: ImplementationOption = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
        cache_dir: Path | None = None,
        lora: str | Path | None = None,
        quantize: Quantize | None = None,
        batch_tokens: int | str | None = None,
        progress: bool = False,
        journal: str | Path | None = None,
        mesh: str | None = None,
        reproducible: bool = False,
        accept_config: Sequence[str] = (),
    ) -> "Scorer":
        """Load a checkpoint.

        Args:
            model: a local folder, a hub id, or "demo".
            device: "cpu", "gpu", "cuda" or "tpu"; None is the best one that JAX finds.
            dtype: "auto", "float32" or "bfloat16"; sums over the vocabulary are float32 always.
            implementation: "native" is our decoder, "transformers" their Flax class, "auto" is
                "native".
            revision: of a hub id.
            trust_remote_code: lets the tokenizer, and nothing else, bring code.
            cache_dir: where a hub id is downloaded to; None is the hub's own place.
            lora: a folder with an adapter in PEFT's format, merged into the weights.
            quantize: "int8" stores the layers' weights as 8-bit integers.
            batch_tokens: tokens in each batch, padding included; decides speed and memory. "auto"
                is what the device's memory takes, from 512 to 32,768; None is 4,096 on a CPU and
                "auto" on an accelerator.
            progress: a bar on stderr with tokens per second and the time left.
            journal: a file that keeps what is scored, so that the next run with it does not score
                that again; locked until `close`.
            mesh: the devices, "auto" or "data=N,model=M"; None is the first one.
            reproducible: the bits of a request's scores depend on that request alone; slower.
            accept_config: keys of config.json that are not handled, and that you vouch for: they
                change no number. They are left out, and recorded.

        Raises:
            InputError: the model or the journal cannot be used, and why.
        """
        use_device(device)
        lora = None if lora is None else local_path(str(lora))
        loaded = load_checkpoint(
            model,
            dtype=dtype,
            implementation=implementation,
            revision=revision,
            trust_remote_code=trust_remote_code,
            cache_dir=cache_dir,
            lora=lora,
            quantize=quantize,
            mesh=mesh,
            reproducible=reproducible,
            accept_config=accept_config,
        )
        scorer = cls(
            loaded.model,
            loaded.encoder,
            batch_tokens=memory.batch_tokens(batch_tokens, loaded.model, reproducible=reproducible),
            progress=progress,
            journal=None if journal is None else Journal(local_path(str(journal)), loaded.about),
            reproducible=reproducible,
        )
        scorer.about, scorer._origin = loaded.about, (model, revision, cache_dir, lora)
        return scorer

    def describe(self) -> dict[str, Any]:
        """The model, what is merged into it, how and where it is computed; for reports."""
        name, revision, cache_dir, adapter = self._origin
        return provenance.of_model(
            name, self.model, revision, cache_dir, adapter, reproducible=self.reproducible
        )

    def close(self) -> None:
        """Let other runs have the journal; also at the interpreter's exit, and twice if need be."""
        self.engine.run_journal.close()

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        one = self.model
        name = self._origin[0]
        kind = "" if name == one.model_type else f"{one.model_type}, "
        return f"<Scorer {name}: {kind}{one.implementation}, {one.dtype}>"

    def begin_output(self) -> None:
        """What is planned and counted from here on belongs to another output, see `facts`."""
        self.engine.statistics.begin_output()

    def facts(self) -> dict[str, Any]:
        """What an output was made of and what it took, as JSON has it; for its manifest."""
        stored_as = self.model.stored_as
        return ({"stored_as": stored_as} if stored_as else {}) | self.engine.facts()

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Score in here with the same programs, but without journal, counters and progress bar."""
        engine, pipeline = self.engine, self.engine.pipeline
        before = pipeline.statistics, pipeline.run_journal, pipeline.progress
        engine.statistics = pipeline.statistics = RunStatistics()
        pipeline.run_journal, pipeline.progress = RunJournal(None), False
        try:
            yield
        finally:
            pipeline.statistics, pipeline.run_journal, pipeline.progress = before
            engine.statistics = pipeline.statistics

    def other_layouts(self) -> dict[str, "Scorer"]:
        """Scorers of the same model that lay requests out in other ways, by a name for people.

        They have no journal, and counters of their own.
        """
        tokens = self.batch_tokens
        other = tokens // 2 if tokens // 2 >= SHORTEST_ROW else 2 * tokens
        # A model that shares no text takes one request in each row; prefixes would still be shared.
        apart = dataclasses.replace(self.model, shares_text=False, cached=None)

        def of(model: Model, **options: Any) -> Scorer:
            return type(self)(model, self.encoder, progress=self.progress, **options)

        out = {} if self.reproducible else {"alone": of(self.model, reproducible=True)}
        out[f"batches of {other} tokens"] = of(self.model, batch_tokens=other)
        out["one request a row"] = of(apart, batch_tokens=tokens)
        return out

    def score_sequences(
        self,
        sequences: Sequence[TokenSequence],
        *,
        top: int = 0,
        measures: Collection[str] = (),
    ) -> list[SequenceScores]:
        """Token ids instead of text.

        Args:
            top: how many of the most probable tokens to return for each scored token, see
                `SequenceScores`.
            measures: "deviation", "rank", "renyi2", "varentropy": what else to return for each
                scored token, see `jaxscore.device.lm_head.sums`.

        Raises:
            ValueError: a sequence is longer than the model's positions, starts outside its ids,
                or has an id that is no integer of the model's vocabulary; `top` is below 0 or
                above the vocabulary; or a measure does not exist.
        """
        return self.engine.score_sequences(sequences, top=top, measures=measures)

    def score(
        self,
        requests: Iterable[Any],
        *,
        boundary: Boundary = "joint",
        truncate: Truncate | None = None,
        special_tokens: bool = True,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> list[ScoredRequest]:
        """Scores of all requests, in their order.

        Texts that begin alike are planned together. Many of them are planned in several windows,
        so that the device computes while the rest is encoded; see `jaxscore.text.prefix_order`.

        Args:
            requests: `Request`s, texts, (context, continuation) pairs, dicts with these fields, or
                a DataFrame, see `jaxscore.types.requests`; what they share is computed once.
            boundary: where the continuation starts, see `jaxscore.text.encoder`.
            truncate: "left" drops the context's oldest tokens (after the BOS) from a request
                that is longer than the model's positions; None fails that request.
            special_tokens: whether the tokenizer's BOS is put before a text that has none.
            measures, top: as of `score_sequences`; see `ScoredRequest.measures` and its `top`.

        Returns:
            One result for each request, as a list that a notebook shows (`Results`). A request
            that cannot be scored has `error` set, and the others are not touched by it.

        Raises:
            ValueError: an option that does not exist.
        """
        encoding = WindowTokenizer(self._preparer, boundary, truncate, special_tokens, WINDOW)
        given = list(requests_from(requests))
        order, sizes = prefix_order.order_by_prefix(given)
        parts = split_chunks((given[k] for k in order), sizes)
        found = self._stream(parts, encoding, len(given), {"measures": measures, "top": top})
        out = Results([None] * len(given))
        for place, one in zip(order, found, strict=True):
            out[place] = one
        return out

    def stream(
        self,
        requests: Iterable[Any],
        *,
        boundary: Boundary = "joint",
        truncate: Truncate | None = None,
        special_tokens: bool = True,
        window: int | None = None,
        window_tokens: int | None = WINDOW_TOKENS,
        n_requests: int | None = None,
        measures: Collection[str] = (),
        top: int = 0,
    ) -> Iterator[ScoredRequest]:
        """Like `score`, for more than fits in memory.

        When the results of a window are handed out, at most three further windows, and `window`
        requests beyond them, have been read. Until the iterator ends or is closed, Python's
        collector of cycles looks seldom in the whole process.

        Args:
            requests, boundary, truncate, special_tokens, measures, top: as in `score`.
            window: requests that are planned together, share their text and are held in memory.
                None is 4,096, and fewer at first, so that the device begins early.
            window_tokens: a window ends earlier where its texts have so many tokens; the next
                one has the rest of its requests. None is no limit.
            n_requests: how many there will be, where it is known: for the time left.

        Raises:
            ValueError: an option that does not exist.
        """
        first, window = (FIRST_WINDOWS, WINDOW) if window is None else ((), window)
        encoding = WindowTokenizer(
            self._preparer, boundary, truncate, special_tokens, window, window_tokens
        )
        parts = split_chunks(
            requests_from(requests), itertools.chain(first, itertools.repeat(window))
        )
        return self._stream(parts, encoding, n_requests, {"measures": measures, "top": top})

    def _stream(
        self,
        given: Iterator[Chunk],
        encoding: WindowTokenizer,
        n_requests: int | None,
        wanted: dict[str, Any],
    ) -> Iterator[ScoredRequest]:
        waiting: deque[Window] = deque()

        def sequences(parts: Iterator[Chunk]) -> Iterator[list[TokenSequence]]:
            for window in encoding.windows(parts):
                waiting.append(window)
                yield [sequence for _, item in window for sequence in item.sequences]

        wanted = wanted | {"windows": sequences, "chunks_ahead": encoding.chunks_ahead}
        for scores in self.engine.run(given, n_requests, **wanted):
            yield from assemble_scores(waiting.popleft(), scores, self.encoder)

    def label(
        self, requests: Iterable[LabelRequest], *, truncate: Truncate | None = None
    ) -> list[LabelScores]:
        """The next-token distribution over a few ids after each prompt.

        Args:
            requests: in any order; what their prompts share is computed once.
            truncate: as in `score`; here it drops the prompt's oldest tokens.

        Returns:
            One result for each request, in order; one that cannot be scored has `error` set.
        """
        check_choice("truncate", truncate, (None, *get_args(Truncate)))
        requests = list(requests)
        prepared = self._preparer.labels(requests, truncate)
        [scores] = self.engine.run(iter([[one for item in prepared for one in item.sequences]]))
        left = iter(scores)
        return Results(
            assemble_label_scores(
                getattr(request, "id", k), item, next(left) if item.sequences else None
            )
            for k, (request, item) in enumerate(zip(requests, prepared, strict=True))
        )

    def choose(
        self,
        prompt: str,
        options: Iterable[str],
        *,
        boundary: Boundary = "joint",
        truncate: Truncate | None = None,
    ) -> Choice:
        """Which of a few texts is the most probable after a prompt.

        Example:
            >>> scorer.choose("Is Oslo in Norway? Answer Yes or No:", [" Yes", " No"]).best

        Args:
            prompt: text; nothing is put between it and an option.
            options: at least one text, each scored whole.
            boundary, truncate: as in `score`.

        Raises:
            TypeError: `options` is one string.
            ValueError: there are no options.
        """
        if isinstance(options, str):
            raise TypeError("options is one string, expected a list of strings")
        options = list(options)
        if not options:
            raise ValueError("options is empty, expected the texts to compare")
        pairs = [(prompt, option) for option in options]
        return assemble_choice(
            prompt, options, self.score(pairs, boundary=boundary, truncate=truncate)
        )

    def generator(self) -> Generator:
        """A generator that yields each result as soon as it is finished."""
        return Generator(self)

    def generate(
        self,
        prompts: str | Iterable[str | GenerationRequest | ChatRequest],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        eos_ids: Sequence[int] | None = None,
        **unknown: object,
    ) -> list[Generated]:
        """Text after each prompt, see `Generator.generate`.

        Args:
            prompts: one text; or texts, `GenerationRequest`s and `ChatRequest`s. Requests have
                settings of their own, and the tokenizer's chat template makes the text of a
                conversation. The id of a text is its position.
            max_new_tokens, temperature, top_p, stop, seed, top_k, repetition_penalty, eos_ids: of
                the texts, as in `GenerationRequest`; the defaults are greedy. Equal texts with one
                seed are continued alike: several samples of a prompt are `GenerationRequest`s that
                differ in their seed.

        Raises:
            InputError: the tokenizer has no chat template, or it refuses a conversation.
            TypeError: another keyword; it names the one that is most like it.
        """
        for name in unknown:
            like = near(name, [one.name for one in dataclasses.fields(GenerationRequest)])
            hint = "" if like is None else f"; is it {like}?"
            raise TypeError(f"generate() got an unexpected keyword argument {name!r}{hint}")
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        asked = GenerationRequest(
            "",
            "",
            max_new_tokens,
            temperature,
            top_p,
            (stop,) if isinstance(stop, str) else tuple(stop),
            seed,
            top_k,
            repetition_penalty,
            None if eos_ids is None else tuple(eos_ids),
        )
        requests = [
            dataclasses.replace(asked, id=k, prompt=prompt)
            if isinstance(prompt, str)
            else self._as_text(prompt)
            for k, prompt in enumerate(given)
        ]
        return self.generator().generate(requests)

    def _as_text(self, request: GenerationRequest | ChatRequest) -> GenerationRequest:
        """A conversation as the text that the chat template makes of it."""
        if not isinstance(request, ChatRequest):
            return request
        return GenerationRequest(
            request.id,
            chat_template.render(self.encoder.tokenizer, request.messages),
            request.max_new_tokens,
            request.temperature,
            stop=request.stop,
            seed=request.seed,
        )
