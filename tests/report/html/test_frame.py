"""A page is one file that loads nothing, whatever texts it holds."""

import base64
import dataclasses
import hashlib
import re

import lxml.html
import numpy as np
import pytest
from hypothesis import given

from jaxscore.errors import UNPRINTABLE
from jaxscore.report import sections
from jaxscore.report.document import Card, Column, Row, Rows, Section
from jaxscore.report.html import frame
from jaxscore.report.html.frame import blocks, inline, render, visible
from jaxscore.report.markdown import table, text
from jaxscore.report.markdown import text as markdown_text
from tests.hostile.inputs import HALF_PAIR, HOSTILE, TEXTS, any_texts
from tests.report.html.made import block, page_of, score_html, tree, values

SEPARATORS = ("\u2028", "</script>", "<!--", "]]>", "\u202eevil", "\ud83d", "é😀\u0301")
WORDS = [*TEXTS, *SEPARATORS, HALF_PAIR, "x" * 20_000]
URLS = re.compile(r"""\b(?:src|href|srcset|action|background)\s*=|@import|\burl\(|https?:""")


@pytest.fixture(scope="module")
def hostile():
    cards = [Card(word, word, word) for word in WORDS]
    sections = [Section(word[:50], [f"- {markdown_text(word) or 'none'}"]) for word in WORDS]
    return render(page_of(WORDS, cards=cards, sections=sections, about=["**a** `b`"]))


def test_it_loads_nothing():
    page = render(page_of(["plain", "words"]))
    assert not URLS.search(page)
    found = tree(page)
    assert [one for one in found.iter() if {"src", "href", "srcset"} & {*one.keys()}] == []
    assert found.xpath("//link | //img | //iframe | //object | //base | //form") == []


def test_only_its_own_script_may_run():
    found = tree(render(page_of(["a"])))
    [policy] = found.xpath('//meta[@http-equiv="Content-Security-Policy"]/@content')
    data, script = found.xpath("//script")
    assert data.get("type") == "application/octet-stream"
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    assert policy == (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; img-src data:; form-action 'none'; base-uri 'none'"
    )
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script.text)


def test_the_style_sheet_and_the_script_are_small():
    assert len(frame.read_file("style.css").encode()) <= 12_000
    assert len(frame.make_script(frame.read_file("script.js")).encode()) <= 28_000


def test_hostile_texts_are_text(hostile):
    page = tree(hostile)
    allowed = {
        *"html head meta title style body header main footer script noscript section div".split(),
        *"article details summary h1 h2 h3 p span small button i b code ul li".split(),
        *"table thead tbody tr th td".split(),
    }
    assert {one.tag for one in page.iter() if isinstance(one.tag, str)} == allowed
    assert [one for one in page.iter() if not isinstance(one.tag, str)] == []  # no comment
    assert not [name for one in page.iter() for name in one.attrib if name.startswith("on")]
    assert len(page.xpath("//script")) == 2
    assert not UNPRINTABLE.search(re.sub(r"[\n\t]", "", hostile))
    shown = page.xpath("string(//main)")
    assert "<script>alert(1)</script>" in shown
    assert "⟨202E⟩evil" in shown
    assert "⟨D83D⟩" in shown
    assert "⟨2028⟩" in shown


def test_hostile_texts_come_back_as_they_were(hostile):
    header, arrays = block(hostile)
    for k in (0, 2, 4):
        assert values(header, arrays, k) == WORDS
    assert header["fields"][0]["values"] == WORDS
    assert [rows[0][0][0] for rows in header["tables"][0]["items"]] == WORDS
    titles = header["strips"]["titles"]
    cut = [word if len(word) <= 300 else titles[arrays["title"][k]] for k, word in enumerate(WORDS)]
    assert [titles[place] for place in arrays["title"]] == cut


def test_the_same_page_has_the_same_bytes():
    pages = [render(page_of(["a", "b", "é"])) for _ in range(2)]
    assert pages[0] == pages[1]
    assert score_html(50, 5) == score_html(50, 5)


@pytest.mark.parametrize("n", [0, 1])
def test_few_items(n):
    page = render(page_of([f"w{k}" for k in range(n)]))
    header, arrays = block(page)
    assert header["n"] == n
    assert values(header, arrays, 0) == [f"w{k}" for k in range(n)]
    assert values(header, arrays, 1) == [f"{k}.50" for k in range(n)]
    assert len(tree(page).xpath("//article")) == n


def test_a_run_without_items_has_no_table():
    page = tree(render(page_of([], items=None)))
    assert page.xpath("//*[@id='items'] | //*[@id='data']") == []
    assert len(page.xpath("//script")) == 1


def test_without_a_script_the_worst_are_shown():
    n = frame.SHOWN + 5
    page = tree(render(page_of([f"w{k}" for k in range(n)])))
    articles = page.xpath("//article")
    assert [one.findtext("h3") for one in articles] == [f"w{k}" for k in range(frame.SHOWN)]
    assert page.xpath("string(//h2[@id='plain-title'])") == "Things, worst first (20 of 25)"
    assert page.xpath("//section[@id='items']")[0].get("hidden") is not None
    [strip] = articles[3].xpath(".//p[@class='strip']")
    words = [(one.text, one.get("class"), one.get("style")) for one in strip.xpath("./span")]
    assert words == [("w3", "t x", "--a:0.5"), ("·y", "t", "--a:0.02")]
    assert "log-probability -3.000" in strip.xpath("./span/@title")


def test_it_is_accessible():
    page = tree(render(page_of(["a", "b"], sections=[Section("Noise", ["words"])])))
    assert page.get("lang") == "en"
    assert len(page.xpath("//h1")) == 1
    assert [len(page.xpath(f"//{name}")) for name in ("header", "main", "footer")] == [1, 1, 1]
    for one in page.xpath("//main//section"):
        label = one.get("aria-labelledby")
        assert one.get("aria-label") or page.get_element_by_id(label).text
    assert page.xpath("//th[not(@scope)]") == []
    assert page.xpath("//meta[@name='viewport']")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("n", "most"), [(1_000, 350_000), (10_000, 2_500_000)])
def test_many_items_fit(n, most):
    page = score_html(n, 20)
    assert len(page.encode()) <= most
    header, arrays = block(page)
    assert header["n"] == header["nAll"] == n
    assert len(arrays["logprob"]) == 20 * n
    assert len(tree(page).xpath("//*")) < 2_500
    means = np.array(values(header, arrays, 2), float)
    assert (np.diff(means) >= 0).all()  # worst first


def test_without_a_script_numbers_have_three_digits():
    page = page_of(["a"])
    items = dataclasses.replace(
        page.items,
        columns=[page.items.columns[0], Column("N", "number", ["12.6302"])],
        tables=[Rows("T", ["Text", "N"], "", [[Row(["1.2345", "0.98765"])]])],
    )
    found = tree(render(dataclasses.replace(page, items=items)))
    assert found.xpath("string(//p[@class='facts'])").split() == ["N", "12.6"]
    assert found.xpath("//table[@class='rows']/tbody//td/text()") == ["1.2345", "0.988"]


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
