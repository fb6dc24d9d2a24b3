"""Which sequences a model cannot score, found for a whole window at once."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxscore.plan.token_requests import TokenSequence


def complaints(
    sequences: Sequence[TokenSequence],
    *,
    vocab_size: int,
    max_positions: int,
    placeholders: Mapping[int, str],
) -> dict[int, str]:
    """For each sequence that cannot be scored, by its place, the reason.

    Ids must be integers from 0 to `vocab_size` - 1: a negative one would be looked up from the
    end of the table, and give another token's probability. `start` must be from 0 to the number
    of ids, and the model reads at most `max_positions` tokens. `placeholders` are ids that stand
    for something else than text, and what says so; they may be asked for, but not be read.
    """
    found: dict[int, str] = {}
    arrays = [_array(ids) for sequence in sequences for ids in (sequence.ids, sequence.choices)]
    for k, pair in enumerate(zip(arrays[::2], arrays[1::2], strict=True)):
        for ids in pair:
            if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
                found[k] = (
                    f"its token ids are {_shown(ids)}, expected a line of integers from 0 to "
                    f"{vocab_size - 1}"
                )
    sound = [ids if k // 2 not in found else ids[:0].reshape(-1) for k, ids in enumerate(arrays)]
    bounds = np.concatenate([[0], np.cumsum([len(ids) for ids in sound])])
    # Empty arrays may have any type, which would make that of all.
    some = [ids for ids in sound if len(ids)]
    flat = np.concatenate(some) if some else np.zeros(0, np.int32)
    for at in np.flatnonzero((flat < 0) | (flat >= vocab_size)).tolist():
        k = (int(np.searchsorted(bounds, at, side="right")) - 1) // 2
        if k not in found:
            found[k] = _wrong_id(int(flat[at]), vocab_size)
    if placeholders:
        wrong = np.fromiter(placeholders, np.int64)
        for k, ids in enumerate(sound[::2]):
            if k not in found and len(here := np.flatnonzero(np.isin(ids, wrong))):
                found[k] = placeholder(int(ids[here[0]]), placeholders)
    counts = [len(ids) for ids in sound[::2]]
    fed = np.array([n if len(s.choices) else n - 1 for s, n in zip(sequences, counts, strict=True)])
    starts = [s.start for s in sequences]
    for k, (start, n) in enumerate(zip(starts, counts, strict=True)):
        whole = isinstance(start, int | np.integer) and not isinstance(start, bool)
        if k not in found and not (whole and 0 <= start <= n):
            found[k] = f"its continuation starts at {start!r}, expected an index from 0 to {n}"
    for k in np.flatnonzero(fed > max_positions).tolist():
        if k not in found:
            found[k] = _too_long(sequences[k], max_positions)
    return found


def _array(ids: object) -> np.ndarray:
    try:
        return np.asarray(ids)
    except ValueError:  # lists of several lengths
        return np.zeros((1, 1), object)


def _shown(ids: np.ndarray) -> str:
    text = str(ids.tolist())
    return text if len(text) <= 60 else f"{text[:60]}..."


def _wrong_id(id: int, vocab_size: int) -> str:
    if id < 0:
        return f"token id {id} is negative, expected 0 to {vocab_size - 1}"
    return (
        f"token id {id} is beyond the model's vocabulary of {vocab_size}; tokenizer and model do "
        "not belong together"
    )


def placeholder(id: int, placeholders: Mapping[int, str]) -> str:
    """Why a text with such a token cannot be scored."""
    return (
        f"token id {id} is the model's {placeholders[id]}: it stands for an image, a video or a "
        "sound, of which the scores would know nothing; leave it out of the text"
    )


def _too_long(sequence: TokenSequence, most: int) -> str:
    n = len(sequence.ids)
    if len(sequence.choices):
        return (
            f"its prompt has {n} tokens, the model takes {most} positions; shorten the prompt, "
            "or drop its oldest tokens with --truncate left"
        )
    continuation = n - sequence.start
    hint = (
        "shorten it"
        if continuation > most
        else "shorten the context, or drop its oldest tokens with --truncate left"
    )
    return (
        f"{n} tokens ({continuation} of them continuation), the model takes {most} "
        f"positions; {hint}"
    )
