"""The Python interface as a notebook uses it: wrong items, choices, and threads."""

import threading

import pytest

from jaxscore import GenerationRequest, LabelRequest, Scorer
from tests.conftest import CASES

GPT2 = str(CASES / "models/tiny-gpt2")


def test_a_wrong_item_keeps_its_id_and_says_why(scorers):
    scorer = scorers("tiny-gpt2")
    given = [{"id": "a", "context": 5, "continuation": "x"}, "The cat", {"context": "y"}]
    found = scorer.score(given)
    assert [one.id for one in found] == ["a", 1, 2]
    assert "context is of type int" in found[0].error
    assert "continuation is missing" in found[2].error
    assert found[1].error is None
    assert found == list(scorer.stream(given))


@pytest.mark.parametrize("one", [{"continuation": "x"}, ("The cat", " sat"), "The cat"])
def test_one_item_is_no_list_of_items(scorers, one):
    with pytest.raises(TypeError, match=r"got a single \w+, expected a list of requests"):
        scorers("tiny-gpt2").score(one)


def test_a_choice_counts_every_token_of_each_option(scorers):
    """This tokenizer has no BOS, so a first token without a prompt has no probability."""
    scorer = scorers("tiny-qwen2")
    found = scorer.choose("", ["Yes sir", "No madam"])
    assert found.best is None
    assert "tokens have a probability" in found.error
    assert scorer.choose("Well:", (one for one in [" Yes sir", " No madam"])).error is None


def test_one_stop_string_is_not_its_characters(scorers):
    scorer = scorers("tiny-gpt2")
    [plain] = scorer.generate("The cat", max_new_tokens=6)
    stop = plain.text[1:3]
    [one] = scorer.generate("The cat", max_new_tokens=6, stop=stop)
    assert one.text == plain.text[: plain.text.index(stop)]


def test_a_wrong_request_to_write_fails_alone(scorers):
    ask = GenerationRequest
    given = [
        "The cat", 3, ask(1, None, 3), ask(2, "a", "3"), ask(3, "a", 3, stop="ab"),
        ask(4, "a", 3, stop=(1,)), ask(5, "a", 3, temperature=None), ask(6, "a", True),
    ]  # fmt: skip
    found = scorers("tiny-gpt2").generate(given, max_new_tokens=3)
    assert [one.id for one in found] == [0, 1, 1, 2, 3, 4, 5, 6]
    assert found[0].error is None
    for one, words in zip(
        found[1:],
        [
            "it is of type int, expected a GenerationRequest", "its prompt is of type NoneType",
            "its max_new_tokens is of type str", "its stop is of type str",
            "its stop strings are not all strings", "its temperature is of type NoneType",
            "its max_new_tokens is of type bool",
        ],
        strict=True,
    ):  # fmt: skip
        assert one.error.startswith(words)


def test_a_wrong_request_for_labels_fails_alone(scorers):
    given = [LabelRequest("a", "The", (1, 2)), LabelRequest("b", None, (1, 2)), "text",
             LabelRequest("c", "The", 5)]  # fmt: skip
    found = scorers("tiny-gpt2").label(given)
    assert [one.id for one in found] == ["a", "b", 2, "c"]
    assert [one.error is None for one in found] == [True, False, False, False]
    assert found[1].error == "its prompt is of type NoneType, expected a string"
    assert found[2].error == "it is of type str, expected a LabelRequest"
    assert found[3].error == "its label ids are of type int, expected a tuple of integers"


def test_threads_share_a_scorer_and_its_journal(tmp_path):
    """Opened in one thread, read and written in others, closed in the first."""
    with Scorer.from_pretrained(GPT2, dtype="float32", journal=str(tmp_path / "j")) as scorer:
        found = {}

        def work(text):
            found[text] = scorer.score([text])

        texts = ["The cat sat", "A dog ran", "The cat sat"]
        for text in texts:
            thread = threading.Thread(target=work, args=(text,))
            thread.start()
            thread.join()
        assert found["The cat sat"] == scorer.score(["The cat sat"])
        assert scorer.statistics.sequences_restored == 2


def test_a_closed_journal_opens_again(tmp_path):
    scorer = Scorer.from_pretrained(GPT2, dtype="float32", journal=tmp_path / "j")
    journal = scorer.journal
    first = scorer.score(["The cat sat"])
    journal.close()
    assert scorer.score(["The cat sat"]) == first
    scorer.close()
