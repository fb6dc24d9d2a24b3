"""`score --measures` and `--unit word`: the fields, from PyTorch's logits in float64."""

import json
import math

import numpy as np
import pytest
import torch
from pyarrow import parquet
from transformers import AutoModelForCausalLM

from jaxscore import evaluate
from jaxscore.analysis.text_measures import fast_detect, min_k, min_k_pp
from jaxscore.errors import InputError
from jaxscore.report.markdown import significant
from tests.cli.conftest import QWEN
from tests.cli.test_score import flags, records
from tests.report.html.made import block, values

pytestmark = pytest.mark.numeric

EVERY = "rank,varentropy,renyi2,top_k,min_k,min_k_pp,fast_detect"
LINES = (
    {
        "id": "a",
        "context": "The cat",
        "continuation": " sat on the mat, and it\n\n was warm there.",
    },
    {"id": "b", "continuation": "One two three"},
    {"id": "c", "context": "x", "continuation": "s"},
)


@pytest.fixture(scope="module")
def torch_model():
    return AutoModelForCausalLM.from_pretrained(
        QWEN, dtype=torch.float32, attn_implementation="eager"
    )


@torch.no_grad()
def log_softmax(model, ids):
    return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1).numpy()


def test_every_measure_of_the_command(run, place, torch_model, scorers):
    folder = place(*LINES)
    words = ("--measures", EVERY, "--top-k", "3", "--min-k", "0.3")
    code, _, err = run(*flags(folder, *words))
    assert (code, err) == (0, "")
    encoder = scorers("tiny-qwen2").encoder
    for line, got in zip(LINES, records(folder), strict=True):
        context = line.get("context", "")
        ids = encoder.tokenizer(context + line["continuation"])["input_ids"]
        n = got["n_tokens"]
        assert got["token_ids"] == ids[len(ids) - n :]
        # Of the tokens from the second on; torch takes no empty text
        logp = log_softmax(torch_model, ids[:-1] or ids)[: len(ids) - 1]
        targets = np.array(ids[1:], int)
        known = min(n, len(targets))
        logp, targets = logp[len(targets) - known :], targets[len(targets) - known :]
        nulls = [None] * (n - known)
        p, own = np.exp(logp), logp[np.arange(known), targets]
        entropy = -(p * logp).sum(1)
        spread = (p * (logp + entropy[:, None]) ** 2).sum(1)
        assert got["rank"] == [*nulls, *(1 + (logp > own[:, None]).sum(1)).tolist()]
        for name, want in (("varentropy", spread), ("renyi2", -np.log((p**2).sum(1)))):
            assert got[name][: len(nulls)] == nulls
            np.testing.assert_allclose(np.array(got[name][len(nulls) :], float), want, atol=1e-4)
        best = np.argsort(-logp, axis=1, kind="stable")[:, :3]
        assert got["top_id"] == [*nulls, *best.tolist()]
        for row, id in zip(got["top_token"][len(nulls) :], best, strict=True):
            assert row == encoder.tokens(id)
        np.testing.assert_allclose(
            np.array(got["top_logprob"][len(nulls) :], float).reshape(-1, 3),
            np.take_along_axis(logp, best, 1),
            atol=1e-4,
        )
        for name, want in (
            ("min_k", min_k(own, 0.3)),
            ("min_k_pp", min_k_pp(own, entropy, np.sqrt(spread), 0.3)),
            ("fast_detect", fast_detect(own, entropy, np.sqrt(spread))),
        ):
            assert got[name] == (None if want is None else pytest.approx(want, abs=1e-4))


@pytest.mark.parametrize("more", [(), ("--summary-only",)])
def test_the_page_has_the_measures(run, place, more):
    folder = place(*LINES)
    assert run(*flags(folder, "--measures", EVERY, "--unit", "word", *more)).code == 0
    page = (folder / "out.jsonl.report.html").read_text(encoding="utf-8")
    header, arrays = block(page)
    heads = [one["title"] for one in header["columns"]]
    by_id = {one["id"]: one for one in records(folder)}
    for name in ("min_k", "min_k_pp", "fast_detect"):
        shown = values(header, arrays, heads.index(name))
        wanted = [significant(by_id[id][name]) for id in values(header, arrays, 0)]
        assert shown == wanted
    assert ("rank" in arrays) == (not more)
    if not more:
        ranks = [rank for id in values(header, arrays, 0) for rank in by_id[id]["rank"]]
        assert arrays["rank"].tolist() == [rank or 0 for rank in ranks]


def test_words_hold_the_surprisal_of_all_tokens_but_blanks(run, place):
    folder = place(LINES[0])
    found = {}
    for how in ("count", "skip"):
        words = ("--unit", "word", "--leading-blank", how)
        code, _, err = run(*(word for word in flags(folder, *words) if word != "--quiet"))
        assert code == 0
        [found[how]] = records(folder)
        assert "blanks alone" in err
    one = found["count"]
    assert one["words"] == LINES[0]["continuation"].split()
    bits = sum(one["word_surprisal"])
    assert bits == pytest.approx(-one["sum_logprob"] / math.log(2), abs=1e-6)
    blanks = [k for k, token in enumerate(one["tokens"]) if not token.strip("\u0120\u010a ")]
    assert blanks
    less = -sum(one["logprob"][k] for k in blanks) / math.log(2)
    assert bits - sum(found["skip"]["word_surprisal"]) == pytest.approx(less, abs=1e-6)


def test_a_word_without_a_probability_is_null_and_another_base_is_another_unit(run, place):
    folder = place(LINES[1])
    run(*flags(folder, "--unit", "word", "--log-base", "e"))
    [one] = records(folder)
    assert one["words"] == ["One", "two", "three"]
    assert one["word_surprisal"][0] is None
    assert one["n_tokens"] - one["n_scored"] == 1
    second = next(k for k, token in enumerate(one["tokens"]) if token.startswith("\u0120"))
    nats = -sum(one["logprob"][second:])
    assert sum(one["word_surprisal"][1:]) == pytest.approx(nats, abs=1e-6)


@pytest.mark.slow
def test_a_table_and_a_summary(run, place):
    folder = place(*LINES)
    output = folder / "out.parquet"
    words = [output if word == folder / "out.jsonl" else word for word in flags(folder)]
    assert run(*words, "--measures", "rank,top_k,fast_detect", "--unit", "word")[0] == 0
    table = parquet.read_table(output)
    [first, *_] = table.to_pylist()
    assert first["words"] == LINES[0]["continuation"].split()
    assert len(first["rank"]) == first["n_tokens"]
    assert isinstance(first["fast_detect"], float)
    assert len(json.loads(first["extra"])["top_id"]) == first["n_tokens"]
    assert (
        run(*flags(folder), "--measures", "rank,min_k", "--unit", "word", "--summary-only")[0] == 0
    )
    for one in records(folder):
        assert "min_k" in one
        assert not {"rank", "tokens"} & one.keys()
        assert len(one["words"]) == len(one["word_surprisal"])


@pytest.mark.slow
def test_a_failed_text_has_none_and_a_run_goes_on_with_its_journal(run, place):
    folder = place(*LINES, {"id": "d", "continuation": "a b " * 900})
    words = flags(folder, "--measures", EVERY)
    assert run(*words)[0] == 1
    first = records(folder)
    assert set(first[-1]) == {"id", "error"}
    code, out, _ = run(*words)
    assert code == 1
    assert "3 of 3 texts come from it" in out
    assert records(folder) == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--measures", "rank,ranks"), "setting measures is 'ranks', expected one of 'rank', "),
        (("--measures", "rank,rank"), "expected each name once"),
        (
            ("--measures", "top_k", "--top-k", "0"),
            "argument --top-k: 0, expected a whole",
        ),
        (("--measures", "top_k", "--top-k", "99999"), "top_k is 99999, but the model has a vocab"),
        (("--measures", "min_k", "--min-k", "0"), "min_k is 0.0, expected above 0 and at most 1"),
        (("--measures", "min_k", "--min-k", "nan"), "--min-k: nan, expected a finite number"),
        (("--unit", "letter"), "'letter', expected one of"),
        (
            ("--measures", "rank", "--min-k", "0.3"),
            "min_k is 0.3, which only matters with --measures min_k",
        ),
        (
            ("--measures", "rank", "--top-k", "3"),
            "top_k is 3, which only matters with --measures top_k",
        ),
        (
            ("--log-base", "e"),
            "log_base is 'e', which only matters with --unit word",
        ),
        (
            ("--leading-blank", "skip"),
            "leading_blank is 'skip', which only matters with --unit",
        ),
    ],
)
def test_what_is_refused(run, place, words, message):
    folder = place(*LINES)
    code, _, err = run(*flags(folder, *words))
    assert code == 2
    assert message in err
    assert not (folder / "out.jsonl").exists()


def test_a_field_of_the_input_that_would_be_hidden(run, place):
    folder = place({"continuation": "x", "rank": 3})
    assert run(*flags(folder))[0] == 0
    assert records(folder)[0]["rank"] == 3
    code, _, err = run(*flags(folder, "--measures", "rank"))
    assert code == 2
    assert 'in.jsonl:1: field "rank" is one of the results' in err


@pytest.mark.slow
def test_in_python(scorers):
    scorer = scorers("tiny-qwen2")
    [one] = scorer.score([("The cat", " sat")], measures=["varentropy", "rank"], top=2)
    assert [*one.measures] == ["rank", "varentropy"]
    assert one.top.id.shape == one.top.logprob.shape == (one.n_tokens, 2)
    assert one.to_dict()["rank"] == one.measures["rank"].tolist()
    assert {"top_id", "top_logprob", "top_token"} <= one.to_dict().keys()
    assert "rank" in one.to_frame()
    [same] = scorer.score([("The cat", " sat")], measures=["varentropy", "rank"], top=2)
    assert one == same
    [passing] = scorer.score([("The cat", " sat")], measures=iter(["varentropy", "rank"]), top=2)
    assert one == passing
    [plain] = scorer.score([("The cat", " sat")])
    assert plain != one
    assert not plain.measures.keys() | {"top_id"} & plain.to_dict().keys()
    report = evaluate("score", scorer, [("The cat", " sat")], measures=("rank", "fast_detect"))
    assert [int(rank) for rank in one.measures["rank"]] == report.items[0]["rank"]
    [first] = evaluate("score", scorer, ["The cat"], measures=["top_k"], top_k=2).items
    assert first["top_id"][0] is None
    assert first["top_logprob"][0] == [None, None]  # no NaN, which JSON does not have
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    for measures in ("rank", ["rank", 3], None):
        with pytest.raises(InputError, match="setting measures is"):
            evaluate("score", scorer, ["x"], measures=measures)
