"""Pages in Chromium: what is loaded, shown, sorted, filtered, kept in the address and saved."""

import csv
import dataclasses
import io
import re

import numpy as np
import pytest

from jaxscore.report.document import Card, Chart
from jaxscore.report.html.frame import render, visible
from jaxscore.report.html.histogram import counts, histogram
from jaxscore.report.html.strips import TokenMetric
from jaxscore.types.token_texts import byte_of
from tests.hostile.inputs import HALF_PAIR
from tests.report.html.made import changed, page_of, score_html, strips, text, with_column
from tests.report.html.test_frame import WORDS

COUNT = "document.querySelectorAll('*').length"


@pytest.fixture(scope="module")
def plain():
    """Twelve items of three kinds."""
    svg = histogram(counts([1.0, 2.0, 4.0]), title="t", units="w", label="l")
    page = page_of(
        [f"w{k}" for k in range(12)],
        cards=[Card("Mean", "0.5", "95% interval 0.1 to 0.9")],
        charts=[Chart("Chart", svg)],
    )
    page = with_column(page, 2, ["red", "green", "blue"] * 4)
    return render(changed(page, errors={11: "too long"}))


def names(page):
    """The names in the table, from above."""
    return page.locator("#table .open").all_text_contents()


def test_a_page_loads_itself_alone_and_opens_an_item(opened, plain):
    page, requests, complaints = opened(plain)
    assert len(requests) == 1
    assert names(page) == [f"w{k}" for k in range(12)]
    assert page.text_content("#count") == "12 things"
    assert not page.is_visible(".plain")
    page.click("#table .open >> nth=3")
    assert page.locator("#panel h3").text_content() == "w3"
    assert page.locator("#panel .strip .t").all_text_contents() == ["w3", " y"]
    assert page.locator("#panel .rows tbody tr.marked th").text_content() == "w3 ✓ right"
    assert page.url.endswith("#item=4")
    assert page.evaluate(COUNT) <= 5_000
    assert complaints == []


@pytest.mark.slow
def test_sorting(opened, plain):
    page, *_ = opened(plain)
    head = page.locator("#table thead th").nth(1)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert names(page) == [f"w{k}" for k in reversed(range(12))]
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "none"
    page.locator("#table thead button").nth(2).click()  # equal ones keep the report's order
    assert names(page) == [f"w{k}" for c in (2, 1, 0) for k in range(c, 12, 3)]


@pytest.mark.slow
def test_numbers_are_sorted_as_numbers_and_what_is_missing_comes_last(opened):
    shown = ["10.5", "-", "9.5", "inf", "1e-05 ≈", "-3"]
    data = with_column(page_of([f"w{k}" for k in range(6)]), 1, shown)
    page, *_ = opened(render(data), "sort=1u")
    assert names(page) == ["w5", "w4", "w2", "w0", "w3", "w1"]
    page.locator("#table thead button").nth(1).click()
    assert names(page) == [f"w{k}" for k in range(6)]


def test_numbers_are_shown_with_three_digits_and_sorted_by_all_of_theirs(opened):
    shown = ["12.6302", "12.6303", "0.012345", "-345.67", "1e-05 ≈", "7", "0.9999"]
    data = with_column(page_of([f"w{k}" for k in range(7)]), 1, shown)
    page, *_ = opened(render(data), "sort=1d")
    assert names(page) == ["w1", "w0", "w5", "w6", "w2", "w4", "w3"]
    cells = page.locator("#table tbody td.number:nth-child(2)").all_text_contents()
    assert cells == ["12.6", "12.6", "7", "1.00", "0.0123", "1e-05 ≈", "-346"]


@pytest.mark.slow
def test_filters_and_the_address(opened, plain):
    page, *_ = opened(plain)
    page.select_option("#is2", "green")
    assert names(page) == ["w1", "w4", "w7", "w10"]
    page.select_option("#range", "1")
    page.fill("#low", "4")
    page.fill("#high", "8")
    assert names(page) == ["w4", "w7"]
    assert page.text_content("#count") == "2 of 12"
    page.fill("#q", "W7")
    assert names(page) == ["w7"]
    fragment = page.url.partition("#")[2]
    assert "q=W7" in fragment
    other, *_ = opened(plain, fragment)
    assert names(other) == ["w7"]
    assert other.input_value("#q") == "W7"
    assert other.input_value("#is2") == "green"
    other.click("#reset")
    assert len(names(other)) == 12
    assert "#q" not in other.url
    other.select_option("#only", "failed")
    assert names(other) == ["w11"]
    other.select_option("#only", "noise")
    assert names(other) == ["w0", "w3", "w6", "w9"]
    other.evaluate("location.hash = 'q=w5&sort=1d&item=6'")
    other.wait_for_selector("#panel")
    assert names(other) == ["w5"]


@pytest.mark.slow
def test_the_text_of_tokens_is_searched(opened, plain):
    page, *_ = opened(plain, "q=before")
    assert len(names(page)) == 12
    page.fill("#q", "no such text")
    assert page.text_content("#count") == "0 of 12"
    assert "No item is like that." in page.text_content("#table tbody")


@pytest.mark.slow
def test_pages_of_the_table(opened):
    page, *_ = opened(render(page_of([f"w{k}" for k in range(120)])))
    assert len(names(page)) == 50
    page.click("#pages button >> nth=1")
    assert names(page)[0] == "w50"
    assert re.search("51.100 of 120", page.text_content("#pages"))
    other, *_ = opened(render(page_of([f"w{k}" for k in range(120)])), "item=111")
    assert names(other)[0] == "w100"  # the page of the item
    assert other.locator("#panel h3").text_content() == "w110"


@pytest.mark.slow
def test_the_keyboard(opened):
    long = text(["a", " b", "c\n", " d"], [-3.0, -0.1, -7.0, -0.1])
    data = changed(page_of(["one", "two"]), strips=strips([long, long]))
    page, *_ = opened(render(data))
    page.focus("#table .open")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "two"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "two"
    page.focus("#panel .strip .t")
    for key, shown, nats in (
        ("ArrowRight", " b", "-0.100"), ("End", " d", "-0.100"), ("ArrowLeft", "c↵\n", "-7.000"),
        ("Home", "a", "-3.000"),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.textContent") == shown
        reported = page.locator("#panel .readout").text_content()
        assert f"Log-probability{nats}" in reported
    assert page.locator("#panel .strip .t[tabindex='0']").count() == 1
    assert page.locator("#panel .strip .t[aria-selected='true']").count() == 1
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Escape")
    assert page.locator("#panel").count() == 0
    assert page.evaluate("document.activeElement.textContent") == "two"


@pytest.mark.slow
def test_the_colours_of_tokens(opened):
    numbers = text([" a", "b", "c"], [float("nan"), -3.0, -9.0], rank=[0, 100, 12])
    data = changed(page_of(["one"]), strips=strips([numbers]))
    page, *_ = opened(render(data), "item=1")
    shades = """[...document.querySelectorAll('#panel .strip .t')].map(
        (span) => Number(span.style.getPropertyValue('--a')))"""
    assert page.evaluate(shades) == [0, 0.5, 1]
    assert [one.split()[1:] for one in page.locator("#panel .strip .t").evaluate_all(
        "spans => spans.map((one) => one.className)"
    )] == [["b", "none"], ["x"], ["x"]]  # fmt: skip
    page.click("#panel >> text=Rank")
    assert page.evaluate(shades) == [0, 0.5, 0.27]
    assert page.url.endswith("show=rank")
    page.click("#panel >> text=Entropy")
    assert page.evaluate(shades) == pytest.approx([0, 1.5 / 4.605, 3 / 4.605], abs=1e-3)
    page.hover("#panel .strip .t >> nth=2")
    reported = page.locator("#panel .readout").text_content()
    assert re.search(r'Token"c".*no ≠.*Log-probability-9\.000Entropy3\.000.*Rank12', reported)


@pytest.mark.slow
def test_light_and_dark(opened, plain):
    ground = "getComputedStyle(document.body).backgroundColor"
    page, *_ = opened(plain, color_scheme="dark")
    dark = page.evaluate(ground)
    page.click("#theme")
    light = page.evaluate(ground)
    assert light != dark
    assert page.url.endswith("#theme=light")
    other, *_ = opened(plain)
    assert other.evaluate(ground) == light
    kept, *_ = opened(plain, "theme=dark")
    assert kept.evaluate(ground) == dark


@pytest.mark.slow
def test_paper(opened, plain):
    page, *_ = opened(plain, "theme=dark")
    page.emulate_media(media="print")
    assert page.is_visible(".plain article >> nth=11")
    assert not page.is_visible("#table")
    assert not page.is_visible("#theme")
    assert page.is_visible("figure")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.slow
def test_without_a_script(opened, plain):
    page, requests, _ = opened(plain, java_script_enabled=False)
    assert len(requests) == 1
    assert page.is_visible("noscript")
    assert page.locator("article:visible").count() == 12
    assert page.is_visible("figure svg")
    assert not page.is_visible("#items")


@pytest.mark.slow
def test_no_other_script_runs(opened, plain):
    spoiled = plain.replace(
        "<main>",
        "<main><script>document.title = 'no'</script><img src='https://a.no/b.png' "
        "onerror=\"document.title = 'no'\">",
    )
    page, requests, complaints = opened(spoiled)
    assert page.title() == "w0"
    assert len(requests) == 1
    assert len(complaints) >= 2  # each refusal is reported


@pytest.mark.slow
def test_hostile_texts(opened):
    page, requests, complaints = opened(render(page_of(WORDS)))
    page.evaluate("document.title = 'untouched'")
    assert len(requests) == 1
    shown = [visible(word)[:300] or "(no text)" for word in WORDS]
    assert [one[:100] for one in names(page)] == [one[:100] for one in shown]
    for k in range(len(WORDS)):
        page.evaluate(f"location.hash = 'item={k + 1}'")
        page.wait_for_selector(f"#panel[aria-label='Item {k + 1}']")
        field = page.locator("#panel .field >> nth=-1")
        if WORDS[k]:
            assert field.locator(".text").text_content() == visible(WORDS[k])
    assert page.locator("#items script, #items img, #items a").count() == 0
    assert page.title() == "untouched"
    assert complaints == []


@pytest.mark.slow
def test_a_file_of_what_is_shown(opened, plain, tmp_path):
    words = ["a,b", 'say "no"', "two\nlines", "=1+1", "é", HALF_PAIR, "last"]
    page, *_ = opened(render(page_of(words)), "sort=1d")
    page.fill("#high", "5.5")
    with page.expect_download() as caught:
        page.click("#csv")
    assert caught.value.suggested_filename == "report.csv"
    rows = list(
        csv.reader(io.StringIO(caught.value.path().read_text(encoding="utf-8"), newline=""))
    )
    assert rows[0] == ["Name", "Size", "Kind", "Right?", "Token", "error"]
    assert [row[0] for row in rows[1:]] == ["\ufffd", *words[4::-1]]
    assert [row[1] for row in rows[1:]] == [f"{k}.50" for k in (5, 4, 3, 2, 1, 0)]


@pytest.mark.slow
def test_a_narrow_window(opened, plain):
    page, *_ = opened(plain, "item=1", viewport={"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.slow
def test_ten_thousand_items(opened):
    page, requests, complaints = opened(score_html(10_000, 20), "item=1")
    assert (len(requests), complaints) == (1, [])
    assert page.evaluate(COUNT) <= 5_000
    page.locator("#table thead button").nth(4).click()
    assert page.text_content("#count") == "10,000 requests"
    page.fill("#q", "tok4e1")
    assert re.fullmatch(r"[\d,]+ of 10,000", page.text_content("#count"))
    assert page.evaluate(COUNT) <= 5_000


@pytest.mark.slow
def test_long_texts_are_gone_through(opened):
    long = text([f" t{k}" for k in range(2_000)], [-1.0] * 2_000)
    data = changed(page_of(["one"]), strips=strips([long]))
    page, *_ = opened(render(data), "item=1")
    assert page.locator("#panel .strip .t").count() == 900
    page.click("#panel .turner [aria-label='Later']")
    assert page.locator("#panel .strip .t").first.text_content() == " t900"
    assert re.search("901.1,800 of 2,000", page.locator("#panel .turner").text_content())
    page.click("#panel .turner [aria-label='Later']")
    page.click("#panel .turner [aria-label='Later']")
    assert page.locator("#panel .strip .t").count() == 200
    assert page.evaluate(COUNT) <= 5_000


@pytest.mark.slow
def test_numbers_below_0_have_another_colour(opened):
    numbers = np.array([0.002, -0.001, np.nan], np.float32)
    one = text([" a", "b", "c"], [-1.0, -1.0, -1.0], more={"d": numbers}, greedy=[True, None, None])
    shown = dataclasses.replace(
        strips([one]), metrics=[TokenMetric("d", "Difference", "nats", 0, True)]
    )
    page, _, complaints = opened(render(changed(page_of(["one"]), strips=shown)), "item=1")
    state = """[...document.querySelectorAll('#panel .strip .t')].map((span) =>
        [span.className, Number(span.style.getPropertyValue('--a'))])"""
    first, second, third = page.evaluate(state)
    assert [first[0].split(), second[0].split(), third[0]] == [["t", "b"], ["t", "less"], "t"]
    assert [first[1], second[1], third[1]] == [1, pytest.approx(0.5, abs=0.01), 0]
    assert "underlined: below 0" in page.locator("#panel .legend").text_content()
    page.hover("#panel .strip .t >> nth=1")
    reported = page.locator("#panel .readout").text_content()
    assert "Difference-0.00100" in reported
    assert "Most probable" not in reported  # it is not known
    page.click("#panel >> text=Log-probability")
    assert page.evaluate(state)[1][0] == "t"
    assert page.url.endswith("show=logprob")
    page.click("#panel >> text=Difference")
    assert "show" not in page.url  # it is the first one
    assert complaints == []


def byte_names(word):
    """Return the byte-level name of each byte of a text."""
    name = {byte: character for character, byte in byte_of().items()}
    return [name[byte] for byte in word.encode()]


def test_tokens_that_share_a_character_are_one_box(opened):
    names = ["Ġla", *byte_names("巴"), *byte_names("👩‍👧"), "!"]
    shared = text(names, [-1.0, -1.0, -2.0, -0.25, *[-0.1] * 11, float("nan")])
    data = changed(page_of(["one"]), strips=strips([shared]), text_column="Text")
    html = render(data)
    assert "�" not in html
    page, _, complaints = opened(html, "item=1")
    spans = page.locator("#panel .strip .t")
    assert spans.all_text_contents() == [" la", "巴", "👩‍👧", "!"]
    assert spans.evaluate_all("all => all.map((one) => one.style.getPropertyValue('--a'))") == [
        "0.167", "0.542", "0.183", "0.000",
    ]  # fmt: skip
    assert "x" in spans.nth(1).get_attribute("class").split()
    page.focus("#panel .strip .t")
    page.keyboard.press("ArrowRight")
    reported = page.locator("#panel .readout").text_content()
    assert '3 tokens"巴"' in reported
    assert "Most probableno ≠, no ≠, yes" in reported
    assert "Log-probability-3.250 (-1.000, -2.000, -0.250)" in reported
    page.fill("#q", "巴👩‍👧!")
    assert page.text_content("#count") == "1 thing"
    with page.expect_download() as caught:
        page.click("#csv")
    assert " la巴👩‍👧!" in caught.value.path().read_text(encoding="utf-8")
    assert complaints == []


def test_a_character_across_two_pages_of_tokens_is_drawn_once(opened):
    names = ["Ġa", *byte_names("ö" * 450), *byte_names("巴"), "Ġb"]  # a page has 900 tokens
    long = text(names, [-1.0] * len(names))
    page, *_ = opened(render(changed(page_of(["one"]), strips=strips([long]))), "item=1")
    spans = page.locator("#panel .strip .t")
    assert spans.all_text_contents() == [" a", *["ö"] * 450]
    page.click("#panel .turner [aria-label='Later']")
    assert spans.all_text_contents() == ["巴", " b"]
