"""A file that grows is whole at every moment, and costs little beside the work."""

import json
import time

import pytest

from jaxscore.errors import InputError
from jaxscore.io import growing
from jaxscore.io.growing import GrowingArray, write_array

ITEMS = [
    {"a": "é\nline", "b": [1.5, None], "c": {"d": []}},
    {},
    {"nan": float("nan"), "inf": float("inf")},
]


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_array_is_json_whatever_is_in_it(tmp_path):
    path = tmp_path / "out.json"
    for items in (ITEMS, ITEMS[:1], []):
        with path.open("w", encoding="utf-8") as file:
            write_array(file, iter(items))
        want = [*items[:2], *[{"nan": None, "inf": "Infinity"}] * (len(items) == 3)]
        assert path.read_text(encoding="utf-8") == (json.dumps(want, indent=4) + "\n")


def test_half_a_surrogate_pair_survives(tmp_path):
    items = [{"a": "é \ud83d"}, {"a": "é"}]
    with GrowingArray(tmp_path / "out.json", lambda: items).open():
        pass
    assert read(tmp_path / "out.json") == items


def test_it_is_written_after_a_pause_that_grows_with_the_cost(tmp_path, monkeypatch):
    clock, items, path = [100.0], [], tmp_path / "out.json"
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def finished():
        clock[0] += 10
        return items

    one = GrowingArray(path, finished)
    with one.open():
        for wait, written in (
            (growing.PAUSE - 1, 0),
            (1, 2),  # the pause is over: both are written, which takes 10 seconds
            (growing.SHARE * 10 - 1, 2),
            (1, 4),
        ):
            clock[0] += wait
            items.append({"n": len(items)})
            one.offer()
            assert (len(read(path)) if path.exists() else 0) == written
        items.append({})
    assert len(read(path)) == 5


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, InputError])
def test_what_is_finished_outlives_a_failure(tmp_path, problem):
    items = []
    one = GrowingArray(tmp_path / "out.json", lambda: items)

    def fail():
        with one.open():
            items.append({"a": 1})
            one.offer()
            raise problem

    with pytest.raises(problem):
        fail()
    assert one.kept
    assert read(tmp_path / "out.json") == [{"a": 1}]
    assert len(list(tmp_path.iterdir())) == 1


def test_without_more_a_failure_touches_nothing(tmp_path):
    one = GrowingArray(tmp_path / "out.json", lambda: [{"a": 1}])

    def fail():
        with one.open():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not one.kept
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_keeps_the_old_file(tmp_path):
    def half():
        yield {"a": 2}
        raise KeyboardInterrupt

    (tmp_path / "out.json").write_text("old", encoding="utf-8")

    def fail():
        with GrowingArray(tmp_path / "out.json", half).open():
            pass

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_is_known_at_once(tmp_path):
    with (
        pytest.raises(InputError, match="found a folder"),
        GrowingArray(tmp_path, lambda: []).open(),
    ):
        pytest.fail("the work began")
