"""`evaluate("probsem", ...)` from Python."""

import json
import math

import pytest

from jaxscore.analysis.bootstrap import proportion
from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.shell.report import marked_decisions
from jaxscore.systems.probsem import SYSTEM, Settings
from jaxscore.systems.probsem.suite import load
from tests.conftest import CASES

SUITE = {
    "prompt": "A prompt.",
    "pretext": "True or False?",
    "context": [{"text": "It rains.", "expected": 0}, {"text": "It snows.", "expected": 1}],
    "posttext": "Answer:",
    "queries": ["True", "False"],
}


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-qwen2")


def test_a_suite_as_the_file_has_it(scorer):
    report = evaluate("probsem", scorer, SUITE, normalize=True, temperature=2)
    assert report.summary["accuracy"] == proportion([one["passed"] for one in report.items])
    assert report.headline.startswith(f"accuracy {report.summary['accuracy'].mean:.3f}, 95% interv")
    assert [sum(one["scores"]) for one in report.items] == pytest.approx([1.0, 1.0])
    assert (report.settings["normalize"], report.settings["temperature"]) == (True, 2)
    page = report.markdown()
    assert page.startswith("# ProbSem: ")
    assert "### It rains.\n" in page
    rows = [row for record in report.items for row in SYSTEM.rows(record)]
    assert [(row["context"], row["query"], row["expected"]) for row in rows] == [
        (1, "True", True), (1, "False", False), (2, "True", False), (2, "False", True),
    ]  # fmt: skip


def test_a_table(scorer):
    pytest.importorskip("pandas")
    assert list(evaluate("probsem", scorer, SUITE).to_frame()["query"]) == ["True", "False"] * 2


def test_the_file_and_the_object_are_one(scorer):
    suite = load(CASES / "probsem", "towns", "A")
    given = {
        "prompt": suite.prompt,
        "pretext": suite.pretext,
        "posttext": suite.posttext,
        "queries": list(suite.queries),
        "context": list(suite.context),
    }
    one, other = (evaluate("probsem", scorer, each) for each in (suite, given))
    assert one.items == other.items


def test_unusable_contexts_fail_alone(scorer):
    suite = SUITE | {"context": [*SUITE["context"], {"text": "x"}, {"text": " and" * 1100,
                                                                   "expected": 0}]}  # fmt: skip
    report = evaluate("probsem", scorer, suite)
    assert [name for name, _ in report.failures] == ["context 3", "context 4"]
    assert report.places["context 3"] == "context 3 'x'"
    assert (len(report.items), report.summary["n_scored"]) == (4, 2)
    assert report.items[2].keys() == {"context", "error"}
    assert report.summary["accuracy"].n == 2


@pytest.mark.parametrize("settings", [{}, {"normalize": True, "temperature": 0.5}])
def test_records_as_json_has_them_and_those_of_shards_have_the_summary_of_a_run(scorer, settings):
    contexts = [*SUITE["context"], {"text": "x"}, {"text": "open", "expected": -1}] * 2
    run = evaluate("probsem", scorer, SUITE | {"context": contexts}, audit_noise=4, **settings)
    chosen = Settings(**settings)
    assert SYSTEM.summarize(json.loads(json.dumps(run.items)), chosen) == run.found
    parts = [
        evaluate("probsem", scorer, SUITE | {"context": part}, **settings).items
        for part in (contexts[:3], contexts[3:])
    ]
    records = [record for part in parts for record in part]
    shards = [record | {"context": k} for k, record in enumerate(records, start=1)]
    assert SYSTEM.summarize(shards, chosen) == run.found
    marks = [record["within_noise"] for record in run.items if "error" not in record]
    assert len(marks) == 6  # a query is the best where none is expected
    [decision] = run.decisions
    assert (decision.n, decision.n_within) == (6, sum(marks))
    spread = run.facts.noise.spread[chosen.statistic].largest
    assert decision.margin == 2 * spread / chosen.temperature


def test_an_infinite_log_probability_is_read_as_json_has_it(scorer):
    record = evaluate("probsem", scorer, SUITE).items[0]
    stored = record | {"logp": ["-Infinity", -1.0], "scores": [0.0, 1.0], "passed": False}
    assert SYSTEM.summarize([stored], Settings()).numbers["accuracy"].mean == 0.0
    for expected in (0, -1):
        assert mark_margin(stored | {"expected": expected}) == math.inf


def mark_margin(record):
    [(_, decision)] = marked_decisions(SYSTEM)
    return decision.margin(record)


def test_the_page_has_tokens_that_no_record_has(scorer):
    report = evaluate("probsem", scorer, SUITE)
    strip = report.strips()[1][0]
    assert (strip.title, strip.context[-18:]) == ("True", "It snows.\nAnswer:\n")
    assert strip.scored.sum_logprob == pytest.approx(report.items[1]["logp"][0])
    assert "_page" not in report.items[1]


def test_an_example_expects_a_query_of_the_suite(scorer):
    examples = [SUITE["context"][0], {"text": "It hails.", "expected": 2}]
    with pytest.raises(InputError, match="few-shot example 2: expected is 2, and the queries are"):
        evaluate("probsem", scorer, SUITE, fewshot=examples)
    examples[1]["expected"] = -1
    with pytest.raises(InputError, match="few-shot example 2: expected is -1, so no query can be"):
        evaluate("probsem", scorer, SUITE, fewshot=examples)


def test_nothing_scored_and_accuracy_disabled_are_no_zero(scorer):
    long = SUITE | {"context": [{"text": " and" * 1100, "expected": 0}]}
    report = evaluate("probsem", scorer, long)
    assert (report.summary["accuracy"].mean, report.headline) == (None, "no context was scored")
    report = evaluate("probsem", scorer, SUITE | {"context": [{"text": "x", "expected": -1}]})
    assert report.summary["accuracy"] is None
    assert (
        report.headline == "1 context scored; accuracy is disabled, since every context expects -1"
    )


def test_minus_one_for_one_context_leaves_the_accuracy_of_the_others(scorer):
    known = evaluate("probsem", scorer, SUITE)
    contexts = [*SUITE["context"], {"text": "It hails.", "expected": -1}]
    report = evaluate("probsem", scorer, SUITE | {"context": contexts})
    assert report.summary["accuracy"] == known.summary["accuracy"]
    assert report.to_dict()["n_without_answer"] == 1
    assert report.items[2]["passed"] is None
    assert report.headline == f"{known.headline}; 1 expect -1 and are left out"
    assert "have no verdict and are left out: 1 of them." in report.markdown()


@pytest.mark.parametrize(
    ("suite", "settings", "message"),
    [
        ([SUITE], {}, "suite: found a list, expected an object with `pretext`"),
        (SUITE | {"prompt": 3}, {}, 'suite: field "prompt" is a whole number, expected a string'),
        (SUITE | {"queries": []}, {}, 'suite: field "queries" is empty'),
        (SUITE, {"temperature": 0}, "setting temperature is 0, expected a number above 0"),
        (SUITE, {"temperature": True}, "setting temperature is True"),
        (SUITE, {"temperature": float("nan")}, "setting temperature is nan"),
        (SUITE, {"normalize": "mean"}, "setting normalize is 'mean', expected True or False"),
        (SUITE, {"boundary": "exact"}, "setting boundary is 'exact', expected one of 'joint', "),
    ],
)
def test_what_cannot_be_used(scorer, suite, settings, message):
    with pytest.raises(InputError, match=message):
        evaluate("probsem", scorer, suite, **settings)


def test_upstream_scores_what_the_package_scores_with_an_empty_prompt(scorer):
    """The line end of the empty prompt is read, and of two lines the last one is scored."""
    suite = SUITE | {"prompt": "", "queries": ["True", "two\nlines"]}
    report = evaluate("probsem", scorer, suite, boundary="upstream")
    text = "\nTrue or False?\nIt rains.\nAnswer:\n"
    pairs = [(text, "True"), (f"{text}two\n", "lines")]
    want = [one.sum_logprob for one in scorer.score(pairs, boundary="last_query")]
    assert report.items[0]["logp"] == pytest.approx(want, abs=1e-4)
    joint = evaluate("probsem", scorer, suite, boundary="joint").items[0]["logp"]
    assert joint != pytest.approx(want, abs=1e-3)
