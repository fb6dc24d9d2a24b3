"""Options by letters in several orders: each order is a run with the options in that order."""

import math

import numpy as np
import pytest

from jaxscore import InputError, evaluate
from jaxscore.systems.choose.orders import mean_places, order_fields, orders_of

pytestmark = pytest.mark.numeric

ITEMS = [
    {"id": "a", "context": "Where is Oslo?", "options": ["Norway", "Spain", "Peru"], "gold": 0},
    {"id": "b", "context": "Where is Rome?\nAnswer:", "options": ["Norway", "Italy"], "gold": 1},
]
LETTERS = {"options_as": "letters"}


def test_the_orders_of_some_options():
    assert orders_of(3, None, 0) == [(0, 1, 2)]
    assert orders_of(3, "cyclic", 0) == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    assert len({*orders_of(4, "all", 0)}) == 24
    assert orders_of(2, "9", 0) == [(0, 1), (1, 0)]
    drawn = orders_of(5, "7", 3)
    assert (drawn[0], len({*drawn})) == ((0, 1, 2, 3, 4), 7)
    assert drawn == orders_of(5, "7", 3) != orders_of(5, "7", 4)
    assert drawn[:4] == orders_of(5, "4", 3)
    assert len(orders_of(26, "2", 0)) == 2
    with pytest.raises(InputError, match="7 options have 5040 orders; take --orders cyclic"):
        orders_of(7, "all", 0)


def test_the_share_of_orders_with_another_text():
    options, orders = ("x", "y", "x"), [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    fields = order_fields(options, orders, [[0.0, -1, -2], [-3, -1, -2], [-4, -5, 0]])
    assert fields["order_choices"] == [0, 2, 1]  # x, the other x, y
    assert fields["order_changes"] == pytest.approx(1 / 3)
    assert sum(fields["place_probability"]) == pytest.approx(1)


@pytest.mark.parametrize("orders", ["all", "cyclic", "2"])
def test_each_order_is_a_run_of_its_own(scorers, orders):
    scorer = scorers("tiny-qwen2")
    report = evaluate("choose", scorer, ITEMS, orders=orders, **LETTERS)
    alone = evaluate("choose", scorer, ITEMS, **LETTERS)
    for record, first, item in zip(report.items, alone.items, ITEMS, strict=True):
        assert record["sum_logprob"] == pytest.approx(first["sum_logprob"], abs=1e-4)
        n = len(item["options"])
        permutations = orders_of(n, orders, 0)
        assert len(permutations) == {"all": math.factorial(n), "cyclic": n, "2": 2}[orders]
        chosen, places = [], []
        for order in permutations:
            again = {**item, "options": [item["options"][k] for k in order], "gold": None}
            [other] = evaluate("choose", scorer, [again], **LETTERS).items
            chosen.append(order[other["choice"]])
            places.append(other["probability"])
        assert record["order_choices"] == chosen
        changed = np.mean([index != chosen[0] for index in chosen])
        assert record["order_changes"] == pytest.approx(changed)
        np.testing.assert_allclose(record["place_probability"], np.mean(places, 0), atol=1e-4)
    data = report.data()
    assert data["places"] == mean_places(report.items)
    assert [*data["places"]] == ["2", "3"]
    changes = np.mean([record["order_changes"] for record in report.items])
    assert report.summary["overall"]["order_changes"].mean == pytest.approx(changes)
    assert "## Mean probability of each place" in report.markdown()
    assert "place_probability" not in alone.items[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"orders": "all"}, "orders: prompts have no order of texts; add --options-as letters"),
        ({"orders": "0", **LETTERS}, "setting orders is '0', expected all, cyclic, or a number"),
        ({"orders": "some", **LETTERS}, "setting orders is 'some', expected all, cyclic, or"),
    ],
)
def test_orders_that_cannot_be_used(settings, message):
    with pytest.raises(InputError, match=message):
        evaluate("choose", None, ITEMS, **settings)


def test_too_many_orders_fail_an_item_alone(scorers):
    many = {"context": "Which?", "options": [f"{k}" for k in range(7)], "gold": 0}
    report = evaluate("choose", scorers("tiny-qwen2"), [many, ITEMS[1]], orders="all", **LETTERS)
    assert "7 options have 5040 orders" in report.items[0]["error"]
    assert len(report.items[1]["order_choices"]) == 2
