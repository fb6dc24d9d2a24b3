"""Requests from lines, and lines from results."""

import os

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.systems.entries import check_file, iterate_file
from jaxscore.systems.score import SYSTEM, Item, as_lists, record_of
from jaxscore.types.results import ScoredRequest, failed

SUMMARY = [
    "sum_logprob", "mean_logprob", "perplexity", "mean_entropy", "mean_self_certainty",
    "n_tokens", "n_scored",
]  # fmt: skip
ARRAYS = ["token_ids", "tokens", "logprob", "entropy", "self_certainty", "greedy"]


def test_context_and_id_may_be_left_out(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"continuation": "x"}\n\n{"id": "q", "context": "c", "continuation": ""}\n'
        '{"id": 0, "continuation": " y", "more": [1]}\n',
        encoding="utf-8",
    )
    assert [(entry.id, entry.item, entry.extra) for entry in iterate_file(SYSTEM, path)] == [
        (1, Item(continuation="x"), {}),
        ("q", Item(context="c", continuation=""), {}),
        (0, Item(continuation=" y"), {"more": [1]}),
    ]
    assert check_file(SYSTEM, path) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", 'no field "continuation", expected a string; there are none'),
        ('{"continuation": 3}', 'field "continuation" is a whole number, expected a string'),
        ('{"continuation": "", "context": null}', 'field "context" is null, expected a string'),
        ('{"continuation": "", "id": [1]}', 'field "id" is a list, expected a string or a whole'),
        ('{"continuation": "", "id": true}', 'field "id" is true or false, expected a string'),
        ('{"continuation": "", "id": 1.0}', 'field "id" is a number, expected a string'),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path, line, message):
    path = tmp_path / "in.jsonl"
    path.write_text('{"continuation": "x"}\n' + line, encoding="utf-8")
    with pytest.raises(InputError) as problem:
        check_file(SYSTEM, path)
    assert f"{path}:2: {message}" in str(problem.value)


def test_a_pipe_is_refused_since_the_input_is_read_twice(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe: found a pipe, which can be read only once"):
        check_file(SYSTEM, tmp_path / "pipe")


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
    record = as_lists(record_of(scored(), {}, summary_only=False))
    assert list(record) == ["id", *ARRAYS, *SUMMARY]
    assert record == {
        "id": "a",
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
    record = record_of(scored(), {}, summary_only=True)
    assert list(record) == ["id", *SUMMARY]
    assert record["n_scored"] == 2


def test_truncation_is_recorded_where_it_happened():
    assert record_of(scored(truncated=7), {}, summary_only=True)["truncated"] == 7
    assert "truncated" not in record_of(scored(), {}, summary_only=True)


def test_a_failure_is_recorded_as_that():
    assert record_of(failed("a", "why"), {"n": 1}, summary_only=False) == {
        "id": "a",
        "error": "why",
        "n": 1,
    }


def test_other_fields_of_a_line_come_last():
    record = record_of(scored(), {"topic": "x", "n": [1]}, summary_only=True)
    assert list(record) == ["id", *SUMMARY, "topic", "n"]


@pytest.mark.parametrize("field", ["logprob", "error", "n_tokens"])
def test_a_field_with_the_name_of_a_result_is_refused(tmp_path, field):
    path = tmp_path / "in.jsonl"
    path.write_text(f'{{"continuation": "x", "{field}": 1}}\n', encoding="utf-8")
    with pytest.raises(InputError, match=f':1: field "{field}" is one of the results'):
        check_file(SYSTEM, path)
