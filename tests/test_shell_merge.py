"""The summary of the records of any split of the items is that of one run over all of them.

A run, a merge of shards and a re-report differ only in where records come from, so this is what
merges rely on, for each system of the new shell.
"""

import io
import itertools
import json
import zlib
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.io.json_output import to_json_value
from jaxscore.lm import Capabilities
from jaxscore.shell.items import Items, scored
from jaxscore.shell.records import Records
from jaxscore.shell.system import PAGE
from jaxscore.systems import declaration
from jaxscore.types.results import ScoredRequest


class HashedLM:
    """Scores each text by its digest, in whatever company it is scored."""

    def __init__(self):
        self.warnings, self.counts, self.about = Counter(), Counter(), {}
        self.capabilities = Capabilities(
            scores=True,
            has_distribution=True,
            boundaries=("joint", "separate", "reencoded", "count"),
        )

    def stream(self, requests, **options):
        return map(self._score, requests)

    def score(self, requests, **options):
        return [*map(self._score, requests)]

    def _score(self, request):
        tokens = request.continuation.split(" ")
        digests = [zlib.crc32(f"{request.context}|{k}|{t}".encode()) for k, t in enumerate(tokens)]
        values = -np.float32([digest % 7 / 2 for digest in digests])  # so that there are ties
        ids, greedy = np.int32([digest % 99 for digest in digests]), values > -1
        return ScoredRequest(request.id, ids, tokens, values, -values, values, greedy)


class Case(NamedTuple):
    """A system with some settings.

    Attributes:
        items: strategy of one item, without its id.
        lm: None if the system uses no model.
    """

    system: str
    settings: dict[str, Any]
    items: st.SearchStrategy
    lm: Any = None


def item(**fields):
    """A strategy of items; a field that is drawn as None is left out."""
    return st.fixed_dictionaries(fields).map(
        lambda found: {name: value for name, value in found.items() if value is not None}
    )


def some(*values):
    return st.sampled_from(values)


WORDS = some(" yes", " no", " it depends", " of course not")
CHOICES = item(
    context=some("Q: a?", "Q: b?", "Q: c?"),
    options=st.lists(WORDS, min_size=1, max_size=4),  # with fewer than two it is not usable
    gold=some(None, 0, 1, " yes"),
    category=some(None, "x", "y"),
)
TEXTS = some('{"answer": "1"}', '{"answer": 2}', "so \\boxed{1}", "It is 2", "I pass", None)
CONFIDENCES = some(1.0, 2.5, 2.75, -3.0, None, float("nan"), float("inf"))
NOISE = some(None, {"noise": 0.5}, {"noise": float("inf")})
# The generator and the dataset of a file's first item hold for items that have none.
READING = {"generator": some("smol", "Llama-3.1-8B"), "dataset": some("math", "crux")}


def graded(length):
    """What an item may have as gold for so many responses."""
    verdicts = st.lists(st.booleans(), min_size=length, max_size=length)
    return some(None, "1", 2, ["1", "x"], [], "I pass") | verdicts


def with_responses(field, **fields):
    """A strategy of items with lists of equal length, and now and then another one."""

    def of_length(length):
        texts = st.lists(TEXTS, min_size=length, max_size=length)
        lists = st.lists(CONFIDENCES, min_size=length, max_size=length + (length == 3))
        more = {} if field != "output" else {"confidence_list": lists}
        return item(**{field: texts}, **more, **fields, **READING, g=graded(length))

    return st.integers(0, 6).flatmap(of_length)


SAMPLES = with_responses("output", confidence_settings=NOISE)
REPLIES = with_responses(
    "responses", output=some(["Response 1"], ["Response 0, no, Response 3"], ["none"], [None])
)
CODE = some("```python\nprint(1)\n```", "no", None, "```python\n\n```")
PROGRAMS = st.integers(0, 5).flatmap(
    lambda n: item(
        question_id=some(None, "a", 3),
        output=st.lists(CODE, min_size=n, max_size=n),
        confidence_list=st.lists(CONFIDENCES, min_size=n, max_size=n),
        g=some(None, "x") | st.lists(st.booleans(), min_size=n, max_size=n),
    )
)
GOLD = {"gold": "g", "n_bootstrap": 7}
SCORED = item(context=some("", "A b", " "), continuation=some("c", " d e", "f g h i"), kind=WORDS)
PATHS = item(  # a file with an unusable item is refused
    question=some("Where?", "Who?"),
    paths=st.lists(st.lists(some("Oslo", "in", "Norway"), max_size=3), max_size=3),
)
QUESTIONS = st.integers(1, 3).flatmap(
    lambda n: item(
        main_question=some("Who?", "When?"),
        metadata_frame=some("", "1900:"),
        question_category=some("x", "y"),
        answer_strings=st.lists(WORDS, min_size=n, max_size=n),
        answer_probabilities=st.lists(some(0.0, 0.5, 1.0), min_size=n, max_size=n),
        answer_types=st.lists(some("fact", "negation"), min_size=n, max_size=n),
    )
)
CASES = [
    Case("choose", {"n_bootstrap": 7}, CHOICES, HashedLM()),
    Case("score", {}, SCORED, HashedLM()),
    Case("score", {"summary_only": True}, SCORED, HashedLM()),
    Case("score", {"against": "A", "boundary": "separate"}, SCORED, HashedLM()),
    Case("paths", {"n_bootstrap": 7}, PATHS, HashedLM()),
    Case("chronologic", {"n_bootstrap": 7}, QUESTIONS, HashedLM()),
    Case("select", {}, SAMPLES),
    Case("select", {"best_n": 5, **GOLD}, SAMPLES),
    Case("vote", {"power": 1.0, **GOLD}, SAMPLES),
    Case("vote", {"answer_rule": "boxed", "best_n": 3, **GOLD}, SAMPLES),
    Case("usc-select", {"dataset_type": "close"}, REPLIES),
    Case("usc-select", {"dataset_type": "close", **GOLD}, REPLIES),
    Case("usc-select", GOLD, REPLIES),
    Case("livecode-select", {"best_n": 3, **GOLD}, PROGRAMS),
    Case("livecode-parse", {}, PROGRAMS),
]


def score(case, rows, records):
    """Score items as one run, and add its records."""
    system = declaration(case.system)
    chosen = system.settings(**case.settings)
    items = Items(system, lambda: rows, chosen)
    for entry_and_record in scored(system, case.lm, items, chosen):
        record = dict(entry_and_record[1])
        records.append(record, record.pop(PAGE, None))


def summary(case, records):
    system = declaration(case.system)
    return to_json_value(system.summarize(records, system.settings(**case.settings)))


def empty():
    return Records(io.BytesIO(), io.BytesIO())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.system}-{len(case.settings)}")
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_summary_of_any_split_is_that_of_the_whole(case, data):
    found = data.draw(st.lists(case.items, min_size=1, max_size=8))
    rows = list(declaration(case.system).read(found))
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=3).map(sorted))
    whole, parts = empty(), empty()
    score(case, rows, whole)
    for start, end in itertools.pairwise([0, *cuts, len(rows)]):
        score(case, rows[start:end], parts)
    assert len(whole) == len(parts) == len(rows)
    expected = summary(case, whole)
    assert summary(case, parts) == expected
    # as `report` and `merge` have them, which read the records of a file
    read_back = empty()
    read_back.extend(json.loads(json.dumps(record)) for record in whole)
    assert summary(case, read_back) == summary(case, list(whole)) == expected
