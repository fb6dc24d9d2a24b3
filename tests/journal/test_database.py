"""The journal: what it keeps it gives back, to the same key and to no other."""

import sqlite3
import threading

import numpy as np
import pytest

from jaxscore import Scorer
from jaxscore import journal as database
from jaxscore.engine.dispatch import Dispatch
from jaxscore.engine.journal_writer import JournalWriter
from jaxscore.errors import InputError
from jaxscore.journal import Journal
from jaxscore.journal.files import list_models, prune
from jaxscore.plan.requests import BASE_SCORES, ScoreOptions, SequenceScores, TokenSequence
from tests.cli.conftest import run  # noqa: F401
from tests.conftest import CASES

ABOUT = {"model": "m", "dtype": "float32"}


def sequences(n=40, seed=0):
    """Some share text, some are equal."""
    draw = np.random.default_rng(seed)
    prefix = draw.integers(0, 200, 30)
    out = []
    for _ in range(n):
        cut, own = int(draw.integers(0, 30)), draw.integers(0, 200, int(draw.integers(2, 20)))
        ids = np.concatenate([prefix[:cut], own]).astype(np.int32)
        out.append(TokenSequence(ids, int(draw.integers(0, len(ids)))))
    return [*out, out[0]]


def scores_of(sequence, seed, wanted=BASE_SCORES):
    draw = np.random.default_rng(seed)
    n, k = len(sequence.ids) - max(sequence.start, 1), wanted.top
    columns = draw.normal(size=(3, n)).astype(np.float32)
    top = draw.integers(0, 200, (n, k)).astype(np.int32), draw.random((n, k)).astype(np.float32)
    measures = {name: draw.random(n).astype(np.float32) for name in wanted.measures}
    return SequenceScores(*columns, draw.random(n) < 0.5, *top, measures)


def same(one, other):
    every = ([*scores[:6], *scores.measures.values()] for scores in (one, other))
    pairs = zip(*every, strict=True)
    equal = all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    return equal and [*one.measures] == [*other.measures]


@pytest.fixture
def journal(tmp_path):
    """`journal(about)`: opened, and closed at the end."""
    opened = []

    def open_one(about=ABOUT, name="run.journal"):
        opened.append(Journal(tmp_path / name, about))
        opened[-1].read_scores([])  # which opens it
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    "wanted", [BASE_SCORES, ScoreOptions(3), ScoreOptions(0, ("a", "b")), ScoreOptions(1, ("a",))]
)
def test_journaled_scores_are_read_bit_for_bit(journal, wanted):
    given = sequences(1200)[:-1]
    first = journal()
    kept = {k: scores_of(one, k, wanted) for k, one in enumerate(given) if k % 3}
    first.write_scores(((given[k], scores) for k, scores in kept.items()), wanted)
    first.close()
    found = journal().read_scores(given, wanted)
    assert kept.keys() <= found.keys()
    assert all(same(found[k], scores) for k, scores in kept.items())


def test_scores_of_other_options_are_not_read(journal):
    [one, *_], every = (
        sequences(1),
        [BASE_SCORES, ScoreOptions(1), ScoreOptions(2), ScoreOptions(1, ("a",))],
    )
    every += [ScoreOptions(0, ("a",)), ScoreOptions(0, ("b",)), ScoreOptions(0, ("a", "b"))]
    first = journal()
    for k, wanted in enumerate(every):
        assert first.read_scores([one], wanted) == {}
        first.write_scores([(one, scores_of(one, k, wanted))], wanted)
    for k, wanted in enumerate(every):
        assert same(first.read_scores([one], wanted)[0], scores_of(one, k, wanted))


def test_read_while_another_thread_closes(journal, monkeypatch):
    """Between two statements: the file is opened again."""
    monkeypatch.setattr(database, "TOGETHER", 1)
    one, asked = journal(), sequences()
    one.write_scores([(a, scores_of(a, k)) for k, a in enumerate(asked)], BASE_SCORES)
    ended = threading.Event()

    def closing():
        while not ended.is_set():
            one.close()

    other = threading.Thread(target=closing)
    other.start()
    try:
        for _ in range(5):
            assert len(one.read_scores(asked)) == len(asked)
    finally:
        ended.set()
        other.join()


def test_scores_of_another_model_start_or_text_are_not_read(journal):
    [one] = sequences(1)[:1]
    first = journal()
    first.write_scores([(one, scores_of(one, 1))])
    others = [TokenSequence(one.ids, one.start + 1), TokenSequence(one.ids[:-1], one.start)]
    assert list(first.read_scores([one, *others])) == [0]
    labelled = TokenSequence(one.ids[:-1], len(one.ids) - 1, one.ids[-1:])
    assert first.read_scores([labelled]) == {}  # a choice after a prompt, whose length is another
    first.close()
    assert journal(ABOUT | {"dtype": "bfloat16"}).read_scores([one]) == {}


def test_a_row_with_a_changed_bit_is_missing(journal, tmp_path):
    one, other = sequences(2)[:2]
    first = journal()
    first.write_scores([(one, scores_of(one, 1)), (other, scores_of(other, 2))])
    first.close()
    with sqlite3.connect(tmp_path / "run.journal") as database:
        [key, value] = database.execute("SELECT key, value FROM scores").fetchone()
        changed = bytes([value[0] ^ 1]) + value[1:]
        database.execute("UPDATE scores SET value = ? WHERE key = ?", (changed, key))
    database.close()
    assert len(journal().read_scores([one, other])) == 1


def test_scores_of_another_length_are_missing(journal):
    long, short = TokenSequence(np.arange(9, dtype=np.int32), 0), sequences()[0]
    first = journal()
    first.write_scores([(short, scores_of(long, 1)), (long, scores_of(long, 1))])
    assert [*first.read_scores([short, long])] == [1]


def test_a_write_that_fails_leaves_none_of_its_rows(journal, monkeypatch):
    monkeypatch.setattr(database, "TOGETHER", 1)
    first = journal()
    with pytest.raises((InputError, sqlite3.Error)):
        first._write("scores", [(b"stored", b"value"), (b"refused", object())])
    first.close()
    assert list_models(first.path)[0].n_sequences == 0


def test_two_runs_do_not_share_a_journal(journal, tmp_path):
    first = journal()
    with pytest.raises(InputError, match=r"run.journal: another run holds it.*--journal"):
        journal()
    first.close()
    journal().close()


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to look at", "other", b""]
)
def test_a_foreign_file_is_refused_and_left_alone(journal, tmp_path, content):
    path = tmp_path / "run.journal"
    if content == "other":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE mine (a)")
        database.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    if content:
        with pytest.raises(InputError, match=r"run.journal: .*--journal off"):
            journal()
    with pytest.raises(InputError, match=r"run.journal: "):
        list_models(path)
    assert path.read_bytes() == before
    path.unlink()
    journal()  # and nothing holds it


def test_a_damaged_journal_is_refused_by_name(journal, tmp_path):
    first = journal()
    first.write_scores((one, scores_of(one, 3)) for one in sequences(400))
    first.close()
    path = tmp_path / "run.journal"
    content = bytearray(path.read_bytes())
    content[8192:] = bytes(len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"run.journal: .*malformed.*--journal"):
        journal().read_scores(sequences(400))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"journal .*file/run.journal: "):
        Journal(tmp_path / "file" / "run.journal", ABOUT).read_scores([])


def test_a_full_disk_is_named_and_loses_nothing(journal):
    given = sequences(600)[:-1]
    first = journal()
    first.write_scores((one, scores_of(one, 3)) for one in given[:50])
    database, _ = first._open
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(InputError, match=r"run.journal: .*full.*kept.*make room"):
        first.write_scores((one, scores_of(one, 3)) for one in given[50:])
    first.close()
    assert len(journal().read_scores(given[:50])) == 50


def test_list_models_counts_rows_and_bytes(journal, tmp_path):
    for about, n in ((ABOUT, 7), (ABOUT | {"model": "n"}, 3)):
        one = journal(about)
        one.write_scores((sequence, scores_of(sequence, 1)) for sequence in sequences(n)[:-1])
        one.close()
    path = tmp_path / "run.journal"
    assert [(one.about["model"], one.n_sequences) for one in list_models(path)] == [
        ("n", 3),
        ("m", 7),
    ]
    with pytest.raises(InputError, match=r"none\.journal: no such file"):
        list_models(tmp_path / "none.journal")


def test_prune_keeps_the_last_used_models(journal, tmp_path):
    for model in "abca":
        one = journal({"model": model})
        one.write_scores((sequence, scores_of(sequence, 1)) for sequence in sequences(300)[:-1])
        one.close()
    path = tmp_path / "run.journal"
    n_models, n_bytes = prune(path, 2)
    assert n_models == 1
    assert n_bytes > 10_000
    assert [one.about["model"] for one in list_models(path)] == ["a", "c"]
    assert len(journal({"model": "c"}).read_scores(sequences(300))) == 301
    with pytest.raises(InputError, match="another run holds it"):
        prune(path, 1)


class Cut(Exception):
    pass


def test_resume_after_an_interrupt_anywhere_computes_no_batch_twice(monkeypatch, journal, scorers):
    base = scorers("tiny-llama3")
    given = sequences(60)

    def scorer(own=None):
        return Scorer(base.model, base.encoder, batch_tokens=64, journal=own)

    dispatched = []
    real = Dispatch.send

    def counted(self, variant, batches, *rest):
        dispatched.extend(batches)
        return real(self, variant, batches, *rest)

    monkeypatch.setattr(Dispatch, "send", counted)
    want = scorer().score_sequences(given)
    n_batches = len(dispatched)
    assert n_batches > 8
    kept_before, note = 0, JournalWriter.add_scored
    for n_kept in range(0, n_batches, 3):
        own = journal(name="cut.journal")
        one, seen = scorer(own), [0]

        def noted_and_written(writer, *args, seen=seen, n_kept=n_kept):
            if seen[0] == n_kept:
                raise Cut
            seen[0] += 1
            note(writer, *args)
            writer.flush()

        monkeypatch.setattr(JournalWriter, "add_scored", noted_and_written)
        dispatched.clear()
        try:
            got = one.score_sequences(given)
        except Cut:
            got = None
        own.close()
        # Those that were kept are not asked for again.
        assert len(dispatched) <= n_batches - kept_before
        kept_before += seen[0]
        if got is not None:
            break
    assert got is not None
    assert kept_before == n_batches
    assert all(same(a, b) for a, b in zip(got, want, strict=True))
    dispatched.clear()
    again = scorer(journal(name="cut.journal"))
    got = again.score_sequences(given)
    assert not dispatched
    assert again.statistics.sequences_restored == len(given)
    assert all(same(a, b) for a, b in zip(got, want, strict=True))


def test_resume_restores_top_tokens_and_measures(journal, scorers):
    base, given = scorers("tiny-llama3"), sequences(30)
    options = {"top": 4, "measures": ["rank", "varentropy"]}
    want = Scorer(base.model, base.encoder, batch_tokens=64).score_sequences(given, **options)
    one = Scorer(base.model, base.encoder, batch_tokens=64, journal=journal())
    one.score_sequences(given[:9], **options)
    one.score_sequences(given)  # rows of a run without them
    one.score_sequences(given, **options)
    again = Scorer(base.model, base.encoder, batch_tokens=64, journal=one.journal)
    got = again.score_sequences(given, **options)
    assert again.statistics.sequences_restored == len(given)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.top_id, b.top_id)
        np.testing.assert_array_equal(a.measures["rank"], b.measures["rank"])
        for name in ("logprob", "entropy", "top_logprob"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-5, rtol=0)
        np.testing.assert_allclose(
            a.measures["varentropy"], b.measures["varentropy"], atol=1e-4, rtol=0
        )


def test_resume_with_additional_requests(journal, scorers):
    base = scorers("tiny-llama3")
    given = sequences(30)
    one = Scorer(base.model, base.encoder, batch_tokens=64, journal=journal())
    first = one.score_sequences(given[:20])
    both = one.score_sequences(given)
    assert all(same(a, b) for a, b in zip(both[:20], first, strict=True))
    want = Scorer(base.model, base.encoder, batch_tokens=64).score_sequences(given)
    for got, exact in zip(both, want, strict=True):
        np.testing.assert_allclose(got.logprob, exact.logprob, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "found a folder"),
        (".", "found a folder"),
        ("folder", "found a folder"),
        ("out.jsonl", "another file of this run has this name"),
        ("in.jsonl", "another file of this run has this name"),
        ("notes.txt", "not a jaxscore journal; it was not changed"),
    ],
)
def test_impossible_journal_paths_are_refused(
    run,  # noqa: F811
    tmp_path,
    monkeypatch,
    name,
    message,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "in.jsonl").write_text('{"context": "a", "continuation": " b"}\n')
    words = ("score", "--model", CASES / "models/tiny-gpt2", "--input", "in.jsonl")
    code, _, err = run(*words, "--output", "out.jsonl", "--journal", name, "--quiet")
    assert code == 2
    assert message in err
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert "continuation" in (tmp_path / "in.jsonl").read_text()
