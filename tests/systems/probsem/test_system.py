"""Suites in, distributions over queries out."""

import json

import numpy as np
import pytest

from jaxscore.analysis.bootstrap import Estimate, proportion
from jaxscore.errors import InputError
from jaxscore.shell.items import Items
from jaxscore.systems.probsem import SYSTEM, Settings, prompting_of, record_of, requests_of
from jaxscore.systems.probsem.suite import load
from jaxscore.types.results import ScoredRequest, failed
from tests.conftest import CASES

SUITE = {
    "pretext": "True or False?",
    "context": [{"text": "It rains.", "expected": 0}, {"text": "It\nsnows.", "expected": 1}],
    "posttext": "Answer:",
    "queries": ["True", "two\nlines"],
}


def written(folder, suite=SUITE, prompt=b"A prompt.\n", **change):
    (folder / "p.txt").write_bytes(prompt)
    if isinstance(suite, dict):
        suite = json.dumps({**suite, **change})
    (folder / "p_t.json").write_text(suite, encoding="utf-8")
    return folder


def read(folder, limit=None, **change):
    """The checked contexts of a suite's files."""
    suite = load(written(folder, **change), "p", "t")
    items = Items(SYSTEM, suite.rows, Settings(), limit=limit)
    SYSTEM.check(items, Settings())
    return items


def loaded(folder, **change):
    items = read(folder, **change)
    assert items.n_usable == items.n_all
    return list(items)


def scored(*logprobs):
    values = np.array(logprobs, np.float32)
    ids = np.zeros(len(values), np.int32)
    return ScoredRequest("", ids, [], values, values, values, ids > 0)


def evaluate(contexts, answers, **options):
    left, settings = iter(answers), Settings(**options)
    return [
        {
            "context": k,
            **record_of(context, [next(left) for _ in context.queries], settings),
        }
        for k, context in enumerate(contexts, start=1)
    ]


def requests_after(context, boundary="joint"):
    settings = Settings(boundary=boundary)
    return requests_of(context, prompting_of(None, context, settings), settings)


def summarize(records):
    return SYSTEM.summarize(records, Settings())


def accuracy(records):
    return summarize(records).numbers["accuracy"]


def text_before(context):
    """The text before the queries of a context."""
    [text] = {request.context for request in requests_after(context)}
    return text


def test_the_text_to_the_letter(tmp_path):
    suite = loaded(tmp_path)
    assert text_before(suite[1]) == ("A prompt.\n\nTrue or False?\nIt\nsnows.\nAnswer:\n")
    assert suite[1].shown(suite[1].text) == "True or False?\nIt\nsnows.\nAnswer:"
    requests = requests_after(suite[1])
    assert [(r.id, r.continuation) for r in requests] == [("0", "True"), ("1", "two\nlines")]


@pytest.mark.parametrize(
    ("change", "before"),
    [
        ({"pretext": ""}, "A prompt.\n\nIt rains.\nAnswer:\n"),
        ({"posttext": None}, "A prompt.\n\nTrue or False?\nIt rains.\n"),
        ({"prompt": b""}, "True or False?\nIt rains.\nAnswer:\n"),
        ({"prompt": b"\xef\xbb\xbfA\r\nB\rC"}, "A\nB\nC\nTrue or False?\nIt rains.\nAnswer:\n"),
        (
            {
                "prompt": b"",
                "pretext": "",
                "posttext": "",
                "context": [{"text": "", "expected": 0}],
            },
            "",
        ),
    ],
)
def test_empty_parts_are_left_out_and_line_ends_are_pythons(tmp_path, change, before):
    suite = loaded(tmp_path, **change)
    assert text_before(suite[0]) == before


def test_parts_may_be_missing(tmp_path):
    bare = {"context": SUITE["context"], "queries": ["a"]}
    [context] = loaded(tmp_path, suite={**bare, "context": [{"text": "x", "expected": -1}]})
    assert (context.pretext, context.posttext) == ("", "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"queries": []}, 'field "queries" is empty, expected the texts to compare'),
        ({"queries": ["a", 3]}, 'field "queries", entry 2 is 3, expected a text to score'),
        ({"queries": ["a", ""]}, 'field "queries", entry 2 is empty, expected a text'),
        ({"queries": [None]}, 'field "queries", entry 1 is None, expected a text'),
        ({"queries": "a"}, 'field "queries" is a string, expected a list'),
        ({"context": []}, 'field "context" is empty, expected objects with `text`'),
        ({"context": {}}, 'field "context" is an object, expected a list'),
        ({"pretext": 5}, 'field "pretext" is a whole number, expected a string or null'),
        ({"suite": "[]"}, "found a list, expected an object with `pretext`"),
        ({"suite": "{,}"}, "p_t.json:1: not JSON at column 2"),
        ({"suite": '{"a": "\\ud83d"}'}, "a lone surrogate"),
        ({"suite": "1" * 5000}, "p_t.json: not usable JSON"),
        ({"suite": "[" * 100_000}, "p_t.json: not usable JSON"),
        ({"prompt": b"ok \xff"}, "p.txt:1: byte 4 is not UTF-8"),
        ({"suite": '{"queries": ["a"]}'}, 'no field "context", expected a list'),
    ],
)
def test_a_suite_that_cannot_be_used(tmp_path, change, why):
    with pytest.raises(InputError) as raised:
        load(written(tmp_path, **change), "p", "t")
    assert why in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_a_suite_without_a_usable_context(tmp_path):
    why = "no context is usable; the first, context 1: found a whole number, expected an object"
    with pytest.raises(InputError, match=why):
        read(tmp_path, context=[3])


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match=r"p.txt: no such file; for --prompt there are none"):
        load(tmp_path, "p", "t")
    written(tmp_path)
    with pytest.raises(InputError, match=r"p_u.json: no such file; for --test there are t"):
        load(tmp_path, "p", "u")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"text": "x"}, 'no field "expected", expected a whole number'),
        ({"expected": 0}, 'no field "text", expected a string'),
        ({"text": None, "expected": 0}, 'field "text" is null, expected a string'),
        ({"text": "x", "expected": 2}, "expected is 2, and the queries are 0 to 1; give the index"),
        ({"text": "x", "expected": -2}, "expected is -2, and the queries"),
        ({"text": "x", "expected": True}, 'field "expected" is true or false, expected a whole'),
        ({"text": "x", "expected": 0.5}, 'field "expected" is a number, expected a whole number'),
        (None, "found null, expected an object"),
    ],
)
def test_a_bad_context_is_named_and_the_others_are_kept(tmp_path, bad, why):
    given = [SUITE["context"][0], bad, SUITE["context"][1]]
    one, found, other = read(tmp_path, context=given).entries()
    assert [(entry.id, entry.error) for entry in (one, other)] == [(1, None), (3, None)]
    text = bad.get("text") if bad else None
    assert found.name == ("context 2" if text is None else f"context 2 {text!r}")
    assert found.error.startswith(why)


def test_scores_by_hand(tmp_path):
    suite = loaded(tmp_path)
    answers = [scored(-1.0, -2.0), scored(-4.0), scored(-1.0), scored(-3.0, -3.0)]
    plain, other = evaluate(suite, answers)
    assert plain["logp"] == [-3.0, -4.0]
    p = 1 / (1 + np.exp(-1.0))
    assert plain["scores"] == pytest.approx([p, 1 - p])
    assert (plain["passed"], other["passed"]) == (True, False)
    normalized = evaluate(suite, answers, normalize=True, temperature=0.5)
    assert normalized[0]["logp"] == [-3.0, -8.0]
    assert plain["text"] == "True or False?\nIt rains.\nAnswer:"
    assert [
        tuple(row[name] for name in ("text", "query", "logp", "score"))
        for row in SYSTEM.rows(plain)
    ] == [
        (plain["text"], "True", -3.0, pytest.approx(p)),
        (plain["text"], "two\nlines", -4.0, pytest.approx(1 - p)),
    ]


def test_upstreams_mean_is_over_all_tokens_it_counts(tmp_path):
    """A BOS has no log-probability and counts all the same."""
    suite = loaded(tmp_path)
    answers = [scored(np.nan, -3.0), scored(-4.0)] * 2
    assert evaluate(suite, answers, normalize=True)[0]["logp"] == [-3.0, -4.0]
    upstream = evaluate(suite, answers, normalize=True, boundary="upstream")
    assert upstream[0]["logp"] == [-1.5, -4.0]


def test_scores_far_apart_do_not_underflow_together(tmp_path):
    suite = loaded(tmp_path)
    [far, _] = evaluate(suite, [scored(-5000.0), scored(-4000.0)] * 2)
    assert far["scores"] == [0.0, 1.0]


def test_a_tie_passes_as_it_does_in_the_published_accuracy(tmp_path):
    suite = loaded(tmp_path, queries=["a", "a"])
    results = evaluate(suite, [scored(-1.0)] * 4)
    assert [result["passed"] for result in results] == [True, True]
    repeated = "query 'a' occurs 2 times: each occurrence gets a separate share"
    assert summarize(results).warnings == [repeated]
    assert summarize(evaluate(loaded(tmp_path), [scored(-1.0)] * 4)).warnings == []


def test_accuracy_is_over_what_was_scored_and_says_what_is_expected(tmp_path):
    suite = loaded(tmp_path)
    answers = [scored(-1.0), scored(-2.0), scored(-1.0), failed("2.1", "too long")]
    results = evaluate(suite, answers)
    assert summarize(results).failures == [("context 2", r"query 1 'two\nlines': too long")]
    assert accuracy(results) == Estimate(1, 1.0, None, None)
    both = accuracy(evaluate(suite, [scored(-1.0), scored(-2.0)] * 2))
    assert both == proportion([True, False])
    assert [len(SYSTEM.rows(record)) for record in results] == [2, 0]
    open_ = loaded(tmp_path, context=[SUITE["context"][0], {"text": "x", "expected": -1}])
    results = evaluate(open_, [scored(-1.0)] * 4)
    assert [result["passed"] for result in results] == [True, None]
    assert accuracy(results) == Estimate(1, 1.0, None, None)
    assert summarize(results).numbers["n_without_answer"] == 1
    results = evaluate(open_, [scored(-1.0), scored(-2.0), scored(-1.0), failed("2.1", "long")])
    assert "error" in results[1]
    assert accuracy(results) == Estimate(1, 1.0, None, None)
    results = evaluate(open_, [scored(-1.0), failed("1.1", "long"), scored(-1.0), scored(-1.0)])
    assert accuracy(results).mean is None  # the only one that says what is expected
    nobody = loaded(tmp_path, context=[{"text": "x", "expected": -1}])
    assert accuracy(evaluate(nobody, [scored(-1.0)] * 2)) is None


def test_the_cases_as_they_are_read():
    suite = load(CASES / "probsem", "towns", "B")
    first = next(iter(Items(SYSTEM, suite.rows, Settings())))
    assert first.queries == suite.queries == ("A", "B", "C", "D")
    assert text_before(first).endswith("questions.\nWhere did Marek go?\nA) Merrow\n"
        "B) Tellany\nC) Osk\nD) Port Lune\nThe correct answer is:\n")  # fmt: skip


def test_a_limit_is_of_contexts(tmp_path):
    given = [SUITE["context"][0], {"text": "no expected"}, {"text": "x", "expected": -1}]
    items = read(tmp_path, limit=2, context=given)
    assert [(entry.id, entry.error is None) for entry in items.entries()] == [(1, True), (2, False)]


@pytest.mark.parametrize(
    ("change", "context", "query"),
    [
        ({}, "A prompt.\n\nTrue or False?\nIt rains.\nAnswer:\n", "True"),
        ({"prompt": b""}, "\nTrue or False?\nIt rains.\nAnswer:\n", "True"),
        ({"pretext": ""}, "A prompt.\n\nIt rains.\nAnswer:\n", "True"),
        ({"queries": ["a\nb", "c"]}, "A prompt.\n\nTrue or False?\nIt rains.\nAnswer:\na\n", "b"),
        ({"queries": ["a\n", "c"]}, "A prompt.\n\nTrue or False?\nIt rains.\nAnswer:\na\n", ""),
        (
            {
                "prompt": b"",
                "pretext": "",
                "posttext": "",
                "context": [{"text": "", "expected": 0}],
            },
            "\n\n",
            "True",
        ),
    ],
)
def test_upstream_joins_what_the_package_joins(tmp_path, change, context, query):
    """Its words: "\\n".join([prompt, text, query]), where text and query are split at line ends."""
    of_suite = loaded(tmp_path, **change)[0]
    first = requests_after(of_suite, "upstream")[0]
    assert (first.context, first.continuation) == (context, query)
    parts = [of_suite.pretext, of_suite.text, of_suite.posttext, of_suite.queries[0]]
    lines = "\n".join(part for part in parts if part).split("\n")
    whole = "\n".join([of_suite.prompt, "\n".join(lines[:-1]), lines[-1]])
    assert first.context + first.continuation == whole
