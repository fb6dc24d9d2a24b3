"""Units of each system's records: numbers, decisions with margins, texts, failures."""

import math

import pytest

from jaxscore.systems.choose import SYSTEM as CHOOSE
from jaxscore.systems.chronologic import SYSTEM as CHRONOLOGIC
from jaxscore.systems.compare.units import Choice, Reader
from jaxscore.systems.paths import SYSTEM as PATHS
from jaxscore.systems.perplexity import SYSTEM as PERPLEXITY
from jaxscore.systems.probsem import SYSTEM as PROBSEM
from jaxscore.systems.rag.judge import SYSTEM as JUDGE
from jaxscore.systems.rag.metrics import SYSTEM as METRICS
from jaxscore.systems.score import SYSTEM as SCORE
from jaxscore.systems.selection.livecode import LIVECODE_SELECT
from jaxscore.systems.selection.select_and_vote import SELECT, VOTE
from jaxscore.systems.self_certainty import SYSTEM as SELF_CERTAINTY
from tests.systems.compare import records


def read(system, *records):
    return list(Reader(system).units((f"item {k}", each) for k, each in enumerate(records, 1)))


def test_score():
    good, failed = read(SCORE, records.score("a", min_k=-7, year=1887), {"id": 2, "error": "long"})
    assert good.numbers == {
        "sum_logprob": -2.0, "mean_logprob": -1.0, "mean_entropy": 1.0, "mean_self_certainty": 0.5,
        "min_k": -7.0,
    }  # fmt: skip
    assert (good.id, good.n_tokens, good.text, good.error) == ("a", 2, None, None)
    assert (failed.id, failed.error) == (2, "long")


def test_paths():
    own = [
        records.path(["A", "in", "B"], 0.2, 0.3, within_noise=False),
        records.path(["C"], 0.0, 0.1),
        {"path": ["D"], "answer": "D", "baseline_prob": None, "error": "too long"},
    ]
    one, infinite, failed = read(PATHS, records.paths("q", *own))
    assert one.id == "q: A -> in -> B"
    assert one.numbers["absolute_improvement"] == pytest.approx(0.1)
    assert one.choices["improves"] == (True, pytest.approx(math.log(1.5)), False)
    assert infinite.numbers["relative_improvement"] == math.inf
    assert infinite.choices["improves"] == Choice(True, None, None)
    assert failed.error == "too long"
    assert [unit.group for unit in (one, infinite, failed)] == [0, 0, 0]
    [other] = read(PATHS, records.paths("q", own[0], question="When?"))
    assert other.text != one.text


QUESTION = {
    "line": 3, "question": "Who?", "question_category": "c", "answers": ["Ada", "Bo", "Cy"],
    "answer_types": None, "truth": [0.0, 1.0, 0.0],
}  # fmt: skip


def test_chronologic():
    scored = {
        **QUESTION, "scores": [-1.0, -2.0, -4.0], "probabilities": [0.7, 0.26, 0.04],
        "n_tokens": [1, 2, 3], "brier": 0.3, "top_correct": False, "within_noise": False,
        "correct_within_noise": True,
    }  # fmt: skip
    good, failed = read(CHRONOLOGIC, scored, {**QUESTION, "error": "too long"})
    assert good.numbers == {
        "brier": 0.3, "right_probability": 0.26, "answer_logprob": [-1.0, -2.0, -4.0]
    }  # fmt: skip
    assert good.choices == {
        "top_correct": Choice(False, 1.0, True), "top_answer": Choice("Ada", 1.0, False)
    }  # fmt: skip
    assert (good.n_tokens, good.id, failed.error) == (6, None, "too long")
    assert (failed.text, failed.name) == (None, good.name)  # by which a failed one is paired


def test_letters_are_compared_by_the_text_of_their_option():
    def quiz(choices, truth, chosen, probabilities):
        return {
            "line": 1, "question": "Who?", "choices": choices, "truth": truth, "chosen": chosen,
            "correct": chosen == "A", "skill": 1.0, "letter_probabilities": probabilities,
            "letter_correct": True, "letter_brier": 0.1,
        }  # fmt: skip

    one, other, none = read(
        CHRONOLOGIC,
        quiz(["Ada", "Bo"], [1.0, 0.0], "A", [0.75, 0.25]),
        quiz(["Bo", "Ada"], [0.0, 1.0], "B", [0.25, 0.75]),
        {**quiz(["Bo", "Ada"], [0.0, 1.0], None, None), "letter_brier": None},
    )
    assert one.text == other.text == none.text
    assert one.choices["written"].value == other.choices["written"].value == "Ada"
    assert one.choices["likeliest"] == ("Ada", pytest.approx(math.log(3)), None)
    assert none.choices["written"].value == "(no letter)"
    assert "likeliest" not in none.choices


def test_probsem():
    context = {
        "context": 1, "text": "prompt and context", "context_text": "context", "expected": 1,
        "queries": ["Yes", "No"], "logp": [-1.0, -3.0], "scores": [0.9, 0.1], "n_tokens": [1, 1],
        "passed": False, "within_noise": True,
    }  # fmt: skip
    good, free = read(PROBSEM, context, {**context, "expected": -1, "passed": None})
    assert good.numbers == {"expected_score": 0.1, "expected_logp": -3.0}
    assert good.choices == {"query": Choice("Yes", 2.0, None), "passed": Choice(False, 2.0, True)}
    assert (free.numbers, free.choices) == ({}, {"query": Choice("Yes", 2.0, True)})


def test_rag():
    judged, columns = JUDGE, METRICS
    record = {
        "index": 0, "q_id": "q1", "question": "Who?", "label": ["Ada"], "response": "Ada",
        "score": 0.75, "known": True, "probability": {"Yes": 0.75, "No": 0.25},
    }  # fmt: skip
    one, unread = read(
        judged, record, {**record, "known": False, "score": -100.0, "probability": None}
    )
    assert one.numbers == {"score": 0.75}
    assert one.choices["label"] == ("Yes", pytest.approx(math.log(3)), None)
    assert (unread.numbers, unread.error) == ({}, None)
    [won] = read(judged, {**record, "score": 0.5, "probability": None, "switched": [True]})
    assert won.choices["verdict"].value == "tie"
    [lexical] = read(columns, {"q_id": 1, "response": "r", "EM": 1.0, "F1": 0.5, "LLM": None})
    assert (lexical.numbers, lexical.choices) == ({"F1": 0.5}, {"EM": Choice(True)})
    [unknown] = read(columns, {"q_id": 1, "response": "r", "LLMeval_m": -100.0})
    assert unknown.numbers == {}


def test_samples():
    item = {
        "id": 7, "model_input": "How?", "output": ["a", "b", "c"],
        "confidence_list": [1.0, None, 1.5], "right": [True, None, False],
        "confidence_settings": {"noise": 0.25},
    }  # fmt: skip
    [one] = read(SELF_CERTAINTY, item)
    assert one.numbers == {"confidence": [1.0, None, 1.5]}
    assert one.choices == {
        "top_output": Choice("output 3", 0.5, True), "top_right": Choice(False, 0.5)
    }  # fmt: skip
    chosen = {"id": 7, "model_input": "How?", "output": ["c"], "confidence": 1.5, "right": True}
    [one] = read(SELECT, chosen)
    assert one.numbers == {"confidence": 1.5}
    assert one.choices == {"output": Choice("c"), "right": Choice(True)}
    [none] = read(SELECT, {**chosen, "confidence": -1e9})
    assert none.numbers == {}
    [voted] = read(VOTE, chosen)
    assert voted.numbers == {"votes": 1.5}
    [code] = read(LIVECODE_SELECT, {"question_id": "q", "code_list": ["print()"]})
    assert (code.id, code.text, code.choices) == ("q", None, {"output": Choice("print()")})


def test_choose_and_perplexity():
    item = {
        "id": "m", "context": "The capital is", "options": ["Oslo", "Rome"],
        "sum_logprob": [-1.0, -3.0], "choice": 0,
        "choice_norm": 1, "choice_pmi": None, "gold": 1, "acc": False, "acc_norm": True,
        "acc_pmi": None,
    }  # fmt: skip
    one, other = read(CHOOSE, item, {**item, "context": "The biggest is"})
    assert one.text != other.text
    assert one.numbers == {"gold_logprob": -3.0}
    assert one.choices == {
        "choice": Choice("Oslo", 2.0), "acc": Choice(False, 2.0),
        "choice_norm": Choice("Rome"), "acc_norm": Choice(True),
    }  # fmt: skip
    [audited] = read(CHOOSE, {**item, "within_noise": True, "acc_within_noise": False})
    assert (audited.choices["choice"].within, audited.choices["acc"].within) == (True, False)
    assert audited.choices["choice_norm"].within is None  # which was not audited
    document = {
        "id": "d", "text_sha256": "ab", "n_scored": 3, "n_bytes": 9, "n_words": 2,
        "sum_logprob": -6.0,
        "mean_logprob": -2.0, "perplexity": 7.4, "bits_per_byte": 0.96, "bits_per_word": None,
    }  # fmt: skip
    one, other = read(PERPLEXITY, document, {**document, "text_sha256": "cd"})
    assert one.text != other.text
    assert one.numbers == {
        "sum_logprob": -6.0, "mean_logprob": -2.0, "bits_per_byte": 0.96
    }  # fmt: skip


@pytest.mark.parametrize(
    ("system", "record", "part"),
    [
        (SCORE, records.score(None), 'field "id" is null'),
        (SCORE, records.score(True), 'field "id" is true or false'),
        (SCORE, records.score("a", "x"), 'field "sum_logprob" is a string'),
        (SCORE, records.score("a", 10**400), "beyond 1e308"),
        (SCORE, [1], "expected an object"),
        (PATHS, {"id": 1, "question": 2}, 'field "question" is a whole number'),
        (PATHS, {"id": 1, "question": "q"}, 'field "path_evaluations" is null'),
        (CHRONOLOGIC, {**QUESTION, "scores": [1.0]}, "has 1 entries, expected 3"),
        (CHRONOLOGIC, {**QUESTION, "scores": [1.0, None, 2.0]}, "entries that are null"),
        (
            PROBSEM,
            {"text": "t", "queries": ["a"], "expected": 5},
            "there are 1 queries",
        ),
        (SELF_CERTAINTY, {"output": ["a"], "confidence_list": []}, "expected 1"),
        (
            CHOOSE,
            {"id": 1, "options": ["a"], "sum_logprob": [1], "gold": 9},
            "of 1 options",
        ),
        (
            CHOOSE,
            {"id": 1, "options": ["a", "b"], "sum_logprob": [1], "choice": 0},
            'field "sum_logprob" has 1 entries, expected 2',
        ),
    ],
)
def test_a_record_that_is_not_as_its_system_writes_it_fails_alone(system, record, part):
    bad = read(system, record, record)
    assert [one.error.partition(": ")[0] for one in bad] == ["item 1", "item 2"]
    assert all(part in one.error for one in bad)
