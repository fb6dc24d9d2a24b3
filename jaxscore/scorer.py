"""Scoring of text with one model: tokenization, the engine, and assembly of results."""

import contextlib
import dataclasses
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from jaxscore.engine import BATCH_TOKENS, FIRST_WINDOWS, WINDOW, WINDOW_TOKENS, provenance
from jaxscore.engine.batch_tokens import BatchTokens
from jaxscore.engine.devices import use_device
from jaxscore.engine.engine import Engine
from jaxscore.engine.loading import (
    IN_MEMORY,
    Loaded,
    load_checkpoint,
    load_functions,
    load_tensors,
    new_identity,
)
from jaxscore.engine.progress import RunStatistics
from jaxscore.errors import InputError, check_choice, near
from jaxscore.io.local_path import local_path
from jaxscore.journal import Journal
from jaxscore.lm import Capabilities
from jaxscore.models.model import Model
from jaxscore.models.model_types import DtypeOption, ImplementationOption, Quantize
from jaxscore.plan.requests import SequenceScores, TextWindows, TokenSequence
from jaxscore.plan.row_batches import SHORTEST_ROW
from jaxscore.text import chat_template
from jaxscore.text.encoder import BOUNDARIES, Boundary, TextEncoder
from jaxscore.text.result_assembly import assemble_choice, assemble_label_scores, assemble_scores
from jaxscore.text.tokenize_requests import (
    Chunk,
    RequestTokenizer,
    Truncate,
    Window,
    WindowTokenizer,
    order_by_prefix,
    split_chunks,
)
from jaxscore.types.requests import ChatRequest, GenerationRequest, LabelRequest, requests_from
from jaxscore.types.results import Choice, Generated, LabelScores, Results, ScoredRequest

if TYPE_CHECKING:
    from jaxscore.engine.generation import Generator


class Scorer:
    """A scorer of text under one model.

    Example:
        >>> scorer = Scorer.from_pretrained("demo")
        >>> [scored] = scorer.score([Request("0", "The cat", " sat down")])
        >>> scored.sum_logprob, scored.mean_entropy

    Attributes:
        engine: the engine that runs the model.
        encoder: the encoder of text to token ids.
        about: the facts other than requests that determine the numbers, for JSON; empty for a model
            that was not loaded from a checkpoint.
    """

    # Over 250 lines: half of them are documentation of public parameters.

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
        # Also at the interpreter's exit, or when the scorer is garbage-collected.
        weakref.finalize(self, self.engine.close)
        self._tokenizer = RequestTokenizer(encoder, model.max_positions, self.engine.complaints)
        self.about: dict[str, Any] = {}
        self._origin: tuple[Any, ...] = (None, None, None, None)

    @property
    def model(self) -> Model:
        return self.engine.model

    @property
    def models(self) -> tuple[Model, ...]:
        """The model; the models p and q of a `DivergenceScorer`."""
        return (self.model,)

    @property
    def capabilities(self) -> Capabilities:
        functions = self.model.functions
        generates = functions.cached is not None or functions.write is not None
        return Capabilities(
            scores=True,
            labels=True,
            generates=generates,
            takes_messages=generates,
            is_local=True,
            has_other_layouts=True,
            has_distribution=True,
            shares_prefixes=self.model.shares_text,
            truncates=True,
            boundaries=BOUNDARIES,
            vocab_size=self.model.vocab_size,
            max_positions=self.model.max_positions,
        )

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings about the model's files for a reader of the results."""
        return self.encoder.warnings

    @property
    def batch_tokens(self) -> int:
        """Tokens in each batch, padding included."""
        return self.engine.planner.batch_tokens

    @property
    def reproducible(self) -> bool:
        """True if the bits of a request's scores do not depend on other requests."""
        return self.engine.planner.reproducible

    @property
    def progress(self) -> bool:
        """True if a progress bar is displayed on stderr; can be set between runs."""
        return self.engine.progress

    @progress.setter
    def progress(self, enabled: bool) -> None:
        self.engine.progress = enabled

    @property
    def statistics(self) -> RunStatistics:
        """Counters of texts and tokens."""
        return self.engine.statistics

    @property
    def journal(self) -> Journal | None:
        """Results of earlier runs, to which new results are added; can be set between runs.

        Raises:
            InputError: (when set) the journal was created for facts other than `about`.
        """
        return self.engine.journal

    @journal.setter
    def journal(self, journal: Journal | None) -> None:
        if journal is not None and self.about and not journal.has_scores_of(self.about):
            raise InputError(
                f"journal {journal.path}: it belongs to another model or other options than this "
                "scorer's; create one with Journal(path, scorer.about)"
            )
        self.engine.journal = journal

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
        prefix_token_id: int | None = None,
        chat_template_args: Mapping[str, Any] | None = None,
        generates: bool = True,
    ) -> "Scorer":  # over 60 lines: most of them document public parameters
        """Load a checkpoint.

        Args:
            model: a local folder, a hub id, or "demo".
            device: "cpu", "gpu", "cuda" or "tpu"; None means the best one that JAX finds.
            dtype: "auto", "float32" or "bfloat16"; sums over the vocabulary are always float32.
            implementation: "native" is jaxscore's decoder, "transformers" the Flax class of
                transformers, "auto" means "native".
            revision: the revision of a hub id.
            trust_remote_code: run the checkpoint's custom code, only for its tokenizer.
            cache_dir: the download folder for hub ids; None means the hub's default.
            lora: a folder with an adapter in PEFT's format, which is merged into the weights.
            quantize: "int8" stores the layers' weights as 8-bit integers, "stored" keeps them in
                the blocks of their file.
            batch_tokens: the number of tokens per batch, including padding, which affects speed and
                memory. "auto" fits the device's memory, from 512 to 32,768; None means 4,096 on a
                CPU and "auto" on an accelerator.
            progress: display a bar on stderr with tokens per second and the remaining time.
            journal: a file of results, which later runs with it reuse; locked until `close`.
            mesh: the devices: "auto", "data=N,model=M" or "fsdp=N,model=M"; None means the first
                device.
            reproducible: the bits of a request's scores do not depend on other requests; slower.
            accept_config: unhandled keys of config.json that, as the caller asserts, do not affect
                results. They are ignored and recorded.
            prefix_token_id: a token before each text in place of the tokenizer's BOS. Without BOS
                the first token of a text is not scored.
            chat_template_args: values of the chat template's variables, such as
                `{"enable_thinking": False}`.
            generates: `mesh="auto"` reserves memory for KV caches of generated text.

        Raises:
            InputError: the model or the journal cannot be used.
        """
        use_device(device)
        lora = None if lora is None else local_path(str(lora))
        size = BatchTokens(batch_tokens, reproducible=reproducible)
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
            before_weights=size.measure,
            generates=generates,
        )
        loaded.customize(prefix_token_id, chat_template_args)
        scorer = cls(
            loaded.model,
            loaded.encoder,
            batch_tokens=size.choose(loaded.model),
            progress=progress,
            journal=None if journal is None else Journal(local_path(str(journal)), loaded.about),
            reproducible=reproducible,
        )
        scorer.about, scorer._origin = loaded.about, (model, revision, cache_dir, lora)
        return scorer

    @classmethod
    def from_tensors(
        cls,
        config: Any,
        tensors: Mapping[str, Any],
        tokenizer: Any,
        *,
        dtype: DtypeOption = "auto",
        quantize: Literal["int8"] | None = None,
        batch_tokens: int | str | None = None,
        progress: bool = False,
        mesh: str | None = None,
        reproducible: bool = False,
    ) -> "Scorer":
        """Create a scorer from weights in memory, such as those of a training run.

        The weights are read like those of a checkpoint: each tensor is checked by its name, type
        and shape. Device arrays are stacked and split over the mesh on the devices, not through the
        host; tensors on other devices are first copied to each device of the mesh. The scorer does
        not share memory with `tensors`, which may be donated afterwards.

        Args:
            config: the content of config.json, a config of transformers, or the folder or hub id
                of a checkpoint.
            tensors: NumPy or JAX arrays, in any sharding, by their Hugging Face name
                (`model.embed_tokens.weight`). A tied model may omit `lm_head.weight`.
            tokenizer: a fast tokenizer of transformers, or the folder or hub id of a checkpoint.
            dtype, batch_tokens, progress, mesh, reproducible: see `from_pretrained`.
            quantize: "int8", only for NumPy arrays; see `from_pretrained`.

        Raises:
            InputError: the model, config or a tensor is not supported; the message names it.
        """
        loaded = load_tensors(
            config,
            tensors,
            tokenizer,
            dtype=dtype,
            quantize=quantize,
            mesh=mesh,
            reproducible=reproducible,
        )
        options = {"progress": progress, "reproducible": reproducible}
        return cls._in_memory(loaded, batch_tokens, options)

    @classmethod
    def from_function(
        cls,
        hidden_states: Callable[..., Any],
        unembed: Callable[[Any], Any],
        params: Any,
        tokenizer: Any,
        *,
        vocab_size: int,
        max_positions: int,
        takes_mask: bool = False,
        scale: float = 1.0,
        softcap: float | None = None,
        name: str = "function",
        batch_tokens: int | str | None = None,
        progress: bool = False,
        mesh: str | None = None,
        reproducible: bool = False,
    ) -> "Scorer":
        """Create a scorer from any JAX model: Flax Linen or NNX, Equinox, Haiku, plain functions.

        Both functions are traced, so they must be pure and take the parameters as an argument.
        Generation runs without a KV cache, so each new token recomputes the whole text, and ends at
        the tokenizer's EOS.

        Args:
            hidden_states: (params, ids) -> hidden states [R, L, D] after the last norm, before
                the LM head. `ids` is int32 [R, L]; each row is one text from position 0, padded
                at its end. A state must depend only on its token and earlier tokens of its row.
                With `takes_mask` the arguments are (params, ids, positions, mask).
            unembed: params -> the LM head's weight [V, D], or the weight and a bias [V]. Products
                use its dtype, float32 or bfloat16; sums are float32.
            params: a tree of NumPy or JAX arrays, which are copied to each device.
            tokenizer: a fast tokenizer of transformers, or the folder or hub id of a checkpoint.
            vocab_size: V.
            max_positions: the maximum number of tokens of a text.
            takes_mask: if True, a row contains several texts as packed tries, so that text that
                requests share is computed once. `positions` is int32 [R, L], and `mask` is bool
                [R, L, L], True if token i attends to token j; it replaces the causal mask.
            scale, softcap: logits are softcap * tanh(scale * (h @ weight.T + bias) / softcap).
            name: the model's name in reports.
            mesh: "data=N", with all parameters on each device; None means the first device.
            batch_tokens, progress, reproducible: see `from_pretrained`.

        Raises:
            InputError: a parameter is not an array, a result has another shape, the mesh splits the
                model, or the tokenizer cannot be used.
        """
        sizes: dict[str, Any] = {"vocab_size": vocab_size, "max_positions": max_positions}
        functions: dict[str, Any] = {"hidden_states": hidden_states, "unembed": unembed}
        functions |= {"takes_mask": takes_mask, "scale": scale, "softcap": softcap}
        loaded = load_functions(
            params, tokenizer, name=name, mesh=mesh, reproducible=reproducible, **sizes, **functions
        )
        options = {"progress": progress, "reproducible": reproducible}
        return cls._in_memory(loaded, batch_tokens, options)

    @classmethod
    def _in_memory(
        cls, loaded: Loaded, batch_tokens: int | str | None, options: dict[str, Any]
    ) -> "Scorer":
        """Create a scorer of weights in memory, which do not have a name."""
        size = BatchTokens(batch_tokens, reproducible=options["reproducible"])
        tokens = size.choose(loaded.model)
        scorer = cls(loaded.model, loaded.encoder, batch_tokens=tokens, **options)
        scorer.about = loaded.about
        return scorer

    def update(self, values: Any) -> None:
        """Replace the weights by others of the same shapes, without compiling.

        The journal, whose scores are of the old weights, is closed and detached, and `about` and
        `describe` name the new weights. The first update with device arrays compiles the program
        that stacks them, unless `from_tensors` received such arrays. Old and new weights are both
        in memory until the method returns.

        Args:
            values: tensors like those of `from_tensors`; for `from_function` the tree of all
                parameters; or, for the native decoder, all of `scorer.model.params`. They may be
                donated afterwards.

        Raises:
            InputError: a value has another shape or dtype, is missing or is unexpected; the model
                has a LoRA adapter or weights in the blocks of a GGUF file; or a stream has not
                ended. The old weights are then kept.
        """
        self.engine.replace_params(values)
        self.about = self.about | {"model": new_identity()}

    def describe(self) -> dict[str, Any]:
        """Describe the model, its adapter, and its computation, for reports."""
        name, revision, cache_dir, adapter = self._origin
        facts = provenance.of_model(
            name, self.model, revision, cache_dir, adapter, reproducible=self.reproducible
        )
        weights = self.about.get("model", "")
        return facts | ({"weights": weights} if weights.startswith(IN_MEMORY) else {})

    def close(self) -> None:
        """Release the journal to other runs. May be called twice."""
        self.engine.close()

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        model, name = self.model, self._origin[0] or self.model.model_type
        model_type = "" if name == model.model_type else f"{model.model_type}, "
        return f"<Scorer {name}: {model_type}{model.implementation}, {model.dtype}>"

    def begin_output(self) -> None:
        """Start the plan hash and the counts of another output; see `facts`."""
        self.engine.statistics.begin_output()

    def facts(self) -> dict[str, Any]:
        """Return the plan, counts and programs of the current output, for its manifest."""
        stored_as = self.model.checkpoint.stored_as
        return ({"stored_as": stored_as} if stored_as else {}) | self.engine.facts()

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Score with the same programs, but without journal, counters and progress bar."""
        engine = self.engine
        before = engine.statistics, engine.pauses_journal, engine.progress
        engine.statistics, engine.pauses_journal, engine.progress = RunStatistics(), True, False
        try:
            yield
        finally:
            engine.statistics, engine.pauses_journal, engine.progress = before

    def other_layouts(self) -> dict[str, "Scorer"]:
        """Return scorers of the same model with other layouts of requests, by a readable name.

        They do not use the journal, and have separate counters.
        """
        tokens = self.batch_tokens
        other = tokens // 2 if tokens // 2 >= SHORTEST_ROW else 2 * tokens
        # `cached=None` also excludes prefix caches.
        functions = self.model.functions._replace(cached=None)
        apart = dataclasses.replace(self.model, shares_text=False, functions=functions)

        def scorer(model: Model, **options: Any) -> Scorer:
            return type(self)(model, self.encoder, progress=self.progress, **options)

        out = {} if self.reproducible else {"alone": scorer(self.model, reproducible=True)}
        out[f"batches of {other} tokens"] = scorer(self.model, batch_tokens=other)
        out["one request a row"] = scorer(apart, batch_tokens=tokens)
        return out

    def score_sequences(
        self,
        sequences: Sequence[TokenSequence],
        *,
        top: int = 0,
        measures: Collection[str] = (),
        classes: Mapping[str, Iterable[int]] | None = None,
    ) -> list[SequenceScores]:
        """Score token ids instead of text.

        Args:
            top: the number of most probable tokens to return for each scored token; see
                `SequenceScores`.
            measures: additional measures of each scored token: "deviation", "rank", "renyi2",
                "varentropy"; see `jaxscore.device.lm_head.sums`.
            classes: name -> token ids, at least one; the measure `mass_NAME` is the log-probability
                that one of these ids comes in place of the scored token, nats.

        Raises:
            ValueError: a sequence is longer than the model's positions, starts outside its ids,
                or has an id that is not in the model's vocabulary; `top` is below 0 or above the
                size of the vocabulary; a measure does not exist; or a class is empty or has an id
                that is not in the vocabulary.
        """
        return self.engine.score_sequences(sequences, top=top, measures=measures, classes=classes)

    def score(
        self,
        requests: Iterable[Any],
        *,
        boundary: Boundary = "joint",
        truncate: Truncate | None = None,
        special_tokens: bool = True,
        text_windows: TextWindows | None = None,
        measures: Collection[str] = (),
        top: int = 0,
        classes: Mapping[str, Iterable[int]] | None = None,
        ends: bool = False,
    ) -> list[ScoredRequest]:
        """Score all requests, in their order.

        Texts with a shared prefix are planned together. Many texts are planned in several windows,
        so that the device computes while the rest is tokenized; see
        `jaxscore.text.tokenize_requests`.

        Args:
            requests: `Request`s, texts, (context, continuation) pairs, dicts with these fields, or
                a DataFrame; see `jaxscore.types.requests`. Shared text is computed once.
            boundary: the boundary policy; see `jaxscore.text.encoder`.
            truncate: "left" drops the oldest context tokens (after the BOS) of a request that is
                longer than the model's positions; with None such a request fails.
            special_tokens: if True, prepend the tokenizer's BOS to texts without one.
            text_windows: read long texts in windows, see `TextWindows`; None means that they fail
                or are truncated.
            measures, top, classes: see `score_sequences`, `ScoredRequest.measures` and
                `ScoredRequest.top`.
            ends: compute the measures after each text's last token too, see `ScoredRequest.end`.

        Returns:
            One result for each request, as a list that notebooks display (`Results`). A request
            that cannot be scored has `error` set and does not affect the others.

        Raises:
            ValueError: an option does not exist.
        """
        windows = WindowTokenizer(
            self._tokenizer,
            boundary,
            truncate,
            special_tokens,
            WINDOW,
            text_windows=text_windows,
            ends=ends,
        )
        read = list(requests_from(requests))
        order, sizes = order_by_prefix(read)
        chunks = split_chunks((read[k] for k in order), sizes)
        stream = self._stream(chunks, windows, len(read), measures, top, classes)
        results = Results([None] * len(read))
        for index, scored in zip(order, stream, strict=True):
            results[index] = scored
        return results

    def stream(
        self,
        requests: Iterable[Any],
        *,
        boundary: Boundary = "joint",
        truncate: Truncate | None = None,
        special_tokens: bool = True,
        text_windows: TextWindows | None = None,
        window: int | None = None,
        window_tokens: int | None = WINDOW_TOKENS,
        n_requests: int | None = None,
        measures: Collection[str] = (),
        top: int = 0,
        classes: Mapping[str, Iterable[int]] | None = None,
        ends: bool = False,
    ) -> Iterator[ScoredRequest]:
        """Score like `score`, for more requests than fit in memory.

        When the results of a window are yielded, at most three further windows and `window`
        additional requests have been read. Until the iterator ends or is closed, garbage collection
        of the process is rare.

        Args:
            requests, boundary, truncate, special_tokens, text_windows, measures, top, classes,
                ends: see `score`.
            window: the number of requests that are planned together, share prefixes and are in
                memory. None means 4,096, and fewer at first, so that the device starts early.
            window_tokens: the maximum number of tokens of a window, or None for no limit; remaining
                requests go to the next window.
            n_requests: the total number of requests if known, to estimate the remaining time.

        Raises:
            ValueError: an option does not exist.
        """
        first, window = (FIRST_WINDOWS, WINDOW) if window is None else ((), window)
        windows = WindowTokenizer(
            self._tokenizer,
            boundary,
            truncate,
            special_tokens,
            window,
            window_tokens,
            text_windows,
            ends,
        )
        sizes = itertools.chain(first, itertools.repeat(window))
        chunks = split_chunks(requests_from(requests), sizes)
        return self._stream(chunks, windows, n_requests, measures, top, classes)

    def _stream(
        self,
        chunks: Iterator[Chunk],
        windows: WindowTokenizer,
        n_requests: int | None,
        measures: Collection[str],
        top: int,
        classes: Mapping[str, Iterable[int]] | None,
    ) -> Iterator[ScoredRequest]:
        waiting: deque[Window] = deque()
        scores: deque[SequenceScores] = deque()  # of the first window that waits

        def sequences(chunks: Iterator[Chunk]) -> Iterator[list[TokenSequence]]:
            for window in windows.windows(chunks):
                waiting.append(window)
                yield from windows.groups(window)

        for group in self.engine.run(
            chunks,
            n_requests if windows.text_windows is None else None,
            windows=sequences,
            chunks_ahead=windows.chunks_ahead,
            measures=measures,
            top=top,
            classes=classes,
        ):
            scores += group
            if len(scores) == sum(len(item.sequences) for _, item in waiting[0]):
                taken = (scores.popleft() for _ in range(len(scores)))  # no copy of a long text's
                yield from assemble_scores(waiting.popleft(), taken, self.encoder)

    def label(
        self, requests: Iterable[LabelRequest], *, truncate: Truncate | None = None
    ) -> list[LabelScores]:
        """Score the next-token distribution over a few ids after each prompt.

        Args:
            requests: the requests, in any order; shared text of prompts is computed once.
            truncate: see `score`; it drops the prompt's oldest tokens.

        Returns:
            One result for each request, in order; a request that cannot be scored has `error` set.
        """
        check_choice("truncate", truncate, (None, *get_args(Truncate)))
        requests = list(requests)
        tokenized = self._tokenizer.labels(requests, truncate)
        [scores] = self.engine.run(iter([[s for item in tokenized for s in item.sequences]]))
        remaining = iter(scores)
        return Results(
            assemble_label_scores(
                getattr(request, "id", k), item, next(remaining) if item.sequences else None
            )
            for k, (request, item) in enumerate(zip(requests, tokenized, strict=True))
        )

    def choose(
        self,
        prompt: str,
        options: Iterable[str],
        *,
        boundary: Boundary = "joint",
        truncate: Truncate | None = None,
    ) -> Choice:
        """Choose the most probable of a few texts after a prompt.

        Example:
            >>> scorer.choose("Is Oslo in Norway? Answer Yes or No:", [" Yes", " No"]).best

        Args:
            prompt: the text before the options; nothing is inserted between it and an option.
            options: at least one text; all of its tokens are scored.
            boundary, truncate: see `score`.

        Raises:
            TypeError: `options` is a string.
            ValueError: `options` is empty.
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

    def generator(self) -> "Generator":
        """Return a generator that yields each result as soon as it is complete."""
        from jaxscore.engine.generation import Generator  # deferred: not needed for scoring

        if not self.capabilities.generates:
            raise InputError(f"{self!r} generates no text: it is a model pair")
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
        """Generate a text after each prompt; see `Generator.generate`.

        Args:
            prompts: one text; or texts, `GenerationRequest`s and `ChatRequest`s. Requests use their
                own settings, and conversations are rendered by the tokenizer's chat template. The
                id of a text is its position.
            max_new_tokens, temperature, top_p, stop, seed, top_k, repetition_penalty, eos_ids: the
                settings for texts, see `GenerationRequest`; greedy by default. Equal texts with the
                same seed get the same continuation; for several samples of a prompt, pass
                `GenerationRequest`s with different seeds.

        Raises:
            InputError: the tokenizer lacks a chat template, or the template refuses a conversation
                or leaves out text.
            TypeError: an unknown keyword; the message names the most similar one.
        """
        for name in unknown:
            similar = near(name, [field.name for field in dataclasses.fields(GenerationRequest)])
            hint = "" if similar is None else f"; is it {similar}?"
            raise TypeError(f"generate() got an unexpected keyword argument {name!r}{hint}")
        settings = GenerationRequest(
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
            dataclasses.replace(settings, id=k, prompt=prompt)
            if isinstance(prompt, str)
            else self._as_text(prompt)
            for k, prompt in enumerate([prompts] if isinstance(prompts, str) else prompts)
        ]
        return self.generator().generate(requests)

    def _as_text(self, request: GenerationRequest | ChatRequest) -> GenerationRequest:
        """Render a conversation by the chat template; return other requests unchanged."""
        if not isinstance(request, ChatRequest):
            return request
        return GenerationRequest(
            request.id,
            chat_template.render(self.encoder.tokenizer, request.messages),
            request.max_new_tokens,
            request.temperature,
            stop=request.stop,
            seed=request.seed,
            special_tokens=False,  # the template writes them
        )
