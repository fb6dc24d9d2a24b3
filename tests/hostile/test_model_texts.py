"""Judges' templates and models' texts: read in linear time, and nothing in them is run."""

import os
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.errors import InputError
from jaxscore.systems.rag.evaluator_file import NAMES, PAIRWISE, POINTWISE, parse
from jaxscore.systems.selection import (
    answers,
    equal_answers,
    livecode,
    math_answers,
    symbolic,
    usc_select,
)
from tests.hostile.inputs import HOSTILE, TEXTS, any_texts, outcome, refused

FIELDS = (
    "{question.__class__}", "{question.__class__.__mro__[1].__subclasses__()}", "{question[0]}",
    "{question!r}", "{question:>9999999999}", "{question:{answer}}", "{question:%Y}", "{0}", "{}",
    "{question.__init__.__globals__[os].environ}", "{self}", "{self.options}", "{list(self)}",
    "{os.mkdir('made')}", "{(lambda: 1)()}", "{[x for x in (1,)]}", "{question:=1}", "{question=}",
    "{yield}", "{await x}", "{'a'*10**9}", "{9**9**9}", "{question!x}", "{ question.a }", "{\x00}",
    "{__import__('os').mkdir('made')}", "{f'{question}'}", "{question if 1 else 2}", "{*question}",
)  # fmt: skip
FRAGMENTS = (
    "{", "}", "{{", "}}", "{question}", "{answer!s}", "{question:", "!r", ":>", "'", '"', 'f"',
    "\\N{", "\n", "\\", "[", "]", "(", ")", ".", "0", "*" * 2, "#", " ",
)  # fmt: skip
WROTE = (
    '"answer"', "answer", ":", " ", "\t", '"', "{", "}", '{"answer": ', "\\boxed{", "\\frac",
    "\\frac{", "\\sqrt", "\\text{ ", "\\left", "$", ",", "1", "9**9", "/", "-", "(", ")", "[", "=",
    ".", "%", "\n", "```python", "\n```", "Response ", "7", "π", "\\\\", "^{\\circ}", "e", "_", "x",
    "lambda: ", "not ", "a", "'", "\\overline{", "\0", "\ud83d",
)  # fmt: skip
GROWTH = 20_000  # times; quadratic readers take minutes at this


def read_and_compared(text, gold):
    """Read a text by each form, and compare it with another."""
    for form in answers.FORMS:
        read = answers.read_first(text, [form], gold)
        if read is not None:
            equal_answers.spelling(read[0])
            equal_answers.are_equal("12", read[0])
            list(equal_answers.readings(read[0]))
    equal_answers.are_equal(text, "1,2")
    equal_answers.is_in_sentence("Paris", text)
    equal_answers.is_in_sentence(text, "It is Paris.")


READ = {
    "extract": lambda text: answers.read_published(text, answers.BOXING),
    "read_first": lambda text: answers.read_first(text, answers.FORMS, "number"),
    "text": lambda text: read_and_compared(text, "text"),
    "number": lambda text: read_and_compared(text, "number"),
    "letter": lambda text: read_and_compared(text, "letter"),
    "code_form": answers.code_form,
    "math_form": answers.math_form,
    "arithmetic": math_answers.arithmetic_value,
    "sanitise": math_answers.sanitise,
    "livecode": livecode.code,
    "consistency": usc_select.named_response,
    "symbolic": symbolic.expression,
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("form", ["a {} b", 'f"a {} b"', "f'''{}'''"])
def test_only_names_are_filled(field, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = form.replace("{}", field)
    for allowed in (POINTWISE, PAIRWISE):
        refused(lambda allowed=allowed: parse(text, allowed, "file: prompt"), "file: prompt")
    assert not os.listdir(tmp_path)


@HOSTILE
@given(
    st.lists(st.sampled_from(FRAGMENTS) | any_texts, max_size=12).map("".join),
    st.sampled_from(TEXTS),
)
def test_a_template_is_its_own_text_and_the_values(template, value):
    """Values are not read again, and no format makes them longer."""
    for text in (template, f'f"{template}"', f"rf'{template}'"):
        got = outcome(lambda text=text: parse(text, POINTWISE, "here"), "here")
        if not isinstance(got, InputError):
            filled = got.format(**dict.fromkeys(NAMES.values(), value))
            parts = list(string.Formatter().parse(got))
            own = sum(len(literal) for literal, *_ in parts)
            assert own <= len(text)
            assert len(filled) == own + len(value) * sum(bool(name) for _, name, *_ in parts)


@pytest.mark.parametrize("name", READ)
def test_any_text(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @HOSTILE
    @given(st.lists(st.sampled_from(WROTE) | any_texts, max_size=15).map("".join))
    def check(text):
        outcome(lambda: READ[name](text))

    check()
    for text in TEXTS:
        outcome(lambda text=text: READ[name](text))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", READ)
def test_what_repeats_without_end(name):
    of_all_forms = ("read_first", "text", "number", "letter")
    n = GROWTH // 20 if name in of_all_forms else GROWTH
    for one in WROTE:
        for other in ("", "x", "{"):
            READ[name]((one + other) * n)
            READ[name](one * n + other * n)


@pytest.mark.parametrize(
    "text",
    ["9**9**9", "9**-9**9", "(" * 500, "-" * 999 + "1", "1+" * 499 + "1", "1" * 900 + "**9",
     "2**0.5**9", "1e999", "0x" + "f" * 900, "f(1)", "a.b", "(-8)**0.5", "1 if 1 else 2", "1<2",
     "'a'*9", "0**-1", "1//0", "1%0.0", "True", "1j", "[1]*9", "\x00", "1_0", "9" * 5000, "#",
     "\\", "9.0**999"],
)  # fmt: skip
def test_arithmetic_is_a_number_or_nothing(text):
    got = outcome(lambda: math_answers.arithmetic_value(text))
    assert got is None or type(got) is float
