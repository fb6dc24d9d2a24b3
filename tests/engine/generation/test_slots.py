"""Rows that are given to the next text: the same texts, and the same bits in a run that goes on."""

import dataclasses
import hashlib
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore import Scorer
from jaxscore.device.decoder_config import Experts
from jaxscore.engine.generation import Scheduler, prefill, slots
from jaxscore.engine.generation.slots import SlotTable
from jaxscore.engine.generation.state import TextState
from jaxscore.engine.progress import Progress
from jaxscore.io import interrupts
from jaxscore.plan import decode_slots
from jaxscore.plan.requests import TokenRequest
from jaxscore.text.decoder import TokenBytes
from tests.device.configs import gpt2like, llamalike
from tests.engine.generation.test_generator import OfIds, random_model

pytestmark = pytest.mark.numeric

CONFIGS = {
    "gpt2like": gpt2like(max_positions=96),
    "windows": llamalike(max_positions=96, windows=(0, 9)),
    "mixture": llamalike(
        max_positions=96, experts=Experts.of(count=4, per_token=2, router_renormalised=True)
    ),
}
STEPS = 5
NONFINITE = 49  # an id whose embedding is no number in `broken`


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Caches of several groups, and more than one slot that is filled at a time."""
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 16))
    monkeypatch.setattr(decode_slots, "SHORTEST_PREFIX", 8)
    monkeypatch.setattr(slots, "STEPS", STEPS)


def requests(n=60, shared=0, seed=0, **options):
    """Uneven lengths; some prompts are alike, and some have no token beside what all share."""
    draw = np.random.default_rng(seed)
    begin = draw.integers(0, 48, shared)
    prompts = [np.r_[begin, draw.integers(0, 48, k)] for k in (1, 1, 3, 9, 17, 30)]
    given = {"temperature": 1.0, "top_p": 0.95, "stop": (), "eos_ids": (3, 7)} | options
    return [
        TokenRequest(prompts[k % 6].astype(np.int32), int(draw.integers(1, 30)), seed=k, **given)
        for k in range(n)
    ]


def scorer(name="gpt2like", dtype="float32", **options):
    return Scorer(random_model(CONFIGS[name], dtype), OfIds([]), batch_tokens=64, **options)


def writing(one, asked, known=None):
    """The texts, and which of them ended together; those of `known` have ended before."""
    texts = [TextState(request) for request in asked]
    for k, old in (known or {}).items():
        texts[k] = dataclasses.replace(old)
    writer = Scheduler(one.engine, TokenBytes(one.encoder))
    with Progress(False) as progress:
        ended = list(writer.generate(texts, progress))
    return texts, ended


def reported(texts):
    return [(one.token_ids, one.finish_reason, one.eos_id, one.error) for one in texts]


def decoders(one):
    """Names of the programs of steps."""
    return {name for name, *_ in one.engine.programs.compiled if name[0] == "decode"}


KINDS = [*((name, "float32") for name in CONFIGS), ("mixture", "bfloat16")]


@pytest.mark.slow_after(1, of_each="name")
@pytest.mark.parametrize("shared", [0, 12])
@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_texts_are_those_of_groups_that_wait_for_their_longest(monkeypatch, name, dtype, shared):
    one, asked = scorer(name, dtype), requests(shared=shared)
    asked += requests(20, shared, repetition_penalty=1.4, top_k=9)
    texts, ended = writing(one, asked)
    assert all(text.finished for text in texts)
    assert {text.finish_reason for text in texts} == {"eos", "length"}
    assert sorted(map(id, texts)) == sorted(id(text) for some in ended for text in some)
    monkeypatch.setattr(
        decode_slots, "group_by_cache_shape", lambda groups: [[group] for group in groups]
    )
    slow, later = writing(one, asked)
    assert reported(texts) == reported(slow)
    assert len(ended) < len(later)


def bits(monkeypatch):
    """After each block: of each text that is written the row, and every bit of its row."""
    seen = {}
    block = SlotTable._decode_block

    def watched(self, everything):
        everything, tokens = block(self, everything)
        cache = everything[0].cache
        key, value = np.asarray(cache.key), np.asarray(cache.value)
        for row, text in self._running.items():
            n = len(text.request.ids) - 1 - int(cache.first) + len(text.token_ids)
            parts = key[:, row, :, :n], value[:, row, :, :n], tokens[row]
            digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
            seen[text.request.digest(), len(text.token_ids)] = row, digest
        return everything, tokens

    monkeypatch.setattr(SlotTable, "_decode_block", watched)
    return seen


@pytest.mark.slow_after(1, of_each="dtype")
@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_a_run_that_goes_on_has_the_rows_and_the_bits_of_one_left_alone(monkeypatch, name, dtype):
    seen, draw = bits(monkeypatch), np.random.default_rng(1)
    one, asked = scorer(name, dtype), requests(shared=12 * (name == "windows"))
    whole, ended = writing(one, asked)
    want = dict(seen)
    assert len({row for row, _ in want.values()}) == 16
    place = {request.digest(): k for k, request in enumerate(asked)}
    in_order = [place[text.request.digest()] for some in ended for text in some]
    cuts = [set(in_order[:n]) for n in (1, 16, 31, 50, len(asked) - 1)]
    cuts += [set(np.flatnonzero(draw.random(len(asked)) < share)) for share in (0.1, 0.5, 0.9)]
    for cut in cuts:
        seen.clear()
        again, some = writing(one, asked, {k: whole[k] for k in cut})
        assert reported(again) == reported(whole)
        missing = {one.request.digest() for k, one in enumerate(whole) if k not in cut}
        assert seen == {key: row for key, row in want.items() if key[0] in missing}
        assert len(some) <= len(ended)
        assert {one.request.digest() for part in some for one in part} == missing


def test_what_is_known_costs_no_step_and_no_prompt(monkeypatch):
    one, asked = scorer(), requests()
    whole, ended = writing(one, asked)
    run, names = type(one.engine.programs).run, []

    def counted(self, name, *args, **options):
        names.append(name[0])
        return run(self, name, *args, **options)

    monkeypatch.setattr(type(one.engine.programs), "run", counted)
    assert writing(one, asked, dict(enumerate(whole)))[1] == []
    assert names == []
    last = ended[-1][-1]
    known = {k: text for k, text in enumerate(whole) if text is not last}
    assert reported(writing(one, asked, known)[0]) == reported(whole)
    n_blocks = -(-(len(last.token_ids) + (last.finish_reason == "eos")) // STEPS)
    assert names == ["empty cache", "prefill", "begin", *["decode"] * n_blocks]


def broken(base):
    """The scorer with an id whose embedding is no number."""
    params = jax.tree.map(lambda leaf: leaf, base.model.params)
    params["embed"]["token"] = params["embed"]["token"].at[NONFINITE].set(jnp.nan)
    model = dataclasses.replace(base.model, params=params)
    return Scorer(model, base.encoder, batch_tokens=64)


def test_logits_that_are_no_numbers_reach_no_neighbour_and_no_successor(monkeypatch):
    """Neither from the end of a prompt nor from its middle, which others are beside."""
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 4))  # each row has many texts
    asked, base = requests(), scorer()
    bad = {k for k in range(len(asked)) if k % 5 == 0}
    for k in bad:
        ids = asked[k].ids.copy()
        ids[-1 if k % 2 else len(ids) // 2] = NONFINITE
        asked[k] = asked[k]._replace(ids=ids)
    seen = bits(monkeypatch)
    texts, _ = writing(broken(base), asked)
    rows = {digest: row for (digest, _), (row, _) in seen.items()}
    assert {rows[asked[k].digest()] for k in bad} == {0, 1, 2, 3}
    want, _ = writing(base, asked)
    n_same = 0
    for k, (one, other) in enumerate(zip(texts, want, strict=True)):
        fed = other.token_ids if other.finish_reason == "eos" else other.token_ids[:-1]
        if k in bad or NONFINITE in fed:
            assert "not finite" in one.error
        else:
            assert reported([one]) == reported([other])
            n_same += 1
    assert n_same > len(asked) // 2


@pytest.mark.parametrize("n_blocks", [0, 1, 3])
def test_once_the_user_wants_the_end_no_text_begins_and_those_begun_are_finished(
    monkeypatch, n_blocks
):
    one, asked = scorer(), requests()
    whole, _ = writing(one, asked)
    seen, blocks = bits(monkeypatch), []
    watched = SlotTable._decode_block

    def counted(self, everything):
        blocks.append({text.request.digest() for text in self._running.values()})
        return watched(self, everything)

    monkeypatch.setattr(SlotTable, "_decode_block", counted)
    monkeypatch.setattr(interrupts, "interrupt_requested", lambda: len(blocks) >= n_blocks)
    texts = [TextState(request) for request in asked]
    writer, found = Scheduler(one.engine, TokenBytes(one.encoder)), []
    some = map(found.extend, writer.generate(texts, Progress(False)))
    with pytest.raises(KeyboardInterrupt):
        list(some)
    begun = set().union(*blocks[:n_blocks])
    assert set().union(*blocks) == begun == {digest for digest, _ in seen}
    assert {one.request.digest() for one in found} == begun
    assert reported(texts) == [
        before if one.request.digest() in begun else ([], None, None, None)
        for one, before in zip(texts, reported(whole), strict=True)
    ]
    assert len(begun) >= 16 * (n_blocks > 0)


def test_once_the_user_wants_the_end_no_lane_is_prepared(monkeypatch):
    """Neither what all prompts begin with nor an empty cache."""
    one = scorer()
    monkeypatch.setattr(interrupts, "interrupt_requested", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        writing(one, requests(shared=12))
    assert one.engine.programs.compiled == []


def test_a_batch_of_prompts_is_let_go_when_all_of_them_have_rows(monkeypatch):
    one, asked, alive = scorer(), requests(), []
    computed = prefill.PromptBatch.__init__

    def noted(self, *args):
        computed(self, *args)
        alive.append(weakref.ref(self))

    monkeypatch.setattr(prefill.PromptBatch, "__init__", noted)
    begun, block, computed_now, whole = SlotTable._start, SlotTable._decode_block, [], []

    def n_alive():
        """Batches whose keys and values are on the device, and all that somebody holds."""
        held = [batch() for batch in alive if batch() is not None]
        return sum("keys_values" in vars(batch) for batch in held), len(held)

    def filled(self, everything, some):
        after = begun(self, everything, some)
        computed_now.append(n_alive()[0])
        return after

    def stepped(self, everything):
        whole.append(n_alive()[1])
        return block(self, everything)

    monkeypatch.setattr(SlotTable, "_start", filled)
    monkeypatch.setattr(SlotTable, "_decode_block", stepped)
    writing(one, asked)
    assert len(alive) > 6
    assert max(computed_now) == 1
    assert max(whole) == 1  # the one of which some prompts still wait
    assert whole[-1] == 0


def test_facts_of_a_lane_decide_its_programs():
    """Requests that draw, and some with a penalty, beside greedy ones in one cache."""
    one = scorer()
    mixed = requests(40, temperature=0.0) + requests(9, repetition_penalty=1.3)
    texts, _ = writing(one, mixed)
    assert {name[-3:] for name in decoders(one)} == {(False, True, True)}
    greedy, _ = writing(one, mixed[:40])
    assert {name[-3:] for name in decoders(one)} == {(False, True, True), (True, False, False)}
    assert reported(texts[:40]) == reported(greedy)


def test_texts_that_cut_no_token_beside_others_that_do():
    one = scorer()
    mixed = requests(40, top_p=1.0) + requests(9, top_p=0.5) + requests(9, top_p=1.0, top_k=3)
    texts, _ = writing(one, mixed)
    alone, _ = writing(one, mixed[:40])
    assert {name[-3:] for name in decoders(one)} == {(False, True, False), (False, False, False)}
    assert reported(texts[:40]) == reported(alone)
