"""Reference log-probabilities of preference pairs, in the columns that TRL's DPOTrainer reads."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypedDict

from jaxscore.errors import InputError
from jaxscore.lm import LocalLM
from jaxscore.systems.entries import Entry
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.preferences.pairs import Pair, Scored, score_pairs, split_prompt
from jaxscore.systems.remarks import Remark
from jaxscore.systems.settings import Settings as BaseSettings
from jaxscore.systems.settings import setting
from jaxscore.systems.system import Metric, System

HELP = """\
Log-probabilities of preferred and rejected completions under a reference
model, in the columns that TRL's DPOTrainer reads: ref_chosen_logps and
ref_rejected_logps.

input, one object per line:
  {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}
  Conversations have lists of messages {"role": ..., "content": ...} in all
  fields; the tokenizer's chat template makes texts of them. `prompt` may be
  left out: it is then what `chosen` and `rejected` have in common. A JSON
  array, .parquet or a folder of datasets' save_to_disk holds the same.

tokens, as DPOTrainer (TRL 1.16) makes them: prompt and completion are encoded
together, and the completion starts at the first token that the prompt alone
does not have. A plain completion gets the EOS if it has none. --max-length cuts
at the right, as DPOConfig.max_length does; give the same number to both.

output, in the same order:
  id, ref_chosen_logps, ref_rejected_logps (sums of the completion's
  log-probabilities, nats), n_chosen, n_rejected (tokens in the sums), and all
  fields of the input line.
  Beside OUT lies OUT.run.json: what made it, and how many pairs failed.

exit code: 0 all scored, 1 some pairs failed (their lines hold `error`),
           2 unusable input. A failed line holds the fields of its input line
           too, except those with the name of a result.
"""
# Fields of TRL's data sets that change what the chat template writes, or are no text.
NOT_APPLIED = ("tools", "chat_template_kwargs", "images", "image")
MESSAGE_FIELDS = ("role", "content")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A prompt with a preferred and a rejected completion: texts, or messages."""

    prompt: str | list[Any] | None = None
    chosen: str | list[Any]
    rejected: str | list[Any]

    def __post_init__(self) -> None:
        """Check that all fields are texts, or all are messages."""
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
                if more := sorted(k for k, v in message.items() if v and k not in MESSAGE_FIELDS):
                    raise InputError(
                        f"a message has {more[0]}, which is not given to the chat template; leave "
                        "it out"
                    )

    @property
    def pair(self) -> Pair:
        """The three parts, with the prompt made explicit."""
        prompt, chosen, rejected = self.prompt, self.chosen, self.rejected
        if prompt is None:
            prompt, chosen, rejected = split_prompt(chosen, rejected)
        return Pair(*map(_without_nulls, (prompt, chosen, rejected)))


def _without_nulls(part: str | list[Any]) -> str | list[Any]:
    """Messages with the fields that templates get: a table's rows have null for the others."""
    if isinstance(part, str):
        return part
    return [{name: message[name] for name in MESSAGE_FIELDS} for message in part]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(BaseSettings):
    """Settings of `preferences`."""

    max_length: int = setting(
        1024,
        least=0,
        metavar="N",
        help="tokens of prompt and completion at which TRL cuts them at the right, its "
        "DPOConfig.max_length (default 1024, as there); 0 cuts nothing",
    )


class Record(TypedDict, total=False):
    """One output line; nats. The fields of the input line follow."""

    id: str | int
    ref_chosen_logps: Annotated[float, Metric("log-probability of the preferred completion, nats")]
    ref_rejected_logps: Annotated[float, Metric("log-probability of the rejected one, nats")]
    n_chosen: int
    n_rejected: int


def evaluate(
    lm: LocalLM,
    entries: Iterable[Entry[Item]],
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Score both completions of each pair.

    Args:
        on_item: see `System`.
    """
    started = time.perf_counter()
    records: list[Mapping[str, Any]] = []
    failures, margin, n_items, n_cut, n_unequal = [], 0.0, 0, 0, 0
    for entry, scored in score_pairs(lm, _checked(entries), settings.max_length):
        n_items += 1
        if scored.error is None:
            n_cut += scored.is_cut
            n_unequal += scored.is_unequal
            margin += scored.sums[0] - scored.sums[1]
        else:
            failures.append(Failure(entry.name, scored.error))
        (records.append if on_item is None else on_item)(_record(entry, scored))
    n_good = n_items - len(failures)
    mean = margin / n_good if n_good else None
    summary = {"n_pairs": n_good, "mean_margin": mean}
    return Evaluation(
        summary=summary,
        items=records,
        n_items=n_items,
        rows=records,
        details={"summary": summary},
        long={"items": records},
        headline="no pair was scored"
        if mean is None
        else f"mean log-probability of chosen less rejected {mean:.4f} nats, {n_good:,} pairs",
        failures=failures,
        remarks=_remarks(n_cut, n_unequal, settings.max_length),
        seconds=time.perf_counter() - started,
    )


def _checked(entries: Iterable[Entry[Item]]) -> Iterator[Entry[Item]]:
    """The entries; one with a field that is not applied is unusable."""
    for entry in entries:
        found = next((name for name in NOT_APPLIED if entry.extra.get(name)), None)
        if entry.item is not None and found is not None:
            error = f"it has {found}, which are not applied here; leave them out"
            given = {**vars(entry.item), **entry.extra}
            entry = dataclasses.replace(entry, item=None, error=error, given=given)
        yield entry


def _record(entry: Entry[Item], scored: Scored) -> dict[str, Any]:
    own: dict[str, Any] = {"id": entry.id}
    if scored.error is None:
        own["ref_chosen_logps"], own["ref_rejected_logps"] = scored.sums
        own["n_chosen"], own["n_rejected"] = scored.counts
    else:
        own["error"] = scored.error
    fields = entry.given if entry.item is None else {**vars(entry.item), **entry.extra}
    # A null is kept, except for a prompt, which may be left out.
    return own | {k: v for k, v in fields.items() if v is not None or k != "prompt"}


def _remarks(n_cut: int, n_unequal: int, max_length: int) -> list[str]:
    remarks: list[str] = []
    if n_cut:
        remarks.append(
            Remark(
                f"{{n}} pairs have a text of more than {max_length} tokens, of which the first "
                f"{max_length} count, as in TRL; --max-length and DPOConfig.max_length change that",
                n=n_cut,
            )
        )
    if n_unequal:
        remarks.append(
            Remark(
                "in {n} pairs the prompt alone has other last tokens than with a completion, of "
                "which TRL warns too: the completions start where they differ. A prompt that ends "
                "in a blank is the usual reason",
                n=n_unequal,
            )
        )
    return remarks


SYSTEM = System(
    name="preferences",
    what="pairs",
    help=HELP,
    item=Item,
    settings=Settings,
    record=Record,
    is_lazy=True,
    evaluate=evaluate,
    needs=("is_local",),
)
