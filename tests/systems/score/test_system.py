"""Requests from lines, lines from results, and what the lines say together."""

import json
import os

import numpy as np
import pytest

from jaxscore import InputError, Request, Scorer, evaluate
from jaxscore.io.json_output import json_line
from jaxscore.plan.requests import TokenSequence
from jaxscore.shell.items import read_file
from jaxscore.systems.score import EMPTY, SYSTEM, Item, Settings, record_of
from jaxscore.types.results import ScoredRequest, failed
from tests.conftest import CASES

SUMMARY = [
    "sum_logprob", "mean_logprob", "perplexity", "mean_entropy", "mean_self_certainty",
    "n_tokens", "n_scored",
]  # fmt: skip
LONG = {"context": " and" * 2000, "continuation": " x"}
TEXTS = [
    {"id": "a", "context": "The cat", "continuation": " sat on the mat"},
    {"context": "The dog", "continuation": " ran"},
    {"id": "long", **LONG},
    "été 🙂",
    {"id": "none", "context": "The cat", "continuation": ""},
    {"id": "bad", "continuation": 3},
]
ARRAYS = ["token_ids", "tokens", "logprob", "entropy", "self_certainty", "greedy"]


def test_context_and_id_may_be_left_out(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"continuation": "x"}\n\n{"id": "q", "context": "c", "continuation": ""}\n'
        '{"id": 0, "continuation": " y", "more": [1]}\n',
        encoding="utf-8",
    )
    items = read_file(SYSTEM, path, Settings())
    assert [(entry.id, entry.item, entry.extra) for entry in items.entries()] == [
        (1, Item(continuation="x"), {}),
        ("q", Item(context="c", continuation=""), {}),
        (0, Item(continuation=" y"), {"more": [1]}),
    ]
    assert (items.n_all, len(items)) == (3, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", 'no field "continuation", expected a string; there are none'),
        ('{"continuation": 3}', 'field "continuation" is a whole number, expected a string'),
        (
            '{"continuation": "", "context": 1}',
            'field "context" is a whole number, expected a string',
        ),
        ('{"continuation": "", "id": [1]}', 'field "id" is a list, expected a string or a whole'),
        ('{"continuation": "", "id": true}', 'field "id" is true or false, expected a string'),
        ('{"continuation": "", "id": 1.5}', 'field "id" is a number, expected a string'),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path, line, message):
    path = tmp_path / "in.jsonl"
    path.write_text('{"continuation": "x"}\n' + line, encoding="utf-8")
    with pytest.raises(InputError) as problem:
        read_file(SYSTEM, path, Settings())
    assert f"{path}:2" in str(problem.value)
    assert f": {message}" in str(problem.value)


def test_a_pipe_is_refused_since_the_input_is_read_twice(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe: found a pipe, which can be read only once"):
        read_file(SYSTEM, tmp_path / "pipe", Settings())


def scored(**changes):
    values = np.array([np.nan, -1.0, -3.0], np.float32)
    fields = {
        "id": "a",
        "token_ids": np.array([5, 6, 7], np.int32),
        "tokens": ["A", "Ġb", "c"],
        "logprob": values,
        "entropy": -values,
        "self_certainty": -2 * values,
        "greedy": np.array([False, True, False]),
    }
    return ScoredRequest(**{**fields, **changes})


def test_a_record_has_the_documented_fields_in_order():
    record = json.loads(json_line(record_of(scored(), summary_only=False)))
    assert list(record) == [*ARRAYS, *SUMMARY]
    assert record == {
        "token_ids": [5, 6, 7],
        "tokens": ["A", "Ġb", "c"],
        "logprob": [None, -1.0, -3.0],
        "entropy": [None, 1.0, 3.0],
        "self_certainty": [None, 2.0, 6.0],
        "greedy": [None, True, False],
        "sum_logprob": -4.0,
        "mean_logprob": -2.0,
        "perplexity": pytest.approx(np.exp(2.0)),
        "mean_entropy": 2.0,
        "mean_self_certainty": 4.0,
        "n_tokens": 3,
        "n_scored": 2,
    }


def test_the_summary_leaves_the_arrays_out():
    record = record_of(scored(), summary_only=True)
    assert list(record) == SUMMARY
    assert record["n_scored"] == 2


def test_truncation_is_recorded_where_it_happened():
    assert record_of(scored(truncated=7), summary_only=True)["truncated"] == 7
    assert "truncated" not in record_of(scored(), summary_only=True)


def test_a_failure_is_recorded_as_that():
    assert record_of(failed("a", "why"), summary_only=False) == {"error": "why"}


def test_ids_come_first_and_other_fields_of_a_line_last(scorers):
    texts = [{"continuation": "The cat", "topic": "x", "n": [1]}, {"id": "long", **LONG, "n": 2}]
    first, second = evaluate("score", scorers("tiny-qwen2"), texts, summary_only=True).items
    assert list(first) == ["id", *SUMMARY, "topic", "n"]
    assert list(second) == ["id", "error", "n"]


@pytest.mark.parametrize("field", ["logprob", "error", "n_tokens"])
def test_a_field_with_the_name_of_a_result_is_refused(tmp_path, field):
    path = tmp_path / "in.jsonl"
    path.write_text(f'{{"continuation": "x", "{field}": 1}}\n', encoding="utf-8")
    with pytest.raises(InputError, match=f':1: field "{field}" is one of the results'):
        read_file(SYSTEM, path, Settings())


@pytest.mark.parametrize("settings", [{}, {"summary_only": True}, {"measures": ["min_k", "rank"]}])
def test_records_of_json_say_what_the_run_says(scorers, settings):
    report = evaluate("score", scorers("tiny-qwen2"), TEXTS, **settings)
    records = json.loads(json.dumps(report.items))
    assert SYSTEM.summarize(records, report.chosen) == report.found
    assert report.summary["n_requests"] == 6
    assert [name for name, _ in report.failures] == ["long", "none", "bad"]


def test_an_empty_text_fails_alone_and_a_first_token_without_context_is_counted(scorers):
    texts = [{"continuation": text} for text in ("The cat", "", "巴黎是法国的首都。", "Oslo")]
    texts.append({"context": "The", "continuation": " cat"})
    report = evaluate("score", scorers("tiny-qwen2"), texts, unit="word", summary_only=True)
    assert [(name, why) for name, why in report.failures] == [("1", EMPTY)]
    assert report.remarks == [
        "the first token of 3 of 5 texts has nothing before it and so no probability, nor has its "
        "word; give a context, or --prefix-token-id ID, a token before each text such as the EOS",
        "1 of 5 texts are written without spaces, so that each is one word: put a space between "
        "their words, or take --unit token",
    ]
    words = [(record.get("words"), record.get("word_surprisal")) for record in report.items]
    assert words[0][0] == ["The", "cat"]
    assert words[0][1][0] is None
    assert words[0][1][1] > 0
    assert (words[2], words[4][0]) == ((["巴黎是法国的首都。"], [None]), ["cat"])
    assert "tokens" not in report.items[0]  # values per word are those that were asked for


def test_a_token_before_each_text(scorers, tmp_path):
    """As the reference has it: the id before the ids of the text."""
    path = CASES / "models/tiny-qwen2"
    for prefix in (-1, 10**6):
        with pytest.raises(InputError, match=f"prefix_token_id is {prefix}, expected an id from 0"):
            Scorer.from_pretrained(str(path), prefix_token_id=prefix)
    end = scorers("tiny-qwen2").encoder.tokenizer.eos_token_id
    texts = [{"continuation": "The cat"}, {"context": "The", "continuation": " cat"}]
    with Scorer.from_pretrained(str(path), prefix_token_id=end) as scorer:
        report = evaluate("score", scorer, texts)
    assert report.remarks == []
    for record, start in zip(report.items, (1, 2), strict=True):
        ids = [end, *scorer.encoder.tokenizer("The cat")["input_ids"]]
        sequence = TokenSequence(np.array(ids, np.int32), start)
        [scores] = scorers("tiny-qwen2").engine.score_sequences([sequence])
        np.testing.assert_allclose(record["logprob"], scores.logprob, atol=1e-5)
    conversation = evaluate("score", scorer, texts[1:], apply_chat_template=True)
    want = evaluate("score", scorers("tiny-qwen2"), texts[1:], apply_chat_template=True)
    assert conversation.summary == want.summary  # a template writes all special tokens


def test_two_runs_together_are_one(scorers):
    scorer = scorers("tiny-qwen2")
    whole = evaluate("score", scorer, TEXTS)
    parts = [evaluate("score", scorer, half) for half in (TEXTS[:2], TEXTS[2:])]
    together = SYSTEM.summarize([*parts[0].items, *parts[1].items], Settings())
    assert together.numbers == pytest.approx(whole.summary, abs=1e-5)
    assert together.failures[0] == whole.failures[0]
    assert (parts[0].facts + parts[1].facts).boundaries == whole.facts.boundaries


def test_an_infinite_sum_is_text_in_a_record():
    record = {"id": 1, "sum_logprob": "-Infinity", "n_tokens": 2, "n_scored": 2}
    numbers = SYSTEM.summarize([record], Settings()).numbers
    assert numbers == {"n_requests": 1, "n_scored": 2, "mean_logprob": -np.inf}


def test_examples_may_be_requests(scorers):
    shots = [Request("x", "One two", " three"), {"context": "Red", "continuation": " blue"}]
    given = [{"context": "One two", "continuation": " three"}]
    report = evaluate("score", scorers("tiny-qwen2"), given, fewshot=shots)
    assert "scored after the others alone: 1" in "".join(report.remarks)
    assert report.settings["fewshot_drawn"] == [1, 2]


def test_an_empty_context_after_an_example_fails_alone(scorers):
    """Also in the audit's sample, whose other boundary takes it."""
    shots = [{"context": "Red", "continuation": " blue"}]
    texts = [{"continuation": "The cat"}, {"context": "The cat ", "continuation": "sat"}] * 2
    report = evaluate("score", scorers("tiny-qwen2"), texts, fewshot=shots)
    assert ["its context is blank" in one.get("error", "") for one in report.items] == [
        True, False, True, False,
    ]  # fmt: skip
    effect = report.to_dict()["boundary_audit"]["effect"]
    assert effect["results"]["mean log-probability per token"]["n"] == 2


def test_files_of_the_report_and_the_page(scorers):
    report = evaluate("score", scorers("tiny-qwen2"), TEXTS)
    assert report.markdown().startswith("# Scores: ")
    assert json.loads(report.json())["summary"] == report.summary
    [strips] = [report.document.items.strips]
    assert "The dog" in strips.contexts
    assert report.records.extra(0) == {"context": "The cat"}
