"""`evaluate("chronologic", ...)` from Python."""

import json
import math

import pytest

from jaxscore.endpoints.completions import CompletionsEndpoint
from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.systems.chronologic import SYSTEM, Settings

QUESTIONS = [
    {
        "main_question": f"Which city is {k}?",
        "question_category": "cloze",
        "answer_strings": ["Oslo", "Vael", "Osk"],
        "answer_types": ["ground_truth", "manual", "negation"],
        "answer_probabilities": [1.0, 0.0, 0.0],
    }
    for k in range(7)
]
WITHOUT_RIGHT_ANSWER = QUESTIONS[0] | {"answer_probabilities": [0.0] * 3}
TOO_LONG = QUESTIONS[0] | {"main_question": " and" * 1100}


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-qwen2")


def test_objects_as_the_file_has_them(scorer):
    report = evaluate("chronologic", scorer, [*QUESTIONS, {"main_question": "?"}], mode="full")
    brier = report.summary["overall"]["brier"]
    assert (brier.n, len(report.items)) == (7, 8)
    assert brier.mean == pytest.approx(math.fsum(one["brier"] for one in report.items[:7]) / 7)
    assert brier.low < brier.mean < brier.high
    why = "no field \"answer_strings\", expected a list; there are 'main_question'"
    assert report.items[7] == {"line": 8, "error": why}
    assert report.failures == [("line 8", why)]
    assert report.places == {"line 8": "question 8 '?'"}
    assert "8 items, 1 failed; overall Brier 0." in repr(report)
    assert report.markdown().startswith("# ChronoLogic, probabilities of answers: ")
    record = report.to_dict()
    assert record["settings"]["mode"] == "full"
    assert not {"samples", "shuffle", "include_negation"} & record["settings"].keys()
    assert "### Which city is 3?\n" in report.markdown()


def test_a_table(scorer):
    pytest.importorskip("pandas")
    frame = evaluate("chronologic", scorer, QUESTIONS, mode="full").to_frame()
    assert list(frame["question"]) == [one["main_question"] for one in QUESTIONS]


def test_rows_hold_no_lists(scorer):
    pytest.importorskip("pandas")
    rows = evaluate("chronologic", scorer, QUESTIONS).to_frame().to_dict("records")
    assert len(rows) == 5
    assert {"line", "question", "brier", "top_correct"} <= rows[0].keys()
    assert not any(isinstance(value, list) for row in rows for value in row.values())


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "full", "calibrate": True, "audit_noise": 4},
        pytest.param({"mode": "mcq", "audit_noise": 4}, marks=pytest.mark.slow),
    ],
)
def test_records_as_json_has_them_and_those_of_shards_have_the_summary_of_a_run(scorer, settings):
    questions = [*QUESTIONS, {"main_question": "?"}, WITHOUT_RIGHT_ANSWER, TOO_LONG]
    run = evaluate("chronologic", scorer, questions, **settings)
    chosen = Settings(**settings)
    assert SYSTEM.summarize(json.loads(json.dumps(run.items)), chosen) == run.found
    parts = [evaluate("chronologic", scorer, part, **settings).items
             for part in (questions[:4], questions[4:])]  # fmt: skip
    records = [record for part in parts for record in part]
    shards = [record | {"line": line} for line, record in enumerate(records, start=1)]
    found = SYSTEM.summarize(shards, chosen)
    assert (found.failures, found.warnings) == (run.found.failures, run.found.warnings)
    assert (len(found.failures), found.headline) == (3 - ("calibrate" in settings), run.headline)
    for name, mean in run.summary["overall"].items():
        assert found.numbers["overall"][name].mean == pytest.approx(mean.mean, abs=1e-6)


def test_the_page_has_tokens_that_no_record_has(scorer):
    report = evaluate("chronologic", scorer, [TOO_LONG, *QUESTIONS], mode="full")
    failed, (strip, *_), *_ = report.strips()
    assert failed[0].scored.tokens == []
    assert (strip.title, strip.context) == ("Oslo", "QUESTION: Which city is 0?\nANSWER: ")
    assert strip.scored.n_tokens == report.items[1]["n_tokens"][0]
    assert strip.scored.mean_logprob == pytest.approx(report.items[1]["scores"][0])
    assert "_page" not in report.items[1]
    assert "Oslo" in report.html()


@pytest.mark.slow
def test_questions_that_make_no_quiz_keep_their_record(scorer):
    report = evaluate("chronologic", scorer, [WITHOUT_RIGHT_ANSWER, *QUESTIONS[:2]], mode="mcq")
    why = (
        "no answer is correct among those that are not a negation, expected one of probability 1.0"
    )
    assert report.items[0] == {
        "line": 1, "question": "Which city is 0?", "question_category": "cloze", "error": why,
    }  # fmt: skip
    assert report.failures == [("line 1", why)]
    assert report.summary["overall"]["accuracy"].n == 2


def test_a_space_that_the_answers_have_already_is_not_audited():
    assert Settings().variants().keys() == {"boundary"}
    assert Settings(boundary="separate").variants().keys() == {"boundary", "blank"}
    assert (Settings(mode="mcq").variants(), Settings(mode="mcq").policies()) == ({}, {})


@pytest.mark.slow
def test_letters(scorer):
    report = evaluate("chronologic", scorer, QUESTIONS[:2], mode="mcq", include_negation=True,
                      shuffle=False)  # fmt: skip
    assert [one["choices"] for one in report.items] == [["Oslo", "Vael", "Osk"]] * 2
    assert report.summary["overall"]["letter_brier"].n == 2
    assert report.settings["shuffle"] is False
    assert report.headline.startswith("overall accuracy ")
    assert report.markdown().startswith("# ChronoLogic, multiple choice: ")


def test_a_sample_and_a_temperature(scorer):
    report = evaluate("chronologic", scorer, QUESTIONS, samples=4, calibrate=True, seed=2)
    assert len(report.items) == 4
    scaling = report.to_dict()["temperature_scaling"]
    assert len(scaling["fitted_on"]) == len(scaling["evaluated_on"]) == 2


def test_one_question_cannot_be_split(scorer):
    with pytest.raises(InputError, match="1 question to split in two parts"):
        evaluate("chronologic", scorer, QUESTIONS, samples=1, calibrate=True)


def test_nothing_that_could_be_scored_is_no_zero(scorer):
    report = evaluate("chronologic", scorer, [TOO_LONG], mode="full")
    assert [one.mean for one in report.summary["overall"].values()] == [None] * 3
    assert (report.headline, len(report.failures)) == ("no question was scored", 1)
    with pytest.raises(InputError, match="found no questions, expected at least one"):
        evaluate("chronologic", scorer, [])


def test_settings_of_no_effect_are_remarks(scorer):
    report = evaluate(
        "chronologic", scorer, QUESTIONS[:1], samples=1, shuffle=False, metadata=False
    )
    assert report.to_dict()["remarks"] == [
        "setting metadata: of no effect, none of 1 questions has a metadata_frame to leave out",
        "setting shuffle: of no effect in mode sample, only in mcq",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "all"}, "setting mode is 'all', expected one of 'sample', 'full', 'mcq'"),
        ({"samples": 0}, "setting samples is 0, expected a whole number of at least 1"),
        ({"shuffle": "no"}, "setting shuffle is 'no', expected True or False"),
        ({"boundary": "exact"}, "setting boundary is 'exact'"),
        ({"mode": "mcq", "calibrate": True}, "calibrate scales the scores of answers"),
        ({"mode": "mcq", "truncate": "left"}, "truncate: mode mcq shows its prompts whole"),
        ({"sample": 3}, "no setting 'sample'; is it samples?"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(InputError, match=message):
        evaluate("chronologic", None, QUESTIONS, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"boundary": "separate"}, "an endpoint encodes context and answer as one text"),
        ({"truncate": "left"}, "an endpoint takes texts as they are"),
        ({"audit_noise": 2}, "an endpoint's layouts are its own"),
        ({"mode": "mcq", "audit_noise": 2}, "an endpoint's layouts are its own"),
    ],
)
def test_what_an_endpoint_cannot_do_is_refused_before_it_is_asked(settings, message):
    endpoint = CompletionsEndpoint("m", "http://127.0.0.1:9/v1")
    with pytest.raises(InputError, match=message):
        evaluate("chronologic", endpoint, QUESTIONS, **settings)


def test_a_record_has_what_its_mode_uses():
    assert "boundary" not in Settings(mode="mcq").record()
    assert (
        Settings(mode="mcq", boundary="separate").check_model(CompletionsEndpoint.CAPABILITIES)
        is None
    )
    assert Settings().record()["samples"] == 5
