"""Python blocks of a response."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.systems.selection.livecode import code


@pytest.mark.parametrize(
    ("response", "found"),
    [
        ("", ""),
        ("no code", ""),
        ("```python\nprint(1)\n```", "print(1)"),
        ("a\n```python \n\n  x = 1\n  y = 2\n\n```\nb\n```python\nz\n```", "x = 1\n  y = 2\n\nz"),
        ("```python\r\nx\r\ny\r\n```", "x\r\ny"),
        ("```py\nx\n```", ""),
        ("```python3\nx\n```", ""),
        ("```\nx\n```", ""),
        ("```python x\n```", ""),
        ("```python\nnever closed", ""),
        ("```python\n\n```", ""),
        ("````python\nx\n````", "x"),
        ("```python\nأب = 'e\u0301'\n```", "أب = 'e\u0301'"),
    ],
)
def test_code(response, found):
    assert code(response) == found


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["```python", "```", "\n", " ", "x", "```python\n", "\n```", "`", "\r\n"]),
        max_size=14,
    ).map("".join)
)
def test_code_as_by_a_pattern(text):
    blocks = re.findall(r"```python\s*\n(.*?)\n```", text, re.DOTALL)
    assert code(text) == "\n\n".join(block.strip() for block in blocks)


@pytest.mark.parametrize("piece", ["```python\n", "```python\nx", "\n", "```python ", "\n```"])
def test_long_responses_end(piece):
    text = "```python" + piece * (200_000 // len(piece))
    assert isinstance(code(text), str)
    assert isinstance(code(text + "\n```"), str)
