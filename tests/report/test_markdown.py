"""Users' text stays text: no markup, no second line, nothing that turns the page around."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.report.markdown import interval, number, significant, table, text


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ("plain words, 12.5%", "plain words, 12.5%"),
        ("a|b", r"a\|b"),
        ("`code` *bold* _it_ ~no~ $x$ # no", r"\`code\` \*bold\* \_it\_ \~no\~ \$x\$ \# no"),
        ("[a](http://b)", r"\[a\](http\://b)"),
        ("see WWW.b.no or a.b@c.no", "see WWW\\.b.no or a.b@\u2060c.no"),
        ("- a", r"\- a"),
        ("12. a - b", r"12\. a - b"),
        ("<b>&amp;</b>", "&lt;b>&amp;amp;&lt;/b>"),
        ("a -> b", "a -> b"),
        ("> quoted", "&gt; quoted"),
        ("back\\slash|", r"back\\slash\|"),
        ("one\ntwo\r\nthree\rfour\u2028five", "one ↵ two ↵ three ↵ four ↵ five"),
        ("a\tb\x1b[31m\x00", r"a b⟨001B⟩\[31m⟨0000⟩"),
        ("\u202eabc\u2066", "⟨202E⟩abc⟨2066⟩"),
        ("שלום عربي é 👩\u200d🚀", "שלום عربي é 👩\u200d🚀"),
        ("\ud83d", "⟨D83D⟩"),
        ("", ""),
    ],
)
def test_text(given_, shown):
    assert text(given_) == shown


def test_what_is_long_is_cut_and_says_so():
    assert text("ab" * 100_000, longest=3) == "aba … (199997 more characters)"
    assert text("abc", longest=3) == "abc"


@given(st.text())
def test_no_text_breaks_a_row(value):
    row = table(["a", "b"], [[text(value), "end"]]).split("\n")[2:]
    assert len(row) == 1
    assert row[0].encode()  # no half of a surrogate pair
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row[0])) == 3
    assert "<" not in row[0]


def test_numbers_and_tables():
    assert (number(0.123456789), number(None), number(0.5, 1)) == ("0.12346", "-", "0.5")
    assert (interval(0.1, 0.25, 2), interval(None, None)) == ("0.10 to 0.25", "-")
    shown = [significant(value) for value in (0.000123456, -8.7e-5, 0.5, 2.70721, 0.0, None)]
    assert shown == ["0.0001235", "-8.7e-05", "0.5", "2.707", "0", "-"]
    assert table(["A", "B", "C"], [["x", "1", "2"]], left=2) == (
        "| A | B | C |\n| --- | --- | ---: |\n| x | 1 | 2 |"
    )
