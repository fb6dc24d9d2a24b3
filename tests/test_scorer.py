"""The layout never changes a score, the order is kept, and nothing is compiled twice."""

import dataclasses
import itertools

import numpy as np
import pytest

from jaxscore import Request, Scorer
from jaxscore.engine import planner
from jaxscore.engine.pipeline import AHEAD
from jaxscore.plan.requests import TokenSequence
from jaxscore.text import tokenize_requests
from tests.conftest import CASES, MODELS

pytestmark = pytest.mark.numeric

COLUMNS = ("logprob", "entropy", "self_certainty")


def fresh(scorer: Scorer, *, batch_tokens: int = 256, **changes) -> Scorer:
    """The same parameters and tokenizer with other facts, and counters at 0."""
    model = dataclasses.replace(scorer.model, **changes)
    return Scorer(model, scorer.encoder, batch_tokens=batch_tokens)


def random_sequences(seed: int) -> list[TokenSequence]:
    """Sequences of 1 to 150 ids; about half continue the prefix of an earlier one."""
    random = np.random.default_rng(seed)
    out = [np.zeros(0, np.int32)]
    for _ in range(12):
        earlier = out[random.integers(len(out))]
        kept = earlier[: random.integers(len(earlier) + 1)]
        own = random.integers(5, 1200, random.integers(1, 100)).astype(np.int32)
        out.append(np.concatenate([kept, own])[:150])
    return [TokenSequence(ids, int(random.integers(len(ids) + 1))) for ids in out]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        for name in COLUMNS:
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-5, rtol=0)
        np.testing.assert_array_equal(a.greedy, b.greedy)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(2))
def test_the_layout_never_changes_a_score(scorers, name, seed):
    sequences = random_sequences(seed)
    together = fresh(scorers(name))
    want = together.score_sequences(sequences)
    assert together.statistics.tokens_unique < together.statistics.tokens_given
    assert any(len(one.logprob) for one in want)

    one_a_row = fresh(scorers(name), shares_text=False)
    assert_same(one_a_row.score_sequences(sequences), want)

    assert_same([together.score_sequences([one])[0] for one in sequences], want)

    order = np.random.default_rng(seed).permutation(len(sequences))
    shuffled = together.score_sequences([sequences[k] for k in order])
    assert_same(shuffled, [want[k] for k in order])


def test_a_split_trie_scores_as_a_whole_one(scorers):
    random = np.random.default_rng(0)
    prompt = random.integers(5, 1200, 40)
    ids = [np.concatenate([prompt, random.integers(5, 1200, 12)]) for _ in range(40)]
    sequences = [TokenSequence(one.astype(np.int32), 40) for one in ids]
    # A great width makes one long row pay, a width of 1 rows of 64.
    whole = fresh(scorers("tiny-llama3"), batch_tokens=1024, width=4096)
    want = whole.score_sequences(sequences)
    split = fresh(scorers("tiny-llama3"), width=1)
    assert_same(split.score_sequences(sequences), want)
    assert (
        whole.statistics.tokens_laid_out
        == whole.statistics.tokens_unique
        == split.statistics.tokens_unique
    )
    assert split.statistics.tokens_laid_out > split.statistics.tokens_unique


def test_more_targets_than_slots(scorers):
    random = np.random.default_rng(1)
    path = random.integers(5, 1200, 64).astype(np.int32)
    sequences = [
        TokenSequence(np.append(path[:n], np.int32(target)), n)
        for n in range(1, 65)
        for target in range(20, 29)
    ]
    scorer = fresh(scorers("tiny-qwen2"), batch_tokens=64)
    got = scorer.score_sequences(sequences)
    assert scorer.statistics.tokens_unique == 64
    assert all(np.isfinite(one.logprob).all() and len(one.logprob) == 1 for one in got)
    # Each node's nine targets lie in three slots, at other places than when asked alone.
    for k in (0, 100, 575):
        assert_same([got[k]], scorer.score_sequences([sequences[k]]))


def test_order_is_restored_and_duplicates_cost_nothing(scorers):
    texts = [" sat down", " ran", " sat", "", " is on the mat", " ran"]
    requests = [Request(k, "The cat", text) for k, text in enumerate(texts)]
    scorer = fresh(scorers("tiny-llama3"))
    once = scorer.score(requests)
    unique = scorer.statistics.tokens_unique
    assert [one.id for one in once] == list(range(6))
    assert [scorer.encoder.tokenizer.decode(one.token_ids) for one in once] == texts

    again = fresh(scorers("tiny-llama3"))
    twice = again.score(requests + requests[::-1])
    assert again.statistics.tokens_unique == unique
    assert again.statistics.tokens_given == 2 * scorer.statistics.tokens_given
    for one, other, last in zip(once, twice, twice[::-1], strict=False):
        for name in (*COLUMNS, "greedy", "token_ids"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
            np.testing.assert_array_equal(getattr(one, name), getattr(last, name))
    np.testing.assert_array_equal(once[1].logprob, once[5].logprob)


def test_a_second_run_compiles_and_traces_nothing(scorers):
    traces = 0
    functions = scorers("tiny-llama3").model.functions

    def counted(*args):
        nonlocal traces
        traces += 1
        return functions.hidden_states(*args)

    scorer = fresh(scorers("tiny-llama3"), functions=functions._replace(hidden_states=counted))

    def run(seed):
        random = np.random.default_rng(seed)
        lengths = random.integers(50, 64, 11)
        return scorer.score_sequences(
            [TokenSequence(random.integers(5, 1200, n).astype(np.int32), 1) for n in lengths]
        )

    run(0)
    programs = list(scorer.engine.programs.compiled)
    assert {one.name for one in programs} == {("score", 4, 64)}
    assert traces == len(programs)
    run(1)
    run(2)
    assert scorer.engine.programs.compiled == programs
    assert traces == len(programs)


@pytest.mark.slow
def test_texts_of_all_lengths_need_few_programs(monkeypatch, scorers):
    """A second of a small model's work is worth no program, much of a large one's is."""
    draw = np.random.default_rng(9)
    asked = [
        TokenSequence(draw.integers(5, 1200, n).astype(np.int32), n - 3)
        for n in draw.integers(4, 600, 40)
    ]
    few = fresh(scorers("tiny-llama3"), batch_tokens=4096)
    got = few.score_sequences(asked)
    assert len(few.engine.programs.compiled) <= 2
    monkeypatch.setattr(planner, "PROGRAM_CPU", 0.0)
    assert_same(few.score_sequences(asked), got)
    assert len(few.engine.programs.compiled) > 4


def test_windows_by_shared_prefix_give_the_same_scores(monkeypatch, scorers):
    """In the order of the requests, with what fails at its place, and shared text once."""
    questions = [f"{name} lives in a town" for name in ("Ann", "Bob", "Cid", "Dan", "Eve")]
    requests = [
        Request(k, question + " by the sea which has a name, and it is", f" {answer}.")
        for k, (answer, question) in enumerate(itertools.product(("Oslo", "Bergen"), questions))
    ]
    requests[4:4] = [7, Request("bad", "half a pair", "\ud800")]
    whole, parted = (fresh(scorers("tiny-llama3")) for _ in range(2))
    want = whole.score(requests, top=2)
    assert whole.statistics.tokens_unique > 0
    monkeypatch.setattr(tokenize_requests, "FIRST", 100)
    _, sizes = tokenize_requests.order_by_prefix(
        [one for one in requests if isinstance(one, Request)]
    )
    assert len(sizes) > 2
    got = parted.score(requests, top=2)
    assert (
        [one.id for one in got] == [one.id for one in want] == [0, 1, 2, 3, 4, "bad", *range(4, 10)]
    )
    assert [one.error for one in got] == [one.error for one in want]
    assert sum(one.error is None for one in got) == 10
    assert_same(got, want)
    for one, other in zip(got, want, strict=True):
        if one.error is None:
            np.testing.assert_array_equal(one.top.id, other.top.id)
    # No window repeats more than the BOS.
    repeated = parted.statistics.tokens_unique - whole.statistics.tokens_unique
    assert 0 <= repeated < len(sizes)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("window", [1, 3, 7, 100])
def test_stream_equals_score(scorers, window):
    texts = ["The cat sat", "", "Ask: yes or no?", " on the mat", "x"]
    requests = [
        Request(f"{k}", "In Oslo," if k % 3 else "", texts[k % 5] + " again" * (k % 4))
        for k in range(20)
    ]
    scorer = fresh(scorers("tiny-gpt2"))
    want = scorer.score(requests)
    got = list(scorer.stream(iter(requests), window=window))
    assert [one.id for one in got] == [one.id for one in requests]
    for one, other in zip(got, want, strict=True):
        for name in COLUMNS:
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5, rtol=0)
        assert one.token_ids.tolist() == other.token_ids.tolist()


def test_the_tokenizer_may_be_used_while_a_stream_is_read(scorers):
    """A thread encodes the next texts meanwhile, and must not cut them as the caller's are."""
    scorer = scorers("tiny-qwen2")
    tokenizer = scorer.encoder.tokenizer
    texts = [f"a text of some more words, number {k}" for k in range(60)]
    n_tokens = [one.n_tokens for one in scorer.score(texts)]
    found = []
    for one in scorer.stream(texts, window=3):
        tokenizer(texts[0], truncation=True, max_length=3)
        found.append(one.n_tokens)
    tokenizer(texts[0])
    assert found == n_tokens


def test_stream_reads_its_source_window_by_window(scorers):
    read = 0

    def source():
        nonlocal read
        for k in range(1000):
            read += 1
            yield Request(k, "The cat", f" number {k}")

    stream = fresh(scorers("tiny-llama3")).stream(source(), window=5)
    for k in range(23):
        assert next(stream).id == k
        # One window is handed out, AHEAD + 1 are open and one waits to be encoded.
        assert read <= (k // 5 + 1 + AHEAD + 1 + 1) * 5
    stream.close()


@pytest.mark.parametrize("window_tokens", [1, 40, 10**6])
def test_a_window_ends_at_its_tokens(monkeypatch, scorers, window_tokens):
    """And with each `window`-th request, wherever the tokens have ended others."""
    monkeypatch.setattr(tokenize_requests, "CHUNK", 2)
    scorer = fresh(scorers("tiny-llama3"))
    requests = [Request(k, "In Oslo,", f" number {k}" * (1 + k % 5)) for k in range(23)]
    lengths = [scorer.encoder.encode([one])[0][0].n_input_tokens for one in requests]
    planned, plan = [], scorer.engine.planner.window

    def noted(sequences, wanted):
        planned.append(len(sequences))
        return plan(sequences, wanted)

    monkeypatch.setattr(scorer.engine.planner, "window", noted)
    got = list(scorer.stream(iter(requests), window=10, window_tokens=window_tokens))
    assert [one.id for one in got] == list(range(23))
    ends = np.cumsum(planned).tolist()
    assert {10, 20, 23} <= set(ends)
    for end, n in zip(ends, planned, strict=True):
        # Without the requests that were encoded last there was room left.
        assert sum(lengths[end - n : max(end - n, end - 2)]) < window_tokens
    assert (planned == [10, 10, 3]) == (window_tokens == 10**6)
    planned.clear()
    want = scorer.score(requests)
    assert planned == [23]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one.logprob, other.logprob, atol=1e-5, rtol=0)


def test_long_texts_are_encoded_few_at_a_time(monkeypatch, scorers):
    monkeypatch.setattr(tokenize_requests, "CHUNK_CHARACTERS", 100)
    scorer, seen = fresh(scorers("tiny-llama3")), []
    encode = scorer.encoder.encode

    def noted(requests, *args, **options):
        seen.append(len(requests))
        return encode(requests, *args, **options)

    monkeypatch.setattr(scorer.encoder, "encode", noted)
    scorer.score([Request(k, "a" * (120 * (k == 1)), " b" * 10) for k in range(9)])
    assert seen == [2, 5, 2]


def test_nothing_to_score(scorers):
    scorer = fresh(scorers("tiny-llama3"))
    assert scorer.score([]) == []
    assert scorer.score_sequences([]) == []
    assert list(scorer.stream(iter([]))) == []
    assert (scorer.statistics.tokens_given, scorer.engine.programs.compiled) == (0, [])


def test_bfloat16_is_close_to_float32(scorers):
    text = Request("a", "The capital of Norway is", " Oslo, and the cat sat on the mat.")
    [want] = scorers("tiny-llama3").score([text])
    half = Scorer.from_pretrained(str(CASES / "models/tiny-llama3"), dtype="bfloat16")
    [got] = half.score([text])
    assert half.model.dtype == "bfloat16"
    assert got.token_ids.tolist() == want.token_ids.tolist()
    for name in COLUMNS:
        difference = np.abs(getattr(got, name) - getattr(want, name))
        # 0.009 at most when this was written; 8 bits of mantissa are 0.004 of a logit near 1.
        assert 0 < difference.max() < 0.02, name


def test_a_budget_below_one_row_is_refused(scorers):
    with pytest.raises(ValueError, match="batch_tokens 63 is below 64"):
        fresh(scorers("tiny-llama3"), batch_tokens=63)


def test_what_was_asked_before_moves_no_bit(scorers):
    sequences = random_sequences(3)
    first = fresh(scorers("tiny-llama3"))
    want = first.score_sequences(sequences)
    busy = fresh(scorers("tiny-llama3"))
    for n in (20, 70, 130):
        busy.score_sequences([TokenSequence(np.arange(5, 5 + n, dtype=np.int32), 1)] * 3)
    for one, other in zip(busy.score_sequences(sequences), want, strict=True):
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_generate_names_the_keyword_that_was_meant(scorers):
    with pytest.raises(TypeError, match="'max_tokens'; is it max_new_tokens"):
        scorers("tiny-gpt2").generate("a", max_tokens=3)
