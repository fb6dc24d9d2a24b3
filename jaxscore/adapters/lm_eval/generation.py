"""`generate_until`: requests to the generator, and the texts that lm-evaluation-harness reads.

A text ends at an EOS id, or with the first token that completes a stop string in the text with
special tokens. The result lacks special tokens and is truncated at each stop string in turn.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from jaxscore.adapters.lm_eval.encoding import Encoder, check_unicode
from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.models.weights.generation_config import (
    ANY_TEXT,
    COMPUTED,
    SAMPLING,
    GenerationDefaults,
)
from jaxscore.scorer import Scorer
from jaxscore.text.bounded_tokenizer import decode_ids
from jaxscore.types.requests import GenerationRequest

# Argument of transformers' `generate` -> values besides None that are ignored
NEUTRAL: dict[str, tuple[Any, ...]] = (
    ANY_TEXT
    | SAMPLING
    | {
        "length_penalty": (1,),  # of beam search
        "num_return_sequences": (1,),
        "use_cache": (True, False),
    }
)
KNOWN = ("do_sample", "max_gen_toks", "max_length", "repetition_penalty", "temperature", "top_k",
         "top_p", "until")  # fmt: skip


def _is_positive_int(value: Any) -> bool:
    return type(value) is int and value > 0


# Argument -> predicate of a valid value, and the expected values for messages
VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "do_sample": (lambda value: value in (True, False), "true or false"),
    "max_gen_toks": (_is_positive_int, "a whole number from 1"),
    "max_length": (_is_positive_int, "a whole number from 1"),
    "repetition_penalty": (COMPUTED["repetition_penalty"], "a number above 0"),
    "temperature": (COMPUTED["temperature"], "a number above 0 where do_sample is true"),
    "top_k": (COMPUTED["top_k"], "a whole number from 0, which is all tokens"),
    "top_p": (COMPUTED["top_p"], "a number above 0, up to 1"),
}


class Settings(NamedTuple):
    """Generation settings of one request.

    Attributes:
        length: the tokens of prompt and text together, or None for `max_new` after the prompt.
        stop: the stop strings, including the EOS.
    """

    max_new: int
    length: int | None
    stop: tuple[str, ...]
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float


def read_settings(
    kwargs: Mapping[str, Any],
    eos: str | None,
    max_gen_toks: int,
    defaults: GenerationDefaults,
) -> Settings:
    """Read a request's keyword arguments as lm-evaluation-harness normalises them.

    Args:
        eos: text of the tokenizer's EOS.
        max_gen_toks: maximum new tokens if the arguments set none.
        defaults: the checkpoint's values, see `Model.generation_defaults`.

    Raises:
        InputError: an argument of the request or checkpoint would change the text and is not
            computed.
    """
    try:
        args: dict[str, Any] = dict(normalize_gen_kwargs(dict(kwargs), max_gen_toks))
        stop = handle_stop_sequences(args.get("until"), eos=eos)
    except (OverflowError, TypeError, ValueError) as problem:
        raise InputError(f"generation arguments {kwargs!r}: {problem}") from None
    if not all(isinstance(text, str) and is_valid_unicode(text) for text in stop):
        raise InputError(f"generation arguments: until is {stop!r}, expected texts")
    for name, value in args.items():
        if name not in KNOWN and value not in (None, *NEUTRAL.get(name, ())):
            raise InputError(
                f"generation argument {name}={value!r} is not computed by jaxscore; leave it out, "
                f"or give one of {', '.join(KNOWN)}"
            )
    samples, temperature = bool(args["do_sample"]), float(args.get("temperature", 0.0))
    _check_values({**args, "temperature": temperature})
    of_checkpoint = defaults.unhandled if samples else defaults.unhandled_greedy
    if unhandled := {name: value for name, value in of_checkpoint.items() if name not in args}:
        listed = ", ".join(f"{name}={value!r}" for name, value in unhandled.items())
        raise InputError(
            f"the checkpoint's generation_config.json asks for {listed}, which jaxscore does not "
            "compute and hf would apply; to ignore it, remove it from a copy of the file"
        )

    def number(name: str) -> Any:
        value = args.get(name)
        return getattr(defaults, name) if value is None else value

    return Settings(
        # An empty stop string is complete after the first token at the latest.
        1 if "" in stop else args["max_gen_toks"],
        args.get("max_length"),
        tuple(text for text in stop if text),
        temperature if samples else 0.0,
        float(number("top_p")) if samples else 1.0,
        number("top_k") if samples else 0,
        float(number("repetition_penalty")),
    )


def _check_values(args: Mapping[str, Any]) -> None:
    """Refuse invalid values of arguments that change the text."""
    drawn = ("temperature", "top_k", "top_p") if args["do_sample"] else ()
    for name in ("do_sample", "max_gen_toks", "max_length", "repetition_penalty", *drawn):
        is_valid, expected = VALUES[name]
        value = args.get(name)
        if value is not None and not is_valid(value):
            raise InputError(f"generation argument {name}={value!r}: expected {expected}")


class TextGenerator:
    """Generates the texts of `generate_until`.

    Args:
        max_length: maximum tokens of prompt and text together.
        think_end: the text or id after whose last occurrence the answer starts.
    """

    def __init__(
        self,
        scorer: Scorer,
        encoder: Encoder,
        max_length: int,
        max_gen_toks: int,
        think_end: str | int | None,
    ) -> None:
        self._scorer, self._encoder, self._tokenizer = scorer, encoder, encoder.tokenizer
        self._max_length, self._max_gen_toks = max_length, max_gen_toks
        self._think_end = think_end
        eos = self._tokenizer.eos_token_id
        self._eos = None if eos is None else decode_ids(self._tokenizer, eos)

    def generate(
        self, requests: Sequence[tuple[str, Mapping[str, Any]]], name_of: Callable[[int], str]
    ) -> Iterator[tuple[int, str, np.ndarray, np.ndarray]]:
        """Generate all texts, planned together.

        Equal requests get the same text if they are greedy, and a seed each if they sample.

        Args:
            requests: context and keyword arguments of each.
            name_of: returns the name of the request at an index, for messages.

        Yields:
            Index, text, prompt ids and generated ids of each request as it finishes.

        Raises:
            InputError: a request cannot be answered; raised before anything is computed.
        """
        generation_requests, settings = self._prepare(requests, name_of)
        for index, generated in self._scorer.generator().stream(generation_requests):
            if generated.error is not None:
                raise InputError(f"{name_of(index)}: {generated.error}")
            ids = list(map(int, generated.token_ids))
            if generated.eos_id is not None:
                ids.append(generated.eos_id)
            prompt = np.asarray(generation_requests[index].prompt, np.int32)
            yield index, self._text(ids, settings[index].stop), prompt, np.array(ids, np.int32)

    def _prepare(
        self, requests: Sequence[tuple[str, Mapping[str, Any]]], name_of: Callable[[int], str]
    ) -> tuple[list[GenerationRequest], list[Settings]]:
        contexts = [context for context, _ in requests]
        check_unicode(contexts, name_of)
        prompts = self._encoder.prompts(contexts)
        settings_by_key: dict[str, Settings] = {}
        n_seen: dict[tuple[str, str], int] = {}
        generation_requests, all_settings = [], []
        for index, ((context, kwargs), ids) in enumerate(zip(requests, prompts, strict=True)):
            key = repr(sorted(kwargs.items()))
            if key not in settings_by_key:
                settings_by_key[key] = read_settings(
                    kwargs, self._eos, self._max_gen_toks, self._scorer.model.generation_defaults
                )
            settings = settings_by_key[key]
            room = self._max_length - settings.max_new
            if room < 1:
                raise InputError(
                    f"{name_of(index)}: it asks for {settings.max_new} new tokens, and max_length "
                    f"is {self._max_length}; ask for less than that (max_gen_toks)"
                )
            ids = ids[-room:]
            if not ids:
                raise InputError(f"{name_of(index)}: its context is empty")
            n_new = settings.max_new if settings.length is None else settings.length - len(ids)
            if n_new < 1:
                raise InputError(
                    f"{name_of(index)}: max_length={settings.length} leaves no token after its "
                    f"{len(ids)}; give max_gen_toks instead"
                )
            repeat = n_seen.get((context, key), 0)
            n_seen[context, key] = repeat + 1
            all_settings.append(settings)
            generation_requests.append(
                GenerationRequest(
                    index,
                    np.array(ids, np.int32),
                    n_new,
                    settings.temperature,
                    settings.top_p,
                    settings.stop,
                    _seed(ids, repeat) if settings.temperature else 0,
                    top_k=settings.top_k,
                    repetition_penalty=settings.repetition_penalty,
                )
            )
        return generation_requests, all_settings

    def _text(self, ids: list[int], stop: Sequence[str]) -> str:
        """Return the text that lm-evaluation-harness makes of the ids, including an EOS."""
        end = self._think_end
        if isinstance(end, int) and end in ids:
            ids = ids[len(ids) - ids[::-1].index(end) :]
        text = decode_ids(self._tokenizer, ids, skip_special_tokens=True)
        if isinstance(end, int):
            return postprocess_generated_text(text.lstrip(), list(stop), None)
        return postprocess_generated_text(text, list(stop), end)


def _seed(ids: Sequence[int], repeat: int) -> int:
    """Return the seed of a repeat of a prompt: other for each prompt, the same in each run."""
    digest = hashlib.blake2b(np.array([repeat, *ids], "<i4").tobytes(), digest_size=4)
    return int.from_bytes(digest.digest(), "little")
