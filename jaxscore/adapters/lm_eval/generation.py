"""`generate_until`: requests to the generator, and the texts that lm-evaluation-harness reads.

A text ends at an EOS id, or with the first token by which some stop string is complete in the text
with its special tokens shown. The text itself is without special tokens, and cut at each stop
string in turn.
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

from jaxscore.adapters.lm_eval.encoding import Encoder, check
from jaxscore.engine.generation.generator import Generator
from jaxscore.errors import InputError
from jaxscore.io.printable import is_valid_unicode
from jaxscore.models.weights.generation_config import (
    ANY_TEXT,
    COMPUTED,
    SAMPLING,
    GenerationDefaults,
)
from jaxscore.scorer import Scorer
from jaxscore.text.bounded_tokenizer import decode
from jaxscore.types.requests import GenerationRequest

# Of transformers' `generate` -> the values that change nothing, beside None
NEUTRAL: dict[str, tuple[Any, ...]] = (
    ANY_TEXT
    | SAMPLING
    | {
        "length_penalty": (1,),  # of beams alone
        "num_return_sequences": (1,),
        "use_cache": (True, False),
    }
)
READ = ("do_sample", "max_gen_toks", "max_length", "repetition_penalty", "temperature", "top_k",
        "top_p", "until")  # fmt: skip


def _whole(value: Any) -> bool:
    return type(value) is int and value > 0


# Of an argument that is read -> which values it can have, and how a message says so
VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "do_sample": (lambda value: value in (True, False), "true or false"),
    "max_gen_toks": (_whole, "a whole number from 1"),
    "max_length": (_whole, "a whole number from 1"),
    "repetition_penalty": (COMPUTED["repetition_penalty"], "a number above 0"),
    "temperature": (COMPUTED["temperature"], "a number above 0 where do_sample is true"),
    "top_k": (COMPUTED["top_k"], "a whole number from 0, which is all tokens"),
    "top_p": (COMPUTED["top_p"], "a number above 0, up to 1"),
}


class Settings(NamedTuple):
    """What a request's keyword arguments ask for.

    Attributes:
        stop: strings, the EOS among them.
        length: tokens of prompt and text together; None is `max_new` after the prompt.
    """

    max_new: int
    length: int | None
    stop: tuple[str, ...]
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float


def settings_of(
    kwargs: Mapping[str, Any],
    eos: str | None,
    max_gen_toks: int,
    defaults: GenerationDefaults,
) -> Settings:
    """Keyword arguments as lm-evaluation-harness normalises them.

    Args:
        eos: the tokenizer's EOS as text.
        max_gen_toks: new tokens at most, where the arguments do not say.
        defaults: the checkpoint's, see `Model.generation_defaults`.

    Raises:
        InputError: an argument, of the request or of the checkpoint, that would change the text
            and that is not computed.
    """
    try:
        given: dict[str, Any] = dict(normalize_gen_kwargs(dict(kwargs), max_gen_toks))
        stop = handle_stop_sequences(given.get("until"), eos=eos)
    except (OverflowError, TypeError, ValueError) as problem:
        raise InputError(f"generation arguments {kwargs!r}: {problem}") from None
    if not all(isinstance(one, str) and is_valid_unicode(one) for one in stop):
        raise InputError(f"generation arguments: until is {stop!r}, expected texts")
    for name, value in given.items():
        if name not in READ and value not in (None, *NEUTRAL.get(name, ())):
            raise InputError(
                f"generation argument {name}={value!r} is not computed by jaxscore; leave it out, "
                f"or give one of {', '.join(READ)}"
            )
    samples, temperature = bool(given["do_sample"]), float(given.get("temperature", 0.0))
    _check_values({**given, "temperature": temperature})
    written = defaults.unhandled if samples else defaults.unhandled_greedy
    if unhandled := {name: value for name, value in written.items() if name not in given}:
        named = ", ".join(f"{name}={value!r}" for name, value in unhandled.items())
        raise InputError(
            f"the checkpoint's generation_config.json asks for {named}, which jaxscore does not "
            "compute and hf would apply; take it out of a copy of the file to go without"
        )

    def number(name: str) -> Any:
        own = given.get(name)
        return getattr(defaults, name) if own is None else own

    return Settings(
        # An empty stop string is in every text, after its first token at the latest.
        1 if "" in stop else given["max_gen_toks"],
        given.get("max_length"),
        tuple(one for one in stop if one),
        temperature if samples else 0.0,
        float(number("top_p")) if samples else 1.0,
        number("top_k") if samples else 0,
        float(number("repetition_penalty")),
    )


def _check_values(given: Mapping[str, Any]) -> None:
    """See that every argument that decides the text has a value that can be computed."""
    drawn = ("temperature", "top_k", "top_p") if given["do_sample"] else ()
    for name in ("do_sample", "max_gen_toks", "max_length", "repetition_penalty", *drawn):
        sound, expected = VALUES[name]
        value = given.get(name)
        if value is not None and not sound(value):
            raise InputError(f"generation argument {name}={value!r}: expected {expected}")


class Texts:
    """Writes what `generate_until` asks for.

    Args:
        max_length: of prompt and text together.
        think_end: text or id after the last of which the text begins.
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
        self._eos = None if eos is None else decode(self._tokenizer, eos)

    def written(
        self, asked: Sequence[tuple[str, Mapping[str, Any]]], named: Callable[[int], str]
    ) -> Iterator[tuple[int, str, np.ndarray, np.ndarray]]:
        """The place, text, prompt ids and written ids of each request, as they end.

        All are planned together. Requests that ask for the same get the same text where they are
        greedy, and a seed each where they sample.

        Raises:
            InputError: a request that cannot be answered; nothing is computed then.
        """
        requests, settings = self._requests(asked, named)
        for place, one in Generator(self._scorer).stream(requests):
            if one.error is not None:
                raise InputError(f"{named(place)}: {one.error}")
            ids = list(map(int, one.token_ids))
            if one.eos_id is not None:
                ids.append(one.eos_id)
            prompt = np.asarray(requests[place].prompt, np.int32)
            yield place, self._text(ids, settings[place].stop), prompt, np.array(ids, np.int32)

    def _requests(
        self, asked: Sequence[tuple[str, Mapping[str, Any]]], named: Callable[[int], str]
    ) -> tuple[list[GenerationRequest], list[Settings]]:
        contexts = [context for context, _ in asked]
        check(contexts, named)
        prompts = self._encoder.prompts(contexts)
        read: dict[str, Settings] = {}
        seen: dict[tuple[str, str], int] = {}
        requests, settings = [], []
        for place, ((context, kwargs), ids) in enumerate(zip(asked, prompts, strict=True)):
            key = repr(sorted(kwargs.items()))
            if key not in read:
                read[key] = settings_of(
                    kwargs, self._eos, self._max_gen_toks, self._scorer.model.generation_defaults
                )
            own = read[key]
            room = self._max_length - own.max_new
            if room < 1:
                raise InputError(
                    f"{named(place)}: it asks for {own.max_new} new tokens, and max_length is "
                    f"{self._max_length}; ask for less than that (max_gen_toks)"
                )
            ids = ids[-room:]
            if not ids:
                raise InputError(f"{named(place)}: its context has no tokens")
            n_new = own.max_new if own.length is None else own.length - len(ids)
            if n_new < 1:
                raise InputError(
                    f"{named(place)}: max_length={own.length} leaves no token after its "
                    f"{len(ids)}; give max_gen_toks instead"
                )
            nth = seen[context, key] = seen.get((context, key), -1) + 1
            settings.append(own)
            requests.append(
                GenerationRequest(
                    place,
                    np.array(ids, np.int32),
                    n_new,
                    own.temperature,
                    own.top_p,
                    own.stop,
                    _seed(ids, nth) if own.temperature else 0,
                    top_k=own.top_k,
                    repetition_penalty=own.repetition_penalty,
                )
            )
        return requests, settings

    def _text(self, ids: list[int], stop: Sequence[str]) -> str:
        """What lm-evaluation-harness makes of the ids, an EOS included."""
        end = self._think_end
        if isinstance(end, int) and end in ids:
            ids = ids[len(ids) - ids[::-1].index(end) :]
        text = decode(self._tokenizer, ids, skip_special_tokens=True)
        if isinstance(end, int):
            return postprocess_generated_text(text.lstrip(), list(stop), None)
        return postprocess_generated_text(text, list(stop), end)


def _seed(ids: Sequence[int], nth: int) -> int:
    """Of the nth sample of a prompt: prompts draw apart, and a second run draws the same."""
    digest = hashlib.blake2b(np.array([nth, *ids], "<i4").tobytes(), digest_size=4)
    return int.from_bytes(digest.digest(), "little")
