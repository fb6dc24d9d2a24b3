"""The rows of `score --rows` from Python: values of PyTorch, words, regions, unusable input."""

import json
import math

import numpy as np
import pytest

from jaxscore import InputError, Scoring, evaluate
from jaxscore.systems.score.rows import REWRITTEN, UNSPACED
from tests.conftest import CASES

pytestmark = pytest.mark.numeric

CASE = json.loads((CASES / "rows.json").read_text("utf-8"))  # of PyTorch
ITEMS = CASE["items"]
# Places of the tokens of each region in the two models, whose tokens of these texts are alike.
REGIONS = {
    "spaces": [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]],
    "wide": [[*range(9)], None, None],
    "cut": [[0], [1], [2], []],
}


@pytest.fixture
def gpt2(scorers):
    return scorers("tiny-gpt2")


@pytest.fixture(params=list(CASE["models"]))
def model(request):
    return request.param


def rows_of(scorers, model, unit, **settings):
    report = evaluate("score", scorers(model), ITEMS, rows=unit, **settings)
    assert [item["n_rows"] for item in report.items] == [len(item["rows"]) for item in report.items]
    return {item["id"]: item["rows"] for item in report.items}


def tokens_of(model, name):
    return [dict(zip(CASE["columns"], row, strict=True)) for row in CASE["models"][model][name]]


def test_rows_of_tokens_agree_with_torch(scorers, model):
    for name, rows in rows_of(scorers, model, "token").items():
        for index, (row, token) in enumerate(zip(rows, tokens_of(model, name), strict=True)):
            assert row["index"] == index
            for key in ("token_id", "text", "start", "end"):
                assert row[key] == token[key]
            for key in ("logprob", "entropy"):
                assert (row[key] is None) == (token[key] is None)
                assert token[key] is None or row[key] == pytest.approx(token[key], abs=1e-4)
            if row["logprob"] is not None:
                assert row["surprisal"] == pytest.approx(-row["logprob"] / math.log(2), rel=1e-6)


def check_sum(row, tokens):
    """Compare a row of a word or region with the sum over its tokens."""
    assert row["n_tokens"] == len(tokens)
    logprobs = [token["logprob"] for token in tokens]
    if not tokens or None in logprobs:
        assert (row["logprob"], row["surprisal"]) == (None, None)
    else:
        assert row["logprob"] == pytest.approx(sum(logprobs), abs=2e-4)
        assert row["surprisal"] == pytest.approx(-sum(logprobs) / math.log(2), abs=3e-4)
    if not tokens or tokens[0]["entropy"] is None:
        assert row["entropy"] is None
    else:
        assert row["entropy"] == pytest.approx(tokens[0]["entropy"], abs=1e-4)


def test_rows_of_words_are_sums_over_their_tokens(scorers, model):
    for item, (name, rows) in zip(ITEMS, rows_of(scorers, model, "word").items(), strict=True):
        text = item["continuation"]
        assert [row["text"] for row in rows] == text.split()
        ends = [row["end"] for row in rows]
        for row, before in zip(rows, [0, *ends], strict=False):
            assert text[row["start"] : row["end"]] == row["text"]
            # A token of spaces alone counts to the next word.
            check_sum(row, [t for t in tokens_of(model, name) if before <= t["start"] < row["end"]])


def test_rows_of_regions_are_sums_over_their_tokens(scorers, model):
    for name, rows in rows_of(scorers, model, "region").items():
        tokens = tokens_of(model, name)
        for row, places in zip(rows, REGIONS[name], strict=True):
            if places is not None:
                check_sum(row, [tokens[place] for place in places])
    assert [row["crossing"] for row in rows] == [True, True, True, False]


def test_the_gap_between_two_regions_belongs_to_neither(scorers, model):
    rows = rows_of(scorers, model, "region")["wide"]
    token_rows = rows_of(scorers, model, "token")["wide"]
    gap = [row for row in token_rows if row["end"] == 9]
    assert gap
    assert sum(row["n_tokens"] for row in rows) == len(token_rows) - len(gap)


def test_measures_and_gains_are_columns(scorers):
    scorer = scorers("tiny-gpt2")
    options = {"measures": ["rank", "varentropy", "top_k", "min_k"], "top_k": 2, "against": "The"}
    arrays = evaluate("score", scorer, ITEMS, **options).items
    tokens = rows_of(lambda name: scorer, "tiny-gpt2", "token", **options)
    words = rows_of(lambda name: scorer, "tiny-gpt2", "word", **options)
    for record in arrays:
        rows = tokens[record["id"]]
        for name in ("greedy", "rank", "varentropy", "top_id", "top_logprob", "top_token", "gain"):
            assert [row[name] for row in rows] == record[name]
        assert "min_k" not in rows[0]
        summed = [word["gain"] for word in words[record["id"]]]
        if None not in summed and record["id"] != "spaces":  # its last token is a space
            assert sum(summed) == pytest.approx(record["sum_gain"], abs=1e-4)
        assert not {"rank", "varentropy", "greedy"} & words[record["id"]][0].keys()


def test_records_have_summaries_and_a_frame_has_the_rows(scorers):
    pytest.importorskip("pandas")
    item = {"id": "x", "continuation": "It was late.", "condition": "late"}
    bad = {"id": "y", "continuation": ""}
    report = evaluate("score", scorers("tiny-qwen2"), [item, bad], rows="word")
    [record, failed] = report.items
    assert not {"tokens", "logprob", "words"} & record.keys()
    assert record["n_tokens"] >= 3
    assert "error" in failed
    frame = report.to_frame()
    assert frame["condition"].tolist()[:3] == ["late"] * 3
    assert frame["text"].tolist()[:3] == ["It", "was", "late."]
    assert len(frame) == 4


def test_a_text_without_spaces_and_a_rewritten_one_are_counted(gpt2):
    text = "東京は日本の首都である。" * 3
    report = evaluate("score", gpt2, [text], rows="word")
    assert report.facts.warnings == {UNSPACED: 1}
    [row] = report.items[0]["rows"]
    assert row["text"] == text
    assert not evaluate("score", gpt2, [text], rows="token").facts.warnings


def test_a_tokenizer_that_rewrites_a_text(gpt2, monkeypatch):
    monkeypatch.setattr(
        "jaxscore.systems.score.rows.TokenBytes.raw", lambda self, id: b"x" * (id % 2 + 1)
    )
    item = {"continuation": " Oslo", "regions": [" Os", "lo"]}
    report = evaluate("score", gpt2, [item, item], rows="token")
    assert report.facts.warnings == {REWRITTEN: 2}
    rows = report.items[0]["rows"]
    assert {*"".join(row["text"] for row in rows)} == {"x"}
    [record, _] = evaluate("score", gpt2, [item, item], rows="region").items
    assert "rewrites the text" in record["error"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": "sentence"}, "setting rows is 'sentence'"),
        ({"regions_field": "parts"}, "which needs --rows region"),
    ],
)
def test_unusable_settings(gpt2, settings, message):
    with pytest.raises(InputError, match=message):
        evaluate("score", gpt2, ["a"], **settings)
    with pytest.raises(InputError, match="a table has a row per item"):
        Scoring("demo", "score", rows="token")


def test_an_item_without_regions_fails_alone_in_python(gpt2):
    items = [
        {"id": 1, "continuation": " a b", "parts": [" a", " b"]},
        {"id": 2, "continuation": " a b"},
        {"id": 3, "continuation": " a b", "parts": None},
        {"id": 4, "continuation": " a b", "parts": ["a"]},
    ]
    report = evaluate("score", gpt2, items, rows="region", regions_field="parts")
    good, *bad = report.items
    assert [row["text"] for row in good["rows"]] == [" a", " b"]
    for record, message in zip(bad, ("no field", "is null", "has ' ' there"), strict=True):
        assert message in record["error"]


def test_many_rows_come_in_parts(scorers):
    text = " a b" * 5000
    report = evaluate("score", scorers("tiny-gpt2"), [text], rows="token", max_length=64)
    [record] = report.items
    assert [row["index"] for row in record["rows"]] == [*range(record["n_tokens"])]
    assert "".join(row["text"] for row in record["rows"]) == text
    total = np.nansum([row["logprob"] or np.nan for row in record["rows"]])
    assert total == pytest.approx(record["sum_logprob"], rel=1e-6)


def test_a_tokenizer_that_composes_accents_keeps_the_characters_of_the_user(scorers):
    item = {"continuation": " e\u0301te\u0301 ici", "regions": [" e\u0301te\u0301", " ici"]}
    for unit, texts in (("word", ["e\u0301te\u0301", "ici"]), ("region", item["regions"])):
        report = evaluate("score", scorers("tiny-qwen2"), [item], rows=unit)
        [record] = report.items
        assert [row["text"] for row in record["rows"]] == texts
        assert sum(row["logprob"] for row in record["rows"][1:]) < 0
        assert not report.facts.warnings or REWRITTEN not in report.facts.warnings


@pytest.mark.parametrize("correction", ["any", "space"])
def test_rows_have_corrected_words_and_masses_of_classes(gpt2, correction):
    options = {"word_correction": correction, "classes": {"few": [1, 2, 300]}}
    arrays = evaluate("score", gpt2, ITEMS, unit="word", **options).items
    words = rows_of(lambda name: gpt2, "", "word", **options)
    tokens = rows_of(lambda name: gpt2, "", "token", classes=options["classes"])
    for record in arrays:
        rows = words[record["id"]]
        for row, corrected in zip(rows, record["word_logprob_corrected"], strict=True):
            assert row["corrected"] == (corrected and pytest.approx(corrected, rel=1e-6))
        assert "mass_few" not in rows[0]
        for row, mass in zip(tokens[record["id"]], record["mass_few"], strict=True):
            assert row["mass_few"] == (mass and pytest.approx(mass, rel=1e-5))


TALK = [
    {"role": "user", "content": "Where was Sana born?"},
    {"role": "assistant", "content": "In Merrow. 東"},
    {"role": "user", "content": "And Tel?"},
    {"role": "assistant", "content": "Tel, too."},
]


@pytest.mark.parametrize("roles", ["assistant", "all"])
def test_rows_of_conversations(gpt2, roles):
    items = [{"id": "t", "messages": TALK, "topic": "x"}]
    [arrays] = evaluate("score", gpt2, items, score_roles=roles).items
    indices = [1, 3] if roles == "assistant" else [0, 1, 2, 3]
    found = {}
    for unit in ("token", "word", "message"):
        [record] = evaluate("score", gpt2, items, score_roles=roles, rows=unit).items
        found[unit] = record["rows"]
        assert [row["index"] for row in record["rows"]] == [*range(record["n_rows"])]
        assert {row["role"] for row in record["rows"]} <= {"user", "assistant"}
        assert [*dict.fromkeys(row["message"] for row in record["rows"])] == indices
    assert [row["logprob"] for row in found["token"]] == arrays["logprob"]
    for row, summed in zip(found["message"], arrays["scored_messages"], strict=True):
        content = TALK[row["message"]]["content"]
        assert (row["text"], row["start"], row["end"]) == (content, 0, len(content))
        assert (row["message"], row["role"]) == (summed["index"], summed["role"])
        assert row["logprob"] == pytest.approx(summed["sum_logprob"], abs=1e-4)
        words = [word for word in found["word"] if word["message"] == row["message"]]
        assert [word["text"] for word in words] == content.split()
        assert [content[word["start"] : word["end"]] for word in words] == content.split()


def test_units_that_an_item_does_not_have(gpt2):
    items = [{"id": "t", "messages": TALK}, {"id": "x", "continuation": " a"}]
    for unit, failed in (("message", "x"), ("region", "t")):
        records = evaluate("score", gpt2, items, rows=unit).items
        [error] = [record["error"] for record in records if record["id"] == failed]
        assert "take --rows token, word or" in error
