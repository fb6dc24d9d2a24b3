"""Lexical metrics of the shared cases, per record and mean."""

import json

import pytest

from jaxscore.evaluate import evaluate
from jaxscore.systems.rag import experiment_folder, metrics
from tests.conftest import CASES

WANT = json.loads((CASES / "expected/lexical_metrics.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_the_shared_cases(side):
    report = evaluate("metrics", None, experiment_folder.load(CASES / "judge" / side, "dev"))
    assert [one["q_id"] for one in report.items] == WANT[side]["q_id"]
    assert [one["index"] for one in report.items] == list(range(7))
    assert list(report.summary) == list(WANT[side]["per_item"]) == list(metrics.METRICS)
    for name, want in WANT[side]["per_item"].items():
        assert [one[name] for one in report.items] == pytest.approx(want, abs=1e-12)
    means = {name: one.mean for name, one in report.summary.items()}
    assert means == pytest.approx(WANT[side]["mean"], abs=1e-12)


def test_values_keep_the_index_of_their_record():
    rows = [{}, {"q_id": "q", "response": "Oslo", "label": ["Oslo"]}]
    [one] = evaluate("metrics", None, rows, names=("EM",)).items
    assert one == {"index": 1, "q_id": "q", "EM": 1.0}
