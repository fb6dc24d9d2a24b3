"""Selecting and voting against slow readings of the definitions."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.errors import InputError
from jaxscore.systems.selection.ranking import NO_ANSWER, Choice, select, vote
from jaxscore.systems.selection.select_and_vote import (
    SELECT,
    VOTE,
    SelectSettings,
    VoteSettings,
)
from tests.systems.selection.choices import candidates, choose


def response(answer):
    return json.dumps({"reasoning": "", "answer": answer})


def item(answers, confidences, **more):
    output = [None if answer is None else response(answer) for answer in answers]
    return {"output": output, "confidence_list": confidences, **more}


def selected(items, n=64):
    """`select` on items."""
    return choose(SELECT, items, SelectSettings(best_n=n))


def voted(items, power, **more):
    """`vote` on items."""
    return choose(VOTE, items, VoteSettings(power=power, **more))


def both(items, power=0.5):
    """`select` and `vote` on items."""
    return selected(items), voted(items, power)


def notes(record):
    return "; ".join(record.get("choice_notes", []))


@pytest.mark.parametrize(
    ("confidences", "answers", "choice"),
    [
        ([1.0, 3.0, 2.0], ["a", "b", "c"], Choice(1, 3.0, True)),
        ([1.0, 3.0, 2.0], ["a", None, "c"], Choice(2, 2.0, True)),
        ([3.0, 3.0], ["a", "b"], Choice(0, 3.0, True)),
        ([3.0, 3.0], [None, "b"], Choice(1, 3.0, True)),
        ([-2.0, -1.0], ["", ""], Choice(1, -1.0, True)),
        ([None, 1.0], ["a", "b"], Choice(1, 1.0, True)),
        ([1.0, 2.0, None], ["", None, "c"], Choice(0, 1.0, True)),
        ([1.0, None, None], [None, "b", "c"], Choice(1, None, True, None, "no_confidence")),
        ([5.0, 1.0], [None, None], Choice(0, NO_ANSWER, False, None, "no_answer")),
    ],
)
def test_select(confidences, answers, choice):
    assert select(confidences, answers) == choice


@pytest.mark.parametrize(
    ("confidences", "answers", "power", "choice"),
    [
        # ranks: 2.0 first (3 votes), 1.5, 1.0
        ([1.0, 2.0, 1.5], ["a", "b", "a"], 1.0, Choice(0, 3.0, True)),
        ([1.0, 2.0, 1.5], ["a", "b", "a"], 2.0, Choice(1, 9.0, True)),
        ([1.0, 2.0, 1.5], ["a", "b", "a"], 0.0, Choice(0, 2.0, True)),
        ([1.0, 2.0, 1.5], ["a", None, "b"], 1.0, Choice(2, 2.0, True)),  # 3 votes are lost
        ([1.0, 1.0], ["a", "b"], 1.0, Choice(0, 2.0, True)),  # equal ones as they stand
        ([None, 1.0], ["a", "b"], 1.0, Choice(1, 2.0, True)),
        ([1.0, None, None], ["a", "b", "c"], 1.0, Choice(0, 3.0, True)),
        ([1.0], ["a"], 0.5, Choice(0, 1.0, True)),
        ([1.0, 2.0], [None, None], 0.5, Choice(0, 0.0, False, None, "no_answer")),
        ([None, 3.0], ["a", None], 1.0, Choice(0, 1.0, True, None, "no_confidence")),
        ([None, 3.0, None], ["a", None, "b"], 0.0, Choice(0, 1.0, True)),  # ranks do not count
        ([1.0, 2.0], ["a", "b"], -1.0, Choice(0, 1.0, True)),
    ],
)
def test_vote(confidences, answers, power, choice):
    assert vote(confidences, answers, power) == choice


def slow_vote(confidences, answers, power, same):
    """Every response against all before it; ranks by counting."""
    n = len(answers)
    votes = [0.0] * n
    for i, answer in enumerate(answers):
        rank = sum(
            other > confidences[i] or (other == confidences[i] and j < i)
            for j, other in enumerate(confidences)
        )
        if answer is None:
            continue
        for j in range(i + 1):
            if j == i or (answers[j] is not None and same(answer, answers[j])):
                votes[j] += (n - rank) ** power
                break
    return votes.index(max(votes)), max(votes)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 2.0, 3.0, 4.5]), st.sampled_from([None, *"abAB1"])),
        min_size=1,
        max_size=10,
    ),
    st.sampled_from([0.0, 0.5, 1.2, 3.0]),
    st.booleans(),
)
def test_vote_as_by_a_slow_reading(pairs, power, lenient):
    confidences, answers = [c for c, _ in pairs], [a for _, a in pairs]
    # Not transitive, as 0.001 apart is not: "1" is both "a" and "b".
    close = {"aA", "Aa", "bB", "Bb", "1a", "a1", "1b", "b1"} if lenient else set()

    def same(one, other):
        return one == other or one + other in close

    choice = vote(confidences, answers, power, same if lenient else None)
    assert (choice.index, choice.confidence) == slow_vote(confidences, answers, power, same)
    assert choice.answered == any(answer is not None for answer in answers)


@pytest.mark.parametrize(
    ("n", "power"),
    [(4, 600.0), (4, 1e300), (1000, 102.75)],  # the last holds each vote, and not their sum
)
def test_votes_that_no_number_holds(n, power):
    with pytest.raises(OverflowError):
        vote([1.0] * n, ["a"] * n, power)


def test_items_are_cut_to_n_each():
    items = [item(["1", "2", "3"], [1, 2, 3]), item(["1"], [4])]
    records, summary = selected(items, 2)
    assert [len(one.responses) for one in candidates(SELECT, items, SelectSettings(best_n=2))] == [
        2, 1,
    ]  # fmt: skip
    assert [one["confidence"] for one in records] == [2.0, 4.0]
    assert [list(one) for one in records] == [["confidence_list", "output", "confidence"]] * 2
    assert records[0]["confidence_list"] == [1, 2, 3]
    assert (summary.numbers["most_responses"], summary.numbers["n_with_more"]) == (3, 1)


def answers(items):
    return [one.answers for one in candidates(SELECT, items, SelectSettings())]


def test_what_answers_are_compared_by():
    [math, code, other] = answers(
        [
            item(["1/2", "'1'"], [1, 2], dataset="math"),
            item(["1/2", "'1'"], [1, 2], dataset="crux"),
            item(["1/2", "'1'"], [1, 2]),
        ]
    )
    assert math.texts == other.texts == ["0.5", "'1'"]
    assert code.texts == ["1/2", "1"]
    assert not math.rules.symbolic


def test_generator_and_dataset_of_the_first_item():
    boxed = {"output": ["\\boxed{7}"], "confidence_list": [1]}
    llama = {"generator": "Llama-3.1-8B", "dataset": "crux"}
    found = answers([boxed | llama, boxed, boxed | {"generator": "other"}])
    assert [one.texts for one in found] == [["7"], ["7"], [None]]
    assert answers([item(["'a'"], [1]) | llama, item(["'a'"], [1])])[1].texts == ["a"]
    assert answers([boxed | {"generator": None, "dataset": 3}])[0].texts == ["7"]


@pytest.mark.parametrize(
    ("fields", "symbolic"),
    [
        ({"task": "amps_hard"}, True),
        ({"subtask": "amps_hard_2"}, True),
        ({"subtask": "algebra", "task": "amps_hard"}, False),
        ({"task": ["amps_hard"]}, False),
        ({}, False),
    ],
)
def test_which_items_sympy_compares(fields, symbolic):
    [one] = answers([item(["1"], [1], **fields)])
    assert one.rules.symbolic is symbolic


def test_sympy_pools_votes_of_equal_expressions():
    texts = ["x^2-1", "y", "(x-1)*(x+1)", "-1+x^2"]
    items = [
        item(texts, [1, 4, 2, 3], task="amps_hard"),
        item(texts, [1, 4, 2, 3]),
        item(["1", "9^{9^{9^9}}"], [2, 1], task="amps_hard"),
    ]
    [first, second], _ = voted(items[:2], 1.0, time_limit=60.0)
    [third], _ = voted(items[2:], 1.0, time_limit=0.5)
    assert (first["output"], first["confidence"]) == ([response("x^2-1")], 6.0)
    assert (second["output"], second["confidence"]) == ([response("y")], 4.0)
    assert third["confidence"] == 2.0
    assert notes(first) == notes(second) == ""
    assert notes(third) == "SymPy ran out of time or memory once"


UNUSABLE = [
    ({"confidence_list": [1]}, "no field \"output\", expected a list; there are 'confidence_list'"),
    ({"output": ["x"]}, 'no field "confidence_list", expected a list; `self-certainty` makes it'),
    ({}, "no field \"output\", expected a list; there are 'id', 'keep'"),
    (item([], []), 'field "output" is empty'),
    ({"output": None, "confidence_list": [1]}, 'field "output" is null, expected a list'),
    ({"output": "text", "confidence_list": [1]}, 'field "output" is a string, expected a list'),
    (item(["1", "2"], [1]), 'field "confidence_list" has 1 values for 2 responses'),
    (item(["1"], [1, 2]), 'field "confidence_list" has 2 values for 1 responses'),
    (item(["1"], None), 'field "confidence_list" is null'),
    (item(["1"], ["1"]), 'field "confidence_list", value 1: found a string, expected a number'),
    (item(["1", "2"], [1, True]), "value 2: found true or false"),
    (item(["1"], [None]), 'field "confidence_list" holds no number'),
    (item(["1"], [float("nan")]), 'field "confidence_list" holds no number'),
]


@pytest.mark.parametrize(("fields", "message"), UNUSABLE)
def test_an_unusable_item_is_named_and_the_others_are_kept(fields, message):
    good = item(["1", "2"], [1, 2], id="good")
    for [bad, kept], summary in both([fields | {"id": "bad", "keep": 1}, good]):
        assert message in bad["error"]
        assert bad["keep"] == 1
        assert (bad["output"], bad["confidence"]) == ([], None)
        assert kept["output"] == [response("2")]
        counts = [summary.numbers[name] for name in ("n_items", "n_decided", "n_failed")]
        assert counts == [2, 1, 1]
        assert summary.failures == [("item 1 (id bad)", bad["error"])]


def test_lists_may_differ_beyond_n():
    [one] = candidates(SELECT, [item(["1", "2", "3"], [1, 2])], SelectSettings(best_n=2))
    assert one.confidences == [1.0, 2.0]


def test_odd_responses_and_confidences_are_noted():
    texts = ["1", None, "2", "3", "4"]
    items = [item(texts, [1, 9, None, float("nan"), float("inf")]), item(["5"], [10**400])]
    [first, second], _ = selected(items)
    assert first["output"] == [response("1")]
    assert notes(first) == (
        "response 2 is not text, so it is unanswered; "
        "confidence 3, 4, 5 is not a number, so it ranks last"
    )
    assert second["error"] == 'field "confidence_list" holds no number'
    assert first["confidence_list"] == [1, 9, None, None, "Infinity"]


def test_answers_without_a_confidence_fall_back():
    items = [item(["1", None], [None, 3.0]), item(["1", "2"], [None, 3.0])]
    note = "no response with an extractable answer has a confidence, so their order in the list"
    for records, summary in both(items):
        assert summary.numbers["n_decided"] == 1
        assert summary.numbers["fallbacks"] == {"no_answer": 0, "no_confidence": 1}
        assert [one.get("fallback") for one in records] == ["no_confidence", None]
        assert records[0]["output"] == [response("1")]
        assert notes(records[0]).startswith(note)
        assert summary.warnings[0].startswith(f"note: item 1: {note}")


def test_a_power_that_is_too_high():
    with pytest.raises(InputError, match=r"setting power is 5000\.0: the"):
        voted([item(["1", "2"], [1, 2])], 5000.0)


@pytest.mark.parametrize(
    ("confidences", "answers", "noise", "within"),
    [
        ([1.0, 3.0], ["a", "b"], None, None),
        ([1.0, 3.0], ["a", "b"], 1.0, True),
        ([1.0, 3.0], ["a", "b"], 0.875, False),
        ([3.0, 3.0, 0.0], ["a", "a", "b"], 1.0, False),  # whichever it is, the answer is a
        ([3.0, 3.0, 0.0], ["a", None, "b"], 1.0, False),  # what has no answer is not chosen
        ([3.0, None], ["a", "b"], 1e9, False),
        ([None, None], ["a", "b"], 0.0, True),
        ([3.0, 1.0], [None, None], 9.0, False),
        ([3.0], ["a"], 9.0, False),
    ],
)
def test_a_selection_within_the_noise(confidences, answers, noise, within):
    choice = select(confidences, answers, noise)
    assert choice.within_noise is within
    assert choice == dataclasses.replace(select(confidences, answers), within_noise=within)


def rankings(confidences, noise):
    """Every order in which no response stands behind one that is more than twice the noise less
    certain."""
    for order in itertools.permutations(range(len(confidences))):
        ranked = [confidences[k] for k in order]
        if all(one >= other - 2 * noise for one, other in itertools.combinations(ranked, 2)):
            yield order


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, 12).map(float), st.sampled_from([None, *"aab"])),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]),
    st.sampled_from([0.0, 0.5, 1.5]),
)
def test_a_vote_that_another_ranking_would_turn_is_within_the_noise(pairs, power, noise):
    confidences, answers = [c for c, _ in pairs], [a for _, a in pairs]
    choice = vote(confidences, answers, power, None, noise)
    assert dataclasses.replace(choice, within_noise=None) == vote(confidences, answers, power)
    winners = set()
    for order in rankings(confidences, noise):
        # Confidences that make exactly this order.
        strict = [-float(order.index(k)) for k in range(len(order))]
        winners.add(vote(strict, answers, power).index)
    if len(winners) > 1:
        assert choice.within_noise
    ordered = sorted(zip(confidences, answers, strict=True), key=lambda pair: pair[0])
    if all(
        above[0] - below[0] > 2 * noise or above[1] == below[1]
        for below, above in itertools.combinations(ordered, 2)
    ):
        assert winners == {choice.index}
        assert choice.within_noise is False


def test_an_item_that_says_its_noise():
    said = {"confidence_settings": {"noise": 1.0}}
    items = [item(["1", "2"], [1, 2]) | said, item(["1", "2"], [1, 2])]
    for records, summary in both(items, 1.0):
        assert [one.get("within_noise") for one in records] == [True, None]
        assert (summary.numbers["n_with_noise"], summary.numbers["n_within_noise"]) == (1, 1)
        assert list(records[1]) == ["confidence_list", "output", "confidence"]


def test_results_of_an_earlier_step_are_not_taken_for_results_of_this_one():
    stale = {"fallback": "no_answer", "within_noise": True, "choice_notes": ["x"], "considered": {}}
    for [record], summary in both([item(["1"], [1]) | stale]):
        assert not stale.keys() & record.keys()
        assert summary.numbers["n_fallbacks"] == summary.numbers["n_with_noise"] == 0
        assert summary.warnings == []
