"""Reference log-probabilities of preference pairs, in the columns that TRL's DPOTrainer reads.

Pairs become token ids by DPOTrainer's rule:

    prompt alone               A B C
    prompt and chosen          A B C D        the prompt ends before the first token in which
    prompt and rejected        A B E F        one of the three differs: here after A B

A prompt that ends in the middle of a token, or that the chat template renders otherwise alone,
loses tokens to both completions. The rule is that of TRL 1.16, `trl/trainer/dpo_trainer.py`
(`tokenize_fn`, the collator's `keep_start`, `compute_ref_log_probs`).
"""

import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np

from jaxscore.engine import WINDOW, WINDOW_TOKENS
from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.report.counts import counted
from jaxscore.shell.conversations import NOT_APPLIED, lacks_reasoning
from jaxscore.shell.fields import PAIRED, Metric
from jaxscore.shell.flags import flag
from jaxscore.shell.settings import Settings as BaseSettings
from jaxscore.shell.system import Summary, System, failed
from jaxscore.text import chat_template
from jaxscore.text.bounded_tokenizer import TextError, encode_each
from jaxscore.text.result_assembly import NOT_FINITE
from jaxscore.text.tokenize_requests import (
    CHUNK,
    CHUNK_CHARACTERS,
    INVALID_UNICODE,
    bounded_groups,
)

SAME_TEXT = (
    "chosen and rejected differ, and the chat template writes the same text for both; leave the "
    "pair out, or take a model whose template writes their difference"
)
NO_EOS = "its tokenizer lacks the EOS token that TRL puts after a completion; give messages"

Part = str | list[Any]  # a text, or messages


class Pair(NamedTuple):
    """A prompt with its preferred and rejected completion: all texts, or all messages."""

    prompt: Part
    chosen: Part
    rejected: Part


class Scored(NamedTuple):
    """Scores of a pair.

    Attributes:
        sums: the log-probabilities of both completions in nats.
        counts: the numbers of tokens in the sums.
        is_cut: True if a text has more tokens than `max_length`.
        is_unequal: True if the ids of the prompt alone are not a prefix of both texts' ids.
        lacks_reasoning: True if the chat template leaves out the reasoning of a completion.
        error: the reason why the pair could not be scored, or None.
    """

    sums: tuple[float, float] = (0.0, 0.0)
    counts: tuple[int, int] = (0, 0)
    is_cut: bool = False
    is_unequal: bool = False
    lacks_reasoning: bool = False
    error: str | None = None


class _Tokenized(NamedTuple):
    """A pair's two sequences, empty with an error; `scored` has everything except its sums."""

    item: "Item"
    scored: Scored
    sequences: tuple[TokenSequence, ...] = ()


def split_prompt(chosen: Part, rejected: Part) -> tuple[Part, Part, Part]:
    """Split two texts or conversations into their common prompt and both completions.

    As in TRL's `extract_prompt`, the prompt is the common prefix without a space at its end. If one
    is a prefix of the other, the last common element belongs to the completions.
    """
    least = min(len(chosen), len(rejected))
    pairs = enumerate(zip(chosen, rejected, strict=False))
    at = next((k for k, (a, b) in pairs if a != b), None)
    if at is None:
        at = max(0, least - 1)
    elif at and chosen[at - 1] == " ":
        at -= 1
    return chosen[:at], chosen[at:], rejected[at:]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A prompt with a preferred and a rejected completion: texts, or messages.

    The other fields are not applied, so each must be absent or empty.
    """

    prompt: Annotated[str | list[Any] | None, PAIRED] = None
    chosen: Annotated[str | list[Any], PAIRED]
    rejected: Annotated[str | list[Any], PAIRED]
    tools: Any = None
    chat_template_kwargs: Any = None
    images: Any = None
    image: Any = None

    def __post_init__(self) -> None:
        """Check that all fields are texts, or all are messages."""
        if unapplied := next((name for name in NOT_APPLIED if getattr(self, name)), None):
            raise InputError(f"it has {unapplied}, which are not applied here; leave them out")
        fields = [value for value in (self.prompt, self.chosen, self.rejected) if value is not None]
        if len({isinstance(value, str) for value in fields}) > 1:
            raise InputError(
                "prompt, chosen and rejected are texts in part and lists in part, expected texts, "
                "or lists of messages"
            )
        for messages in fields:
            for message in () if isinstance(messages, str) else messages:
                if not isinstance(message, dict) or not all(
                    isinstance(message.get(name), str) for name in ("role", "content")
                ):
                    raise InputError(
                        'found a message without a text "role" or "content", expected '
                        '{"role": "user", "content": "..."}'
                    )
                chat_template.check_fields(message, "a message")

    @property
    def pair(self) -> Pair:
        """The three parts, with the prompt made explicit."""
        prompt, chosen, rejected = self.prompt, self.chosen, self.rejected
        if prompt is None:
            prompt, chosen, rejected = split_prompt(chosen, rejected)
        return Pair(*map(_without_nulls, (prompt, chosen, rejected)))


def _without_nulls(messages: str | list[Any]) -> str | list[Any]:
    """Return messages with only the fields for templates; a table adds nulls for the others."""
    if isinstance(messages, str):
        return messages
    return [{name: message[name] for name in chat_template.FIELDS} for message in messages]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(BaseSettings):
    """Settings of `preferences`."""

    max_length: int = flag(
        1024,
        least=0,
        metavar="N",
        help="tokens of prompt and completion at which TRL cuts them at the right, its "
        "DPOConfig.max_length (default 1024, as there); 0 cuts nothing",
    )


class Record(TypedDict, total=False):
    """An output line, in nats. The fields of the input line follow."""

    id: str | int
    ref_chosen_logps: Annotated[float, Metric("log-probability of the preferred completion, nats")]
    ref_rejected_logps: Annotated[float, Metric("log-probability of the rejected one, nats")]
    n_chosen: int
    n_rejected: int


def _warnings(max_length: int) -> dict[str, str]:
    """Return field of `Scored` -> the warning about pairs with it."""
    return {
        "is_cut": f"{{n}} pairs have a text of more than {max_length} tokens, of which the first "
        f"{max_length} count, as in TRL; --max-length and DPOConfig.max_length change that",
        "is_unequal": "in {n} pairs the prompt alone has other last tokens than with a completion, "
        "of which TRL warns too: the completions start where they differ. A prompt that ends in a "
        "space is the usual reason",
        "lacks_reasoning": "{n} pairs have a completion whose reasoning the chat template leaves "
        "out: its log-probability is that of the rest, as in TRL",
    }


def _record(item: Item, scored: Scored) -> dict[str, Any]:
    record: dict[str, Any] = {"error": scored.error}
    if scored.error is None:
        (chosen, rejected), (n_chosen, n_rejected) = scored.sums, scored.counts
        record = {"ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
        record |= {"n_chosen": n_chosen, "n_rejected": n_rejected}
    return record | {name: value for name, value in vars(item).items() if value is not None}


def score_pairs(lm: Any, items: Iterable[Item], max_length: int) -> Iterator[tuple[Item, Scored]]:
    """Score pairs in bounded memory: each item with its scores, in order.

    Args:
        max_length: the maximum number of tokens of a text; 0 is unlimited.
    """
    waiting: deque[list[_Tokenized]] = deque()

    def groups() -> Iterator[list[TokenSequence]]:
        pairs = _tokenize(lm, items, max_length)
        for group in bounded_groups(pairs, _n_tokens, WINDOW // 2, WINDOW_TOKENS):
            waiting.append(group)
            yield [sequence for pair in group for sequence in pair.sequences]

    for scores in lm.engine.run(groups()):
        remaining = iter(scores)
        for pair in waiting.popleft():
            yield pair.item, _sum(pair, [next(remaining) for _ in pair.sequences])


def _sum(pair: _Tokenized, scores: Sequence[SequenceScores]) -> Scored:
    if not scores:
        return pair.scored
    if not all(np.isfinite(each.logprob).all() for each in scores):
        return Scored(error=NOT_FINITE)
    chosen, rejected = (float(each.logprob.sum(dtype=np.float64)) for each in scores)
    return pair.scored._replace(sums=(chosen, rejected))


def _tokenize(lm: Any, items: Iterable[Item], max_length: int) -> Iterator[_Tokenized]:
    for chunk in bounded_groups(items, _n_characters, CHUNK, CHUNK_CHARACTERS):
        texts = [_texts(lm, item) for item in chunk]
        plain = [isinstance(item.chosen, str) for item in chunk]
        encoded: dict[int, Any] = {}
        for is_plain in (True, False):
            # A template writes its special tokens itself.
            indices = [k for k, rendered in enumerate(texts) if not isinstance(rendered, str)]
            indices = [k for k in indices if plain[k] == is_plain]
            encode = functools.partial(lm.encoder.prompt_ids, special_tokens=is_plain)
            ids = iter(encode_each(encode, [text for k in indices for text in texts[k]]))
            encoded |= {k: list(itertools.islice(ids, 3)) for k in indices}
        for k, item in enumerate(chunk):
            rendered = texts[k]
            if isinstance(rendered, str):
                yield _Tokenized(item, Scored(error=rendered))
            else:
                pair = _sequences(lm, item, encoded[k], max_length)
                lacks_reasoning = not plain[k] and _lacks_reasoning(item, rendered[1:])
                yield pair._replace(scored=pair.scored._replace(lacks_reasoning=lacks_reasoning))


def _n_tokens(pair: _Tokenized) -> int:
    return sum(sequence.n_input_tokens for sequence in pair.sequences)


def _n_characters(item: Item) -> int:
    return len(str(item.prompt)) + len(str(item.chosen))


def _texts(lm: Any, item: Any) -> tuple[str, str, str] | str:
    """Return the prompt, and the prompt with each completion; or the reason of a failure."""
    tokenizer = lm.encoder.tokenizer
    prompt, chosen, rejected = item.pair
    if isinstance(prompt, str):
        eos = tokenizer.eos_token
        if eos is None:
            return NO_EOS
        ends = [text if text.endswith(eos) else text + eos for text in (chosen, rejected)]
        texts = (prompt, prompt + ends[0], prompt + ends[1])
    else:
        try:
            texts = (
                chat_template.render(tokenizer, prompt),
                chat_template.render(tokenizer, prompt + chosen, add_generation_prompt=False),
                chat_template.render(tokenizer, prompt + rejected, add_generation_prompt=False),
            )
        except InputError as problem:
            return str(problem)
        # Many templates trim whitespace.
        if texts[1] == texts[2] and _words(chosen) != _words(rejected):
            return SAME_TEXT
    return texts if all(map(is_valid_unicode, texts)) else INVALID_UNICODE


def _lacks_reasoning(item: Any, rendered: Sequence[str]) -> bool:
    """Return True if a part of a completion with reasoning is not in its rendered text."""
    completions = item.pair[1:]
    return any(
        lacks_reasoning(message["content"], text)
        for messages, text in zip(completions, rendered, strict=True)
        for message in messages
    )


def _words(messages: Any) -> list[list[str]]:
    return [message["content"].split() for message in messages]


def _sequences(
    lm: Any, item: Item, encoded: Sequence[np.ndarray | TextError], max_length: int
) -> _Tokenized:
    """Return the two sequences of a pair, cut at `max_length`."""
    for problem in encoded:
        if isinstance(problem, TextError):
            return _Tokenized(item, Scored(error=str(problem)))
    prompt_ids, *full_ids = (np.asarray(ids) for ids in encoded)
    n_prompt = min(_n_shared(prompt_ids, ids) for ids in full_ids)
    if max_length and n_prompt >= max_length:
        error = (
            f"its prompt has {n_prompt} tokens, which leave no token of {max_length} to the "
            "completion; TRL drops such pairs: shorten the prompt, or raise --max-length"
        )
        return _Tokenized(item, Scored(error=error))
    sequences = []
    for ids in full_ids:
        cut = ids[: max_length or None]
        sequences.append(TokenSequence(cut, min(n_prompt, len(cut))))
    if complaints := lm.engine.complaints(sequences):
        return _Tokenized(item, Scored(error=complaints[min(complaints)]))
    first, second = (sequence.n_scored for sequence in sequences)
    scored = Scored(
        counts=(first, second),
        is_cut=any(max_length and len(ids) > max_length for ids in full_ids),
        is_unequal=n_prompt < len(prompt_ids),
    )
    return _Tokenized(item, scored, tuple(sequences))


def _n_shared(first: np.ndarray, second: np.ndarray) -> int:
    """Return the length of the common prefix."""
    n = min(len(first), len(second))
    differ = first[:n] != second[:n]
    return int(differ.argmax()) if differ.any() else n


class Preferences(System):
    """Log-probabilities of preferred and rejected completions under a reference
    model, in the columns that TRL's DPOTrainer reads: ref_chosen_logps and
    ref_rejected_logps.

    input, one object per line:
      {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}
      Conversations have lists of messages {"role": ..., "content": ...} in all
      fields; the tokenizer's chat template makes texts of them, to which no BOS is
      added. `prompt` may be left out: it is then what `chosen` and `rejected` have
      in common. A JSON array, .parquet or a folder of datasets' save_to_disk holds
      the same.

    tokens, as DPOTrainer (TRL 1.16) makes them: prompt and completion are encoded
    together, and the completion starts at the first token that the prompt alone
    does not have. A plain completion gets the EOS if it has none. --max-length cuts
    at the right, as DPOConfig.max_length does; give the same number to both.

    output, in the same order:
      id, ref_chosen_logps, ref_rejected_logps (sums of the completion's
      log-probabilities, nats), n_chosen, n_rejected (tokens in the sums), and all
      fields of the input line.
      Next to OUT is OUT.run.json: how it was made, and how many pairs failed.

    exit code: 0 all scored, 1 some pairs failed (their lines hold `error`),
               2 unusable input. A failed line holds the fields of its input line
               too, except those with the name of a result.
    """

    name, what = "preferences", "pairs"
    item, settings, record = Item, Settings, Record

    def needs(self, settings: Settings | None) -> tuple[str, ...]:
        """Return a local model, whose token ids are scored."""
        return ("is_local",)

    def score(self, lm: Any, items: Sequence[Item], settings: Settings) -> Iterator[dict[str, Any]]:
        """Score both completions of each pair; each record repeats its pair."""
        warnings = _warnings(settings.max_length)
        with lm.timed():
            for item, scored in score_pairs(lm, items, settings.max_length):
                for name, sentence in warnings.items():
                    if getattr(scored, name):
                        lm.warnings[sentence] += 1
                yield _record(item, scored)

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Return the mean margin over the scored pairs."""
        n, margin = 0, 0.0
        for record in records:
            if "error" not in record:
                n += 1
                margin += record["ref_chosen_logps"] - record["ref_rejected_logps"]
        headline = "no pair was scored"
        if n:
            headline = (
                f"mean log-probability of chosen less rejected {margin / n:.4f} nats, "
                f"{counted(n, 'pairs')}"
            )
        return Summary(
            headline=headline,
            numbers={"n_pairs": n, "mean_margin": margin / n if n else None},
            failures=failed(records),
        )


SYSTEM = Preferences()
