"""Comparisons: who is matched with whom, in which order, and what two answers make."""

import itertools
import json

import numpy as np
import pytest

from jaxscore.analysis.bootstrap import Z95
from jaxscore.errors import InputError
from jaxscore.systems.rag import experiment_folder, pairwise
from jaxscore.systems.rag.evaluator_file import UNKNOWN, find, load
from jaxscore.systems.rag.pairwise import LOSE, TIE, WIN, Pair
from jaxscore.types.results import Generated
from tests.conftest import CASES

QUESTION = load(find("default_qa")).pairwise
ROW = {"response": "r", "label": ["a"], "question": "who"}


def folder(tmp_path, name, rows):
    place = tmp_path / name
    place.mkdir()
    (place / "eval_dev_out.json").write_text(json.dumps(rows), encoding="utf-8")
    return experiment_folder.load(place, "dev")


def rows(*ids, **more):
    return [{"q_id": id, **ROW, "response": f"to {id}", **more} for id in ids]


def matched(tmp_path, ours, theirs, **options):
    options = {"seed": 0, "both": False, **options}
    ours, theirs = folder(tmp_path, "ours", ours), folder(tmp_path, "theirs", theirs)
    return pairwise.match(ours.usable, theirs, **options)


def answered(pair, *texts):
    [record] = pairwise.by_texts(QUESTION, [pair], written(*texts))
    return record


def written(*texts):
    return [Generated(k, text, np.zeros(0, np.int32), "eos") for k, text in enumerate(texts)]


def shares(found):
    return {name: one.mean for name, one in found.estimates.items()}


def pair(*switched):
    output = experiment_folder.load(CASES / "judge/ours", "dev")
    return Pair(output.usable[0], "theirs", switched)


def test_the_opponent_is_found_by_its_q_id(tmp_path):
    pairs = matched(tmp_path, rows("a", 1, "b"), rows("b", "x", "a", 1))
    assert [(one.item.q_id, one.opponent) for one in pairs] == [
        ("a", "to a"), (1, "to 1"), ("b", "to b"),
    ]  # fmt: skip


def test_missing_ids_are_counted_and_listed(tmp_path):
    with pytest.raises(InputError) as caught:
        matched(tmp_path, rows("a", 1, *(f"q{k}" for k in range(20))), rows("a", "1"))
    assert "21 of the 22 q_ids" in str(caught.value)
    assert "1, 'q0', 'q1'" in str(caught.value)
    assert "'q8' and 11 more; the opponent must" in str(caught.value)
    assert "'q9'" not in str(caught.value)


def test_an_opponent_that_cannot_be_used_is_named_and_the_others_are_kept(tmp_path):
    theirs = [*rows("a"), *rows("b", response=None), *rows("c", "c"), *rows("d")]
    pairs = matched(tmp_path, rows("a", "b", "c", "d"), theirs)
    assert [one.item.q_id for one in pairs] == ["a", "b", "c", "d"]
    assert [(one.error or "").partition("eval_dev_out.json ")[2] for one in pairs] == [
        "", "cannot be used", "occurs 2 times", "",
    ]  # fmt: skip
    assert len(pairwise.render_conversations(QUESTION, pairs, system=True)) == 2
    records = pairwise.by_texts(QUESTION, pairs, [*written("1", "2")])
    assert ["known" in record for record in records] == [True, False, False, True]


def test_the_order_comes_from_the_seed_and_the_q_id_alone(tmp_path):
    ids = [f"q{k}" for k in range(200)]
    one = matched(tmp_path, rows(*ids), rows(*ids))
    orders = {p.item.q_id: p.switched for p in one}
    assert 70 < sum(o == (True,) for o in orders.values()) < 130
    (tmp_path / "again").mkdir()
    other = matched(tmp_path / "again", rows(*ids[::-3]), rows(*ids))
    assert all(orders[p.item.q_id] == p.switched for p in other)
    (tmp_path / "seed").mkdir()
    third = matched(tmp_path / "seed", rows(*ids), rows(*ids), seed=1)
    assert 50 < sum(orders[p.item.q_id] != p.switched for p in third) < 150


def test_what_is_asked_stands_in_the_order_that_was_drawn():
    first, second = pairwise.render_conversations(QUESTION, [pair(False, True)], system=True)
    assert "Answer 1: Merrow\n\nAnswer 2: theirs\n" in first[1]["content"]
    assert "Answer 1: theirs\n\nAnswer 2: Merrow\n" in second[1]["content"]
    assert "Reference answers: ['Merrow', 'Tellany']" in first[1]["content"]


@pytest.mark.parametrize(
    ("switched", "text", "score"),
    [
        (False, "1", WIN), (False, "Answer 2.", LOSE), (False, "3", TIE), (False, "", UNKNOWN),
        (True, "1", LOSE), (True, "Answer 2.", WIN), (True, "3", TIE), (True, "1 or 2", UNKNOWN),
    ],
)  # fmt: skip
def test_one_answer_is_switched_back(switched, text, score):
    verdict = answered(pair(switched), text)
    assert (verdict["score"], verdict["texts"]) == (score, [text])


def test_a_digit_in_a_number_is_not_a_label():
    assert answered(pair(False), "10 of 12: 1")["score"] == WIN
    assert answered(pair(False), "1.5")["score"] == UNKNOWN


def test_two_answers_that_disagree_are_a_tie():
    """All nine, by the rule as it is written: a win where both say so."""
    worth = {"1": WIN, "2": LOSE, "3": TIE}
    for one, other in itertools.product(worth, worth):
        ours = (worth[one], 1 - worth[other])
        want = ours[0] if ours[0] == ours[1] else TIE
        assert answered(pair(False, True), one, other)["score"] == want
    assert answered(pair(False, True), "1", "?")["score"] == UNKNOWN


def test_rates_are_over_what_is_known():
    said = [((False,), ["1"]), ((True,), ["1"]), ((False,), ["3"]), ((False,), ["no"])]
    verdicts = [answered(pair(*switched), *texts) for switched, texts in said]
    found = pairwise.compute_findings(verdicts)
    assert shares(found) == pytest.approx({"win": 1 / 3, "tie": 1 / 3, "lose": 1 / 3})
    assert all(one.low < 1 / 3 < one.high and one.n == 3 for one in found.estimates.values())
    assert (found.summary["n"], found.summary["n_unknown"]) == (3, 1)
    assert (found.summary["agree"], found.summary["first"]) == (None, 100.0)


def test_how_much_the_place_decides():
    biased = [answered(pair(False, True), "1", "1") for _ in range(3)]
    fair = answered(pair(False, True), "1", "2")
    found = pairwise.compute_findings([*biased, fair])
    assert shares(found) == {"win": 0.25, "tie": 0.75, "lose": 0.0}
    lost = found.estimates["lose"]  # Wilson: 0 of 4 does not say that it cannot happen
    assert (lost.low, lost.high) == (0.0, pytest.approx(Z95**2 / (4 + Z95**2)))
    assert (found.summary["agree"], found.summary["first"]) == (25.0, 100 * 7 / 8)


def test_rates_over_nothing():
    found = pairwise.compute_findings([answered(pair(False), "?")])
    assert shares(found) == {"win": None, "tie": None, "lose": None}
    error = Generated(0, "", np.zeros(0, np.int32), None, "gone")
    good = Generated(0, "1", np.zeros(0, np.int32), "eos")
    [verdict] = pairwise.by_texts(QUESTION, [pair(False, True)], [good, error])
    assert (verdict["score"], verdict["known"], verdict["error"]) == (None, None, "gone")
    found = pairwise.compute_findings([verdict])
    assert found.estimates["win"].mean is None
    assert found.summary["first"] is None
