"""Lexical metrics of the shared cases, per record and mean."""

import json

import pytest

from jaxscore.evaluate import evaluate
from jaxscore.systems.rag import experiment_folder, metrics
from tests.conftest import CASES

ROWS = {
    side: experiment_folder.load(CASES / "judge" / side, "dev").rows for side in ("ours", "theirs")
}
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


def test_an_unusable_record_keeps_its_place():
    rows = [{}, {"q_id": "q", "response": "Oslo", "label": ["Oslo"]}, {"q_id": 7}]
    report = evaluate("metrics", None, rows, names=("EM",))
    assert report.items[1] == {"index": 1, **rows[1], "question": "", "EM": 1.0}
    assert [name for name, _ in report.failures] == ["record 1", "record 3"]
    assert report.items[2] == {"index": 2, "error": report.failures[1][1]}


def test_the_summary_of_all_records_is_that_of_two_runs_together():
    rows = [*ROWS["ours"], {"q_id": "bad"}, *ROWS["theirs"]]
    settings = metrics.Settings(n_bootstrap=50)
    whole, *parts = (
        evaluate("metrics", None, part, n_bootstrap=50) for part in (rows, rows[:5], rows[5:])
    )
    for records in (whole.items, [record for part in parts for record in part.items]):
        read = json.loads(json.dumps(records))
        assert metrics.SYSTEM.summarize(read, settings).numbers == whole.summary
