"""Lexical metrics of the shared cases, per record and mean."""

import json

import pytest

from jaxscore.systems.rag import experiment_folder, lexical_columns, records
from tests.conftest import CASES

WANT = json.loads((CASES / "expected/lexical_metrics.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_the_shared_cases(side):
    known = experiment_folder.load(CASES / "judge" / side, "dev").records
    assert [record.q_id for record in known] == WANT[side]["q_id"]
    values = lexical_columns.evaluate(known)
    assert list(values) == list(WANT[side]["per_item"]) == list(lexical_columns.METRICS)
    for name, want in WANT[side]["per_item"].items():
        assert list(values[name]) == list(range(7))
        assert list(values[name].values()) == pytest.approx(want, abs=1e-12)
    assert lexical_columns.summarise(values) == pytest.approx(WANT[side]["mean"], abs=1e-12)


def test_values_keep_the_index_of_their_record():
    record = records.Record(5, "q", "Oslo", ["Oslo"], "", None)
    assert lexical_columns.evaluate([record])["EM"] == {5: 1.0}


def test_no_records():
    values = lexical_columns.evaluate([])
    assert values == {name: {} for name in lexical_columns.METRICS}
    assert lexical_columns.summarise(values) == {}
