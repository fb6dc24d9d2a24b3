"""Questions in, Brier scores out."""

import dataclasses
import json

import numpy as np
import pytest

from jaxscore.analysis.bootstrap import summarise
from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING
from jaxscore.io.json_output import to_json_value
from jaxscore.shell.items import Entry, Items, list_fields
from jaxscore.shell.system import failed as failures_of
from jaxscore.systems.chronologic import SYSTEM, Settings, answer_scores, label
from jaxscore.systems.chronologic.answer_scores import Question
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
    metadata_frame="A book of 1887.",
    main_question="Where?",
    question_category="cloze",
    answer_strings=("Oslo", "Vael"),
    answer_types=("ground_truth", "negation"),
    answer_probabilities=(1.0, 0.0),
)


ENTRY = Entry("q.jsonl:1 'Where?'", 1, QUESTION)


def changed(**fields):
    return dataclasses.replace(QUESTION, **fields)


def items_of(rows, **settings):
    """Items that were checked."""
    chosen = Settings(**{"mode": "full", **settings})
    items = Items(SYSTEM, rows, chosen)
    SYSTEM.check(items, chosen)
    return items


def read_file(path):
    lists = list_fields(SYSTEM, Settings())
    return list(items_of(lambda: SYSTEM.read(path, NOTHING, lists)).entries())


def read_objects(objects):
    return list(items_of(lambda: SYSTEM.read(objects)).entries())


def written(folder, *items):
    path = folder / "q.jsonl"
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items), encoding="utf-8")
    return path


def scored(*logprobs, truncated=0):
    """As a scorer gives it: log-probabilities of the tokens of one answer."""
    values = np.array(logprobs, np.float32)
    ids = np.zeros(len(values), np.int32)
    return ScoredRequest("", ids, [], values, values, values, ids > 0, truncated=truncated)


def records_of(questions, results, boundary):
    left = iter(results)
    return [
        {
            "line": line,
            **answer_scores.record_of(one, [next(left) for _ in one.answer_strings], boundary),
        }
        for line, one in enumerate(questions, start=1)
    ]


def test_a_question_is_read(tmp_path):
    assert read_file(written(tmp_path, GOOD)) == [ENTRY]


def test_what_may_be_left_out_or_null(tmp_path):
    bare = {k: GOOD[k] for k in ("main_question", "answer_strings", "answer_probabilities")}
    null = {**GOOD, "metadata_frame": None, "question_category": None, "answer_types": None}
    for found in read_file(written(tmp_path, bare, null)):
        question = found.item
        assert (question.metadata_frame, question.question_category) == ("", "(none)")
        assert question.answer_types is None
        assert question.context() == "QUESTION: Where?\nANSWER: "


def test_lists_of_a_table_are_json_text(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text(
        "main_question,answer_strings,answer_probabilities,answer_types\n"
        'Where?,"[""Oslo"", ""Vael""]","[1, 0]","[""a"", ""b""]"\n'
        'Where?,"[""Oslo"", ""Vael""]","[1, 0]",\n'
    )
    one, other = read_file(path)
    assert (one.item.answer_types, other.item.answer_types) == (("a", "b"), None)
    assert one.name == "q.csv:2 'Where?'"


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
            "answer_strings is empty; expected at least one answer",
        ),
    ],
)
def test_a_bad_question_is_named_and_the_others_are_kept(tmp_path, change, why):
    one, bad, other = read_file(written(tmp_path, GOOD, {**GOOD, **change}, GOOD))
    assert (one.id, one.item, other.id, other.item) == (1, QUESTION, 3, QUESTION)
    assert bad.name == ("q.jsonl:2" if "main_question" in change else "q.jsonl:2 'Where?'")
    assert why in bad.error
    assert bad.name not in bad.error


@pytest.mark.parametrize("name", ["main_question", "answer_strings", "answer_probabilities"])
def test_a_missing_field(tmp_path, name):
    bad = {key: value for key, value in GOOD.items() if key != name}
    _, found = read_file(written(tmp_path, GOOD, bad))
    assert f'no field "{name}", expected a ' in found.error
    assert "'question_category'" in found.error


def test_other_fields_of_a_question_are_ignored(tmp_path):
    """Its records have no id and no fields of the user's."""
    [found] = read_file(written(tmp_path, {**GOOD, "id": [], "line": 7, "brier": "b"}))
    assert found == ENTRY


def test_no_usable_question_at_all(tmp_path):
    with pytest.raises(InputError, match=r"no question is usable; the first, q.jsonl:1"):
        read_file(written(tmp_path, {}, {"main_question": "?"}))
    (tmp_path / "q.jsonl").write_text(json.dumps([GOOD]), encoding="utf-8")
    with pytest.raises(InputError, match="found a JSON array, expected JSONL"):
        read_file(tmp_path / "q.jsonl")


def test_a_long_question_is_cut_in_its_name_and_cannot_reach_the_terminal():
    name = label({"main_question": "x\x1b[31m\u202e" + "y" * 200_000}, "folder/q.jsonl:3")
    assert len(name) < 120
    assert name.isprintable()
    assert name.startswith("q.jsonl:3 'x")
    assert name.endswith("'…")


def test_the_prompt_to_the_letter():
    assert QUESTION.context() == "A book of 1887.\nQUESTION: Where?\nANSWER: "
    bare = answer_scores.requests(QUESTION, metadata=False)
    assert [(r.id, r.context, r.continuation) for r in bare] == [
        ("1", "QUESTION: Where?\nANSWER: ", "Oslo"),
        ("2", "QUESTION: Where?\nANSWER: ", "Vael"),
    ]


def test_a_sample_is_the_seeds_and_keeps_the_order():
    objects = [3, *({**GOOD, "main_question": str(line)} for line in range(2, 102))]

    def drawn(**settings):
        items = items_of(lambda: SYSTEM.read(objects), **settings)
        assert (items.n_all, items.n_usable) == (len([*items.entries()]), len([*items]))
        return [entry.id for entry in items.entries()]

    samples = [drawn(mode="sample", seed=seed) for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    unusable, *lines = samples[0]
    assert unusable == 1
    assert lines == sorted(set(lines))
    assert len(lines) == 5
    assert drawn() == drawn(mode="sample", samples=200) == list(range(1, 102))
    met = {line for seed in range(150) for line in drawn(mode="sample", seed=seed, samples=10)}
    assert met == set(range(1, 102))


def test_brier_by_hand():
    [result] = records_of([QUESTION], [scored(-1.0, -3.0), scored(-4.0)], "joint")
    p = 1 / (1 + np.exp(-2.0))
    assert result["scores"] == [-2.0, -4.0]
    assert result["probabilities"] == pytest.approx([p, 1 - p])
    assert result["n_tokens"] == [2, 1]
    assert result["brier"] == pytest.approx((1 - p) ** 2)
    assert (result["uniform_brier"], result["top_correct"]) == (0.25, True)
    assert "truncated" not in result


def test_an_answer_without_tokens_is_perfect_upstream_and_fails_otherwise():
    answers = [scored(-1.0), scored()]
    [result] = records_of([QUESTION], answers, "upstream")
    assert (result["scores"], result["n_tokens"]) == ([-1.0, 0.0], [1, 0])
    results = records_of([QUESTION], answers, "joint")
    assert failures_of(results, "line") == [
        ("line 1", "answer 2: found 0 tokens, so its probability is undefined")
    ]
    assert "scores" not in results[0]


def test_one_failed_answer_fails_its_question_alone():
    answers = [scored(-1.0), failed("1.2", "too long"), scored(-1.0), scored(-2.0, truncated=7)]
    results = records_of([QUESTION] * 2, answers, "joint")
    assert results[0]["error"] == "answer 2: too long"
    assert results[1]["truncated"] == [0, 7]
    summary = summarise(results, answer_scores.COLUMNS, 10, 0, "question_category")
    assert summary["overall"]["brier"].n == 1
    assert summary["overall"]["brier"].mean == results[1]["brier"]


def test_means_of_categories():
    names = ["b", "a", "b"]
    questions = [changed(question_category=name) for name in names]
    answers = [scored(float(-k)) for k in range(6)]
    results = records_of(questions, answers, "joint")
    summary = summarise(results, answer_scores.COLUMNS, 100, 0, "question_category")
    assert list(summary["by_category"]) == ["a", "b"]
    briers = [result["brier"] for result in results]
    assert summary["by_category"]["a"]["brier"].mean == briers[1]
    b = summary["by_category"]["b"]["brier"]
    assert (b.n, b.mean) == (2, pytest.approx((briers[0] + briers[2]) / 2))
    assert summary["overall"]["top_accuracy"].mean == 1.0
    assert summary["overall"]["brier"].mean == pytest.approx(sum(briers) / 3)


def test_remarks_on_what_is_legal():
    questions = [
        QUESTION,
        changed(answer_strings=("Oslo", "Oslo")),
        changed(answer_probabilities=(0.0, 0.0)),
        changed(answer_probabilities=(0.5, 0.5)),
    ]
    records = records_of(questions, [scored(-1.0)] * 8, "joint")
    assert SYSTEM.summarize(records, Settings(shuffle=False)).warnings == [
        "setting shuffle: of no effect in mode sample, only in mcq",
        "line 2: answer 'Oslo' occurs more than once",
        "line 3: no answer is correct, so no Brier score of 0 is possible; top "
        "accuracy leaves the question out",
        "line 4: no answer has probability 1; top accuracy leaves the question out",
    ]


def test_an_infinite_score_is_read_as_json_has_it():
    records = records_of([QUESTION] * 4, [scored(-np.inf), scored(-1.0)] * 4, "joint")
    stored = json.loads(json.dumps(to_json_value(records)))
    assert stored[0]["scores"] == ["-Infinity", -1.0]
    found = SYSTEM.summarize(stored, Settings())
    assert found.numbers["overall"]["brier"].mean == 1.0


def test_a_question_without_a_right_answer_is_in_no_accuracy():
    """Whichever answer leads: nobody can name the right one."""
    truths = ((1.0, 0.0), (0.0, 0.0), (0.5, 0.5))
    questions = [changed(answer_probabilities=truth) for truth in truths]
    results = records_of(questions, [scored(-1.0), scored(-2.0)] * 3, "joint")
    assert [one["top_correct"] for one in results] == [True, None, None]
    overall = summarise(results, answer_scores.COLUMNS, 10, 0, "question_category")["overall"]
    assert (overall["top_accuracy"].n, overall["top_accuracy"].mean) == (1, 1.0)
    assert overall["brier"].n == 3


def test_objects_instead_of_lines():
    entries = read_objects([GOOD, [], {"a": 1}])
    assert [one.name for one in entries] == ["question 1 'Where?'", "question 2", "question 3"]
    assert entries[1].error == "found a list, expected an object"
    assert entries[2].error.startswith('no field "')
    with pytest.raises(InputError, match="no question is usable; the first, question 1"):
        read_objects([3])
    with pytest.raises(InputError, match="found no questions, expected at least one"):
        read_objects([])
