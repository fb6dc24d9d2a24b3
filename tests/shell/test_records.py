"""Records on disk are what JSON has of them, at any place and in any order of access."""

import io
import json
import os
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jaxscore.shell.records import TOGETHER, Records


def records(*given, extras=None):
    out = Records(io.BytesIO(), io.BytesIO())
    for place, record in enumerate(given):
        out.append(record, None if extras is None else extras[place])
    return out


def test_numbers_are_those_of_json():
    values = {"f": np.float32([0.1, np.nan]), "g": float("inf"), "i": 2**70, "n": None, "s": "é"}
    [found] = records(values)
    assert found == {"f": [0.1, None], "g": "Infinity", "i": 2**70, "n": None, "s": "é"}


def test_half_a_surrogate_pair_stays():
    [found] = records({"s": "é\ud83d", "l": ["\ud83d"]})
    assert found == {"s": "é\ud83d", "l": ["\ud83d"]}


def test_records_are_read_while_others_are_added():
    out = records({"k": 0}, {"k": 1})
    assert (out[-1], len(out)) == ({"k": 1}, 2)
    out.append({"k": 2})
    assert [one["k"] for one in out] == [0, 1, 2]
    assert [one["k"] for one in out[::-1]] == [2, 1, 0]
    with pytest.raises(IndexError):
        out[3]


def test_iteration_reads_groups_and_can_be_nested():
    n = 2 * TOGETHER + 3
    out = records(*({"k": k} for k in range(n)))
    pairs = [(a["k"], b["k"]) for a, b in zip(out, out, strict=True)]
    assert pairs == [(k, k) for k in range(n)]


def test_extras_and_the_tee():
    out = records({"k": 0})
    assert (out.has_extras, out.extra(0)) == (False, None)
    out.tee = io.BytesIO()
    out.append({"k": 1}, {"tokens": [np.int32(3)]})
    assert (out.has_extras, out.extra(0), out.extra(1)) == (True, None, {"tokens": [3]})
    assert out.tee.getvalue() == b'{"k":1}\n'


def test_changes_are_made_as_records_are_read_and_leave_the_others():
    out = records({"k": 1}, {"k": 2})
    doubled = out.changed_by(lambda record: {"k": 2 * record["k"]})
    more = doubled.changed_by(lambda record: {"k": record["k"] + 1})
    assert [[one["k"] for one in each] for each in (out, doubled, more)] == [[1, 2], [2, 4], [3, 5]]
    assert more[1] == {"k": 5}


def test_lines_stay_as_they_were_unless_records_change():
    out = records({"k": np.float32([8.487728e-6])})
    out.append_line(b'{"k": [1e-05], "m": 1}\n')
    assert [*out.lines()] == [b'{"k":[0.000008487728]}\n', b'{"k": [1e-05], "m": 1}\n']
    changed = out.changed_by(lambda record: {**record, "m": 2})
    assert [json.loads(line) for line in changed.lines()] == [*changed]


def test_small_temporary_records_open_no_file():
    before = len(os.listdir("/dev/fd"))
    kept = [Records.temporary() for _ in range(20)]
    for records in kept:
        records.append({"id": 1}, {"context": "a"})
    assert len(os.listdir("/dev/fd")) == before
    large = Records.temporary()
    large.extend({"text": "x" * 1000} for _ in range(2000))
    assert len(large) == len(list(large)) == 2000
    assert large[1999] == {"text": "x" * 1000}


def test_a_pickled_copy_has_the_same_records():
    before = records({"id": 1}, {"id": 2}, extras=[{"context": "a"}, None])
    copied = pickle.loads(pickle.dumps(before.changed_by(lambda record: {**record, "n": 1})))
    assert list(copied) == [{"id": 1, "n": 1}, {"id": 2, "n": 1}]
    assert [copied.extra(place) for place in range(2)] == [{"context": "a"}, None]
    copied.append({"id": 3})
    assert (len(copied), len(before)) == (3, 2)


class SlowFile(io.BytesIO):
    def seek(self, *place):
        position = super().seek(*place)
        time.sleep(1e-4)  # another thread goes on
        return position


def test_threads_read_the_same_records():
    shared = Records(SlowFile(), io.BytesIO())
    shared.extend({"id": k} for k in range(40))

    def read(seed):
        places = random.Random(seed).choices(range(40), k=50)
        return all(shared[place]["id"] == place for place in places)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))
