"""Bits of bytes: tokens of two tokenizers on one text, classes of characters, and spans."""

import json
import math

import numpy as np
import pytest

import jaxscore
from jaxscore import InputError, evaluate
from jaxscore.systems.compare.by_bytes import N_SPANS, SPAN, ByteScores, Spans, byte_scores
from jaxscore.text.character_classes import SCRIPTS, class_of
from tests.conftest import CASES

CASE = json.loads((CASES / "bytes.json").read_text("utf-8"))  # of PyTorch
NAMES = {"blank": "white space"}  # of the cases -> ours


def record(tokens, bits):
    """A record of `score`; bits are one number per token, None without a probability."""
    return {"tokens": tokens, "logprob": [None if b is None else -b * math.log(2) for b in bits]}


def bits_of(tokens, bits, other, text=None):
    """The bits of each byte under the first tokens; the other ones spell the same text."""
    return byte_scores(record(tokens, bits), record(other, [1.0] * len(other)), text).a.tolist()


@pytest.fixture(scope="module")
def reports(scorers):
    items = [
        {"id": item["id"], "continuation": item["text"], "topic": item["topic"]}
        for item in CASE["items"]
    ]
    return [evaluate("score", scorers(CASE[side]), items) for side in "ab"]


@pytest.mark.numeric
def test_every_number_agrees_with_torch(reports):
    compared = jaxscore.compare(*reports, bytes=True, by=["topic"])
    for pair in compared.pairs:
        expected = CASE["texts"][pair["name"]]
        assert {name: pair[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    for name, total in (
        ("bits_per_byte", CASE["total"]["all_bytes"]),
        ("bits_per_byte_both", CASE["total"]["bytes_scored_by_both"]),
    ):
        result = compared.summary[name]
        assert result.mean_a == pytest.approx(total["bits_per_byte_a"], abs=1e-4)
        assert result.mean_b == pytest.approx(total["bits_per_byte_b"], abs=1e-4)
        assert result.difference.mean == pytest.approx(total["difference_b_minus_a"], abs=1e-4)
        assert result.difference.low < result.difference.mean < result.difference.high
    groups = [*compared.details["by_class"], *compared.details["by"]["topic"]]
    rows = {next(iter(row.values())): row for row in groups}
    expected_rows = CASE["by_class"] | CASE["by_topic"]
    assert {*rows} == {NAMES.get(name, name) for name in expected_rows}
    for name, expected in expected_rows.items():
        row = rows[NAMES.get(name, name)]
        assert row["n_bytes"] == expected["n_bytes"]
        assert row["mean_a"] == pytest.approx(expected["bits_per_byte_a"], abs=1e-4)
        assert row["mean_b"] == pytest.approx(expected["bits_per_byte_b"], abs=1e-4)
        difference = expected["difference_b_minus_a"]
        assert row["difference"].mean == pytest.approx(difference, abs=1e-4)


@pytest.mark.numeric
def test_the_bits_of_each_byte_agree_with_torch(reports):
    a, b = (next(each for each in run.items if each["id"] == "t2") for run in reports)
    scores = byte_scores(a, b, None)
    for ours, expected in ((scores.a, "a"), (scores.b, "b")):
        np.testing.assert_allclose(
            ours, np.array(CASE["byte_bits_of_t2"][expected], float), atol=1e-4
        )


def test_a_run_compared_with_itself_has_no_difference_and_no_span(reports):
    compared = jaxscore.compare(reports[0], reports[0], bytes=True)
    assert compared.summary["bits_per_byte"].difference.mean == 0
    assert compared.listed["spans"] == []
    assert "no difference shown, the means are equal" in compared.headline


@pytest.mark.parametrize(
    ("names", "bits", "expected"),
    [
        (["ab", "Ġc"], [4.0, 6.0], [2, 2, 3, 3]),
        (["▁ab", "▁c"], [4.0, 6.0], [2, 2, 3, 3]),  # the first space is the tokenizer's
        (["▁", "ab", "▁c"], [1.0, 3.0, 6.0], [2, 2, 3, 3]),
        (["▁", "ab", "▁c"], [None, 4.0, 6.0], [2, 2, 3, 3]),
        (["ab", " c"], [4.0, 6.0], [2, 2, 3, 3]),  # of an endpoint
    ],
)
def test_a_token_spreads_its_bits_over_its_bytes(names, bits, expected):
    for text in (None, "ab c"):
        assert bits_of(names, bits, ["a", "b", "Ġ", "c"], text) == pytest.approx(expected)


def test_tokens_that_are_parts_of_a_character():
    """東 is three bytes: three tokens of a byte-level vocabulary, and byte tokens of the other."""
    byte_level, fallback = ["æ", "Ŀ±"], ["▁", "<0xE6>", "<0x9D>", "<0xB1>"]
    assert bits_of(byte_level, [1.0, 4.0], fallback, "東") == pytest.approx([1, 2, 2])
    assert bits_of(fallback, [0.5, 0.5, 2.0, 3.0], byte_level, "東") == pytest.approx([1, 2, 3])


def test_a_first_token_without_a_probability():
    scores = byte_scores(record(["ab", "c"], [None, 1.0]), record(["a", "bc"], [1.0, 2.0]), "abc")
    assert np.isnan(scores.a).tolist() == [True, True, False]
    assert scores.b.tolist() == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("names", [["ab", "d"], ["x", "ab", "c"], ["<unk>"], ["c"]])
def test_tokens_of_another_text_are_refused(names):
    with pytest.raises(InputError, match="do not spell the same text"):
        bits_of(names, [1.0] * len(names), ["ab", "c"], "abc")


def test_a_token_of_probability_zero_is_refused():
    with pytest.raises(InputError, match="probability 0"):
        bits_of(["a"], [math.inf], ["a"])


@pytest.mark.parametrize(
    ("characters", "expected"),
    [
        (" \n\u00a0\u3000", "white space"), ("7٣", "digit"), (".,—。「_", "punctuation"),
        ("+½🙂€", "other"), ("aéª\uff21", "letter Latin"), ("東々", "letter Han"),
        ("あ", "letter Hiragana"), ("한", "letter Hangul"), ("Ж", "letter Cyrillic"),
        ("\u0301", "letter Inherited"), ("ー", "letter Common"), ("ߐ", "letter Nko"),
    ],
)  # fmt: skip
def test_classes_of_characters(characters, expected):
    assert {class_of(each) for each in characters} == {expected}


def test_every_script_is_one_of_the_regex_module():
    import regex

    for script in SCRIPTS:
        assert regex.compile(rf"\p{{Script={script}}}")
    assert len({*SCRIPTS}) == len(SCRIPTS)


def spans_of(*texts):
    spans = Spans()
    for name, text, difference in texts:
        zeros = np.zeros(len(text))
        spans.add(name, ByteScores(text, zeros, zeros + difference))
    return spans.largest_first()


def test_the_spans_that_differ_most_do_not_overlap():
    difference = np.zeros(200)
    difference[40:80] = -3.0
    spans = spans_of(("one", b"x" * 200, difference), ("two", b"y" * 40, 2.0))
    assert [span["name"] for span in spans] == ["one", "two", "one"]
    assert [span["difference"] for span in spans] == pytest.approx([-3, 2, -3 * 8 / SPAN])
    first, _, last = spans
    assert abs(first["start"] - last["start"]) >= SPAN
    assert len(spans_of(*(("t", b"z" * 64, k + 1.0) for k in range(N_SPANS)))) == N_SPANS


def test_spans_have_whole_characters_and_bytes_that_both_scored():
    text = ("京" * 20).encode()
    difference = np.ones(60)
    difference[:3] = np.nan
    [span] = spans_of(("zh", text, difference))
    assert span["start"] == 3
    assert span["text"] == "京" * 11
    assert span["before"] == "京"
    assert span["parts"] == [{"text": "京" * 11, "a": 0.0, "b": 1.0, "difference": 1.0}]
    assert spans_of(("short", text[: SPAN - 1], 1.0)) == []
