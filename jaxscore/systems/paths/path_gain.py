"""`paths`: does a support path make the answer more probable? (Path Evaluation)

For each path of a question its last entity is the answer. Its probability is the geometric mean
of its tokens' probabilities, with and without the path in the prompt, averaged over system
prompts.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Estimate, estimate
from jaxscore.analysis.margins import Decisions
from jaxscore.engine.rounding_audit import Noise
from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING, read_rows
from jaxscore.io.json_input import json_kind, read_lines, require_field
from jaxscore.io.printable import one_line
from jaxscore.systems.prompting import PLAIN, Example, Prompting
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, Strip

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant that answers questions accurately based on the given information."
)
# flag value -> policy of `jaxscore.text.encoder`; upstream is what the published script scores
BOUNDARIES: dict[str, Boundary] = {
    "separate": "separate",
    "joint": "joint",
    "upstream": "reencoded",
}
ADVICE = (
    "separate, the formula of the paper: the answer's ids after the prompt's; joint reads "
    "both as one text; take upstream to repeat numbers of the published script, which encodes the "
    "text again after each token"
)
FIELDS = ("id", "question", "paths")
# name of a mean -> the field of an evaluation that it is over
COLUMNS = {
    "baseline": "baseline_prob",
    "retrieved": "retrieved_prob",
    "absolute": "absolute_improvement",
    "relative": "relative_improvement",
}
SHOWN = 60  # characters of an id and of a path in a message


@dataclasses.dataclass(frozen=True)
class Item:
    """A question with its paths, each a list of entities and relations."""

    id: str | int
    question: str
    paths: list[list[str]]


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is told of all paths together.

    Attributes:
        means: of each of `COLUMNS`, over the paths that were scored; "relative" over those of
            them whose baseline is above 0.
        gain_by_length: entities of a path -> mean absolute improvement, shortest first.
        failures: (name of the path, why) of those that could not be scored.
    """

    n_items: int
    means: dict[str, Estimate]
    gain_by_length: dict[int, Estimate]
    failures: list[tuple[str, str]]


def load(
    path: Path, max_samples: int | None = None, columns: Mapping[str, str] = NOTHING
) -> list[Item]:
    """Items of a file: `question`, `paths`, and optionally `id` (else the line's number).

    Args:
        path: JSONL, or a table, see `jaxscore.io.items`.
        columns: field -> its name in the file.

    Raises:
        InputError: with file and line; or no item has a path.
    """
    found = itertools.islice(read_rows(path, columns, ["paths"]), max_samples)
    items = [item(row, number, where) for number, where, row in found]
    check_any_path(items, f"{path}: ")
    return items


def check_any_path(items: Sequence[Item], where: str = "") -> None:
    """Refuse items without any path: there would be nothing to score.

    Args:
        where: what a message begins with.

    Raises:
        InputError: there are no items, or the paths of all are empty.
    """
    if not any(cases(items)):
        found = f"no path in the {len(items)} items" if items else "no items"
        raise InputError(
            f"{where}found {found}, expected at least one path that is not empty, "
            'such as "paths": [["Ada", "born in", "London"]]'
        )


def item(given: Any, position: int, where: str) -> Item:
    """One item from an object.

    Args:
        position: from 1; the id of an item without `id`.
        where: for messages.

    Raises:
        InputError: it is no object, or a field is missing or of another type.
    """
    if not isinstance(given, dict):
        raise InputError(f"{where}: found {json_kind(given)}, expected an object")
    question = require_field(given, "question", str, where)
    paths = require_field(given, "paths", list, where)
    for k, entities in enumerate(paths):
        if not isinstance(entities, list) or not all(isinstance(e, str) for e in entities):
            raise InputError(
                f'{where}: field "paths", entry {k + 1}: expected a list of strings, '
                f"found {str(entities)[:60]}"
            )
    name = require_field(given, "id", (str, int), where) if "id" in given else position
    return Item(name, question, paths)


def system_prompts(given: Sequence[str], file: Path | None) -> list[str]:
    """Prompts of the command line, then those of the file; the default where there are none.

    Raises:
        InputError: the file cannot be read or holds only blank lines.
    """
    prompts = list(given)
    if file is not None:
        lines = [text.strip() for _, text in read_lines(file) if text.strip()]
        if not lines:
            raise InputError(f"{file}: no system prompt in it, expected one a line")
        prompts += lines
    return prompts or [DEFAULT_SYSTEM_PROMPT]


def prompts(item: Item, path: list[str]) -> tuple[str, str]:
    """The prompt without and with the path, to the letter of the published script.

    A system prompt and a line end come before it.
    """
    question = f"Question: {item.question} Answer:"
    return question, f"Support Path: {' -> '.join(path)}\n{question}"


def cases(items: Sequence[Item]) -> Iterator[tuple[Item, list[str]]]:
    """Every path that is not empty, with its item."""
    return ((item, path) for item in items for path in item.paths if path)


def requests(
    items: Sequence[Item],
    systems: Sequence[str],
    prompting: Prompting = PLAIN,
    examples: Sequence[tuple[Example, ...]] = ((), ()),
    separator: str = "",
) -> list[Request]:
    """For each path, for each system prompt: the baseline and the retrieved prompt.

    Args:
        prompting: whether they are conversations.
        examples: those before baseline and before retrieved prompts, with questions as keys.
        separator: what an answer begins with.
    """
    pairs = [
        [
            dataclasses.replace(prompting, system=system, system_end="\n", examples=own)
            for own in examples
        ]
        for system in systems
    ]
    return [
        Request(
            _name(item.id, path),
            one.context_of(prompt, item.question),
            one.continuation_of(separator + path[-1]),
        )
        for item, path in cases(items)
        for pair in pairs
        for one, prompt in zip(pair, prompts(item, path), strict=True)
    ]


def _name(id: str | int, path: Sequence[str]) -> str:
    """What to call a path in a list of failures; nothing in it moves a terminal's cursor."""

    def shown(text: str) -> str:
        return one_line(text[:SHOWN]) + ("…" if len(text) > SHOWN else "")

    return f"{shown(str(id))}: {shown(' -> '.join(path))}"


def evaluate(
    items: Sequence[Item], systems: Sequence[str], scored: Sequence[ScoredRequest]
) -> list[dict[str, Any]]:
    """The documented output, one entry an item; a path that failed has `error` and nulls."""
    left = iter(scored)
    return [
        {
            "id": item.id,
            "question": item.question,
            "path_evaluations": [_evaluate(path, systems, left) for path in item.paths if path],
        }
        for item in items
    ]


def _evaluate(
    path: list[str], systems: Sequence[str], left: Iterator[ScoredRequest]
) -> dict[str, Any]:
    pairs = [(next(left), next(left)) for _ in systems]
    errors = [_error(one) for pair in pairs for one in pair]
    out: dict[str, Any] = {"path": path, "answer": path[-1]}
    if any(errors):
        names = ("baseline_prob", "retrieved_prob", "absolute_improvement", "relative_improvement")
        out |= dict.fromkeys(names)
        return {**out, "prompt_results": [], "error": next(e for e in errors if e)}
    probabilities = [(probability(one), probability(other)) for one, other in pairs]
    results = [
        {"system_prompt": system, "baseline_prob": one, "retrieved_prob": other}
        for system, (one, other) in zip(systems, probabilities, strict=True)
    ]
    baseline = math.fsum(one for one, _ in probabilities) / len(results)
    retrieved = math.fsum(other for _, other in probabilities) / len(results)
    gain = retrieved - baseline
    return {
        **out,
        "baseline_prob": baseline,
        "retrieved_prob": retrieved,
        "absolute_improvement": gain,
        "relative_improvement": gain / baseline if baseline > 0 else math.inf,
        "prompt_results": results,
    }


def _error(scored: ScoredRequest) -> str | None:
    if scored.error is None and not scored.n_scored:
        return "the answer has no tokens, so it has no probability"
    return scored.error


def probability(scored: ScoredRequest) -> float:
    """Geometric mean of the tokens' probabilities."""
    mean = scored.mean_logprob
    assert mean is not None  # `_error` has seen to it
    return math.exp(mean)


def mark(results: Sequence[dict[str, Any]], noise: Noise) -> list[Decisions]:
    """Add `within_noise` to each path that was scored: could rounding turn its gain's sign?

    The logarithm of an average of exp(mean log-probability) moves by no more than the mean
    log-probabilities do, so the margin is that of the two averages' logarithms. In probabilities
    it would hang on the most probable answers of the audit.
    """
    spread = noise.spread["mean_logprob"].largest
    good = [one for result in results for one in result["path_evaluations"] if "error" not in one]
    for one in good:
        without, with_path = _log(one["baseline_prob"]), _log(one["retrieved_prob"])
        one["within_noise"] = margins.within(abs(margins.gap(with_path, without)), spread)
    marks = [one["within_noise"] for one in good]
    statistic = "mean_logprob, as log(with / without)"
    return [margins.count("sign of the improvement", statistic, spread, marks)]


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def summarise(results: Sequence[dict[str, Any]], n_bootstrap: int, seed: int) -> Summary:
    """Means over all paths of all items, with intervals that resample questions."""
    every = [
        (k, result["id"], one)
        for k, result in enumerate(results)
        for one in result["path_evaluations"]
    ]
    good = [(k, one) for k, _, one in every if "error" not in one]

    def mean(part: Sequence[tuple[int, dict[str, Any]]], column: str) -> Estimate:
        finite = [(k, one[column]) for k, one in part if math.isfinite(one[column])]
        groups = [k for k, _ in finite]  # paths of one question are not independent
        return estimate([value for _, value in finite], n_bootstrap, seed, groups)

    by_length: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for k, one in good:
        by_length.setdefault(len(one["path"]), []).append((k, one))
    return Summary(
        n_items=len(results),
        means={name: mean(good, column) for name, column in COLUMNS.items()},
        gain_by_length={n: mean(by_length[n], COLUMNS["absolute"]) for n in sorted(by_length)},
        failures=[(_name(id, one["path"]), one["error"]) for _, id, one in every if "error" in one],
    )


def least_gain_first(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of all paths that were scored, each with its item's id and question."""
    good = [
        {"id": result["id"], "question": result["question"], **one}
        for result in results
        for one in result["path_evaluations"]
        if "error" not in one
    ]
    return sorted(good, key=_gain)


def strips(
    results: Sequence[dict[str, Any]], requests: Sequence[Request], scored: Sequence[ScoredRequest]
) -> list[list[Strip]]:
    """The answer's tokens without and with each path, of the paths of `least_gain_first`.

    Args:
        results: of `evaluate`.
        requests, scored: of all paths.
    """
    every = [one for result in results for one in result["path_evaluations"]]
    pairs = list(zip(requests, scored, strict=True))
    n = len(pairs) // len(every)  # of each path: two for each system prompt
    good = [(one, pairs[k * n : (k + 1) * n]) for k, one in enumerate(every) if "error" not in one]
    return [
        [Strip(_told(k, n), request.context, own) for k, (request, own) in enumerate(texts)]
        for _, texts in sorted(good, key=lambda one: _gain(one[0]))
    ]


def _told(k: int, n: int) -> str:
    which = "with the path" if k % 2 else "without the path"
    return which if n == 2 else f"{which}, system prompt {k // 2 + 1}"


def _gain(one: dict[str, Any]) -> float:
    gain: float = one[COLUMNS["absolute"]]
    return gain
