"""What is right by an item's gold, and how often each way of choosing takes it."""

import collections
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.analysis.bootstrap import proportion
from jaxscore.errors import InputError, NothingUsable
from jaxscore.evaluate import evaluate
from jaxscore.systems.selection.answers import AnswerRules, Answers
from jaxscore.systems.selection.grading import read_gold, sizes

MATH = AnswerRules("", code=False, symbolic=False)


def answer(value):
    return json.dumps({"answer": value})


def item(answers, confidences=None, **more):
    confidences = confidences or [1.0] * len(answers)
    return {"output": [*map(answer, answers)], "confidence_list": confidences, **more}


@pytest.mark.parametrize(
    ("value", "rules", "answers", "right"),
    [
        ("42", MATH, ["42", "41", None], [True, False, False]),
        (42, MATH, ["42", "42.0", "43"], [True, True, False]),
        ("1/2", MATH, ["\\frac{1}{2}", ".5", "1"], [True, True, False]),
        (["1,000", "x"], MATH, ["1000", "x", "y"], [True, True, False]),
        ("A", MATH, ["AAAA", "B"], [True, False]),
        ("'a'", AnswerRules("", code=True, symbolic=False), ['"a"', "b"], [True, False]),
        ([True, False], MATH, ["x", None], [True, False]),
        ([True, False], MATH, ["x"], [True]),  # the first N
    ],
)
def test_right(value, rules, answers, right):
    """Texts compare as `vote` compares answers; verdicts are taken as they are."""
    forms = [one and "json" for one in answers]
    read = Answers(rules, answers, answers, forms)
    assert read_gold({"g": value}, "g", 2).right(len(answers), read) == right


def test_right_by_a_comparison():
    answers = ["1", "one", "3"]
    read = Answers(MATH, answers, answers, ["json"] * 3)
    gold = read_gold({"g": ["1", "2"]}, "g", 3)
    assert gold.right(3, read, lambda a, b: (a, b) == ("one", "1")) == [True, True, False]


@pytest.mark.parametrize("absent", [{}, {"g": None}, {"g": ""}, {"g": " "}])
def test_no_gold(absent):
    assert read_gold(absent, "g", 2) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "is an empty list, expected an answer, a list of acceptable answers, or a list of"),
        (["a", " "], "has an empty answer"),
        (True, "is true or false, expected an answer"),
        ([True], "has 1 verdicts for 2 responses, expected one for each"),
        ([True, None], "has true or false, expected an answer"),
        (["a", True], "has true or false, expected"),
        ([["a"]], "has a list, expected"),
        ({"a": 1}, "is an object, expected"),
    ],
)
def test_gold_that_cannot_be_used(value, why):
    with pytest.raises(InputError) as caught:
        read_gold({"g": value}, "g", 2)
    assert str(caught.value).startswith('field "g", the gold, ')
    assert why in str(caught.value)


def test_a_list_may_be_json_text_as_in_a_table():
    def read(text, **how):
        return read_gold({"g": text}, "g", 2, **how)

    assert read("[true, false]").verdicts == (True, False)
    assert read("[true, false]", answers=False).verdicts == (True, False)
    assert read("[true, false]", code=True).verdicts == (True, False)
    assert read('["4", "four"]').answers == ("4", "four")
    for text in ("[1, 2]", "[]", "[", '["a", 1]', "[" * 9999, "[NaN]"):  # such as an interval
        assert read(text).answers == (text,)
    assert read('["a", "b"]', code=True).answers == ('["a", "b"]',)
    with pytest.raises(InputError, match="has 1 verdicts for 2 responses"):
        read("[true]")
    with pytest.raises(InputError, match="texts of code are not compared"):
        read('["a"]', answers=False)


def test_code_has_verdicts_alone():
    assert read_gold({"g": [True, False]}, "g", 2, answers=False).verdicts == (True, False)
    for value in ("print(1)", ["a"], []):
        with pytest.raises(InputError, match="texts of code are not compared"):
            read_gold({"g": value}, "g", 2, answers=False)


def test_sizes():
    assert [sizes(n) for n in (1, 2, 3, 4, 5, 16)] == [
        [1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 5], [1, 2, 4, 8, 16],
    ]  # fmt: skip


def slow_share(items, way, n):
    """Over all items, by the words of the definition."""
    hits = []
    for one in items:
        found = [json.loads(text)["answer"] for text in one["output"][:n]]
        pairs = list(zip(one["confidence_list"], found, strict=False))
        counts = collections.Counter(found)
        by_rank = [a for _, a in sorted(pairs, key=lambda pair: -pair[0])]
        power = None if not way.startswith("power ") else float(way.split()[1])
        if way == "first sample":
            took = found[0]
        elif way == "most certain":
            took = max(pairs)[1]
        elif way == "majority vote":  # the first of those with the most
            took = next(a for a in found if counts[a] == max(counts.values()))
        elif way == "oracle":
            took = one["g"] if one["g"] in found else None
        else:
            votes = collections.defaultdict(float)
            for rank, a in enumerate(by_rank):
                votes[a] += (len(found) - rank) ** (0.5 if power is None else power)
            most = max(votes.values())
            took = next(a for a in found if math.isclose(votes[a], most, rel_tol=1e-12))
        hits.append(took == one["g"])
    return hits


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(2, 9), st.integers(1, 9))
def test_shares_by_n_as_by_a_slow_reading(seed, n_items, best_n):
    rng = np.random.default_rng(seed)
    items = []
    for _ in range(n_items):
        n = int(rng.integers(1, 10))
        answers = [str(one) for one in rng.integers(0, 4, n)]
        items.append(item(answers, rng.permutation(100)[:n].astype(float).tolist(), g="1"))
    most = max(min(best_n, len(one["output"])) for one in items)
    for system, chosen in (("select", "most certain"), ("vote", "Borda vote")):
        found = evaluate(system, None, items, best_n=best_n, gold="g", n_bootstrap=20)
        rows = [
            *found.found.details["accuracy"],
            *found.found.details.get("by_power", []),
        ]
        assert sorted({row["best_n"] for row in rows}) == sizes(most)
        for row in rows:
            n, way = row["best_n"], row["way"]
            hits = slow_share(items, way, n)
            assert row["accuracy"] == proportion(hits), (system, way, n)
            assert row["n_with_fewer"] == sum(min(best_n, len(o["output"])) < n for o in items)
            if way != "first sample":
                first = slow_share(items, "first sample", n)
                want = (sum(hits) - sum(first)) / n_items
                assert row["above_first"].mean == pytest.approx(want, abs=1e-12)
                assert row["above_first"].n == n_items
        right = [one["right"] for one in found.items]
        assert right == slow_share(items, chosen, most)
        assert found.summary["accuracy"][chosen] == proportion(right)
        ways = {row["way"] for row in rows}
        assert ways == {"first sample", "majority vote", chosen, "oracle"} | (
            {f"power {p:g}" for p in (0, 0.3, 0.5, 0.7, 1, 1.5, 2)} if system == "vote" else set()
        )


@pytest.mark.slow
def test_sympy_says_what_is_right():
    answers = ["2x + 1", "\\frac{2}{4}x", "3"]
    one = item(answers, [1.0, 3.0, 2.0], subtask="amps_hard", g="1 + 2x")
    found = evaluate("vote", None, [one, one], gold="g")
    assert [row["right"] for row in found.items] == [False, False]
    assert found.summary["accuracy"]["first sample"].mean == 1.0
    assert found.summary["accuracy"]["oracle"].mean == 1.0
    texts = [{**one, "subtask": "x"}] * 2
    plain = evaluate("select", None, texts, gold="g", answer_rule="published")
    assert plain.summary["accuracy"]["oracle"].mean == 0.0


def test_a_way_that_has_no_choice_for_a_smaller_n():
    texts = [*map(answer, "1213")]
    items = [
        {"output": [f"The most consistent response is Response {k}"], "responses": texts, "g": g}
        for k, g in ((1, "2"), (0, "2"), (9, "1"))
    ]
    found = evaluate("usc-select", None, items, gold="g")
    assert [one["right"] for one in found.items] == [True, False, True]
    rows = {(row["way"], row["best_n"]): row["accuracy"].mean
            for row in found.found.details["accuracy"]}  # fmt: skip
    assert {n for way, n in rows if way == "the model's reply"} == {4}
    assert rows["the model's reply", 4] == pytest.approx(2 / 3)
    assert rows["majority vote", 4] == rows["first sample", 4] == pytest.approx(1 / 3)
    assert (rows["oracle", 1], rows["oracle", 2]) == (pytest.approx(1 / 3), 1.0)


def test_code_by_verdicts():
    code = ["```python\nprint(1)\n```", "no", "```python\nprint(2)\n```"]
    items = [
        {"question_id": k, "output": code, "confidence_list": values, "passed": passed}
        for k, (values, passed) in enumerate(
            [([1, 2, 3], [False, False, True]), ([None, 1, None], [True, False, False])]
        )
    ]
    found = evaluate("livecode-select", None, items, gold="passed", best_n=8)
    assert [one["right"] for one in found.items] == [True, False]
    assert set(found.items[0]) == {"question_id", "code_list", "right", "considered"}
    rows = {(row["way"], row["best_n"]): row["accuracy"].mean
            for row in found.found.details["accuracy"]}  # fmt: skip
    assert rows == {
        ("first sample", 1): 0.5, ("most certain", 1): 0.5, ("oracle", 1): 0.5,
        ("first sample", 2): 0.5, ("most certain", 2): 0.0, ("oracle", 2): 0.5,
        ("first sample", 3): 0.5, ("most certain", 3): 0.5, ("oracle", 3): 1.0,
    }  # fmt: skip
    bad = evaluate("livecode-select", None, [{**items[0], "passed": "x"}, items[1]], gold="passed")
    assert "texts of code are not compared" in bad.failures[0][1]
    assert (bad.items[0]["right"], bad.items[1]["right"]) == (None, False)


def test_items_without_gold_and_with_gold_that_cannot_be_used():
    items = [
        item("12", [1, 2], g="2"), item("12", g=None), item("12"), item("12", g=[True]),
        {"output": [], "g": "1"}, item("12", [2, 1], g="2"),
    ]  # fmt: skip
    found = evaluate("select", None, items, gold="g")
    assert [one["right"] for one in found.items] == [True, None, None, None, None, False]
    details = found.found.details
    assert details["without_gold"] == ["item 2", "item 3"]
    assert found.summary["n_with_gold"] == 2
    assert found.summary["n_without_gold"] == 2
    assert [name for name, _ in found.failures] == ["item 4", "item 5"]
    assert found.items[3]["output"] == [answer("1")]  # what was chosen stays
    assert found.summary["accuracy"]["most certain"] == proportion([True, False])
    [wrong] = details["wrong"]
    assert (wrong["name"], wrong["n_right"], wrong["gold"]) == ("item 6", 1, "2")
    for bad, part in (([item("12")] * 2, r'no item has gold in field "g"; the first item has the'),
                      ([item("12", g=[])], "no item can be used; item 1: field")):  # fmt: skip
        with pytest.raises(NothingUsable, match=part):
            evaluate("select", None, bad, gold="g")


def test_one_item_has_no_share():
    found = evaluate("vote", None, [item("12", g="1"), item("12")], gold="g")
    assert found.headline.endswith("right: no share, since 1 items have gold")
    assert "1 items have gold, which is too few for a share." in found.markdown()
    assert "%" not in found.markdown().split("## Settings")[0]


def test_what_is_recorded_without_gold_stays():
    found = evaluate("select", None, [item("12")])
    assert "right" not in found.items[0]
    assert {"gold", "n_bootstrap", "seed"}.isdisjoint(found.settings)
    assert "No item was graded" in found.markdown()
    for value in ("", 3):
        with pytest.raises(InputError, match=r"setting gold is .*, expected the name"):
            evaluate("select", None, [item("12")], gold=value)
