"""Which response a consistency reply names."""

import sys

import pytest

from jaxscore.systems.selection.usc_select import SYSTEM, Settings, named_response
from tests.systems.selection.choices import choose

ANSWERED, OTHER, UNANSWERED = '{"answer": "1"}', '{"answer": "2"}', "no answer here"


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("The most consistent response is Response 2", 2),
        ("Response 1 then Response 3.", 3),
        ("Response  \n 0", 0),
        ("**Response 12**", 12),
        ("response 2", None),
        ("Response two", None),
        ("Response2", None),
        ("", None),
        ("Response " + "9" * 5000, sys.maxsize),
        ("Response ٣", 3),
        ("Response" + " " * 200_000, None),
    ],
)
def test_chosen(reply, number):
    assert named_response(reply) == number


def result(reply, responses, dataset_type, **more):
    items = [{"output": reply, "responses": responses, **more}]
    [record], summary = choose(SYSTEM, items, Settings(dataset_type=dataset_type))
    return record, summary


@pytest.mark.parametrize(
    ("reply", "responses", "opened", "closed"),
    [
        ("Response 1", [ANSWERED, OTHER], OTHER, OTHER),
        ("Response 0", [UNANSWERED, OTHER], UNANSWERED, OTHER),
        ("Response 2", [OTHER, ANSWERED, UNANSWERED], UNANSWERED, OTHER),
        ("none", [ANSWERED, OTHER], ANSWERED, ANSWERED),
        ("Response 2", [UNANSWERED, OTHER], UNANSWERED, OTHER),
        ("Response 1", [UNANSWERED, "\\boxed{1}"], "\\boxed{1}", "\\boxed{1}"),
        ("Response 0", [UNANSWERED, None], UNANSWERED, UNANSWERED),
        ("Response 0", [UNANSWERED, "\\boxed{1}"], UNANSWERED, "\\boxed{1}"),
        ("Response 0", [UNANSWERED, "\\boxed{1}", OTHER], UNANSWERED, OTHER),  # as published
        ("Response 0", [UNANSWERED] * 20 + [OTHER], UNANSWERED, OTHER),
    ],
)
def test_the_chosen_response(reply, responses, opened, closed):
    assert result([reply], responses, "open")[0]["output"] == [opened]
    record, summary = result([reply], responses, "close")
    assert record["output"] == [closed]
    assert summary.numbers["n_unanswered"] == (closed == UNANSWERED)


def test_notes():
    assert "choice_notes" not in result(["Response 1"], [ANSWERED, OTHER], "open")[0]
    [note] = result(["?"], [ANSWERED], "open")[0]["choice_notes"]
    assert "names no response" in note
    [note] = result(["Response 7"], [ANSWERED], "open")[0]["choice_notes"]
    assert "names response 7 of 1" in note


@pytest.mark.parametrize(
    ("reply", "responses", "message"),
    [
        ([], [ANSWERED], 'field "output" is empty'),
        ([None], [ANSWERED], 'field "output": the reply is not text'),
        ("Response 0", [ANSWERED], 'field "output" is a string, expected a list'),
        (["Response 0"], [], 'field "responses" is empty'),
        (["Response 0"], None, 'field "responses" is null'),
        (
            ["Response 1"],
            [UNANSWERED, None],
            'field "responses": number 1 is chosen and is not text',
        ),
    ],
)
def test_unusable_items(reply, responses, message):
    for dataset_type in ("open", "close"):
        record, _ = result(reply, responses, dataset_type, keep=1)
        assert message in record["error"]
        assert record["output"] == []
        assert record["keep"] == 1


def test_a_null_that_is_chosen_gives_way_where_answers_are_extractable():
    assert result(["Response 0"], [None, OTHER], "close")[0]["output"] == [OTHER]
