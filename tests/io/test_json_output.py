"""JSON files: strict, whatever the numbers are."""

import json
import math

import pytest

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.io.json_output import json_text


def test_numbers_that_json_does_not_have_also_in_dataclasses():
    record = {"mean": Estimate(2, math.inf, -math.inf, math.nan), "é": [math.inf, 0.5, None]}
    text = json_text(record)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "mean": {"n": 2, "mean": "Infinity", "low": "-Infinity", "high": None},
        "é": ["Infinity", 0.5, None],
    }
    assert "é" in text
    assert text.endswith("}\n")
    assert text.splitlines()[1].startswith('  "mean"')


def test_what_is_no_json_is_refused():
    with pytest.raises(TypeError):
        json_text({"a": object()})


def test_half_a_surrogate_pair_can_be_written():
    text = json_text({"q_id": "a\ud83d", "b": "\U0001f600"})
    assert json.loads(text.encode("utf-8")) == {"q_id": "a\ud83d", "b": "\U0001f600"}
