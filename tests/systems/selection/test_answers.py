"""What counts as the answer of a response."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.systems.selection import answers

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def extract(response, generator=""):
    found = answers.read_published(response, generator)
    return None if found is None else found[0]


FULL = '{"reasoning": "by {counting}", "answer": "42"}'


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (FULL, "42"),
        (f"Here you are: {FULL} and more {{", "42"),
        (f"}} {FULL}", "42"),
        ('{"answer": 17}', "17"),
        ('{"answer": 17.50}', "17.5"),
        ('{"answer": null}', "None"),
        ('{"answer": true}', "True"),
        ('{"answer": [1, "a"]}', "[1, 'a']"),
        ('{"answer": ""}', ""),
        ('{"answer": "1", "answer": "2"}', "2"),
        ('{"answer":\n"4\n2"}', "42"),  # line feeds inside strings, as models write them
        # not JSON, or without the key
        ('{"answer": "42"', "42"),
        ('"answer" : "-3" and stop', "-3"),
        ('"answer":\n\n "two\nlines" ', "two\nlines"),
        ('{"reasoning": "a "quoted" word", "answer": "7"}', "7"),
        ('{"x": 1} {"answer": "9"}', "9"),
        ('"answer": 42, or so', "42"),
        ('"answer": 42}', "42}"),
        ('"answer": "open', '"open'),
        ('"answer": , ', ""),
        ("The answer: 42. Yes", "42."),
        ("my answer :", ""),
        ("Answer: 42", None),
        ("the answer is 42", None),
        ("no json at all", None),
        ("", None),
        ('{"reasoning": "unfinished', None),
        ("{'answer'}", None),
        ("\u202e{\"answer\": \"e\u0301\"}", "e\u0301"),
    ],
)  # fmt: skip
def test_extract(response, answer):
    assert extract(response) == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so the result is $\\boxed{42}$", "42"),
        ("\\boxed{a} then \\boxed{b}", "a"),
        ("\\boxed{x+1}", None),
        ("\\boxed{}", None),
        ("\\boxed{42}" + " and so on" * 4, None),
        ("\\boxed{1}" + " and so on" * 4 + " \\boxed{2}", "1"),
        ('\\boxed{1} "answer": "2"', "2"),
    ],
)
def test_boxes_count_for_one_family_near_the_end(response, answer):
    assert extract(response, LLAMA) == answer
    for generator in ("", "Llama3.1", "Qwen/Qwen2.5-7B"):
        assert extract(response, generator) == (answer if '"answer"' in response else None)


def slow_first_object(text):
    depth, start = 0, None
    for at, character in enumerate(text):
        if character == "{":
            depth += 1
            if start is None:
                start = at
        elif character == "}" and depth:
            depth -= 1
            if not depth:
                try:
                    return json.loads(text[start : at + 1].replace("\n", ""))
                except ValueError:
                    return None
    return None


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["{", "}", '"answer"', ":", "1", ",", "\n", '{"answer": 2}', '"']),
        max_size=10,
    ).map("".join)
)
def test_first_object_as_by_a_slow_reading(text):
    assert answers.first_object(text) == slow_first_object(text)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 200_000,
        "{" * 100_000 + "}" * 100_000,
        '{"answer":' * 20_000 + "1" + "}" * 20_000,
        '{"answer": ' + "[" * 90_000 + "]" * 90_000 + "}",
        '"answer"' * 25_000,
        '"answer"' + " " * 200_000,
        '"answer": ' + '"' + "x" * 200_000,
        "answer " * 30_000,
        "\\boxed{" * 30_000,
        "\\boxed{" + "x" * 200_000,
        '{"answer": ' + "9" * 100_000 + "}",
    ],
)
def test_long_responses_end(text):
    found = extract(text, LLAMA)
    assert found is None or answers.math_form(found) is not None


@pytest.mark.parametrize(
    ("answer", "math", "code"),
    [
        ("AAAAA", "A", "A"),
        (" AAAA ", "A", "A"),
        ("AAAB", "AAAB", "AAAB"),
        ("AAA", "AAA", "AAA"),
        ("1111", "1", "1"),
        ("", "", ""),
        ("'ab'", "'ab'", "ab"),
        ("\"'ab'\"", "\"'ab'\"", "ab"),
        ("[1, 2]", "[12]", "[1, 2]"),
        ("a\nb", "ab", "a\\nb"),
        ("1.0", "1", "1.0"),
    ],
)
def test_forms(answer, math, code):
    assert (answers.math_form(answer), answers.code_form(answer)) == (math, code)
