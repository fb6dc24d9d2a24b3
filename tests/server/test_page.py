"""`GET /`: its headers, what it may load, and what it needs no key for."""

import base64
import hashlib
import re

import pytest

from jaxscore.server import page
from tests.server.conftest import Served, refused

KEY = "a-secret-of-this-test"
ELEMENTS = r"<(?:script|style)>(.*?)</(?:script|style)>"


@pytest.fixture(scope="module")
def html():
    return page.make_page().body.decode()


def policy_of(answer):
    pairs = answer.headers["content-security-policy"].split("; ")
    return dict(pair.split(" ", 1) for pair in pairs)


def test_the_policy_allows_the_page_alone(served):
    answer = served.ask("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    [style] = re.findall("<style>(.*?)</style>", answer.text, re.DOTALL)
    [script] = re.findall("<script>(.*?)</script>", answer.text, re.DOTALL)

    def source_of(text):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return f"'sha256-{digest}'"

    assert policy_of(answer) == {
        "default-src": "'none'",
        "script-src": source_of(script),
        "style-src": source_of(style),
        "connect-src": "'self'",
        "img-src": "data:",
        "form-action": "'none'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_page_loads_nothing_and_has_no_inline_handlers(html):
    outside = html.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z0-9.-]+\.[a-z]{2,}/|@import|url\(", outside)
    assert re.findall(r"""<[^>]+\s(?:src|href|srcset)=["'](?!data:)""", html) == []
    markup = re.sub(ELEMENTS, "", html, flags=re.DOTALL)
    assert not re.search(r"\s(?:on\w+|style)=", markup)
    assert "{{" not in markup


def test_texts_are_put_on_the_page_as_text(html):
    [script] = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    unsafe = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|Storage|cookie"
    assert not re.search(unsafe, script)


def test_the_page_is_small(html):
    assert len(html.encode()) <= 45_000


def test_the_page_needs_no_key_and_names_no_model(scorer, html):
    locked = Served(scorer, runs=False, key=KEY, names=("secret-model",))
    answer = locked.ask("/")
    assert answer.status_code == 200
    assert answer.text == html
    assert "secret-model" not in html
    assert KEY not in html
    for path in ("/v1/models", "/page.js", "/index.html"):
        refused(locked.ask(path), 401, code="invalid_api_key")


def test_other_hosts_and_methods_are_refused(served):
    refused(served.ask("/", headers={"Host": "example.org"}), 403, code="host_not_allowed")
    answer = served.ask("/", {"a": 1})
    refused(answer, 405)
    assert answer.headers["allow"] == "GET"


def test_the_log_and_metrics_count_the_page(served):
    served.log.clear()
    served.ask("/")
    assert served.log == [("GET", "/", 200)]
    assert 'jaxscore_requests_total{code="200",endpoint="/"}' in served.ask("/metrics").text
