"""Users' text stays text: no markup, no second line, nothing that turns the page around."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.report import markdown
from jaxscore.report.document import Column, Field, Items
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


def items_of(names):
    """Markdown of items with these names, each with a body."""
    columns, fields = [Column("Question", "text", names)], [Field("Body", ["body"] * len(names))]
    return markdown._items(Items("questions", "worst first", len(names), columns, fields))


@pytest.mark.parametrize(
    ("n", "title", "shown"),
    [
        (1, "## Questions: worst first", 1),
        (markdown.SHOWN, "## Questions: worst first", markdown.SHOWN),
        (312, "## Questions (50 of 312 shown): worst first", 50),
    ],
)
def test_the_worst_items_and_how_many_are_shown(n, title, shown):
    blocks = items_of([f"Which river -> {k}?" for k in range(n)])
    assert blocks[0] == title
    assert blocks[1::2] == [f"### Which river -> {k}?" for k in range(shown)]
    assert blocks[2::2] == ["Body: body"] * shown


def test_headings_of_long_and_empty_items():
    def heading(name):
        return items_of([name])[1]

    assert heading("") == heading(" \t") == "### (no text)"
    assert heading("a|b\n# c") == r"### a\|b ↵ \# c"
    long = "x" * (markdown.LONGEST_HEADING + 7)
    assert heading(long) == f"### {'x' * markdown.LONGEST_HEADING} … (7 more characters)"
    assert items_of([]) == []
