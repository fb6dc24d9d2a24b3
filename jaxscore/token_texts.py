"""The text of each token from the tokenizer's name of it."""

import functools
from collections.abc import Sequence


def token_texts(names: Sequence[str]) -> list[str]:
    """The text of each token from the tokenizer's name of it.

    Byte-level tokenizers name bytes by printable characters (`Ġ` is a blank) and sentencepiece
    names a blank `▁`. A token that holds a part of a character shows `�`.
    """
    table = byte_of()
    if any("Ġ" in name or "Ċ" in name for name in names):
        return [
            bytes(table[c] for c in name).decode("utf-8", "replace")
            if all(c in table for c in name)
            else name
            for name in names
        ]
    return [name.replace("▁", " ") for name in names]


@functools.cache
def byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table).

    Printable characters of Latin-1 stand for themselves, and the other bytes, in order, for the
    characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + k): byte for k, byte in enumerate(others)
    }
