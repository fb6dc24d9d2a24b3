"""The pages of further systems in Chromium, with hostile texts in their items."""

import pytest

from jaxscore import DivergenceScorer, compare, evaluate
from jaxscore.report.html.frame import visible
from tests.hostile.inputs import TEXTS
from tests.report.html.test_decision_pages import compared, sampled
from tests.report.html.test_in_browser import COUNT
from tests.systems.divergence.test_report import QWEN

WORDS = [word for word in TEXTS if word.strip() and len(word) < 500]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, scorers):
    """Each system's page, and a text that one of its items has."""
    scorer = scorers("tiny-qwen2")
    items = [{**one, "output": [*WORDS, *one["output"]]} for one in sampled(3)]
    confidences = [*[9.0] * len(WORDS), 1, 1, 1, 1]
    # Last numbers of hostile texts are chosen: 2 and 1. Pages list wrong choices alone.
    chosen = [{**one, "gold": "3", "confidence_list": confidences} for one in items]
    options = [{"context": word, "options": [" a", word], "gold": 0} for word in WORDS]
    texts = [{"id": word, "context": word, "continuation": word} for word in WORDS]
    with DivergenceScorer.from_pretrained(QWEN, QWEN, reference_dtype="bfloat16") as both:
        divergence = evaluate("divergence", both, texts, n_bootstrap=50)
    found = {
        "choose": evaluate("choose", scorer, options, n_bootstrap=50),
        "perplexity": evaluate("perplexity", scorer, [{"text": word} for word in WORDS]),
        "divergence": divergence,
        "compare": compared(tmp_path_factory.mktemp("runs"), 12, text=WORDS[0]),
        "compare --bytes": compare(
            *(evaluate("score", each, texts) for each in (scorer, scorers("tiny-llama3"))),
            bytes=True,
        ),
        "self-certainty": evaluate("self-certainty", scorer, items, gold="gold", n_bootstrap=50),
        "select": evaluate("select", None, chosen, gold="gold", best_n=64),
        "vote": evaluate("vote", None, chosen, gold="gold"),
    }
    return {name: report.html() for name, report in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("choose", "perplexity", "divergence", "compare", "compare --bytes", "self-certainty"),
        *("select", "vote"),
    ],
)
def test_a_page_loads_itself_alone_and_opens_every_item(opened, hostile, name):
    page, requests, complaints = opened(hostile[name])
    title = page.title()
    n = page.locator("#table .open").count()
    assert n > 0
    for k in range(min(n, 20)):
        page.evaluate(f"location.hash = 'item={k + 1}'")
        page.wait_for_selector(f"#panel[aria-label='Item {k + 1}']")
    assert page.evaluate(COUNT) <= 5_000
    assert page.locator("#items script, #items img, #items a").count() == 0
    assert page.title() == title
    assert len(requests) == 1
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    page.emulate_media(media="print")
    assert page.is_visible(".plain article >> nth=0")


@pytest.mark.slow
def test_hostile_options_are_shown_as_they_are(opened, hostile):
    page, *_ = opened(hostile["choose"])
    shown = set()
    for k in range(len(WORDS)):
        page.evaluate(f"location.hash = 'item={k + 1}'")
        page.wait_for_selector(f"#panel[aria-label='Item {k + 1}']")
        shown |= {*page.locator("#panel .rows tbody th").all_text_contents()}
    assert {visible(word) for word in WORDS} <= shown
