"""A page is one file that loads nothing, whatever texts it holds."""

import base64
import dataclasses
import hashlib
import re

import numpy as np
import pytest

from jaxscore.io.printable import UNPRINTABLE
from jaxscore.report.document import Card, Column, Row, Rows, Section
from jaxscore.report.html import frame
from jaxscore.report.html.frame import render
from jaxscore.report.markdown import text as markdown_text
from tests.hostile.inputs import HALF_PAIR, TEXTS
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
    assert len(frame._file("style.css").encode()) <= 10_000
    assert len(frame._file("script.js").encode()) <= 25_000


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
