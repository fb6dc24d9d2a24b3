"""Which forms of an answer count, in which items, and what is said if no answer is readable."""

import typing

import pytest

from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.systems.selection import answers, usc_select
from jaxscore.systems.selection.answers import NO_READABLE_ANSWER, Rule, answer_rules
from jaxscore.systems.self_certainty import Settings, right_responses
from jaxscore.systems.self_certainty.confidences import read_inputs

BOX = "So the sum is $\\boxed{19}$."
JSON = '{"answer": "19"}'


def answer_of(rules, response):
    found = rules.read(response)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("fields", "responses", "published"),
    [
        ({}, [BOX], False),
        ({"generator": "smol", "dataset": "math"}, [BOX, "answer: 5"], False),
        ({"generator": "meta/Llama-3.1-8B"}, ["19"], True),
        ({"dataset": "crux"}, [BOX], True),
        ({"generator": "smol"}, [BOX, None, JSON], True),
        ({"generator": "smol"}, [BOX, '"answer": 19 and'], True),
        ({"generator": "smol"}, ["<think>so</think>" + JSON], False),
        ({"generator": "meta/Llama-3.1-8B"}, [f"so</think>{BOX}"], False),
        ({"dataset": "crux"}, ["so</think>1"], True),
    ],
)
def test_items_in_the_published_form_without_gold_keep_the_published_reading(
    fields, responses, published
):
    assert (answer_rules(fields, {}, responses).forms is None) is published
    if fields.get("dataset") != "crux":
        assert answer_rules(fields, {}, responses, gold="19").forms is not None
    assert answer_rules(fields, {}, responses, "published", "19").forms is None


def test_votes_after_answer_are_pooled_as_published():
    given = [
        {
            "output": ["answer: 7, because", "x answer: 8", "the answer: 7"],
            "confidence_list": [1.0, 3.0, 2.0],
            "generator": "smol",
        }
    ]
    for rule in ("auto", "published"):
        [one] = evaluate("vote", None, given, power=0.0, answer_rule=rule).items
        assert (one["output"], one["confidence"]) == (["answer: 7, because"], 2)


@pytest.mark.parametrize(
    ("response", "gold", "answer"),
    [
        ("answer: Lima, because", None, "Lima"),
        ("answer: New York, since", None, "New York"),
        ("answer: 7 apples", None, "7"),
        ("answer: 3, 5, 7", None, "3, 5, 7"),
        ("answer: Lima, because", "Lima", "Lima, because"),
        ("the answer: **B** is best", "B", "B"),
        ("answer: 12,345 in all", 12345, "12,345"),
    ],
)
def test_after_answer_the_clause_counts_unless_the_gold_needs_the_line(response, gold, answer):
    assert answer_of(answer_rules({}, {}, [response], gold=gold), response) == answer


def test_one_response_in_the_published_form_makes_no_other_wrong():
    boxed = "So it is \\boxed{12}."
    [given] = items([boxed, '{"answer": 12}', boxed], g="12")
    assert answer_of(answer_rules({}, {}, given["output"]), boxed) is None
    for right in (12, "12", ["12"]):
        assert answer_of(answer_rules({}, {}, given["output"], gold=right), boxed) == "12"
    for blank in (None, " "):
        assert answer_rules({}, {}, given["output"], gold=blank).forms is None
    known = [read_inputs("item 1", {"model_input": "q", **given}, Settings())]
    assert right_responses.grade_responses(known, "g").graded[0].right == [True] * 3
    # without gold the choice is the published one
    assert evaluate("select", None, [given]).items[0]["output"] == ['{"answer": 12}']
    assert evaluate("select", None, [given], gold="g").items[0]["output"] == [boxed]
    llama = [given | {"generator": "meta/Llama-3.1-8B", "output": ["Answer: 12", JSON, JSON]}]
    assert evaluate("select", None, llama, gold="g").items[0]["output"] == ["Answer: 12"]
    published = evaluate("select", None, llama, gold="g", answer_rule="published")
    assert published.items[0]["output"] == [JSON]


@pytest.mark.parametrize(
    ("gold", "type_"),
    [
        ("19", "number"), (19, "number"), ("1,000", "number"), ("$3.50", "number"),
        ("1/2", "number"), (["19", 20], "number"), ('["19", "20"]', "number"), ("x", "text"),
        ("[1, 2]", "text"), ("0,1", "text"), (None, None), ([True, False], None), ("B", "letter"),
        ("(B)", "letter"), (["A", "C"], "letter"), (["19", "x"], "text"), ("nan", "text"),
        ([], None), (1e22, "number"),
    ],
)  # fmt: skip
def test_a_gold_decides_how_answers_are_read(gold, type_):
    rules = answer_rules({}, {}, ["It is 19"], gold=gold)
    assert rules.gold == type_
    expected = {"number": "19", "text": "It is 19"}
    assert answer_of(rules, "It is 19") == expected.get(type_)


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("published", [None, "5", None]),
        ("json", [None, None, None]),
        ("answer", [None, "5", None]),
        ("boxed", ["19", None, None]),
        ("number", ["19", "5", "3"]),
        ("tag", [None, None, None]),
        ("sentence", [BOX, "answer: 5", "3"]),
        ("auto", ["19", "5", None]),
    ],
)
def test_an_answer_rule_names_one_form(rule, found):
    responses = [BOX, "answer: 5", "3"]
    rules = answer_rules({}, {}, responses, rule)
    assert [answer_of(rules, text) for text in responses] == found
    assert rule in typing.get_args(Rule)


def items(*outputs, **more):
    ranked = [float(len(outputs[0]) - k) for k in range(len(outputs[0]))]
    return [{"output": o, "confidence_list": ranked, "generator": "smol", **more} for o in outputs]


@pytest.mark.parametrize("system", ["vote", "select"])
def test_boxes_of_any_generator_are_graded(system):
    given = items([BOX, "\\boxed{18}", "It is 19"], ["I pass", BOX, "It is 18"], g=19)
    report = evaluate(system, None, given, gold="g")
    assert [one["right"] for one in report.items] == [True, True]
    assert [one["answer_form"] for one in report.items] == ["boxed", "boxed"]
    assert report.summary["accuracy"]["oracle"].mean == 1
    assert report.summary["answer_forms"] == {
        "tag": 0, "json": 0, "boxed": 3, "answer": 0, "number": 2, "sentence": 0, "none": 1,
    }  # fmt: skip
    strict = evaluate(system, None, given, gold="g", answer_rule="boxed")
    assert strict.summary["answer_forms"]["none"] == 3
    assert strict.settings["answer_rule"] == "boxed"


def test_without_a_readable_answer_there_is_no_share():
    given = items(["I pass", "no"], ["no", "no"], g="19")
    report = evaluate("vote", None, given, gold="g")
    assert [one["right"] for one in report.items] == [None, None]
    assert {one.mean for one in report.summary["accuracy"].values()} == {None}
    assert report.found.details["accuracy"] == []
    assert NO_READABLE_ANSWER in report.remarks
    assert "no share" in report.headline
    assert "0.0 %" not in report.headline
    assert "Shares are undefined: no response" in report.markdown()
    # one readable answer, or verdicts, and there are shares again
    some = evaluate("vote", None, [*given, *items([JSON, "no"], g="19")], gold="g")
    assert some.summary["accuracy"]["oracle"].mean == pytest.approx(1 / 3)
    verdicts = evaluate("vote", None, items(["no", "no"], ["no", "no"], g=[True, False]), gold="g")
    assert verdicts.summary["accuracy"]["oracle"].mean == 1


def test_self_certainty_reads_the_same_forms():
    def read(*outputs, **how):
        known = [
            read_inputs("item", {"model_input": "q", "output": output, "g": "19"}, Settings())
            for output in outputs
        ]
        return right_responses.grade_responses(known, "g", **how)

    found = read([BOX, "It is 18"], ["no", "no"])
    assert [found.fields(place) for place in range(2)] == [
        {"right": [True, False], "answer_forms": ["boxed", "number"]},
        {"right": [False, False], "answer_forms": [None, None]},
    ]
    assert not found.is_unreadable
    nothing = read(["no", None], ["no", "no"])
    assert [nothing.fields(place)["right"] for place in range(2)] == [None, None]
    assert nothing.is_unreadable
    assert read([BOX], rule="json").is_unreadable


def test_an_answer_rule_without_effect_is_refused():
    given = [{"output": ["Response 0"], "responses": [BOX]}]
    with pytest.raises(InputError, match="no answer is read; take dataset_type close"):
        evaluate("usc-select", None, given, answer_rule="boxed")
    with pytest.raises(InputError, match="expected"):
        evaluate("vote", None, items([BOX, BOX]), answer_rule="boxes")


@pytest.mark.parametrize("dataset_type", ["open", "close"])
def test_usc_select_reads_each_answer_once(monkeypatch, dataset_type):
    read = []
    monkeypatch.setattr(
        answers, "read_first", lambda text, forms, gold: read.append(text) or ("19", "boxed")
    )
    given = [{"output": ["Response 1"], "responses": [BOX, "It is 19"], "g": 19}]
    chosen = usc_select.Settings(gold="g", dataset_type=dataset_type)
    [record] = usc_select.SYSTEM.score(None, given, chosen)
    assert read == [BOX, "It is 19"]
    assert (record["right"], record["answer_form"]) == (True, "boxed")


def test_a_published_box_is_graded_and_not_chosen_by_usc_select():
    boxed = "It is \\boxed{19}"
    given = {"output": ["Response 0"], "responses": [boxed, JSON], "g": 19}
    llama = [given | {"generator": "meta/Llama-3.1-8B"}]
    how = {"gold": "g", "answer_rule": "published"}
    close = evaluate("usc-select", None, llama, dataset_type="close", **how).items[0]
    assert (close["output"], close["fallback"], close["right"]) == ([JSON], "no_answer", True)
    opened = evaluate("usc-select", None, llama, gold="g", answer_rule="published").items[0]
    assert (opened["output"], opened["right"]) == ([boxed], True)
