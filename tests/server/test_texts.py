"""Groups of texts whose writing fails."""

import numpy as np
import pytest

from jaxscore.engine.generation import slots
from jaxscore.engine.generation.slots import Lane
from jaxscore.plan import decode_slots
from jaxscore.server.jobs import WritingJob
from jaxscore.server.metrics import Metrics
from jaxscore.server.texts import Texts
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated


class FailsOnce:
    """A generator that shows each text's first ids, fails, and writes well after that."""

    def __init__(self):
        self.groups = []

    def stream(self, requests, *, watch):
        self.groups.append([one.id for one in requests])
        for place in range(len(requests)):
            watch(place, [5, 6], False)
        if len(self.groups) == 1:
            raise RuntimeError("planned")
        for place, one in enumerate(requests):
            yield place, Generated(one.id, "text", np.array([5, 6, 7], np.int32), "length")


@pytest.mark.parametrize("n_new", [[4] * 9, [4, 40, 3, 9, 17, 4, 4, 21, 2]])
def test_other_work_has_its_turn_in_each_block(scorer, monkeypatch, n_new):
    """Also where no text of a block was there in the block before."""
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 2))
    monkeypatch.setattr(slots, "STEPS", 4)
    blocks, turns, block = [], [], Lane._block

    def counted(self, everything):
        blocks.append(len(self._running))
        return block(self, everything)

    monkeypatch.setattr(Lane, "_block", counted)
    ids = np.array([3, 4], np.int32)
    job = WritingJob([GenerationRequest(k, ids, n, 1.0, seed=k) for k, n in enumerate(n_new)])
    Texts(scorer, Metrics(), lambda: turns.append(len(blocks))).write(
        [(job, k) for k in range(len(n_new))]
    )
    assert [len(text.token_ids) for text in job.answer.result(0)] == n_new
    assert turns == list(range(1, len(blocks) + 1))


def test_a_text_is_not_sent_twice(scorer, capfd):
    """The client that has a part gets an error, and the other one its text."""
    told = []
    request = GenerationRequest("read along", np.array([3], np.int32), 3)
    read_along = WritingJob([request], lambda place, written: told.append(written))
    silent = WritingJob([GenerationRequest("silent", np.array([4], np.int32), 3)])
    texts = Texts(scorer, Metrics(), lambda: None)
    texts._generator = generator = FailsOnce()
    texts.write([(read_along, 0), (silent, 0)])
    assert told == [[5, 6]]
    with pytest.raises(RuntimeError, match="a client has a part"):
        read_along.answer.result(0)
    [written] = silent.answer.result(0)
    assert written.text == "text"
    assert generator.groups == [["read along", "silent"], ["silent"]]
    assert "a client has a part" in capfd.readouterr().err
