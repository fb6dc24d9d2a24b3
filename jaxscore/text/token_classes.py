"""Classes of token ids: those that begin a word, the EOS, and lists of ids in files."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.text.encoder import TextEncoder

WORDS, EOS = "words", "eos"
LEAST_SHARE = 0.01  # of a vocabulary whose tokens begin words
IDS = re.compile(r"[\d\s,]+")
_DIGITS = re.compile(r"\d+")


def word_border_ids(
    encoder: TextEncoder, vocab_size: int, *, space_alone: bool = False
) -> list[int]:
    """Return the ids whose text begins with whitespace, in ascending order, without special tokens.

    Args:
        encoder: the encoder of the model's tokenizer.
        vocab_size: size of the model's vocabulary.
        space_alone: a space alone counts, and no newline or tab.

    Raises:
        InputError: hardly any token of the tokenizer begins a word.
    """
    texts = {id: text for id, text in encoder.whitespace_starts.items() if id < vocab_size}
    n_words = sum(not text.isspace() for text in texts.values())
    if n_words < LEAST_SHARE * vocab_size:
        raise InputError(
            f"the tokenizer of {encoder.tokenizer.name_or_path or 'this model'} has {n_words} "
            f"tokens of {vocab_size} that begin with a space and go on, so that no token begins a "
            "word; take a model whose tokens do, such as GPT-2 or Llama"
        )
    return [id for id, text in texts.items() if text[0] == " " or not space_alone]


def parse_ids(text: str, source: str) -> list[int]:
    """Return the ids of a text such as "5,17"; an id given twice counts once.

    Raises:
        ValueError: there is none; the message has the source.
    """
    ids = sorted({int(number) for number in _DIGITS.findall(text)})
    if not ids:
        raise ValueError(f"{source}: contains no ids, expected at least one")
    return ids


def read_ids(path: Path) -> list[int]:
    """Read the ids of a file: one in each line, or a JSON array.

    Raises:
        ValueError: it cannot be read, or has something else; the message has the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as problem:
        why = getattr(problem, "strerror", None) or "not UTF-8"
        raise ValueError(
            f"{path}: {why}; expected ids such as 5,17, {WORDS}, {EOS}, or a file of ids"
        ) from None
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except ValueError as problem:
            raise ValueError(f"{path}: not a JSON array of ids ({problem})") from None
        wrong = [value for value in values if type(value) is not int or value < 0]
        if wrong:
            raise ValueError(f"{path}: contains {wrong[0]!r}, expected token ids from 0 on")
        return parse_ids(",".join(map(str, values)), str(path))
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not IDS.fullmatch(line):
            raise ValueError(f"{path}, line {number}: {line.strip()!r}, expected a token id")
    return parse_ids(text, str(path))


def eos_ids(lm: Any) -> Sequence[int]:
    """Return the ids that end a text, as generation does; empty if the model names none."""
    id = lm.encoder.tokenizer.eos_token_id
    return lm.model.checkpoint.eos_ids or (() if id is None else (int(id),))
