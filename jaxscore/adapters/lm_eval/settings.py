"""What the keyword arguments of `generate_until` ask for."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from jaxscore.errors import InputError
from jaxscore.io.printable import is_valid_unicode
from jaxscore.models.weights.generation_config import (
    COMPUTED,
    OF_ALL,
    OF_DRAWS,
    GenerationDefaults,
)

# Of transformers' `generate` -> the values that change nothing, beside None
NEUTRAL: dict[str, tuple[Any, ...]] = (
    OF_ALL
    | OF_DRAWS
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
