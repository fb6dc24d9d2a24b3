"""A space between context and continuation: what `choose` and `score` count, try and report."""

import json

import pytest

from jaxscore import InputError, evaluate
from jaxscore.shell import audits
from jaxscore.shell.prompts import JointSettings, lacks_space
from jaxscore.systems.score import Settings

pytestmark = pytest.mark.numeric

EFFECT = audits._effect
TOWNS = ["Oslo", "Bergen", "Rome"]
GLUED = [
    {"id": town, "context": f"Where is {town}?\nAnswer:", "options": ["Norway", "Italy"], "gold": 0}
    for town in TOWNS
]
SPACED = [{**item, "options": [" Norway", " Italy"]} for item in GLUED]
TEXTS = [{"context": item["context"], "continuation": "Norway"} for item in GLUED]


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-gpt2")


def sums(report):
    return [item["sum_logprob"] for item in report.items]


@pytest.mark.parametrize(
    ("context", "continuation", "expected"),
    [
        ("Answer:", "Paris", True),
        ("Answer:", "(A)", True),
        ("정답:", "파리", True),
        ("Answer:", " Paris", False),
        ("Answer:\n", "Paris", False),
        ("Answer:\u00a0", "Paris", False),
        ("", "Paris", False),
        ("Answer:", "", False),
        ("法国的首都是", "巴黎", False),
        ("答案：", "Paris", False),  # noqa: RUF001
        ("フランスの首都は", "パリ", False),
        ("เมืองหลวงคือ", "ปารีส", False),
    ],
)
def test_texts_that_lack_a_space(context, continuation, expected):
    assert lacks_space(context, continuation) is expected


@pytest.mark.parametrize(
    ("separator", "texts", "expected"),
    [
        (" ", ("Answer:", "Paris"), ("Answer:", " Paris")),
        (" ", ("Answer:  ", "  Paris"), ("Answer:", " Paris")),
        ("\n", ("Answer: ", "Paris"), ("Answer:", "\nParis")),
        ("", ("Answer:\n", " Paris"), ("Answer:\n", "Paris")),
        (" ", ("", "Paris"), ("", "Paris")),
        (" ", ("Answer:", "  "), ("Answer:", "  ")),
        (None, ("Answer: ", "Paris"), ("Answer: ", "Paris")),
    ],
)
def test_the_separator_takes_the_place_of_spaces(separator, texts, expected):
    assert JointSettings(answer_separator=separator).joined(*texts) == expected


def test_choose_with_a_separator_scores_what_spaces_in_the_input_give(scorer):
    glued = evaluate("choose", scorer, GLUED, answer_separator=" ", fewshot=GLUED[:1])
    spaced = evaluate("choose", scorer, SPACED, fewshot=SPACED[:1])
    assert sums(glued) == sums(spaced)
    assert [item["pmi"] for item in glued.items] == [item["pmi"] for item in spaced.items]
    assert glued.items[0]["options"] == ["Norway", "Italy"]
    assert glued.settings["answer_separator"] == " "


def test_score_with_a_separator_scores_what_spaces_in_the_input_give(scorer):
    spaced = [{**text, "continuation": " Norway"} for text in TEXTS]
    report = evaluate("score", scorer, TEXTS, answer_separator=" ")
    assert sums(report) == sums(evaluate("score", scorer, spaced))
    alone = evaluate("score", scorer, [{"continuation": "Norway"}], answer_separator=" ")
    assert sums(alone) == sums(evaluate("score", scorer, [{"continuation": "Norway"}]))


def probable_with_space(monkeypatch, rise):
    """Let the sample find that a space raises each answer by `rise` nats, or lowers it."""

    def effect(ways, logprob):
        (names, own), (name, other) = ways.items()
        results, pairs = other
        for _, result in pairs:
            result.logprob[:] = rise
        for _, result in own[1]:
            result.logprob[:] = 0.0
        return EFFECT({names: own, name: (results, pairs)}, logprob)

    monkeypatch.setattr(audits, "_effect", effect)


@pytest.mark.parametrize(("system", "items", "title"), [
    ("choose", GLUED, "accuracy"), ("score", TEXTS, "mean log-probability per token"),
])  # fmt: skip
def test_a_space_that_most_requests_lack_is_a_finding(scorer, monkeypatch, system, items, title):
    n = 6 if system == "choose" else 3
    probable_with_space(monkeypatch, 1.0)
    report = evaluate(system, scorer, items)
    [finding] = report.findings
    assert finding.startswith(f"With a space before the answer the {title} is ")
    assert f"the space raises the probability of {n} of {n} answers, by " in finding
    assert finding.endswith(f" nats on average; {n} of {n} requests have no space there)")
    assert report.data()["joints"] == {"n_requests": n, "without_space": n}
    assert report.document.verdict.startswith("With a space before the answer")
    probable_with_space(monkeypatch, -1.0)
    assert evaluate(system, scorer, items).findings == []


@pytest.mark.parametrize("system", ["choose", "score"])
def test_texts_that_have_spaces_are_not_scored_again(scorer, monkeypatch, system):
    items = SPACED if system == "choose" else [{**t, "continuation": " Norway"} for t in TEXTS]
    probable_with_space(monkeypatch, 1.0)
    for boundary in ("joint", "separate"):
        report = evaluate(system, scorer, items, boundary=boundary)
        assert (report.findings, report.facts.blank, report.remarks) == ([], None, [])


def test_conversations_and_scripts_without_spaces_have_no_finding(scorers):
    scorer = scorers("tiny-llama3")
    report = evaluate("choose", scorer, GLUED, apply_chat_template=True)
    assert (report.findings, report.facts.blank) == ([], None)
    assert "joints" not in report.data()
    chinese = [{"context": "法国的首都是", "options": ["巴黎", "里昂"], "gold": 0}]
    report = evaluate("choose", scorer, chinese)
    assert (report.findings, report.facts.blank) == ([], None)
    assert report.data()["joints"] == {"n_requests": 2, "without_space": 0}


def test_requests_without_a_space_that_the_sample_misses_are_counted(scorer, monkeypatch):
    monkeypatch.setattr(audits, "SAMPLED", 1)
    report = evaluate("choose", scorer, [*SPACED, GLUED[0]])
    assert report.findings == []
    assert (
        "2 of 8 requests have no space between context and continuation; see --answer-separator"
    ) in report.remarks


def with_spaces(*options):
    return {"context": "Where is Oslo?\nAnswer:", "options": list(options), "gold": 0}


def test_options_that_differ_in_their_spaces_are_said_first(scorer):
    items = [
        with_spaces(" Norway", "Italy", "Spain"),
        with_spaces("Norway", " Italy", " Spain"),
        with_spaces(" Norway", " Italy", "  Spain"),
        with_spaces(" Norway", " Italy", " Spain"),
        {**with_spaces("Norway", " Italy"), "gold": None},
    ]
    report = evaluate("choose", scorer, items)
    assert report.findings[0] == (
        "The options of 4 of 5 scored items differ in their leading spaces (in 1 the right option "
        "alone has one, in 1 the right option alone has none), so the choice may follow the space "
        "and not the text; add --answer-separator ' '"
    )
    assert report.document.verdict.startswith("The options of 4 of 5 scored items differ")
    assert json.loads(json.dumps(report.data()["findings"])) == report.findings
    for settings in ({"answer_separator": " "}, {"options_as": "letters"}):
        assert evaluate("choose", scorer, items, **settings).findings == []


def test_separators_that_cannot_be_used():
    with pytest.raises(InputError, match="answer_separator and apply_chat_template: in a conv"):
        Settings(answer_separator=" ", apply_chat_template=True)
