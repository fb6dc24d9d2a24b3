"""Quizzes: what is shown, which letter was meant, what the letters' probabilities say."""

import dataclasses
import math
import string

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.systems.chronologic import multiple_choice
from jaxscore.systems.chronologic.answer_scores import Question
from jaxscore.systems.chronologic.multiple_choice import LetterMass
from jaxscore.text.encoder import TextEncoder
from jaxscore.types.requests import LabelRequest
from jaxscore.types.results import Generated, LabelScores, ListedLabelScores
from tests.conftest import MODELS

QUESTION = Question(
    metadata_frame="A book of 1887.",
    main_question="Where?",
    question_category="cloze",
    answer_strings=("Oslo", "Vael", "Osk", "nowhere"),
    answer_types=("ground_truth", "manual", "manual", "negation"),
    answer_probabilities=(1.0, 0.0, 0.5, 0.0),
)


def changed(**fields):
    return dataclasses.replace(QUESTION, **fields)


def quiz_of(question=QUESTION, **options):
    return multiple_choice.quiz_of(question, **{"seed": 0, **options})


def why_not(question, **options):
    with pytest.raises(InputError) as raised:
        quiz_of(question, **options)
    return str(raised.value)


def response(text, quiz, mass=None):
    mass = mass or LetterMass(np.full(len(quiz.choices), 0.1), 0.5)
    written = Generated(4, text, np.zeros(0, np.int32), "length")
    return multiple_choice.record_of(QUESTION, quiz, written, mass)


def test_the_prompt_to_the_letter():
    assert quiz_of(shuffle=False).prompt == (
        "A book of 1887.\nQUESTION: Where?\nA) Oslo\nB) Vael\nC) Osk\n"
        "Respond only with the letter of the correct answer:"
    )
    bare = quiz_of(shuffle=False, metadata=False, include_negation=True)
    assert bare.prompt == (
        "QUESTION: Where?\nA) Oslo\nB) Vael\nC) Osk\nD) nowhere\n"
        "Respond only with the letter of the correct answer:"
    )
    assert quiz_of(changed(metadata_frame="")).prompt.startswith("QUESTION: Where?\n")


def test_the_order_is_the_seeds_and_does_not_hang_on_the_other_questions():
    alone = quiz_of(seed=3)
    others = [changed(main_question=f"Who {k}?") for k in range(20)]
    made = [quiz_of(question, seed=3) for question in (*others, QUESTION)]
    assert made[-1] == alone
    orders = {quiz_of(seed=seed).choices for seed in range(200)}
    assert len(orders) == 6
    assert len({quiz.choices for quiz in made}) > 1


def test_the_order_stays_what_it_was():
    """Published numbers hang on it: a change here is a change of results."""
    orders = [" ".join(quiz_of(seed=seed).choices) for seed in range(3)]
    assert orders == ["Osk Oslo Vael", "Oslo Osk Vael", "Oslo Osk Vael"]


def test_truth_and_letters_follow_the_choices():
    for seed in range(20):
        quiz = quiz_of(seed=seed)
        k = quiz.choices.index("Oslo")
        assert quiz.correct == string.ascii_uppercase[k]
        assert quiz.truth[k] == 1.0
        assert quiz.truth[quiz.choices.index("Osk")] == 0.5
        assert f"{quiz.correct}) Oslo\n" in quiz.prompt


def test_questions_that_make_no_quiz():
    letters = [f"answer {k}" for k in range(27)]
    many = changed(
        answer_strings=tuple(letters),
        answer_types=("x",) * 27,
        answer_probabilities=(1.0,) + (0.0,) * 26,
    )
    assert why_not(many) == "27 options, and there are letters for 26; leave some out"
    fewer = dataclasses.replace(many, answer_types=("x",) * 26 + ("negation",))
    assert len(quiz_of(fewer).choices) == 26
    wrong = changed(answer_probabilities=(0.9, 0.0, 0.0, 1.0))
    assert "no answer is correct among those that are not a negation" in why_not(wrong)
    assert quiz_of(wrong, include_negation=True, shuffle=False).correct == "D"
    none = changed(answer_probabilities=(0.0,) * 4)
    assert why_not(none, include_negation=True).startswith("no answer is correct, expected one")
    untyped = changed(answer_types=None)
    assert 'no field "answer_types"' in why_not(untyped)
    assert len(quiz_of(untyped, include_negation=True).choices) == 4


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        (" A", "A"),
        ("B) Vael", "B"),
        ("(C)", "C"),
        ("The answer is B.", "B"),
        ("I think B", "I"),  # the published rule, which takes the first letter alone
        ("An answer, Bob: b", None),
        ("", None),
        ("A1 _B C", "C"),
        ("é B", "B"),
        ("שלום B", "B"),
        ("ÀB B", "B"),
    ],
)
def test_the_first_letter_that_stands_alone_is_the_choice(text, chosen):
    result = response(text, quiz_of(shuffle=False))
    assert result["chosen"] == chosen
    assert result["correct"] == (chosen == "A")
    assert result["is_option"] == (chosen in ("A", "B", "C"))
    assert result["skill"] == pytest.approx(1.0 if chosen == "A" else -0.5)


def test_counts_of_responses():
    quiz = quiz_of(shuffle=False)
    sure = quiz_of(changed(answer_probabilities=(1.0,) * 4), shuffle=False, include_negation=True)
    results = [response(text, quiz) for text in ("A", "I", "no", "")] + [response("no", sure)]
    results.append({"error": "too long"})
    assert multiple_choice.count_responses(results) == {
        "n": 5, "no_letter": 3, "no_option": 1, "all_correct": 1, "without_letters": 0,
        "letter_outside": 0.5,
    }  # fmt: skip
    unknown = response("A", quiz, multiple_choice.unknown_mass("x"))
    counts = multiple_choice.count_responses([unknown])
    assert (counts["without_letters"], counts["letter_outside"]) == (1, None)
    assert results[4]["skill"] == 1.0
    assert results[4]["correct"] is False


def test_half_a_surrogate_pair_in_a_response_can_be_written():
    result = response("\ud83d A", quiz_of(shuffle=False))
    assert (result["response"], result["chosen"]) == ("? A", "A")


def test_a_response_that_failed():
    quiz = quiz_of()
    written = Generated(4, "", np.zeros(0, np.int32), None, "too long")
    unknown = multiple_choice.unknown_mass("x")
    result = multiple_choice.record_of(QUESTION, quiz, written, unknown)
    assert result["error"] == "too long"
    assert "chosen" not in result


def test_letters_share_what_is_theirs():
    quiz = quiz_of(shuffle=False)
    result = response("B", quiz, LetterMass(np.array([0.3, 0.1, 0.2]), 0.4))
    assert result["letter_probabilities"] == pytest.approx([1 / 2, 1 / 6, 1 / 3])
    assert (result["letter_outside"], result["letter_correct"]) == (0.4, True)
    # The truth is the question's own, a half included.
    assert result["letter_brier"] == pytest.approx((1 / 4 + 1 / 36 + 1 / 36) / 3)
    unknown = response("B", quiz, multiple_choice.unknown_mass("nothing is known"))
    assert unknown["letter_error"] == "nothing is known"
    names = ("letter_probabilities", "letter_outside", "letter_correct", "letter_brier")
    assert [unknown[name] for name in names] == [None] * 4
    assert unknown["chosen"] == "B"


@pytest.mark.parametrize("name", MODELS)
def test_both_forms_of_a_letter_count(scorers, name):
    """Against the whole next-token distribution."""
    scorer = scorers(name)
    encoder = scorer.encoder
    quiz = quiz_of(seed=1)
    ids = multiple_choice.letter_ids(encoder, 3)
    asked = LabelRequest(4, quiz.prompt, tuple(id for letter in ids for id in letter))
    [scores] = scorer.label([asked])
    got = multiple_choice.letter_mass(quiz, scores, ids)
    every = dataclasses.replace(asked, label_ids=tuple(range(scorer.model.vocab_size)))
    [whole] = scorer.label([every])
    tokens = encoder.tokens(np.arange(len(encoder.tokenizer)))
    for letter, mass in zip("ABC", got.mass, strict=True):
        same = [k for k, token in enumerate(tokens) if token in (letter, f"Ġ{letter}")]
        assert len(same) == 2
        assert mass == pytest.approx(sum(math.exp(whole.logprob[k]) for k in same), abs=1e-6)
    assert got.outside == pytest.approx(1 - got.mass.sum(), abs=1e-6)


class Vocabulary(TextEncoder):
    def __init__(self, *tokens):
        self.tokenizer = self
        self.get_vocab = lambda: {token: k for k, token in enumerate(tokens)}


def test_tokens_of_letters_as_vocabularies_write_them():
    assert multiple_choice.letter_ids(Vocabulary("A", "x", "ĠA", "ĠB"), 2) == [(0, 2), (3,)]
    assert multiple_choice.letter_ids(Vocabulary("▁A", "A", "B", "AB"), 2) == [(1, 0), (2,)]
    with pytest.raises(
        Exception, match="lacks a token for the letters B, C, so their probabilities"
    ):
        multiple_choice.letter_ids(Vocabulary("A", "b", "BC"), 3)


def test_no_letter_has_any_probability():
    quiz = quiz_of()
    scores = LabelScores(4, np.full(3, -1e4), np.full(3, 1 / 3), 1.0)
    got = multiple_choice.letter_mass(quiz, scores, [(0,), (1,), (2,)])
    assert got.error == "every letter has probability 0"
    lost = LabelScores(4, np.zeros(0), np.zeros(0), 0.0, "too long")
    assert multiple_choice.letter_mass(quiz, lost, [(0,), (1,), (2,)]).error == "too long"


def test_letters_of_an_endpoints_list():
    quiz = quiz_of()
    assert multiple_choice.letter_texts(quiz) == ("A", " A", "B", " B", "C", " C")
    nan = math.nan
    logprob = np.log([0.2, 0.1, nan, 0.3, nan, nan])
    listed = ListedLabelScores(4, logprob, logprob, ("B", "C", " C"), 0.01)
    got = multiple_choice.listed_letter_mass(listed)
    assert got.mass == pytest.approx([0.3, 0.3, 0.0])
    assert (got.outside, got.unlisted) == (pytest.approx(0.4), "C")
    assert response("A", quiz, got)["letters_unlisted"] == ["C"]
    none = dataclasses.replace(listed, logprob=np.full(6, nan))
    assert "holds none of the letters" in multiple_choice.listed_letter_mass(none).error
    lost = dataclasses.replace(listed, error="no list")
    assert multiple_choice.listed_letter_mass(lost).error == "no list"
