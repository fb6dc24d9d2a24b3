"""Characters of tokens in their text, and tokens of regions, in a vocabulary of any bytes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore import InputError
from jaxscore.text.spans import regions_of, split_regions, token_spans

pytestmark = pytest.mark.lines


class Pieces(list):
    """Bytes of tokens; the ids are their places."""

    def raw(self, id):
        return self[id]


def spans_of(pieces, text):
    raw = Pieces(p.encode() if isinstance(p, str) else p for p in pieces)
    return token_spans(np.arange(len(raw)), raw, text)


def pairs(spans):
    return [*zip(spans.start.tolist(), spans.end.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("pieces", "text", "expected"),
    [
        ((" a", "b"), " ab", [(0, 2), (2, 3)]),
        ((" a", "b"), "ab", [(0, 1), (1, 2)]),  # a prefix space that the text does not have
        (("a", "b"), " ab", [(1, 2), (2, 3)]),  # a conversation without the space
        ((" ", "a"), "a", [(0, 0), (0, 1)]),
        (("na", b"\xc3", b"\xaf", "ve"), "na\u00efve", [(0, 2), (2, 3), (2, 3), (3, 5)]),
        ((b" \xe2\x80", b"\x94"), " \u2014", [(0, 2), (1, 2)]),
        (("a", b"", "b"), "ab", [(0, 1), (1, 1), (1, 2)]),
        (("a", "b", b""), "ab", [(0, 1), (1, 2), (2, 2)]),
        ((), "", []),
    ],
)
def test_tokens_have_the_characters_that_their_bytes_are_of(pieces, text, expected):
    spans = spans_of(pieces, text)
    assert (pairs(spans), spans.text, spans.is_rewritten) == (expected, text, False)


@pytest.mark.parametrize(
    ("pieces", "text", "expected"),
    [
        (("\u00e9", "t"), "e\u0301t", [(0, 2), (2, 3)]),
        ((b"\xc3", b"\xa9", "t"), "e\u0301t", [(0, 2), (0, 2), (2, 3)]),
        ((" ", "\u00e9t"), "e\u0301t", [(0, 0), (0, 3)]),
        (("\uac00", " x"), "\u1100\u1161 X", [(0, 2), (2, 4)]),
        (("fi", "n"), "\ufb01n", [(0, 1), (1, 2)]),
        (("f", "in"), "\ufb01n", [(0, 1), (0, 2)]),
    ],
)
def test_composed_and_folded_characters_are_paired(pieces, text, expected):
    spans = spans_of(pieces, text)
    assert (pairs(spans), spans.text, spans.is_rewritten) == (expected, text, False)


def test_a_rewritten_text_is_that_of_its_tokens():
    spans = spans_of(("<unk>", "t"), "\u6771t")
    assert (pairs(spans), spans.text, spans.is_rewritten) == ([(0, 5), (5, 6)], "<unk>t", True)


@given(st.text(alphabet="a \n\u00e9\u6771\U0001f642", max_size=12), st.data())
def test_tokens_cut_anywhere_cover_the_text(text, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    ends = [0, *cuts, len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(ends)]
    spans = spans_of(pieces, text)
    assert {at for start, end in pairs(spans) for at in range(start, end)} == {*range(len(text))}
    for piece, (start, end) in zip(pieces, pairs(spans), strict=True):
        assert piece in text[start:end].encode()
        assert bool(piece) == (end > start)
    half = len(text) // 2
    regions = split_regions(spans, [(0, half), (half, len(text))])
    tokens = [token for region in regions for token in region.tokens]
    assert len(tokens) == len({*tokens})
    assert {*tokens} >= {k for k, piece in enumerate(pieces) if piece}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([" a", "b c"], [(0, 2), (2, 5)]),
        (" a|b c", [(0, 2), (2, 5)]),
        ([[0, 2], [3, 5]], [(0, 2), (3, 5)]),
        ([" ab c", ""], [(0, 5), (5, 5)]),
    ],
)
def test_regions_are_texts_or_pairs(value, expected):
    assert regions_of(value, " ab c") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a", "b c"], "region 0 is 'a', and the text has ' ' there"),
        ([" a", "b"], "the regions end before ' c'"),
        (" a|b c|d", "region 2 is 'd', and the text has '' there"),
        ([[0, 3], [2, 5]], r"region 1, \[2, 5\], begins before region 0, \[0, 3\], ends"),
        ([[0, 9]], r"region 0 is \[0, 9\], expected 0 <= start <= end <= 5"),
        ([[0, True]], "expected a pair of whole numbers"),
        ([" a", [2, 5]], "region 0 is ' a', expected a pair"),
        ([], r"'\[\]', expected a list of texts"),
        ({"a": 1}, "expected a list of texts"),
    ],
)
def test_unusable_regions_are_named(value, message):
    with pytest.raises(InputError, match=message):
        regions_of(value, " ab c")
