"""`sample`: n responses of a model to each prompt.

The records are what `self-certainty`, `usc-generate` and, by way of `self-certainty`, `vote` read:
the layout of the published samples (arXiv 2502.18581), with `finish` beside.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.items import NAME_FIELDS
from jaxscore.io.json_output import to_json_value
from jaxscore.systems.samples import earlier_output
from jaxscore.systems.samples.prompts import MESSAGES, OWN_FIELDS, PROMPT, SEEDS, Prompt
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated

FINISHES = ("eos", "stop", "length")  # as `Generated.finish` has them
NOT_YET = "not sampled yet"


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a prompt that are known.

    Attributes:
        texts: in their order.
        finish: what ended each, one of `FINISHES`.
        model_input: the text that the model read.
        made: what they were made with; None values left out.
    """

    texts: list[str]
    finish: list[str]
    model_input: str
    made: Mapping[str, Any]


def resume(
    prompts: Sequence[Prompt],
    previous: Sequence[Mapping[str, Any]],
    n: int,
    made: Mapping[str, Any],
    path: Path,
) -> tuple[list[Samples | None], int]:
    """What an earlier run has left of each prompt's samples.

    Args:
        prompts: of this run.
        previous: prompt k's record at place k; may be fewer than prompts.
        n: samples of each prompt that this run wants: an earlier run may have made fewer.
        made: what this run samples with.
        path: where the records come from.

    Returns:
        One entry per prompt, None where nothing is known of the same prompt, and how many prompts
        have changed.

    Raises:
        InputError: as `earlier_output.check_input` and `check_settings`; there are more samples
            than this run wants.
    """
    same = [
        None if prompt.error else _same(prompt, record)
        for prompt, record in zip(prompts, previous, strict=False)
    ]
    same += [False] * (len(previous) - len(same))
    n_changed = earlier_output.check_input(len(prompts), same, path)
    out: list[Samples | None] = [None] * len(prompts)
    for prompt, record, is_same in zip(prompts, previous, same, strict=False):
        if not is_same or (found := _samples(record)) is None:
            continue
        earlier_output.check_settings(prompt.name, found.made, made, path)
        if len(found.texts) > n:
            raise InputError(
                f"{path}: {prompt.name} has {len(found.texts)} samples, this run asks for {n}; "
                f"{earlier_output.REMEDY}"
            )
        out[prompt.index] = found
    return out, n_changed


def _same(prompt: Prompt, record: Mapping[str, Any]) -> bool:
    """Whether the record is of this prompt: of the same text, and drawn with the same seeds."""
    given = to_json_value(prompt.given)
    names = [name for name in (PROMPT, MESSAGES, *NAME_FIELDS) if name in given]
    return all(record.get(name) == given[name] for name in names)


def _samples(record: Mapping[str, Any]) -> Samples | None:
    texts, finish = record.get("output"), record.get("finish")
    read, configs = record.get("model_input"), record.get("configs")
    if not isinstance(texts, list) or not isinstance(finish, list) or not texts:
        return None
    whole = len(texts) == len(finish) and all(isinstance(one, str) for one in texts)
    if not whole or not all(one in FINISHES for one in finish) or not isinstance(read, str):
        return None
    made = {"generator": record.get("generator"), **(configs if isinstance(configs, dict) else {})}
    return Samples(texts, finish, read, made)


def check_dtype(
    prompts: Sequence[Prompt], samples: Sequence[Samples | None], dtype: str, path: Path
) -> None:
    """Refuse samples that were written in another precision than this run's, as far as they say.

    Apart from the other settings, since what `auto` means is known once the model is loaded.

    Raises:
        InputError: as `earlier_output.check_settings`.
    """
    for prompt, one in zip(prompts, samples, strict=True):
        if one is not None and "dtype" in one.made:
            earlier_output.check_settings(prompt.name, one.made, {"dtype": dtype}, path)


def requests(prompt: Prompt, model_input: str, n: int, **settings: Any) -> list[GenerationRequest]:
    """The first n samples of a prompt, each with a seed of its own.

    Args:
        settings: as `GenerationRequest` has them, without `seed`.
    """
    return [
        GenerationRequest(
            id=f"{prompt.name}, sample {k + 1}",
            prompt=model_input,
            seed=(prompt.first_seed + k) % SEEDS,
            **settings,
        )
        for k in range(n)
    ]


def take(
    known: Samples | None, generated: Sequence[Generated], model_input: str, made: Mapping[str, Any]
) -> Samples:
    """All samples of a prompt; those that were known stay as they are.

    Raises:
        InputError: one of the others could not be written; says which and why.
    """
    texts, finish = ([], []) if known is None else ([*known.texts], [*known.finish])
    for k, one in enumerate(generated[len(texts) :], start=len(texts) + 1):
        if one.error or one.finish is None:
            # What is wrong with the prompt is wrong with every sample of it.
            shared = all(other.error == one.error for other in generated)
            raise InputError(str(one.error) if shared else f"sample {k}: {one.error}")
        texts.append(one.text)
        finish.append(one.finish)
    return Samples(texts, finish, model_input, made)


def record(prompt: Prompt, one: Samples) -> dict[str, Any]:
    """A prompt with its samples: its own fields first."""
    configs = {name: v for name, v in one.made.items() if name != "generator" and v is not None}
    return {
        **prompt.given,
        "chat_history": prompt.history,
        "model_input": one.model_input,
        "output": one.texts,
        "finish": one.finish,
        "generator": one.made["generator"],
        "configs": configs,
    }


def failed(prompt: Prompt, error: str) -> dict[str, Any]:
    """The record of a prompt without samples."""
    rest = {name: v for name, v in prompt.given.items() if name not in OWN_FIELDS}
    return {**rest, "output": [], "error": error}


def finished(
    prompts: Sequence[Prompt], records: Sequence[dict[str, Any] | None], at_least: int
) -> Iterator[dict[str, Any]]:
    """Records up to the first prompt that lacks samples, but at least `at_least` of them."""
    n = next((k for k, one in enumerate(records) if one is None), len(prompts))
    n = max(n, at_least)
    for prompt, one in zip(prompts[:n], records[:n], strict=True):
        yield failed(prompt, NOT_YET) if one is None else one
