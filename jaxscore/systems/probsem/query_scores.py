"""`probsem`: a distribution over given queries after each context of a test suite (ProbSem)."""

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Estimate, proportion
from jaxscore.analysis.forecasts import softmax
from jaxscore.analysis.margins import Decisions
from jaxscore.engine.rounding_audit import Noise
from jaxscore.errors import InputError, near
from jaxscore.io.json_input import check_unicode, json_kind, read_json, read_text, require_field
from jaxscore.systems.evaluation import Failure
from jaxscore.systems.prompting import PLAIN, Prompting
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, Strip

# flag value -> policy of `jaxscore.text.encoder`; upstream is what the published script scores
BOUNDARIES: dict[str, Boundary] = {
    "joint": "exact",
    "separate": "separate",
    "upstream": "last_query",
}
ADVICE = (
    "joint, the formula of the paper: the tokens of the query alone; separate splits "
    "tokens that a text joins; upstream counts tokens too many or too few: take it to repeat "
    "published numbers alone"
)
NO_ANSWER = -1  # as `expected`: nobody says which query is right; outside the accuracy
EXPECTED = "an object with `pretext`, `context`, `posttext` and `queries`"
SHOWN = 60  # characters of a context in a message
SHOWN_NAMES = 20  # of prompts or tests that exist, in a message


@dataclasses.dataclass(frozen=True)
class Context:
    """One sample of a suite.

    Attributes:
        index: from 1, as in the file.
        expected: index of the right query from 0, or `NO_ANSWER`.
    """

    index: int
    text: str
    expected: int

    @property
    def name(self) -> str:
        """What to call it in a list of failures."""
        return f"context {self.index} {self.text[:SHOWN]!r}{'…' if len(self.text) > SHOWN else ''}"


@dataclasses.dataclass(frozen=True)
class Suite:
    """A prompt with what is asked after it: every query after every context.

    Attributes:
        unusable: contexts that could not be read; they are in no result.
    """

    prompt: str
    pretext: str
    posttext: str
    contexts: tuple[Context, ...]
    queries: tuple[str, ...]
    unusable: tuple[Failure, ...] = ()

    def shown(self, context: Context) -> str:
        """What stands between prompt and query; empty parts are left out."""
        return "\n".join(filter(None, (self.pretext, context.text, self.posttext)))


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the parts of a suite and a query are joined.

    Attributes:
        as_published: as the published package joins them, for the boundary "upstream": an
            empty prompt and an empty text keep their line ends, and of a query with line ends the
            last line alone is scored, after the others.
        separator: between text and query, scored with the query; None is the published line end,
            which is not.
    """

    as_published: bool = False
    separator: str | None = None

    def opening(self, suite: Suite) -> str:
        """The prompt, with its line end."""
        return f"{suite.prompt}\n" if suite.prompt or self.as_published else ""

    def split(self, suite: Suite, context: Context, query: str) -> tuple[str, str]:
        """What stands between prompt and query, and the text that is scored."""
        *lines, scored = query.split("\n") if self.as_published else [query]
        parts = (suite.pretext, context.text, suite.posttext)
        text = "\n".join([*filter(None, parts), *lines])
        if self.separator is not None:
            return text, self.separator + scored
        return (f"{text}\n" if text or self.as_published else ""), scored


def load(folder: Path, prompt: str, test: str, limit: int | None = None) -> Suite:
    """`<prompt>.txt` and `<prompt>_<test>.json` of a folder.

    Line ends of the prompt's file are read as Python reads them: `\\r\\n` and `\\r` are `\\n`.

    Args:
        limit: contexts that are read; None for all.

    Raises:
        InputError: a file is missing or no UTF-8, or the suite is unusable, see `read`.
    """
    prompt_file, path = files(folder, prompt, test)
    _check_exists(folder, prompt_file, "--prompt", "*.txt", "")
    _check_exists(folder, path, "--test", f"{prompt}_*.json", f"{prompt}_")
    text = re.sub(r"\r\n?", "\n", read_text(prompt_file))
    return read({**_object(path), "prompt": text}, str(path), limit)


def _check_exists(folder: Path, path: Path, flag: str, pattern: str, prefix: str) -> None:
    """Refuse a name without a file, with the names that there are."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, expected prompts and tests; see --input-dir")
    if path.is_file():
        return
    names = sorted(one.stem.removeprefix(prefix) for one in folder.glob(pattern))
    shown = ", ".join(names[:SHOWN_NAMES]) + (", …" if len(names) > SHOWN_NAMES else "")
    like = near(path.stem.removeprefix(prefix), names)
    hint = f"; is it {like}?" if like else ""
    raise InputError(f"{path}: no such file; for {flag} there are {shown or 'none'}{hint}")


def files(folder: Path, prompt: str, test: str) -> tuple[Path, Path]:
    """Where the prompt and the suite lie."""
    return folder / f"{prompt}.txt", folder / f"{prompt}_{test}.json"


def read(item: Any, where: str = "suite", limit: int | None = None) -> Suite:
    """A suite from an object as the JSON file has it, with the prompt's text as `prompt`.

    `prompt`, `pretext` and `posttext` may be empty, null or left out.

    Args:
        where: for messages.
        limit: contexts that are read; None for all.

    Raises:
        InputError: no object; no queries, or queries that are no text; no usable context.
    """
    if not isinstance(item, dict):
        raise InputError(f"{where}: found {json_kind(item)}, expected {EXPECTED}")
    wrapped = {
        name: require_field(item, name, (str, type(None)), where) or "" if name in item else ""
        for name in ("prompt", "pretext", "posttext")
    }
    queries = require_field(item, "queries", list, where)
    for k, query in enumerate(queries):
        if not isinstance(query, str) or not query:
            found = "empty" if query == "" else str(query)[:20]
            raise InputError(
                f'{where}: field "queries", entry {k + 1} is {found}, expected a text to score'
            )
    if not queries:
        raise InputError(f'{where}: field "queries" is empty, expected the texts to compare')
    given = require_field(item, "context", list, where)
    if not given:
        raise InputError(
            f'{where}: field "context" is empty, expected objects with `text` and `expected`'
        )
    contexts, failures = [], []
    for index, entry in enumerate(given[:limit], start=1):
        name = f"context {index}"
        try:
            contexts.append(context_from(entry, index, len(queries), name))
        except InputError as problem:
            failures.append(Failure(name, str(problem).removeprefix(f"{name}: ")))
    if not contexts:
        name, why = failures[0]
        raise InputError(f"{where}: no context is usable; the first, {name}: {why}")
    return Suite(
        **wrapped, contexts=tuple(contexts), queries=tuple(queries), unusable=tuple(failures)
    )


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path, EXPECTED)
    check_unicode(value, str(path))
    if not isinstance(value, dict):
        raise InputError(f"{path}: found {json_kind(value)}, expected {EXPECTED}")
    return value


def context_from(entry: Any, index: int, n_queries: int, where: str) -> Context:
    """One sample from an object as a suite has it.

    Args:
        index: from 1.
        where: for messages.

    Raises:
        InputError: it is no object, or a field is missing, of another type or out of range.
    """
    if not isinstance(entry, dict):
        raise InputError(f"{where}: found {str(entry)[:20]}, expected an object")
    text = require_field(entry, "text", str, where)
    expected = require_field(entry, "expected", int, where)
    if expected != NO_ANSWER and not 0 <= expected < n_queries:
        raise InputError(
            f"{where}: expected is {expected}, and the queries are 0 to {n_queries - 1}; give the "
            f"index of one, or {NO_ANSWER} to leave the context out of the accuracy"
        )
    return Context(index, text, expected)


def remarks(suite: Suite) -> list[str]:
    """What is legal and still worth telling."""
    counts = collections.Counter(suite.queries)
    return [
        f"query {query[:SHOWN]!r}{'…' if len(query) > SHOWN else ''} occurs {count} times: each "
        "occurrence gets a share of its own"
        for query, count in counts.items()
        if count > 1
    ]


def requests(
    suite: Suite, prompting: Prompting = PLAIN, layout: Layout = Layout()
) -> list[Request]:
    """Every query after every context; the suite's prompt stands before the examples."""
    own = dataclasses.replace(prompting, opening=layout.opening(suite))
    out = []
    for context in suite.contexts:
        whole: dict[str, str] = {}  # prompt -> text before the query: mostly the same of all
        for k, query in enumerate(suite.queries):
            prompt, scored = layout.split(suite, context, query)
            if prompt not in whole:
                whole[prompt] = own.context_of(prompt, context.text)
            continuation = prompting.continuation_of(scored)
            out.append(Request(f"{context.index}.{k}", whole[prompt], continuation))
    return out


def strips(
    suite: Suite, requests: Sequence[Request], scored: Sequence[ScoredRequest]
) -> list[list[Strip]]:
    """The tokens of each query after each context; `requests` are those of `requests`, scored."""
    n = len(suite.queries)
    every = [
        Strip(suite.queries[k % n], one.context, own)
        for k, (one, own) in enumerate(zip(requests, scored, strict=True))
    ]
    return [every[first : first + n] for first in range(0, len(every), n)]


def evaluate(
    suite: Suite,
    scored: Sequence[ScoredRequest],
    *,
    boundary: str,
    normalize: bool,
    temperature: float,
) -> list[dict[str, Any]]:
    """One result per context; one with a query that could not be scored has `error`.

    Args:
        boundary: of the flag. With "upstream" a mean is over all tokens that are counted to the
            query, a BOS that has no log-probability included, as in the published script.
        normalize: `logp` is the mean over the query's tokens instead of their sum.
        temperature: `logp` is divided by it.
    """
    left = iter(scored)
    out = []
    for context in suite.contexts:
        own = [next(left) for _ in suite.queries]
        out.append(_evaluate(suite, context, own, boundary, normalize, temperature))
    return out


def _evaluate(
    suite: Suite,
    context: Context,
    own: Sequence[ScoredRequest],
    boundary: str,
    normalize: bool,
    temperature: float,
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "context": context.index,
        "text": suite.shown(context),
        "context_text": context.text,
        "expected": context.expected,
        "queries": list(suite.queries),
    }
    logp = []
    for k, one in enumerate(own):
        total = one.sum_logprob
        if one.error or total is None:
            error = one.error or "it has no token with a probability"
            return {**out, "error": f"query {k} {suite.queries[k][:SHOWN]!r}: {error}"}
        n = one.n_tokens if boundary == "upstream" else one.n_scored
        logp.append(total / (n if normalize else 1) / temperature)
    scores = softmax(logp).tolist()
    out |= {"logp": logp, "scores": scores, "n_tokens": [one.n_tokens for one in own]}
    # A tie for the highest passes, as it does in the published script's accuracy.
    known = context.expected != NO_ANSWER
    out["passed"] = scores[context.expected] == max(scores) if known else None
    return out


def mark(
    results: Sequence[dict[str, Any]], noise: Noise, *, normalize: bool, temperature: float
) -> list[Decisions]:
    """Add `within_noise` to each context that was scored: could rounding turn its decision?

    That is whether the expected query has the highest `logp`, or, where `expected` is -1, which
    query has it.

    Args:
        normalize, temperature: as in `evaluate`. With the boundary "upstream" a mean may be over
            more tokens than have a log-probability, and then moves by less than is said here.
    """
    statistic = "mean_logprob" if normalize else "sum_logprob"
    spread = noise.spread[statistic].largest / temperature
    good = [result for result in results if "error" not in result]
    for result in good:
        logp, expected = result["logp"], result["expected"]
        if expected == NO_ANSWER:
            margin = margins.lead(logp)
        else:
            right = [k == expected for k in range(len(logp))]
            margin = margins.right_from_wrong(logp, right)
        result["within_noise"] = margins.within(margin, spread)
    marks = [result["within_noise"] for result in good]
    what = "which query has the highest score"
    return [margins.count(what, f"logp ({statistic} / temperature)", spread, marks)]


def rows(results: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, float, float]]:
    """(text, query, logp, score) of everything that was scored."""
    for result in results:
        if "error" not in result:
            columns = (result[name] for name in ("queries", "logp", "scores"))
            for query, logp, score in zip(*columns, strict=True):
                yield result["text"], query, logp, score


def accuracy(results: Sequence[dict[str, Any]]) -> Estimate | None:
    """Share of contexts that passed, of those that were scored and say what is expected.

    None if every context expects -1, scored or not: whether there is an accuracy does not depend
    on the length of a text.
    """
    judged = [result for result in results if result["expected"] != NO_ANSWER]
    if not judged:
        return None
    return proportion([result["passed"] for result in judged if "error" not in result])


def n_without_answer(results: Sequence[Mapping[str, Any]]) -> int:
    """How many contexts expect -1, scored or not."""
    return sum(result["expected"] == NO_ANSWER for result in results)


def failures(suite: Suite, results: Sequence[dict[str, Any]]) -> list[Failure]:
    """The contexts that could not be read, then those that could not be scored."""
    pairs = zip(suite.contexts, results, strict=True)
    scored = [Failure(c.name, result["error"]) for c, result in pairs if "error" in result]
    return [*suite.unusable, *scored]
