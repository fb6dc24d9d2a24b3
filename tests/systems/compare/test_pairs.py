"""Pairs of items: by id and text, repeated ids, failures, items of one run alone."""

from hypothesis import given
from hypothesis import strategies as st

from jaxscore.systems.compare.columns import collect
from jaxscore.systems.compare.pairs import match
from jaxscore.systems.compare.units import Unit


def run(*units):
    """Units of (id, text) or (id, text, error)."""
    return collect(
        Unit(id=one[0], name=f"{one[0]}/{one[1]}", text=one[1], error=(*one, None)[2])
        for one in units
    )


def pairs(found):
    return list(zip(found.a.tolist(), found.b.tolist(), strict=True))


def test_id_and_text_decide():
    a = run(("x", "1"), ("y", "2"), ("z", "3"), ("only a", "4"))
    b = run(("z", "3"), ("y", "other"), ("x", "1"), ("only b", "4"))
    found = match(a, b)
    assert pairs(found) == [(0, 2), (2, 0)]
    assert (found.only_a, found.only_b) == (["only a/4"], ["only b/4"])
    assert found.other_text == ["y/2"]
    assert (found.n_failed_pairs, found.n_repeated) == (0, 0)


def test_an_id_is_text_so_that_a_table_fits_json():
    assert pairs(match(run((1, "t")), run(("1", "t")))) == [(0, 0)]


def test_repeated_ids_are_paired_by_text_and_then_in_order():
    a = run(("x", "1"), ("x", "2"), ("x", "1"), ("x", "1"))
    b = run(("x", "1"), ("x", "1"), ("x", "2"))
    found = match(a, b)
    assert pairs(found) == [(0, 0), (1, 2), (2, 1)]
    assert (found.n_repeated, found.only_a, found.other_text) == (2, ["x/1"], [])


def test_by_id_the_texts_do_not_count():
    a, b = run(("x", "1"), ("y", "2"), ("x", "3")), run(("y", "1"), ("x", "2"))
    found = match(a, b, by_text=False)
    assert pairs(found) == [(0, 1), (1, 0)]
    assert (found.only_a, found.other_text) == (["x/3"], [])


def test_by_id_a_failed_unit_counts_among_those_with_its_id():
    a, b = run(("x", "1", "bad"), ("x", "2"), ("y", "3")), run(("x", "1"), ("x", "2"), ("y", "3"))
    found = match(a, b, by_text=False)
    assert pairs(found) == [(1, 1), (2, 2)]
    assert (found.n_failed_pairs, found.only_a, found.only_b) == (1, [], [])


def test_a_unit_without_a_text_is_counted():
    found = run(("x", None), ("y", "1"), ("z", None, "failed"))
    assert found.n_without_text == 1


def test_without_ids_the_text_is_all():
    found = match(run((None, "1"), (None, "2"), (None, "2")), run((None, "2"), (None, "1")))
    assert pairs(found) == [(0, 1), (1, 0)]
    assert found.only_a == ["None/2"]
    assert found.other_text == []


def test_failures_are_left_out_and_are_no_items_without_a_partner():
    a = run(("x", "1"), ("y", "2"), ("z", None, "not readable"), ("w", "4", "too long"))
    b = run(("x", "1", "too long"), ("y", "2"), ("z", "3"), ("w", "4"))
    found = match(a, b)
    assert pairs(found) == [(1, 1)]
    assert found.n_failed_pairs == 3
    assert (found.only_a, found.only_b, found.other_text) == ([], [], [])


UNITS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2"]), st.sampled_from([None, "bad"])),
    max_size=12,
)


@given(UNITS, UNITS)
def test_every_unit_is_paired_once_or_listed_once(one, other):
    a, b = run(*one), run(*other)
    found = match(a, b)
    assert len(set(found.a.tolist())) == len(found.a)
    assert len(set(found.b.tolist())) == len(found.b)
    for i, j in pairs(found):
        assert one[i] == other[j]
        assert one[i][2] is None
    n_pairs = len(found.a) + found.n_failed_pairs
    assert a.n == n_pairs + len(found.only_a) + len(found.other_text)
    swapped = match(b, a)
    assert sorted(pairs(swapped)) == sorted((j, i) for i, j in pairs(found))
    assert swapped.only_a == found.only_b
