"""A journal with other bytes in it: what was kept, nothing, or a refusal; no other numbers."""

import contextlib
import sqlite3

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.errors import InputError
from jaxscore.journal import Journal
from jaxscore.journal.files import list_models, prune
from jaxscore.plan.requests import SequenceScores, TokenSequence
from tests.hostile.inputs import HOSTILE, outcome, put, refused

ABOUT = {"model": "m"}
SEQUENCES = [TokenSequence(np.arange(2, 5 + k, dtype=np.int32), 1) for k in range(4)]


def scores_of(sequence):
    n = len(sequence.ids) - 1
    return SequenceScores(*np.full((3, n), n, np.float32), np.ones(n, bool))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a journal of two models."""
    path = tmp_path_factory.mktemp("journal") / "journal"
    for about in (ABOUT, {"model": "other"}):
        with contextlib.closing(Journal(path, about)) as journal:
            journal.write_scores([(one, scores_of(one)) for one in SEQUENCES])
    return path.read_bytes()


def read_scores(path):
    with contextlib.closing(Journal(path, ABOUT)) as journal:
        return journal.read_scores(SEQUENCES)


@HOSTILE
@given(st.data())
def test_any_bytes_in_any_place(tmp_path, whole, data):
    at = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, 4096))
    new = data.draw(st.binary(min_size=1, max_size=40))
    path = put(tmp_path / "journal", whole[:at] + new + whole[at + len(new) :])
    outcome(lambda: list_models(path), path)
    got = outcome(lambda: read_scores(path), path)
    if not isinstance(got, InputError):
        for k, scores in got.items():
            for ours, kept in zip(scores[:4], scores_of(SEQUENCES[k])[:4], strict=True):
                np.testing.assert_array_equal(ours, kept)
    outcome(lambda: prune(path, 1), path)


@pytest.mark.parametrize("length", [0, 1, 15, 100, 4095, 4096, 4097, 9000, -1, -4096])
def test_a_journal_that_was_cut(tmp_path, whole, length):
    path = put(tmp_path / "journal", whole[:length])
    outcome(lambda: read_scores(path), path)
    outcome(lambda: list_models(path), path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE models SET about = '['",
        "UPDATE models SET about = '[1]'",
        "UPDATE models SET about = x'ff'",
        "UPDATE models SET about = 5",
        f"UPDATE models SET about = '{'[' * 9000}'",
        "CREATE VIEW more AS WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k FROM n) "
        "SELECT k FROM n",
        "CREATE TRIGGER t AFTER INSERT ON models BEGIN DELETE FROM models; END",
        "CREATE TABLE more (a)",
        "DROP TABLE scores",
        "PRAGMA user_version = 99",
        "PRAGMA application_id = 5",
    ],
)
def test_a_journal_that_was_changed(tmp_path, whole, change):
    path = put(tmp_path / "journal", whole)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(change)
    refused(lambda: list_models(path), path)
    outcome(lambda: read_scores(path), path)
    refused(lambda: prune(path, 1), path)


@pytest.mark.parametrize("value", ["'text'", "5", "1.5", "x''", "zeroblob(30)"])
def test_scores_of_another_kind_are_missing(tmp_path, whole, value):
    path = put(tmp_path / "journal", whole)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE scores SET value = {value}")
    assert read_scores(path) == {}


def test_what_describes_a_model_is_one_line(run, tmp_path, whole):
    path = put(tmp_path / "journal", whole)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            """UPDATE models SET about = '{"a": "\\u001b[31m\\n\\u202e"}', used = x'1b'"""
        )
    code, out, err = run("journal", "info", path)
    assert (code, err) == (0, "")
    assert out.count("\n") == 5  # the file, the heading, two models and what was done
    assert out.replace("\n", "").isprintable()
