"""The tokenizer over HTTP: `/tokenize`, `/detokenize`, `/tokenizer_info`, as lm-eval asks them."""

from collections.abc import Mapping
from typing import Any

import orjson

from jaxscore.server import json_body
from jaxscore.server.calls import Answer, Call
from jaxscore.server.errors import refused
from jaxscore.server.fields import Field, flag, is_int, is_string, read
from jaxscore.server.service import Service
from jaxscore.text.bounded_tokenizer import decode

MODEL = Field("a name that /v1/models tells", is_string)
TEXT = {
    "model": MODEL,
    "prompt": Field("a string", is_string, required=True),
    "add_special_tokens": flag(True),
}
IDS = {
    "model": MODEL,
    "tokens": Field(
        "a list of token ids",
        lambda value: isinstance(value, list) and all(map(is_int, value)),
        required=True,
    ),
}


async def tokenize(call: Call) -> Answer:
    """The ids of a text."""
    service = call.service
    asked = await _asked(call, TEXT)
    _check_length("prompt", "characters", len(asked["prompt"]), service.room(cut=True))

    def ids() -> list[int]:
        [(found, _)] = service.encoder.prompts(
            [asked["prompt"]], special_tokens=asked["add_special_tokens"]
        )
        return found.tolist()

    found = await service.apart(len(call.body), ids)
    return _json({"count": len(found), "max_model_len": service.max_positions, "tokens": found})


async def detokenize(call: Call) -> Answer:
    """The text of ids, special tokens included, as transformers decodes it."""
    service = call.service
    asked = await _asked(call, IDS)
    _check_length("tokens", "ids", len(asked["tokens"]), service.room(cut=True))

    def text() -> str:
        return decode(service.encoder.tokenizer, _checked(service, asked["tokens"]))

    return _json({"prompt": await service.apart(len(call.body), text)})


async def tokenizer_info(call: Call) -> Answer:
    """Special tokens and the chat template."""
    tokenizer = call.service.encoder.tokenizer
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    return _json(
        {
            "tokenizer_class": type(tokenizer).__name__,
            **{name: _text(getattr(tokenizer, name, None)) for name in names},
            "add_bos_token": bool(call.service.encoder.prefix),
            "model_max_length": call.service.max_positions,
            "chat_template": tokenizer.chat_template,
        }
    )


async def _asked(call: Call, fields: Mapping[str, Field]) -> dict[str, Any]:
    """The fields of a body."""
    service = call.service
    asked = await service.apart(len(call.body), lambda: read(json_body.parse(call.body), fields))
    service.check_model(asked["model"])
    return asked


def _check_length(field: str, what: str, n: int, most: int) -> None:
    if n > most:
        raise refused(field, f"{field} has {n} {what}, expected at most {most}; send it in parts")


def _checked(service: Service, ids: list[int]) -> list[int]:
    most = service.scorer.model.vocab_size
    wrong = next((id for id in ids if not 0 <= id < most), None)
    if wrong is not None:
        raise refused("tokens", f"tokens has {wrong}, expected ids from 0 to {most - 1}")
    return ids


def _text(token: Any) -> str | None:
    return None if token is None else str(token)


def _json(value: Any) -> Answer:
    return Answer(orjson.dumps(value))
