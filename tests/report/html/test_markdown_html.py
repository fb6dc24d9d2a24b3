"""Our Markdown as HTML says what the Markdown says, whatever texts are in it."""

import lxml.html
import pytest
from hypothesis import given

from jaxscore.report import sections
from jaxscore.report.html.markdown_html import blocks, inline, visible
from jaxscore.report.markdown import table, text
from tests.hostile.inputs import HOSTILE, any_texts


def words(html):
    return lxml.html.fragment_fromstring(str(html), create_parent="div")


@HOSTILE
@given(any_texts)
def test_any_text_reads_as_it_was(value):
    value = value[:300]
    found = words(inline(text(value)))
    assert len(found) == 0  # no element
    want = visible(" ".join(value.split())).replace(" ", "").replace("↵", "")
    got = (found.text or "").replace(" ", "").replace("↵", "")
    plain = lambda shown: "".join(c for c in shown if not c.isspace())  # noqa: E731
    assert plain(got) == plain(want) or "⟨" in got


@HOSTILE
@given(any_texts, any_texts)
def test_a_table_keeps_its_cells(one, other):
    found = words(blocks([table(["a", "b"], [[text(one), text(other)]])]))
    rows = found.xpath(".//tr")
    assert [[cell.tag for cell in row] for row in rows] == [["th", "th"], ["th", "td"]]
    assert rows[1][1].get("class") == "number"


@pytest.mark.parametrize(
    ("line", "html"),
    [
        ("a **b** `c` d", "a <b>b</b> <code>c</code> d"),
        (r"\*\*a\*\* \`b\`", "**a** `b`"),
        ("1 &lt; 2 &amp; 3 &gt; 2", "1 &lt; 2 &amp; 3 &gt; 2"),
        ("<b>", "&lt;b&gt;"),
        ("**a `<i>` \\* b**", "<b>a <code>&lt;i&gt;</code> * b</b>"),
        ("a@\u2060b.no", "a@b.no"),
    ],
)
def test_lines(line, html):
    assert inline(line) == html


def test_sections_are_read():
    record = {
        "noise": {
            "spread": {"token_logprob": {"largest": 0.00012345, "mean": 1e-5}},
            "layouts": ["alone", "one request a row"],
            "n_requests": 3,
            "n_tokens": 7,
            "n_greedy_differs": 1,
            "decisions": [
                {"what": "top", "n_within": 1, "n": 3, "statistic": "x_y", "margin": 0.5}
            ],
        }
    }
    found = words(blocks(sections.noise(record)))
    assert [one.tag for one in found] == ["h3", "p", "div", "p", "div"]
    assert found[2].xpath(".//td/text()") == ["0.00012", "1e-05"]
    assert found[4].xpath("string(.//tbody)") == "top1 of 3x_y0.5"
    listed = words(blocks(sections.remarks(["a | b", "- c"])[1:]))
    assert listed.xpath(".//li/text()") == ["a | b", "- c"]
    values = words(blocks(sections.settings({"a": None, "b": True, "c": "x|y"})[1:]))
    assert [row.xpath("string()") for row in values.xpath(".//tbody/tr")] == ["byes", "cx|y"]
