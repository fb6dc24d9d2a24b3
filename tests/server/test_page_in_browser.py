"""The page at `GET /` in Chromium, by keyboard and pointer, against a server of this process."""

import time

import pytest

from tests.browser import browser

__all__ = ["browser"]
KEY = "a-secret-of-this-test"
MIXED = "Oslo 挪威 🙂👩‍👧 naïve <b onclick='no()'>&amp;</b>\u202e\n\tend"
TOKENS = "#strips .strip .t"
GROUND = "getComputedStyle(document.body).backgroundColor"
SHADES = "spans => spans.map((span) => Number(span.style.getPropertyValue('--a')))"


class Visit:
    """The page in a browser.

    Attributes:
        hosts: origins of all requests.
        complaints: what the browser wrote to its console, and errors of scripts.
    """

    def __init__(self, context, address):
        self.url = "http://{}:{}/".format(*address)
        self.page = context.new_page()
        self.page.set_default_timeout(60_000)
        self.hosts, self.complaints = set(), []
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, fragment=""):
        self.page.goto(self.url + fragment)
        self.page.wait_for_selector("html[data-ready]", state="attached")
        return self

    @property
    def n_answers(self):
        return int(self.page.evaluate("document.documentElement.dataset.answers || 0"))

    def wait(self, n_before):
        """Wait for one more answer; the page's policy allows no polling in the page."""
        deadline = time.monotonic() + 60
        while self.n_answers <= n_before:
            assert time.monotonic() < deadline
            self.page.wait_for_timeout(50)

    def type(self, box, text):
        before = self.n_answers
        self.page.fill(box, text)
        self.wait(before)

    def tokens(self, strip=0):
        return self.page.locator("#strips .strip").nth(strip).locator(".t").all_text_contents()

    def focused(self):
        return self.page.evaluate("document.activeElement.textContent")

    def overflows(self):
        return self.page.evaluate("document.documentElement.scrollWidth > innerWidth")


@pytest.fixture
def visit(browser, listening):
    """`visit(fragment, settings, **options)`: the page of a new server."""
    contexts = []

    def call(fragment="", settings=None, **options):
        _, address = listening(**(settings or {}))
        options = {"viewport": {"width": 1200, "height": 800}, "color_scheme": "light", **options}
        contexts.append(browser.new_context(**options))
        visited = Visit(contexts[-1], address).open(fragment)
        if not (settings or {}).get("key"):
            visited.page.wait_for_selector(TOKENS)
        return visited

    yield call
    for context in contexts:
        context.close()


def test_a_text_is_coloured_as_it_is_typed_and_read_by_keyboard_and_pointer(visit):
    visited = visit()
    page = visited.page
    assert page.text_content("#model") == "tiny"
    visited.type("#text", MIXED)
    tokens = visited.tokens()
    assert "".join(tokens).replace("↵\n", "\n").replace("⇥", "\t") == MIXED.replace(
        "\u202e", "⟨202E⟩"
    )
    assert any("挪" in token for token in tokens)
    assert any("🙂" in token for token in tokens)
    assert not any("\ufffd" in token for token in tokens)
    assert page.locator("#strips b[onclick], #strips img").count() == 0
    assert "Most surprising token" in page.text_content("#token")

    page.focus(TOKENS)
    for key, index in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", -1)):
        page.keyboard.press(key)
        assert visited.focused() == tokens[index]
    n_selected = page.locator(f"{TOKENS}[aria-selected=true]").count()
    assert n_selected == 1
    n_all = page.locator("#strips .facts b").first.text_content()
    assert f"of {n_all}" in page.text_content("#token")
    page.keyboard.press("Home")
    assert "Token 1 " in page.text_content("#token")

    page.hover(f"{TOKENS} >> nth=2")
    shown = page.text_content("#token")
    assert "Token 3 of" in shown
    for name in ("Surprisal", "Rank", "Entropy", "Probability", "Expected here"):
        assert name in shown
    assert page.locator("#token tr").count() in (8, 9)
    assert page.locator("#token tr.actual").count() == 1

    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "text"
    assert visited.hosts == {visited.url.split("/")[2]}
    assert visited.complaints == []
    assert not visited.overflows()


@pytest.mark.slow
def test_arrows_move_between_lines(visit):
    visited = visit()
    visited.type("#text", "Oslo is\nBergen is\nRome is")
    visited.page.focus(TOKENS)
    visited.page.keyboard.press("ArrowDown")
    index = "[...document.activeElement.parentNode.children].indexOf(document.activeElement)"
    second = visited.page.evaluate(index)
    visited.page.keyboard.press("ArrowDown")
    assert visited.page.evaluate(index) > second > 0
    visited.page.keyboard.press("ArrowUp")
    visited.page.keyboard.press("ArrowUp")
    assert visited.page.evaluate(index) == 0


@pytest.mark.slow
def test_colours_by_surprisal_rank_and_entropy(visit):
    visited = visit()
    page = visited.page
    visited.type("#text", "Oslo is in Norway")
    shades = {}
    for name in ("Surprisal", "Rank", "Entropy"):
        page.click(f"#shows >> text={name}")
        assert page.get_attribute(f"#shows >> text={name}", "aria-pressed") == "true"
        assert visited.focused() == name
        shades[name] = page.locator(TOKENS).evaluate_all(SHADES)
        bars = page.locator("#strips .bars span").evaluate_all(SHADES)
        assert bars == shades[name]
        assert all(0 <= shade <= 1 for shade in bars)
    assert shades["Surprisal"] != shades["Rank"] != shades["Entropy"]
    assert page.url.endswith("#show=entropy")
    assert "10,000" not in page.text_content("#legend")
    page.goto(visited.url + "#show=rank")
    page.wait_for_selector("#legend >> text=10,000")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 360])
def test_two_continuations(visit, width):
    visited = visit(viewport={"width": width, "height": 740})
    page = visited.page
    before = visited.n_answers
    page.focus("#modes button")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    visited.wait(before)
    assert page.url.endswith("#mode=two")
    visited.type("#context", "Oslo is in")
    visited.type("#a", " Norway")
    visited.type("#b", "Sweden")
    assert "".join(visited.tokens(0)) == " Norway"
    assert "".join(visited.tokens(1)) == "Sweden"
    assert "times as probable as" in page.text_content("#versus")
    assert page.locator(".hint:visible").count() == 1  # of B, which begins without a space
    page.hover("#strips .strip >> nth=1 >> .t >> nth=0")
    assert page.text_content("#token").startswith("B · Token 1 ")
    boxes = [page.locator(f"#{name}").bounding_box() for name in ("a", "b")]
    assert (boxes[0]["y"] == boxes[1]["y"]) == (width == 1200)
    assert not visited.overflows()
    visited.type("#b", "")
    assert page.is_hidden("#versus")
    before = visited.n_answers
    page.click("#modes >> text=One text")
    visited.wait(before)
    assert page.input_value("#text").startswith("The capital of Norway")
    assert visited.complaints == []


@pytest.mark.slow
def test_what_is_typed_stands_plain_until_its_answer(visit):
    visited = visit()
    page = visited.page
    visited.type("#text", "Oslo is")
    tokens = visited.tokens()
    page.route("**/jaxscore/score", lambda route: None)  # an answer that does not come
    page.focus("#text")
    page.keyboard.press("End")
    page.keyboard.type(" in")
    page.wait_for_selector(".pending")
    assert page.text_content(".pending") == " in"
    assert visited.tokens() == tokens
    page.keyboard.press("Home")
    page.keyboard.type("X")
    assert page.text_content(".pending") == "XOslo is in"
    assert page.locator(f"{TOKENS}:visible").count() == 0
    page.wait_for_selector("#status >> text=Scoring")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_in_light_and_dark(visit, scheme):
    visited = visit(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = visited.page
    ground = page.evaluate(GROUND)
    assert (ground == "rgb(247, 247, 245)") == (scheme == "light")
    visited.type("#text", MIXED + "a" * 60)
    assert not visited.overflows()
    page.click("#theme")
    assert page.evaluate(GROUND) != ground
    assert ("theme=dark" in page.url) == (scheme == "light")
    page.click(f"{TOKENS} >> nth=4")
    assert page.text_content("#token").startswith("Token ")
    for selector in ("#token", "#strips .card", "#text", "#legend"):
        box = page.locator(selector).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360


@pytest.mark.slow
def test_the_key_is_asked_for_and_not_kept(visit):
    visited = visit(settings={"key": KEY})
    page = visited.page
    page.wait_for_selector("#key:not([hidden])")
    assert page.evaluate("document.activeElement.id") == "key-box"
    assert page.is_hidden("#problem")
    assert page.text_content("#model") == "serve"
    for given in ("wrong", "häß 🙂"):
        before = visited.n_answers
        page.fill("#key-box", given)
        page.keyboard.press("Enter")
        visited.wait(before)
        assert page.is_visible("#problem")
    page.fill("#key-box", KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector(TOKENS)
    assert page.is_hidden("#key")
    assert page.is_hidden("#problem")
    assert page.text_content("#model") == "tiny"
    assert KEY not in page.url + page.content()
    assert (
        page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    )


@pytest.mark.slow
def test_errors_are_shown_as_text(visit):
    visited = visit(settings={"max_logprobs": 0})
    page = visited.page
    assert page.locator("#token table").count() == 0  # no alternatives are allowed here
    hostile = '{"error": {"message": "<img src=x onerror=no()> refused"}}'
    page.route(
        "**/jaxscore/score",
        lambda route: route.fulfill(status=400, content_type="application/json", body=hostile),
    )
    visited.type("#text", "a")
    assert page.text_content("#problem") == "<img src=x onerror=no()> refused"
    page.unroute("**/jaxscore/score")
    page.route("**/jaxscore/score", lambda route: route.abort())
    visited.type("#text", "b")
    assert "does not answer" in page.text_content("#problem")
    page.unroute("**/jaxscore/score")
    visited.type("#text", "word " * 3000)
    assert "positions" in page.text_content("#problem") or "tokens" in page.text_content("#problem")
    visited.type("#text", "Oslo")
    assert page.is_hidden("#problem")
    assert "".join(visited.tokens()) == "Oslo"
    visited.type("#text", "")
    assert page.is_hidden("#results")


@pytest.mark.slow
def test_no_other_script_runs(visit):
    visited = visit()
    page = visited.page
    title = page.title()
    page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = "document.title = 'no'";
        document.body.append(script);
        const image = document.createElement('img');
        image.src = 'https://a.no/b.png';
        image.setAttribute('onerror', "document.title = 'no'");
        document.body.append(image);
    }""")
    page.wait_for_timeout(200)
    assert page.title() == title
    assert len(visited.complaints) >= 2  # each refusal is reported
