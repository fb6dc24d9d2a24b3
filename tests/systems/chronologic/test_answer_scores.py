"""Questions in, Brier scores out."""

import dataclasses
import json

import numpy as np
import pytest

from jaxscore.analysis.bootstrap import summarise
from jaxscore.errors import InputError
from jaxscore.systems.chronologic import answer_scores
from jaxscore.systems.chronologic.answer_scores import Question
from jaxscore.systems.evaluation import Failure
from jaxscore.types.results import ScoredRequest, failed

GOOD = {
    "metadata_frame": "A book of 1887.",
    "main_question": "Where?",
    "question_category": "cloze",
    "answer_strings": ["Oslo", "Vael"],
    "answer_types": ["ground_truth", "negation"],
    "answer_probabilities": [1.0, 0.0],
}
QUESTION = Question(
    "q.jsonl", 1, "A book of 1887.", "Where?", "cloze", ("Oslo", "Vael"),
    ("ground_truth", "negation"), (1.0, 0.0),
)  # fmt: skip


def written(folder, *items):
    path = folder / "q.jsonl"
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items), encoding="utf-8")
    return path


def scored(*logprobs, truncated=0):
    """As a scorer gives it: log-probabilities of the tokens of one answer."""
    values = np.array(logprobs, np.float32)
    ids = np.zeros(len(values), np.int32)
    return ScoredRequest("", ids, [], values, values, values, ids > 0, truncated=truncated)


def test_a_question_is_read(tmp_path):
    assert answer_scores.load(written(tmp_path, GOOD)) == ([QUESTION], [])


def test_what_may_be_left_out_or_null(tmp_path):
    bare = {k: GOOD[k] for k in ("main_question", "answer_strings", "answer_probabilities")}
    null = {**GOOD, "metadata_frame": None, "question_category": None, "answer_types": None}
    questions, failures = answer_scores.load(written(tmp_path, bare, null))
    assert failures == []
    for question in questions:
        assert (question.frame, question.category, question.types) == ("", "(none)", None)
        assert answer_scores.context(question) == "QUESTION: Where?\nANSWER: "


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"main_question": 3}, 'field "main_question" is a whole number, expected a string'),
        ({"answer_strings": "Oslo"}, 'field "answer_strings" is a string, expected a list'),
        ({"answer_strings": ["Oslo", None]}, 'field "answer_strings", entry 2 is None, expected a'),
        ({"answer_strings": ["Oslo"]}, "answer_probabilities has 2 entries and answer_strings 1"),
        ({"answer_types": ["a"]}, "answer_types has 1 entries and answer_strings 2; expected one"),
        ({"answer_types": []}, "answer_types has 0 entries"),
        ({"answer_types": ["a", 5]}, 'field "answer_types", entry 2 is 5, expected a string'),
        ({"answer_probabilities": [1.0, 1.5]}, "entry 2 is '1.5', expected a number from 0 to 1"),
        ({"answer_probabilities": [-0.1, 1]}, "entry 1 is '-0.1', expected a number from 0"),
        ({"answer_probabilities": [1.0, None]}, "entry 2 is 'None', expected a number"),
        ({"answer_probabilities": [1.0, True]}, "entry 2 is 'True', expected a number"),
        ({"answer_probabilities": [1.0, "0"]}, "entry 2 is '0', expected a number"),
        ({"answer_probabilities": [10**400, 0]}, "entry 1 is '1000"),
        ({"answer_probabilities": {}}, 'field "answer_probabilities" is an object, expected a'),
        ({"question_category": 7}, 'field "question_category" is a whole number, expected a str'),
        (
            {"answer_strings": [], "answer_probabilities": [], "answer_types": []},
            "it has no answer; expected at least one",
        ),
    ],
)
def test_a_bad_question_is_named_and_the_others_are_kept(tmp_path, change, why):
    questions, [(name, found)] = answer_scores.load(
        written(tmp_path, GOOD, {**GOOD, **change}, GOOD)
    )
    assert [question.line for question in questions] == [1, 3]
    assert name == ("q.jsonl:2" if "main_question" in change else "q.jsonl:2 'Where?'")
    assert why in found
    assert name not in found


@pytest.mark.parametrize("name", ["main_question", "answer_strings", "answer_probabilities"])
def test_a_missing_field(tmp_path, name):
    bad = {key: value for key, value in GOOD.items() if key != name}
    _, [(_, why)] = answer_scores.load(written(tmp_path, GOOD, bad))
    assert f'no field "{name}", expected a ' in why
    assert "'question_category'" in why


def test_no_usable_question_at_all(tmp_path):
    with pytest.raises(InputError, match=r"no line holds a usable question; the first, q.jsonl:1"):
        answer_scores.load(written(tmp_path, {}, {"main_question": "?"}))
    (tmp_path / "q.jsonl").write_text(json.dumps([GOOD]), encoding="utf-8")
    with pytest.raises(InputError, match="found a JSON array, expected JSONL"):
        answer_scores.load(tmp_path / "q.jsonl")


def test_a_long_question_is_cut_in_its_name_and_cannot_reach_the_terminal():
    long = dataclasses.replace(QUESTION, text="x\x1b[31m\u202e" + "y" * 200_000)
    assert len(long.name) < 120
    assert long.name.isprintable()
    assert long.name.endswith("'…")


def test_the_prompt_to_the_letter():
    assert answer_scores.context(QUESTION) == "A book of 1887.\nQUESTION: Where?\nANSWER: "
    bare = answer_scores.requests([QUESTION], metadata=False)
    assert [(r.id, r.context, r.continuation) for r in bare] == [
        ("1.1", "QUESTION: Where?\nANSWER: ", "Oslo"),
        ("1.2", "QUESTION: Where?\nANSWER: ", "Vael"),
    ]


def test_a_sample_is_the_seeds_and_keeps_the_order():
    questions = [dataclasses.replace(QUESTION, line=k) for k in range(100)]
    drawn = [answer_scores.sample(questions, 5, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    lines = [question.line for question in drawn[0]]
    assert lines == sorted(set(lines))
    assert len(lines) == 5
    assert answer_scores.sample(questions[:3], 5, 0) == questions[:3]
    met = {q.line for seed in range(300) for q in answer_scores.sample(questions, 5, seed)}
    assert met == set(range(100))


def test_brier_by_hand():
    [result] = answer_scores.evaluate([QUESTION], [scored(-1.0, -3.0), scored(-4.0)], "joint")
    p = 1 / (1 + np.exp(-2.0))
    assert result["scores"] == [-2.0, -4.0]
    assert result["probabilities"] == pytest.approx([p, 1 - p])
    assert result["n_tokens"] == [2, 1]
    assert result["brier"] == pytest.approx((1 - p) ** 2)
    assert (result["uniform_brier"], result["top_correct"]) == (0.25, True)
    assert "truncated" not in result


def test_an_answer_without_tokens_is_perfect_upstream_and_fails_otherwise():
    answers = [scored(-1.0), scored()]
    [result] = answer_scores.evaluate([QUESTION], answers, "upstream")
    assert (result["scores"], result["n_tokens"]) == ([-1.0, 0.0], [1, 0])
    results = answer_scores.evaluate([QUESTION], answers, "joint")
    assert answer_scores.failures([QUESTION], results) == [
        ("q.jsonl:1 'Where?'", "answer 2: it has no tokens, so it has no probability")
    ]
    assert "scores" not in results[0]


def test_one_failed_answer_fails_its_question_alone():
    other = dataclasses.replace(QUESTION, line=2)
    answers = [scored(-1.0), failed("1.2", "too long"), scored(-1.0), scored(-2.0, truncated=7)]
    results = answer_scores.evaluate([QUESTION, other], answers, "joint")
    assert results[0]["error"] == "answer 2: too long"
    assert results[1]["truncated"] == [0, 7]
    summary = summarise(results, answer_scores.COLUMNS, 10, 0, "question_category")
    assert summary["overall"]["brier"].n == 1
    assert summary["overall"]["brier"].mean == results[1]["brier"]


def test_means_of_categories():
    names = ["b", "a", "b"]
    questions = [dataclasses.replace(QUESTION, category=name) for name in names]
    answers = [scored(float(-k)) for k in range(6)]
    results = answer_scores.evaluate(questions, answers, "joint")
    summary = summarise(results, answer_scores.COLUMNS, 100, 0, "question_category")
    assert list(summary["by_category"]) == ["a", "b"]
    briers = [result["brier"] for result in results]
    assert summary["by_category"]["a"]["brier"].mean == briers[1]
    b = summary["by_category"]["b"]["brier"]
    assert (b.n, b.mean) == (2, pytest.approx((briers[0] + briers[2]) / 2))
    assert summary["overall"]["top_accuracy"].mean == 1.0
    assert summary["overall"]["brier"].mean == pytest.approx(sum(briers) / 3)


def test_remarks_on_what_is_legal():
    twice = dataclasses.replace(QUESTION, answers=("Oslo", "Oslo"), line=2)
    none = dataclasses.replace(QUESTION, truth=(0.0, 0.0), line=3)
    shares = dataclasses.replace(QUESTION, truth=(0.5, 0.5), line=4)
    questions = [QUESTION, twice, none, shares]
    assert answer_scores.repeated(questions) == [
        "q.jsonl:2 'Where?': answer 'Oslo' occurs more than once"
    ]
    assert answer_scores.without_truth(questions) == [
        "q.jsonl:3 'Where?': no answer is correct, so no Brier score of 0 is possible; top "
        "accuracy leaves the question out",
        "q.jsonl:4 'Where?': no answer has probability 1; top accuracy leaves the question out",
    ]
    assert not answer_scores.without_frame(questions)
    assert answer_scores.without_frame([dataclasses.replace(QUESTION, frame="")])


def test_a_question_without_a_right_answer_is_in_no_accuracy():
    """Whichever answer leads: nobody can name the right one."""
    questions = [
        QUESTION,
        *(dataclasses.replace(QUESTION, truth=t) for t in ((0.0, 0.0), (0.5, 0.5))),
    ]
    results = answer_scores.evaluate(questions, [scored(-1.0), scored(-2.0)] * 3, "joint")
    assert [one["top_correct"] for one in results] == [True, None, None]
    overall = summarise(results, answer_scores.COLUMNS, 10, 0, "question_category")["overall"]
    assert (overall["top_accuracy"].n, overall["top_accuracy"].mean) == (1, 1.0)
    assert overall["brier"].n == 3


def test_objects_instead_of_lines():
    bad = Failure("in.jsonl:3", "unusable")
    questions, failures = answer_scores.read(enumerate([GOOD, bad, [], {"a": 1}, QUESTION], 1))
    assert [question.name for question in questions] == ["question 1 'Where?'", QUESTION.name]
    assert failures[:2] == [bad, ("question 3", "found a list, expected an object")]
    assert failures[2].error.startswith('no field "')
    with pytest.raises(
        InputError, match="no object holds a usable question; the first, question 1"
    ):
        answer_scores.read(enumerate([3], 1))
    with pytest.raises(InputError, match=r"no object holds a usable question$"):
        answer_scores.read([])
