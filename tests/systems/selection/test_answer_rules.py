"""Which forms of an answer count, in which items, and what is said if no answer is readable."""

import pytest

from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.systems.selection import answers, usc_select
from jaxscore.systems.selection.answers import NO_READABLE_ANSWER, RULES, answer_rules
from jaxscore.systems.self_certainty import right_responses
from tests.systems.works import begin

BOX = "So the sum is $\\boxed{19}$."
JSON = '{"answer": "19"}'


def answer_of(rules, response):
    found = rules.read(response)
    return None if found is None else found[0]


UNION = (*answers.UNION, answers.NUMBER)


@pytest.mark.parametrize(
    ("response", "found"),
    [
        (BOX, ("19", "boxed")),
        ("\\boxed{3} or rather \\boxed{\\frac{1}{2}}", ("\\frac{1}{2}", "boxed")),
        ("\\boxed{366 days}", ("366", "boxed")),
        ("\\boxed{ {", None),
        ("Put it in \\boxed{}. It is 7", ("7", "number")),
        ("\\boxed{5\\times 10^3}", ("5\\times 10^3", "boxed")),
        ("\\boxed{2^{12}}", ("2^{12}", "boxed")),
        ("\\boxed{\\pi}, not 3", ("\\pi", "boxed")),
        ("**Answer:** 12 (see step 3)", ("12", "answer")),
        ("Answer: 5000 (out of 10)", ("5000", "answer")),
        ("answer: \u22125, as 3 is less", ("-5", "answer")),
        ("the answer: see below\nSo 4", ("4", "number")),
        ("**Answer:** 42.", ("42", "answer")),
        ("The final **answer**: 42 apples\nI hope this helps.", ("42", "answer")),
        ("Answer:\n\n42", ("42", "answer")),
        ("The answer is: 3\nSo 8 - 5 was it.", ("3", "answer")),
        ("Answer: $\\boxed{7}$", ("7", "boxed")),
        ("12 + 7 = 19. It is 5-3", ("3", "number")),
        ("It falls to -3 degrees", ("-3", "number")),
        ("that makes 1,234.50 dollars.", ("1,234.50", "number")),
        ("no idea", None),
        ('{"reasoning": "", "answer": 5} and \\boxed{6}', ("5", "json")),
    ],
)
def test_forms_of_an_answer_to_a_numeric_question(response, found):
    assert answers.read_first(response, UNION, numeric=True) == found


def test_text_answers_are_not_read_as_numbers():
    forms = answers.UNION
    assert answers.read_first("\\boxed{\\text{Lima}}", forms) == ("Lima", "boxed")
    assert answers.read_first("**Answer**: the 3 graces", forms) == ("the 3 graces", "answer")
    assert answers.read_first("It is 42", forms) is None


@pytest.mark.parametrize("text", ["\\boxed{" * 30_000, "answer:" * 40_000, "1,234" * 50_000])
def test_forms_are_read_in_linear_time(text):
    answers.read_first(text, UNION, numeric=True)


@pytest.mark.parametrize(
    ("fields", "responses", "published"),
    [
        ({}, [BOX], False),
        ({"generator": "smol", "dataset": "math"}, [BOX, "answer: 5"], False),
        ({"generator": "meta/Llama-3.1-8B"}, ["19"], True),
        ({"dataset": "crux"}, [BOX], True),
        ({"generator": "smol"}, [BOX, None, JSON], True),
        ({"generator": "smol"}, [BOX, '"answer": 19 and'], True),
    ],
)
def test_items_in_the_published_form_keep_the_published_reading(fields, responses, published):
    rules = answer_rules(fields, {}, responses)
    assert (rules.forms is None) is published


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
        ("answer: Lima, because", "Lima", "Lima"),
        ("the answer: **B** is best", "B", "B"),
        ("answer: New York", ["New York", "NY"], "NewYork"),
        ("**answer:** ** Lima", "Lima", "Lima"),
        ("Answer: the 3 graces", None, "the3graces"),
        ("answer: 12,345 in all", 12345, "12345"),
    ],
)
def test_after_answer_the_published_word_counts_unless_the_gold_needs_the_line(
    response, gold, answer
):
    assert answer_of(answer_rules({}, {}, [response], gold=gold), response) == answer


def test_one_response_in_the_published_form_makes_no_other_wrong():
    boxed = "So it is \\boxed{12}."
    [given] = items([boxed, '{"answer": 12}', boxed], g="12")
    assert answer_of(answer_rules({}, {}, given["output"]), boxed) is None
    for right in (12, "12", ["12"]):
        assert answer_of(answer_rules({}, {}, given["output"], gold=right), boxed) == "12"
    assert answer_rules({}, {}, [JSON, None], gold=12).forms is None
    for blank in (None, " "):
        assert answer_rules({}, {}, given["output"], gold=blank).forms is None
    known = begin("self-certainty", [{"model_input": "q", **given}]).inputs
    assert right_responses.read(known, "g").graded[0].right == [True] * 3
    # without gold the choice is the published one
    assert evaluate("select", None, [given]).items[0]["output"] == ['{"answer": 12}']
    assert evaluate("select", None, [given], gold="g").items[0]["output"] == [boxed]
    llama = [given | {"generator": "meta/Llama-3.1-8B", "output": ["Answer: 12", JSON, JSON]}]
    assert evaluate("select", None, llama, gold="g").items[0]["output"] == [JSON]


@pytest.mark.parametrize(
    ("gold", "numeric"),
    [
        ("19", True), (19, True), ("1,000", True), ("$3.50", True), ("1/2", True),
        (["19", 20], True), ('["19", "20"]', True), ("x", False), (None, False),
        ([True, False], False), (["19", "x"], False), ("nan", False), ([], False),
    ],
)  # fmt: skip
def test_a_last_number_counts_only_if_the_gold_is_a_number(gold, numeric):
    rules = answer_rules({}, {}, ["It is 19"], gold=gold)
    assert answer_of(rules, "It is 19") == ("19" if numeric else None)


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("published", [None, "5", None]),
        ("json", [None, None, None]),
        ("answer", [None, "5", None]),
        ("boxed", ["19", None, None]),
        ("number", ["19", "5", "3"]),
        ("auto", ["19", "5", None]),
    ],
)
def test_an_answer_rule_names_one_form(rule, found):
    responses = [BOX, "answer: 5", "3"]
    rules = answer_rules({}, {}, responses, rule)
    assert [answer_of(rules, text) for text in responses] == found
    assert rule in RULES


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
        "json": 0, "answer": 0, "boxed": 3, "number": 2, "none": 1,
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
    assert "There is no share: no response" in report.markdown()
    # one readable answer, or verdicts, and there are shares again
    some = evaluate("vote", None, [*given, *items([JSON, "no"], g="19")], gold="g")
    assert some.summary["accuracy"]["oracle"].mean == pytest.approx(1 / 3)
    verdicts = evaluate("vote", None, items(["no", "no"], ["no", "no"], g=[True, False]), gold="g")
    assert verdicts.summary["accuracy"]["oracle"].mean == 1


def test_self_certainty_reads_the_same_forms():
    def read(*outputs, **how):
        items = [{"model_input": "q", "output": output, "g": "19"} for output in outputs]
        return right_responses.read(begin("self-certainty", items).inputs, "g", **how)

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
        answers, "read_first", lambda text, forms, **how: read.append(text) or ("19", "boxed")
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
    close = evaluate("usc-select", None, llama, gold="g", dataset_type="close").items[0]
    assert (close["output"], close["fallback"], close["right"]) == ([JSON], "no_answer", True)
    opened = evaluate("usc-select", None, llama, gold="g").items[0]
    assert (opened["output"], opened["right"]) == ([boxed], True)
