"""Texts in the journal: a run that was cut goes on, and reads no other request's text."""

import dataclasses
import itertools
import sqlite3

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore import Scorer
from jaxscore.engine.generation import Generator, slots
from jaxscore.errors import InputError
from jaxscore.io import interrupts
from jaxscore.journal import Journal
from jaxscore.journal.files import LAYOUT, list_models, prune
from jaxscore.models.model import CheckpointFacts
from jaxscore.plan import decode_slots
from jaxscore.plan.requests import GeneratedTokens, TokenRequest
from jaxscore.types.requests import GenerationRequest
from tests.journal.test_database import ABOUT, journal  # noqa: F401
from tests.releases import native_and_transformers

SHARED = "Arlen moved from Dunmere to Merrow in 1856. " * 4

ASKED = TokenRequest(np.array([5, 6, 7], np.int32), 20, 0.5, 0.9, 3, ("ab", "c"), (2, 9))
OTHERS = {
    "prompt": {"ids": np.array([5, 6], np.int32)},
    "limit": {"n_new": 21},
    "temperature": {"temperature": 0.6},
    "greedy": {"temperature": 0.0},
    "top_p": {"top_p": 0.8},
    "seed": {"seed": 4},
    "stop": {"stop": ("ab", "d")},
    "stops joined": {"stop": ("abc",)},
    "stops cut elsewhere": {"stop": ("a", "bc")},
    "no stop": {"stop": ()},
    "ends": {"eos_ids": (2,)},
    "top_k": {"top_k": 1},
    "penalty": {"repetition_penalty": 1.1},
    "an end for a token": {"ids": np.array([5, 6, 7, 2], np.int32), "eos_ids": (9,)},
    "half a pair": {"stop": ("ab", "\ud83d")},
    "two halves": {"stop": ("ab", "\ud83d\ude00")},
    "one character": {"stop": ("ab", "\U0001f600")},
}


def variants():
    return [ASKED, *(ASKED._replace(**change) for change in OTHERS.values())]


def test_every_field_of_a_request_changes_its_key():
    keys = [one.digest() for one in variants()]
    assert len(set(keys)) == len(keys)
    assert ASKED.digest() == ASKED._replace(ids=ASKED.ids.astype(np.int64)).digest()


def test_journaled_texts_are_read_by_the_same_request_alone(journal):  # noqa: F811
    draw = np.random.default_rng(0)
    own = [
        GeneratedTokens(draw.integers(0, 99, n).astype(np.int32), *end)
        for n, end in zip(
            (0, 1, 20, *range(2, 16)), itertools.cycle((("eos", 9), ("stop",), ("length",)))
        )
    ]
    first = journal()
    asked = variants()
    assert first.read_texts(asked) == {}
    first.write_texts(list(zip(asked, own, strict=False))[1:])
    assert 0 not in first.read_texts(asked)
    first.write_texts([(asked[0], own[0])])
    first.close()
    found = journal().read_texts(asked[::-1])
    for k, kept in enumerate(own):
        back = found[len(asked) - 1 - k]
        assert back.ids.dtype == np.int32
        assert (back.ids.tolist(), *back[1:]) == (kept.ids.tolist(), *kept[1:])


def test_texts_of_another_model_are_not_read(journal):  # noqa: F811
    first = journal()
    first.write_texts([(ASKED, GeneratedTokens(np.arange(4, dtype=np.int32), "stop"))])
    first.close()
    assert journal(ABOUT | {"dtype": "bfloat16"}).read_texts([ASKED]) == {}


@pytest.mark.parametrize("place", [0, 1, 5, -1], ids=["finish", "eos", "id", "checksum"])
def test_a_row_with_a_changed_bit_is_missing(journal, tmp_path, place):  # noqa: F811
    first, other = journal(), ASKED._replace(seed=8)
    text = GeneratedTokens(np.arange(4, dtype=np.int32), "eos", 2)
    first.write_texts([(ASKED, text), (other, text)])
    first.close()
    with sqlite3.connect(tmp_path / "run.journal") as database:
        [key, value] = database.execute("SELECT key, value FROM texts").fetchone()
        changed = bytearray(value)
        changed[place] ^= 2
        database.execute("UPDATE texts SET value = ? WHERE key = ?", (bytes(changed), key))
    database.close()
    assert len(journal().read_texts([ASKED, other])) == 1


@pytest.mark.parametrize("value", [b"", b"\0\0\0\0"], ids=["empty", "zeros"])
def test_an_empty_row_is_missing(journal, tmp_path, value):  # noqa: F811
    first = journal()
    first.write_texts([(ASKED, GeneratedTokens(np.arange(4, dtype=np.int32), "eos", 2))])
    first.close()
    with sqlite3.connect(tmp_path / "run.journal") as database:
        database.execute("UPDATE texts SET value = ?", (value,))
    database.close()
    assert journal().read_texts([ASKED]) == {}


def test_list_models_counts_texts_and_prune_drops_them(journal, tmp_path):  # noqa: F811
    for model, n in (("a", 4), ("b", 3)):
        one = journal({"model": model})
        one.write_texts(
            (ASKED._replace(seed=k), GeneratedTokens(np.zeros(2000, np.int32), "length"))
            for k in range(n)
        )
        one.close()
    path = tmp_path / "run.journal"
    counts = [(one.about["model"], one.n_sequences, one.n_texts) for one in list_models(path)]
    assert counts == [("b", 0, 3), ("a", 0, 4)]
    assert all(one.n_bytes > 8000 * one.n_texts for one in list_models(path))
    n_models, n_bytes = prune(path, 1)
    assert n_models == 1
    assert n_bytes > 10_000
    assert [one.n_texts for one in list_models(path)] == [3]
    again = [ASKED._replace(seed=k) for k in range(4)]
    assert journal({"model": "a"}).read_texts(again) == {}


def test_a_journal_of_another_layout_is_refused_and_left_alone(journal, tmp_path):  # noqa: F811
    journal().close()
    path = tmp_path / "run.journal"
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {LAYOUT - 1}")
    database.close()
    before = path.read_bytes()
    for use in (lambda: journal(), lambda: list_models(path), lambda: prune(path, 1)):
        with pytest.raises(InputError, match=rf"layout {LAYOUT - 1}.*expected layout {LAYOUT}"):
            use()
    assert path.read_bytes() == before


class Cut(Exception):
    pass


def asked():
    """Requests of all kinds: several groups, a prefix, equal ones, and one that fails."""
    options = [
        {"max_new_tokens": 12},
        {"max_new_tokens": 24, "temperature": 0.9, "stop": ("e",)},
        {"max_new_tokens": 12, "temperature": 0.9},
    ]
    out = [
        GenerationRequest(k, f"{SHARED}{'Where? ' * (k % 4)}{k}", **options[k % 3], seed=k % 2)
        for k in range(20)
    ]
    out[7] = GenerationRequest("none", SHARED, 0)
    return [*out, dataclasses.replace(out[0], id="again")]


def reported(results):
    return [
        (one.id, one.text, one.token_ids.tolist(), one.token_ids.dtype, one.finish, one.error)
        for one in results
    ]


def digests(batches):
    return [[one.request.digest() for one in some] for some in batches]


@pytest.fixture
def writer(monkeypatch, scorers):
    """`writer(journal, implementation)`: a generator, with texts that ended together in `batches`.

    One scorer each, whose programs are compiled once.
    """
    monkeypatch.setattr(slots, "STEPS", 5)
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 4))
    monkeypatch.setattr(decode_slots, "SHORTEST_PREFIX", 8)

    def make(own=None, implementation="native", **changes):
        base = scorers("tiny-gpt2", implementation=implementation)
        model = dataclasses.replace(base.model, **changes)
        one = Generator(Scorer(model, base.encoder, journal=own) if changes else base)
        monkeypatch.setattr(one.scorer, "about", {})  # the journals here are for made-up facts
        monkeypatch.setattr(one.scorer, "journal", own)
        one.scorer.statistics.sequences = one.scorer.statistics.sequences_restored = 0
        one.batches = []

        write = one._scheduler.generate

        def counted(*args):
            for ended in write(*args):
                one.batches.append(ended)
                yield ended

        one._scheduler.generate = counted
        return one

    return make


@pytest.mark.slow_after(1)
@native_and_transformers
def test_resume_after_an_interrupt_anywhere_generates_nothing_twice(
    writer,
    journal,  # noqa: F811
    implementation,
):
    whole = writer(None, implementation)
    want = reported(whole.generate(asked()))
    n_batches = len(whole.batches)
    assert n_batches > 4
    assert {finish for *_, finish, _ in want} == {"length", "stop", None}
    own, kept = None, 0
    for n_more in (0, 1, 2, 0, 3, n_batches):
        own = journal(name="cut.journal")
        one, left = writer(own, implementation), itertools.count()
        keep = own.write_texts

        def cut(finished, keep=keep, left=left, n_more=n_more):
            if next(left) == n_more:
                raise Cut
            keep(finished)

        own.write_texts = cut
        try:
            got = reported(one.generate(asked()))
        except Cut:
            got = None
        own.close()
        # What was kept is not written again; what ended last was in flight when the run was cut.
        # The same texts end together, since each begins in the block of an undisturbed run.
        assert digests(one.batches) == digests(whole.batches)[kept : kept + n_more + 1]
        kept += min(n_more, n_batches - kept)
    assert got == want
    again = writer(journal(name="cut.journal"), implementation)
    assert reported(again.generate(asked())) == want
    assert again.batches == []
    # All but the one that cannot be written.
    assert (
        again.scorer.statistics.sequences_restored
        == again.scorer.statistics.sequences
        == len(want) - 1
    )


@pytest.mark.parametrize("n_blocks", [1, 2, 4])
@native_and_transformers
def test_texts_in_flight_at_an_interrupt_are_journaled(
    writer,
    journal,  # noqa: F811
    monkeypatch,
    implementation,
    n_blocks,
):
    want, own = reported(writer(None, implementation).generate(asked())), journal()
    first = writer(own, implementation)
    with monkeypatch.context() as patched:
        patched.setattr(interrupts, "interrupt_requested", lambda: len(first.batches) >= n_blocks)
        with pytest.raises(KeyboardInterrupt):
            first.generate(asked())
    kept = [one.request for some in first.batches for one in some]
    assert len(own.read_texts(kept)) == len(kept) >= n_blocks
    second = writer(own, implementation)
    assert reported(second.generate(asked())) == want
    again = [one.request.digest() for some in second.batches for one in some]
    assert {*again}.isdisjoint(one.digest() for one in kept)
    assert second.scorer.statistics.sequences_restored >= len(kept)


def test_resume_generates_missing_texts_alone(writer, journal):  # noqa: F811
    """And what is known stays as it is, whatever comes out now."""
    own = journal()
    first = writer(own)
    want = reported(first.generate(asked()))
    [*members] = next(some for some in first.batches if len(some) > 1)
    lost, known = members[0], members[-1]
    database, _ = own._open
    with database:
        database.execute("DELETE FROM texts WHERE key = ?", (lost.request.digest(),))
    invented = GeneratedTokens(np.full(known.request.n_new, 7, np.int32), "length")
    own.write_texts([(known.request, invented)])
    second = writer(own)
    got = reported(second.generate(asked()))
    assert digests(second.batches) == digests([[lost]])
    [changed] = [one for one, other in zip(got, want, strict=True) if one != other]
    assert changed[2] == invented.ids.tolist()
    assert own.read_texts([known.request])[0].ids.tolist() == invented.ids.tolist()


def test_a_damaged_row_is_replaced(writer, journal):  # noqa: F811
    own = journal()
    want = reported(writer(own).generate(asked()))
    database, _ = own._open
    rows = database.execute("SELECT key, value FROM texts ORDER BY key").fetchall()
    with database:
        for key, value in rows[::3]:
            damaged = bytes([value[0], value[1] ^ 1]) + value[2:]
            database.execute("UPDATE texts SET value = ? WHERE key = ?", (damaged, key))
    assert reported(writer(own).generate(asked())) == want
    assert database.execute("SELECT key, value FROM texts ORDER BY key").fetchall() == rows


@pytest.mark.slow
def test_only_the_same_request_reads_a_text(writer, journal):  # noqa: F811
    own, base = journal(), GenerationRequest(0, "The cat", 8, 0.7, 0.9, ("~~",), 5)
    one = writer(own)
    [ids] = one.encoder.prompt_ids([base.prompt])
    request = TokenRequest(ids, 8, 0.7, 0.9, 5, ("~~",), one.eos_ids)
    own.write_texts([(request, GeneratedTokens(np.full(8, 7, np.int32), "length"))])
    changes = [
        {"seed": 6}, {"temperature": 0.6}, {"temperature": 0.0}, {"top_p": 0.8},
        {"max_new_tokens": 7}, {"stop": ()}, {"stop": ("~",)}, {"prompt": "The cat "},
    ]  # fmt: skip
    others = [dataclasses.replace(base, id=k, **change) for k, change in enumerate(changes, 1)]
    same = [base, dataclasses.replace(base, id="s", seed=5 + 2**32)]
    got = one.generate([*same, *others])
    assert [text.token_ids.tolist() == [7] * 8 for text in got] == [True] * 2 + [False] * 8
    assert reported(got[2:]) == reported(writer().generate(others))
    [text] = writer(own, checkpoint=CheckpointFacts(eos_ids=(1199, 3))).generate([base])
    assert text.token_ids.tolist() != [7] * 8


@pytest.mark.slow
def test_failed_texts_are_not_journaled(writer, journal):  # noqa: F811
    def broken(path, leaf):
        """Of positions that only the longer prompt has."""
        is_table = {"position", "wpe"} & {key.key for key in path}
        return leaf.at[30:100].set(jnp.nan) if is_table else leaf

    own, model = journal(), writer().model
    params = jax.tree_util.tree_map_with_path(broken, model.params)
    requests = [GenerationRequest(k, p, 5) for k, p in enumerate(["The cat", "word " * 40])]
    for _ in range(2):
        good, failed = writer(own, params=params).generate(requests)
        assert good.error is None
        assert "not finite" in failed.error
    database, _ = own._open
    assert database.execute("SELECT COUNT(*) FROM texts").fetchone() == (1,)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_text_that_the_tokenizer_now_decodes_otherwise_is_replaced(
    writer,
    journal,  # noqa: F811
    finish,
):
    """It may have ended at a stop string that is no longer there, or gone on where one is now."""
    own, plain = journal(), writer()
    [text] = plain.generate([GenerationRequest(0, "The cat", 8)])
    stop = {"stop": "never there", "length": text.text[2:4]}[finish]
    request = GenerationRequest(0, "The cat", 8, stop=(stop,))
    want = reported(plain.generate([request]))
    [ids] = plain.encoder.prompt_ids(["The cat"])
    key = TokenRequest(ids, 8, 0.0, 1.0, 0, (stop,), plain.eos_ids)
    own.write_texts([(key, GeneratedTokens(text.token_ids, finish))])
    one = writer(own)
    assert reported(one.generate([request])) == want
    assert len(one.batches) == 1
    assert reported(writer(own).generate([request])) == want


def test_the_first_texts_open_the_journal(tmp_path, writer):
    own = Journal(tmp_path / "own.journal", ABOUT)
    one = writer(own)
    assert not own.path.exists()
    one.generate([GenerationRequest(0, "The cat", 2)])
    own.close()
    [there] = list_models(own.path)
    assert (there.n_sequences, there.n_texts) == (0, 1)
