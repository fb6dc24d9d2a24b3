"""Titles name models by the end of their paths, and two sides by their difference."""

import pytest

from jaxscore.report.sections import model_of, sides
from jaxscore.systems.choose.report import _heading


@pytest.mark.parametrize(
    ("model", "name"),
    [("demo", "demo"), ("/a/b.c/SmolLM2.Q4_1.gguf", "SmolLM2.Q4_1.gguf"), ("org/Qwen3/", "Qwen3")],
)
def test_a_model_is_named_by_the_last_part_of_its_path(model, name):
    assert model_of({"settings": {"model": model}}) == name


@pytest.mark.parametrize(
    ("a", "b", "settings", "names"),
    [
        ("/x/gpt2", "/x/qwen2", [], ("gpt2", "qwen2")),
        ("runs/1/model", "runs/2/model/", [], ("1/model", "2/model")),
        ("model", "org/model", [], ("model", "org/model")),
        ("/x/m", "/x/m", [("dtype", "float32", "bfloat16")],
         ("m, dtype float32", "dtype bfloat16")),
        ("/x/m", "/x/m", [("seed", 1, 1), ("LoRA", None, "/l/tuned")],
         ("m, no LoRA", "LoRA tuned")),
        ("m", "m", [], ("m", "m")),
    ],
)  # fmt: skip
def test_two_sides_are_named_by_their_difference(a, b, settings, names):
    assert sides(a, b, settings) == names


def test_an_item_of_choose_is_named_by_its_question():
    item = {"id": 7, "context": "Question: Who ran?\nAnswer:"}
    assert _heading(item) == "7: Who ran?"
