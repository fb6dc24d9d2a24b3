"""The forms of an answer: what is read, in which order, and what is right by the gold."""

import json

import pytest

from jaxscore.evaluate import evaluate
from jaxscore.systems.selection.answer_forms import final_text, letter_of, read_first
from jaxscore.systems.selection.answers import BY_GOLD, FORMS
from jaxscore.systems.self_certainty import Settings, right_responses
from jaxscore.systems.self_certainty.confidences import read_inputs
from tests.conftest import CASES

ROWS = [json.loads(line) for line in (CASES / "answers.jsonl").read_text("utf-8").splitlines()]


def items(*rows):
    """Items of (gold, response)."""
    return [
        {"model_input": "q", "output": [response], "confidence_list": [1.0], "gold": gold}
        for gold, response in rows
    ]


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in ROWS}))
@pytest.mark.parametrize("system", ["select", "vote"])
def test_cases_of_each_kind(system, kind):
    rows = [row for row in ROWS if row["kind"] == kind]
    given = items(*((row["gold"], row["response"]) for row in rows))
    graded = evaluate(system, None, given, gold="gold").items
    for row, record in zip(rows, graded, strict=True):
        assert record["right"] is row["right"], row
        assert record["answer_form"] in (*FORMS, None)


def test_self_certainty_grades_the_cases_alike():
    given = items(*((row["gold"], row["response"]) for row in ROWS))
    inputs = [read_inputs("item", item, Settings()) for item in given]
    graded = right_responses.grade_responses(inputs, "gold").graded
    assert [graded[k].right for k in range(len(ROWS))] == [[row["right"]] for row in ROWS]


@pytest.mark.parametrize(
    ("gold", "response", "right"),
    [
        ("Paris", "The capital of France is Paris.", True),
        ("Paris", "**Paris** is the capital of France.", True),
        ("Paris", "It was Paris. Today the capital is Lyon.", False),
        ("Paris", "The capital is not Paris.", False),
        ("Paris", "The capital isn't Paris.", False),
        ("Paris", "The capital is Parisville.", False),
        ("Paris", "paris", True),
        ("Paris", "It is Paris. I hope this helps! Let me know what you think.", True),
        ("New York", "It is New York City, N.Y.", True),
        ("St. Petersburg", "The city is St. Petersburg.", True),
        ("US", "It helps us.", False),
        ("\u5df4\u9ece", "\u6cd5\u56fd\u7684\u9996\u90fd\u662f\u5df4\u9ece\u3002", True),
        ("\u5df4\u9ece", "\u4e0d\u662f\u5df4\u9ece\u3002\u662f\u91cc\u6602\u3002", False),
        ("\uc11c\uc6b8", "\uc218\ub3c4\ub294 \uc11c\uc6b8\uc785\ub2c8\ub2e4.", True),
        ("x+1", "Therefore y = x+1.", True),
        ("x+1", "Therefore y = 2x+1.", False),
        ("x+1", "The solution is thus $x+1$.", True),
        (["NYC", "New York"], "I would say New York.", True),
        ("Oslo", "The answer is Oslo, since it has the parliament.", True),
        ("Oslo", "Answer: The capital is Oslo.", True),
        ("Korea", "Answer: North Korea", False),
        ("7", "The sum of 3 and 4 is 7.", True),
        ("7", "The answer is 3 + 4 = 7.", True),
        ("2", "\\boxed{2\\pi}", False),
        ("2", "\\boxed{\\pi/2}", False),
        ("B", "Option B is correct, because A is too small.", True),
        ("A", "A cat is an animal.", False),
        ("B", "It is A or B.", False),
        ("B", "The correct option is **B**. I hope this answer is helpful!", True),
        ("42", "<think>\\boxed{41}</think>The answer is 42", True),
        ("42", "<think>It may be 42", False),
        ("42", "It may be 41 <think>so 42</think> 43", False),
        ("Oslo", "<answer>Oslo", True),
        ("42", "</think>**42**", True),
        ("0.5", "\xbd", True),
        ("0,1", "The roots are x = 0 and x = 1.", True),
        ("(2,3)", "The point is (2, 3).", True),
        ("(2,3)", "The point is (3, 2).", False),
        ("E", "e)", True),
        ("B", "\u6b63\u89e3\u306fB\u3067\u3059\u3002", True),
        ("B", "La r\xe9ponse est B.", True),
        ("-3/4", "\\boxed{-0.75}", True),
        ("41", "<think><answer>41</answer></think>I pass", False),
        ("42", '{"answer": 41} no, {"answer": 42}', True),
    ],
)
def test_what_is_right(gold, response, right):
    [record] = evaluate("select", None, [*items((gold, response)), *items(("1", "1"))],
                        gold="gold").items[:1]  # fmt: skip
    assert record["right"] is right


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("So the sum is $\\boxed{19}$.", ("19", "boxed")),
        ("\\boxed{3} or rather \\boxed{\\frac{1}{2}}", ("\\frac{1}{2}", "boxed")),
        ("\\boxed{366 days}", ("366", "boxed")),
        ("\\boxed{ {", None),
        ("Put it in \\boxed{}. It is 7", ("7", "number")),
        ("\\boxed{2^{12}}", ("2^{12}", "boxed")),
        ("\\boxed{\\pi}, not 3", ("\\pi", "boxed")),
        ("**Answer:** 12 (see step 3)", ("12", "answer")),
        ("answer: \u22125, as 3 is less", ("\u22125", "answer")),
        ("the answer: see below\nSo 4", ("4", "number")),
        ("Answer:\n\n42", ("42", "answer")),
        ("Answer: $\\boxed{7}$", ("7", "boxed")),
        ("12 + 7 = 19. It is 5-3", ("3", "number")),
        ("It falls to -3 degrees", ("-3", "number")),
        ("that makes 1,234.50 dollars.", ("1,234.50", "number")),
        ("2020-05-17", ("17", "number")),
        ("no idea", None),
        ("", None),
        ('{"reasoning": "", "answer": 5} and \\boxed{6}', ("5", "json")),
        ('<answer>{"answer": "6"}</answer>', ("6", "tag")),
        ("<answer></answer> \\boxed{6}", ("6", "boxed")),
    ],
)
def test_forms_of_an_answer_to_a_numeric_question(response, answer):
    assert read_first(response, BY_GOLD["number"], "number") == answer


@pytest.mark.parametrize("fence", ["", "```json\n"])
def test_json_that_is_cut_off_has_no_answer(fence):
    cut = '{"reasoning": "Ann works for Sollux. It is based'
    whole = '{"reasoning": "Ann works for Sollux.", "answer": "Oslo"}'
    item = {"model_input": "q", "output": [fence + cut, fence + whole], "gold": "Oslo"}
    chosen = evaluate("select", None, [{**item, "confidence_list": [2.0, 1.0]}], gold="gold")
    assert chosen.items[0]["output"] == [fence + whole]
    assert chosen.items[0]["considered"]["forms"] == [None, "json"]


def test_a_choice_does_not_depend_on_the_gold_but_for_its_type():
    """A form that only right responses have would make `select` as good as an oracle."""
    given = items(("Paris", "It is Rome."))[0] | {"output": ["It is Rome.", "It is Paris."]}
    given["confidence_list"] = [2.0, 1.0]
    for gold in ("Paris", "Rome", "Lima"):
        [record] = evaluate("select", None, [given | {"gold": gold}], gold="gold").items
        assert (record["output"], record["answer_form"]) == (["It is Rome."], "sentence")
        assert record["right"] is (gold == "Rome")


@pytest.mark.parametrize("text", ["(B) Paris", "B", "b)", "**B**", "\\text{(B)}", "BBBB", "B:"])
def test_letters(text):
    assert letter_of(text) == "B"


@pytest.mark.parametrize("text", ["Both", "B or C", "A cat", "I think so", "", "b is", "B's"])
def test_texts_without_a_letter(text):
    assert letter_of(text) is None


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("<think>a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("[THINK]a[/THINK]b", "b"),
        ("a<think>b", "a"),
        ("<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b", "b"),
        ("\uff21\uff1a\uff11", "A:1"),
    ],
)
def test_thoughts_and_full_width_forms(response, text):
    assert final_text(response) == text


def test_responses_without_a_readable_answer_are_counted_next_to_the_shares():
    given = items(("7", "It is 7."), ("8", "I pass"), ("9", "It is 8"))
    report = evaluate("select", None, given, gold="gold")
    line = "1 of 3 responses has no readable answer and counts as wrong"
    assert report.found.lines[0] == line
    assert report.headline.endswith(line)
    assert f"{line}." in report.markdown()
    assert (report.summary["n_unreadable"], report.summary["n_compared"]) == (1, 3)
    verdicts = evaluate("select", None, items(([True], "I pass"), ([False], "no")), gold="gold")
    assert verdicts.summary["n_unreadable"] == 0
