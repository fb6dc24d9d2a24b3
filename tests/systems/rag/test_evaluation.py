"""Judging from Python: `evaluate("judge", ...)` on the objects that an output file has."""

import dataclasses
import json

import numpy as np
import pytest

from jaxscore.endpoints import ChatEndpoint
from jaxscore.engine import generation as generator_module
from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.io.json_output import json_parts
from jaxscore.systems.rag import evaluator_file, judge
from jaxscore.types.results import Generated
from tests.conftest import CASES
from tests.endpoints.server import Answer, Server

WANT = json.loads((CASES / "expected/tiny-gpt2/judge.json").read_text(encoding="utf-8"))


def rows(side):
    return json.loads((CASES / "judge" / side / "eval_dev_out.json").read_text(encoding="utf-8"))


def file_of(report):
    """The JSON file of a judge."""
    return json.loads("".join(json_parts({**report.data(), **judge.SYSTEM.listed(report)})))


@pytest.fixture
def says(monkeypatch):
    """`says(texts...)`: what the local judge writes, in turn."""

    def use(*texts):
        class Scripted:
            def __init__(self, scorer):
                pass

            def generate(self, requests):
                return [
                    Generated(r.id, texts[k % len(texts)], np.zeros(0, np.int32), "eos")
                    for k, r in enumerate(requests)
                ]

        monkeypatch.setattr(generator_module, "Generator", Scripted)

    return use


@pytest.fixture
def text_mode():
    found = evaluator_file.load(evaluator_file.find("default_qa"))
    return dataclasses.replace(found, use_logits=False)


def test_labels_by_their_probability(scorers):
    report = evaluate("judge", scorers("tiny-gpt2"), [*rows("ours"), {"q_id": "bad"}])
    want = WANT["default_qa ours"]
    assert {one["q_id"]: one["score"] for one in report.items[:7]} == pytest.approx(
        want["scores"], abs=1e-5
    )
    mean = report.summary["mean"]
    assert mean.mean == pytest.approx(want["mean"], abs=1e-5)
    assert (mean.n, mean.low < mean.mean < mean.high) == (7, True)
    assert report.summary["n_failed"] == 1
    assert [name for name, _ in report.failures] == ["record 8"]
    assert len(report.items) == 8
    record = file_of(report)
    assert (record["metric"], record["kind"]) == ("LLMeval", "logits")
    assert record["settings"]["evaluator"].endswith("default_qa.yaml")
    assert len(record["records"]) == 7
    assert "truncated" not in record["records"][0]
    asked = "".join(turn["content"] for turn in record["asked"])
    assert all(name in asked for name in ("{question}", "{answer}", "{prediction}", "Yes"))
    page = report.markdown()
    assert page.startswith("# LLMeval: ")
    assert f"### {rows('ours')[0]['question']}" in page
    assert f"<Report judge: 8 items, 1 failed; {mean.mean:.5f} [" in repr(report)
    assert set(report.to_frame().columns) >= {"q_id", "score", "response"}


def test_whole_labels_and_another_evaluator(scorers):
    scorer, items = scorers("tiny-gpt2"), rows("ours")
    evaluator = evaluator_file.find("default_multi_qa")
    report = evaluate("judge", scorer, items, evaluator=evaluator, label_score="sequence")
    assert file_of(report)["kind"] == "sequence"
    assert "within_noise" in evaluate("judge", scorer, items[:2], label_score="sequence",
                                      audit_noise=1).items[0]  # fmt: skip
    assert report.to_dict()["settings"]["label_score"] == "sequence"
    assert 0 < report.summary["mean"].mean < 1
    first = evaluate("judge", scorer, items, evaluator="default_multi_qa", audit_noise=2)
    want = WANT["default_multi_qa ours"]["mean"]
    assert first.summary["mean"].mean == pytest.approx(want, abs=1e-5)
    assert first.to_dict()["noise"]["n_requests"] == 2
    assert "within_noise" in first.items[0]


def test_text_and_nothing_read(scorers, says, text_mode):
    says("Yes")
    report = evaluate("judge", scorers("tiny-gpt2"), rows("ours"), evaluator=text_mode)
    mean = report.summary["mean"]
    assert (mean.mean, mean.low, mean.high) == (1.0, pytest.approx(0.6457, abs=1e-4), 1.0)
    says("?")
    report = evaluate("judge", scorers("tiny-gpt2"), rows("ours"), evaluator=text_mode)
    assert report.summary["mean"].mean is None
    assert report.to_dict()["summary"]["interval"] == [None, None]
    assert report.headline == "no record was judged"
    says("Yes")
    one = evaluate("judge", scorers("tiny-gpt2"), rows("ours")[:1], evaluator=text_mode)
    assert (one.summary["mean"].mean, one.summary["mean"].low) == (1.0, None)
    assert "| Mean | 1 | - | 1 record |" in one.markdown()


def test_a_comparison(scorers, says):
    says("1", "2")
    scorer = scorers("tiny-gpt2")
    report = evaluate(
        "judge", scorer, rows("ours"), opponent=rows("theirs"), both_orders=True, metric="x"
    )
    assert {k: report.summary[k].mean for k in ("win", "tie", "lose")} == {
        "win": 1.0, "tie": 0.0, "lose": 0.0,
    }  # fmt: skip
    win, lose = report.summary["win"], report.summary["lose"]
    assert (win.low, win.high) == (pytest.approx(0.6457, abs=1e-4), 1.0)
    assert (lose.low, lose.high) == (pytest.approx(0, abs=1e-15), pytest.approx(0.3543, abs=1e-4))
    assert report.headline == "win 100.0 %, tie 0.0 %, lose 0.0 % over 7 records"
    page = report.markdown()
    assert "| Win | 100.0 % | 64.6 to 100.0 | - |" in page
    assert "asked in both orders" in page
    with pytest.raises(InputError, match="the opponent: 1 of the 7 q_ids of the records are not"):
        evaluate("judge", scorer, rows("ours"), opponent=rows("theirs")[1:])


def test_a_server_judges():
    def behave(path, body, attempt):
        choice = {"message": {"content": "Yes"}, "finish_reason": "stop"}
        return Answer({"choices": [choice]})

    with Server(behave) as server:
        endpoint = ChatEndpoint("m", server.url)
        report = evaluate("judge", endpoint, rows("ours"))
        assert report.summary["mean"].mean == 1.0
        assert report.to_dict()["settings"]["endpoint"] == server.url
        assert report.to_dict()["kind"] == "text"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluator": "nope"}, "no nope.yaml in configs/evaluator"),
        ({"label_score": "second"}, "setting label_score is 'second'"),
        ({"both_orders": True}, "give an opponent"),
        ({"opponent": [], "truncate": "left"}, "leave it out here"),
        ({"opponent": [], "audit_noise": 2}, "audits probabilities"),
        ({"opponent": [], "label_score": "sequence"}, "reads probabilities"),
        ({"opponent": "text"}, "found a string, expected a list of records"),
        ({"evaluators": "x"}, "is it evaluator?"),
    ],
)
def test_settings_that_are_refused(scorers, settings, message):
    with pytest.raises(InputError, match=message.replace("?", "[?]")):
        evaluate("judge", scorers("tiny-gpt2"), rows("ours"), **settings)


def test_sources_that_cannot_judge():
    with pytest.raises(InputError, match="a source that is NoneType, but judge needs a Scorer"):
        evaluate("judge", None, rows("ours"))
    with pytest.raises(InputError, match="bem needs a Bem"):
        evaluate("bem", None, rows("ours"))
    with pytest.raises(InputError, match="leaves out the ends"):
        evaluate("bem", None, rows("ours"), truncate="left")


@pytest.mark.parametrize("way", ["logits", "sequence", "text", "pairwise"])
def test_the_summary_of_all_records_is_that_of_two_runs_together(scorers, says, text_mode, way):
    settings = {
        "logits": {},
        "sequence": {"label_score": "sequence"},
        "text": {"evaluator": text_mode},
        "pairwise": {"opponent": [*rows("theirs"), rows("theirs")[2]]},
    }[way]
    says(*("Yes" if way == "text" else "1",), "?", "No")
    items = [*rows("ours")[:3], {"q_id": "bad"}, *rows("ours")[3:]]
    whole = evaluate("judge", scorers("tiny-gpt2"), items, **settings)
    read = json.loads(json.dumps(whole.items))
    found = judge.SYSTEM.summarize(read, whole.chosen)
    assert (found.numbers, found.details) == (whole.summary, whole.found.details)
    assert found.details["kind"] == way
    assert found.numbers["n_failed"] == len(found.failures) == 1 + (way == "pairwise")
    if way in ("logits", "sequence"):  # what is written depends on what is asked before
        parts = [
            evaluate("judge", scorers("tiny-gpt2"), part, **settings)
            for part in (items[:5], items[5:])
        ]
        records = [record for part in parts for record in part.items]
        merged = judge.SYSTEM.summarize(records, whole.chosen).numbers
        assert merged["mean"].mean == pytest.approx(whole.summary["mean"].mean, abs=1e-6)
        assert merged["mean"].n == whole.summary["mean"].n


def test_a_server_without_an_answer_is_a_judge_that_writes():
    """Whatever the evaluator file says, since a server gives no probabilities."""
    with Server(lambda path, body, attempt: Answer({"error": "no"}, status=400)) as server:
        report = evaluate("judge", ChatEndpoint("m", server.url), rows("ours")[:2])
    assert report.to_dict()["kind"] == "text"
    assert [record["known"] for record in report.items] == [None, None]
    assert [name for name, _ in report.failures] == [
        f"record {k} (q_id '{row['q_id']}')" for k, row in enumerate(rows("ours")[:2], start=1)
    ]
    assert report.headline == "no record was judged"


def test_a_probability_that_is_not_a_number_is_in_the_mean():
    record = {"q_id": 1, "known": True, "score": None, "outside": 0.5, "texts": [],
              "probability": {"Yes": None, "No": None}}  # fmt: skip
    found = judge.SYSTEM.summarize([record], judge.Settings())
    assert np.isnan(found.numbers["mean"].mean)
