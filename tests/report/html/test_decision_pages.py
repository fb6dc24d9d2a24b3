"""The pages of the systems that decide, compare or read whole documents.

Their numbers are those of the Markdown.
"""

import json
import random

import pytest

from jaxscore import evaluate
from jaxscore.evaluate import compare
from tests.hostile.inputs import TEXTS
from tests.report.html.made import block, rounded, tree
from tests.report.html.test_systems import LONG, ROW, columns, numbers


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-qwen2")


def cards(page):
    """Title -> value and note."""
    return {
        one.xpath("p[1]/text()")[0]: one.text_content()
        for one in tree(page).xpath("//*[@class='card']")
    }


def sampled(n, gold=True):
    """Items with four responses, some of which are right."""
    draw = random.Random(1)
    return [
        {
            "id": k,
            "model_input": f"Q{k}: how many?",
            "generator": "x",
            "output": [json.dumps({"answer": str(draw.randint(1, 3))}) for _ in range(4)],
            "confidence_list": [draw.random() for _ in range(4)],
            **({"gold": "2"} if gold else {}),
        }
        for k in range(n)
    ]


def test_choose(scorer):
    items = [
        {"id": f"q{k}", "context": f"Q{k}:", "options": [" yes", " no no", " so"],
         "gold": k % 3, "category": "ab"[k % 2]}
        for k in range(4)
    ]  # fmt: skip
    items += [{"context": LONG, "options": [" a", " b"]}, {"context": "x", "options": [" a", " b"]}]
    report = evaluate("choose", scorer, items, audit_noise=2, n_bootstrap=50)
    page, markdown = report.html(), report.markdown()
    for row in ROW.findall(markdown)[1:4]:
        title, accuracy, span, n = row.replace("\\_", "_").split(" | ")
        [card] = tree(page).xpath(f"//*[@class='card'][p[1]='{title}']")
        assert card.xpath("p[2]/text()") == [rounded(accuracy)]
        assert f"95% interval {rounded(span)}" in card.text_content()
        assert n == "4 items"
        assert n in card.text_content()
    table, header = columns(page)
    assert table["acc"][:5] == [*sorted(table["acc"][:4]), "-"]
    assert list(header["errors"]) == ["5"]
    rows = ROW.findall(markdown.partition("### ")[2])[1:4]
    for row, (cells, share, marked) in zip(rows, header["tables"][0]["items"][0], strict=True):
        shown_cells = row.split(" | ")
        assert numbers(" ".join(shown_cells[1:])) == numbers(" ".join(cells[1:]))
        assert share == pytest.approx(float(cells[-1]), abs=1e-4)
        assert ("(gold)" in shown_cells[0]) == marked
    assert [one.get("gold", "-") for one in report.items][:4] == [0, 1, 2, 0]
    without = evaluate("choose", scorer, items[5:], n_bootstrap=50).html()
    assert tree(without).xpath("//figure | //*[@class='card']") == []  # nothing is right or wrong


def test_perplexity(scorer):
    texts = [{"id": f"d{k}", "text": "The cat sat. " * (k + 1)} for k in range(3)] + [{"id": "no"}]
    report = evaluate("perplexity", scorer, texts, n_bootstrap=50)
    page, markdown = report.html(), report.markdown()
    rows = [row.split(" | ") for row in ROW.findall(markdown)[1:7]]
    assert [row[0] for row in rows[:2]] == ["Bits per byte", "Perplexity per byte"]
    for title, value, span, over in rows:
        assert rounded(value) in cards(page)[title]
        assert rounded(span) in cards(page)[title]
        assert over in cards(page)[title]
    table, header = columns(page)
    _, documents = markdown.split("## Documents")
    names, *values = [row.split(" | ") for row in ROW.findall(documents)[:5] if "---" not in row]
    assert [row[0] for row in values[:3]] == table["Id"][:3]
    for name in ("Bits per byte", "Bits per word", "Perplexity", "Tokens"):
        place = names.index(name)
        assert [row[place] for row in values[:3]] == [v.strip() for v in table[name][:3]]
    assert list(header["errors"]) == ["3"]


def runs(n, text=" so"):
    """Two runs of `choose`, as their files have them."""
    return [
        [
            {
                "id": f"q{k}",
                "context": f"Q{k}",
                "options": [" a", text],
                "category": "",
                "sum_logprob": [-1.0 - k % move, -1.5],
                "n_tokens": [1, 1],
                "n_bytes": [1, 1],
                "pmi": [0.0, 0.0],
                "probability": [0.6, 0.4],
                **{f"choice{rule}": int(k % move > 0) for rule in ("", "_norm", "_pmi")},
                "gold": 0,
                **{f"acc{rule}": k % move == 0 for rule in ("", "_norm", "_pmi")},
            }
            for k in range(n)
        ]
        for move in (2, 3)
    ]


def compared(tmp_path, n=30, **more):
    places = []
    for name, own in zip("ab", runs(n, **more), strict=True):
        places.append(tmp_path / f"{name}.jsonl")
        places[-1].write_text("".join(json.dumps(one) + "\n" for one in own), encoding="utf-8")
        about = {"command": "choose", "flags": {"command": "choose", "model": name}}
        (tmp_path / f"{name}.run.json").write_text(json.dumps(about))
    return compare(*places, n_bootstrap=50, n_resamples=99)


def test_compare(tmp_path):
    report = compared(tmp_path)
    page, markdown = report.html(), report.markdown()
    reported = cards(page)
    assert reported.pop("Pairs").startswith("Pairs30")
    results = report.details["results"]
    assert list(reported) == [f"{one['title']}: B - A" for one in results]
    rows = {row.split(" | ")[0]: row.split(" | ") for row in reversed(ROW.findall(markdown))}
    for one in results:
        row = rows[one["title"]]
        card = reported[f"{one['title']}: B - A"]
        assert rounded(row[3]) in card
        assert row[4] == "-" or f"95% interval {rounded(row[4])}" in card
        assert f"p {row[6]} (Holm)" in card
    table, header = columns(page)
    every = [
        (one["title"], flip["name"])
        for one in report.details["decisions"]
        for flip in report.listed["flips"][one["name"]]
    ]
    assert list(zip(table["Decision"], table["Item"], strict=True)) == every
    assert header["nAll"] == len(every) > 0
    assert "Difference of shares, B - A" in tree(page).xpath("//figcaption/b/text()")


def test_compare_of_numbers_alone(scorer):
    texts = [("The cat", f" sat {k}") for k in range(4)]
    one = evaluate("score", scorer, texts)
    report = compare(one, one, n_bootstrap=50)
    page = report.html()
    titles = tree(page).xpath("//figcaption/b/text()")
    assert len(titles) == 3  # equal values have no histogram of their differences
    assert all(title.endswith("A against B") for title in titles)
    assert block(page)[0]["what"] == "largest differences"
    assert block(page)[0]["n"] == 0


@pytest.mark.parametrize("system", ["select", "vote"])
def test_graded_choices(system):
    report = evaluate(system, None, [*sampled(9), *sampled(1, gold=False)], gold="gold")
    page, markdown = report.html(), report.markdown()
    assert tree(page).xpath("//p[@class='kicker']")[0].text_content().endswith(system)
    last = next(row.split(" | ") for row in ROW.findall(markdown) if row.startswith("4 | "))
    reported = cards(page)
    for value, (title, card) in zip(last[2:], reported.items(), strict=True):
        mean, ends = value.rstrip(")").split(" (")
        assert title.endswith(", N = 4")
        assert rounded(mean) in card
        assert f"95% interval {rounded(ends)}" in card
        assert "9 items" in card
    table, _ = columns(page)
    wrong = report.to_dict()["wrong"]
    assert table["Item"] == [one["name"] for one in wrong]
    assert table["Right"] == [str(one["n_right"]) for one in wrong]
    titles = tree(page).xpath("//figcaption/b/text()")
    assert titles == ["Share of right choices", "Share of right choices by power"][: len(titles)]
    assert len(titles) == (2 if system == "vote" else 1)


def test_choices_of_too_few_items_and_without_gold():
    for report in (
        evaluate("select", None, sampled(1), gold="gold"),
        evaluate("select", None, sampled(3)),
    ):
        page = report.html()
        assert cards(page) == {}
        assert tree(page).xpath("//figure") == []


def test_self_certainty_with_gold(scorer):
    items = [{k: v for k, v in one.items() if k != "confidence_list"} for one in sampled(4)]
    report = evaluate("self-certainty", scorer, items, gold="gold", n_bootstrap=50)
    page, markdown = report.html(), report.markdown()
    [row] = [row.split(" | ") for row in ROW.findall(markdown) if row.startswith("self-certainty")]
    reported = cards(page)
    for title, value in zip(("AUROC", "PRR", "AURC"), row[1:4], strict=True):
        mean, ends = value.rstrip(")").split(" (")
        assert rounded(mean) in reported[title]
        assert f"95% interval {rounded(ends)}" in reported[title]
    assert tree(page).xpath("//figcaption/b/text()")[-4:] == [
        "AUROC by confidence",
        "Risk at coverage",
        "Reliability of 1/perplexity",
        "The most confident of N outputs",
    ]
    assert "Right outputs and confidence" in tree(page).xpath("//summary/h2/text()")


@pytest.mark.parametrize("word", TEXTS)
def test_hostile_texts_stay_texts(word, tmp_path):
    given = [
        {**one, "output": [word, *one["output"]], "gold": [word or "x", "2"]} for one in sampled(3)
    ]
    given = [{**one, "confidence_list": [9.0, *one["confidence_list"]]} for one in given]
    pages = [
        evaluate("select", None, given, gold="gold").html(),
        compared(tmp_path, 4, text=word or "x").html(),
    ]
    for page in pages:
        page.encode("utf-8")
        assert len(tree(page).xpath("//script")) == 2
        assert not tree(page).xpath("//*[@onerror or @onload] | //img | //a")
