"""`generate_until`: requests to the generator, and the texts that lm-evaluation-harness reads.

A text ends at an EOS id, or with the first token by which some stop string is complete in the text
with its special tokens shown. The text itself is without special tokens, and cut at each stop
string in turn.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.models.utils import postprocess_generated_text

from jaxscore.adapters.harness.encoding import Encoder, check
from jaxscore.adapters.lm_eval.settings import Settings, settings_of
from jaxscore.engine.generation.generator import Generator
from jaxscore.errors import InputError
from jaxscore.scorer import Scorer
from jaxscore.text.bounded_tokenizer import decode
from jaxscore.types.requests import GenerationRequest


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
