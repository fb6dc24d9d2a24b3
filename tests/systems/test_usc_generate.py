"""The consistency prompt to the letter, and what a later run keeps of an earlier one."""

import numpy as np
import pytest

from jaxscore.engine import generation as generator_module
from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.systems import usc_generate
from jaxscore.types.results import Generated
from tests.conftest import CASES
from tests.systems.checked import checked_items, recall, run, summaries_agree

ITEMS = [
    {"id": "a", "chat_history": ["Why?", "Because."], "output": ["one", "two", "three"], "x": 1},
    {"session_id": 5, "input": "Who?", "output": ["me"]},
]
MODEL = str(CASES / "models/tiny-qwen2")
MADE = {"model": MODEL, "revision": None, "dtype": "float32"}


@pytest.fixture
def replies(monkeypatch):
    """All requests; a reply is a number, and an error for a question that fails."""
    seen = []

    class Fake:
        side_by_side = 32

        def __init__(self, scorer):
            self.scorer = scorer

        def stream(self, requests):
            for place, one in enumerate(requests):
                seen.append(one)
                text = self.scorer.encoder.tokenizer.decode(one.prompt)
                error = "no room" if "fails" in text else None
                ids = np.zeros(1, np.int32)
                yield place, Generated(one.id, " Response 1 \n", ids, "eos", error)

    monkeypatch.setattr(generator_module, "Generator", Fake)
    return seen


def prompts(items, n=2):
    items, settings = checked_items("usc-generate", items, n=n)
    return [usc_generate.SYSTEM.prompt(entry, settings) for entry in items.entries()]


def test_the_prompt_to_the_letter():
    first, second = prompts(ITEMS)
    assert first.text == (
        "I have generated the following responses to the question: Why?\n"
        "Response 0: one\n\n"
        "Response 1: two\n\n"
        "Evaluate these responses.\n"
        "Select the most consistent response based on majority consensus.\n"
        'Format your answer as "The most consistent response is Response X" (without quotes).\n'
    )
    assert first.added["responses"] == ["one", "two"]
    assert "question: Who?\nResponse 0: me\n\nEvaluate" in second.text
    braces = usc_generate.render_prompt("{question} مرحبا", ["{0}", "\\n"])
    assert "question: {question} مرحبا\nResponse 0: {0}\n\nResponse 1: \\n\n\n" in braces


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"chat_history": ["### Question:\nAdd.\n\n### Format: code\n"]}, "Add."),
        ({"chat_history": ["### Question:\nAdd ## Instruction x"]}, "Add ## Instruction x"),
        ({"chat_history": ["\n## Question: \n\nWhy?\n\n\n## Instruction \n\nPlease"]}, "Why?"),
        ({"chat_history": ["## Question: Why?"]}, "Why?"),
        ({"chat_history": [" plain "], "model_input": "no"}, " plain "),
        ({"chat_history": [], "model_input": "b"}, "b"),
        ({"chat_history": "a", "model_input": "b", "input": "c"}, "b"),
        ({"chat_history": [None], "model_input": None, "input": "c"}, "c"),
        ({"input": ""}, ""),
    ],
)
def test_where_the_question_is(given, want):
    assert usc_generate.read_question(given) == want


def test_items_that_cannot_be_used_do_not_cost_the_others(scorers, replies):
    bad = [
        ({"output": ["a"]}, 'no question: expected "chat_history", a list that begins with a'),
        ({"input": "?"}, "no field \"output\", expected a list of strings; there are 'input'"),
        ({"input": "?", "output": "a"}, 'field "output" is a string, expected a list'),
        ({"input": "?", "output": []}, 'field "output" is empty'),
        ({"input": "?", "output": ["a", None]}, 'field "output", response 1: found null'),
        ({"input": "?", "output": [3]}, 'field "output", response 0: found a whole number'),
    ]
    report = run("usc-generate", scorers("tiny-qwen2"), [given for given, _ in bad] + ITEMS, n=2)
    assert [name for name, _ in report.failures] == [f"item {k + 1}" for k in range(len(bad))]
    for (given, part), (_, why), record in zip(bad, report.failures, report.items, strict=False):
        assert part in why
        assert record == {**given, "output": [], "responses": [], "error": why}
    [one] = prompts([{"input": "?", "output": ["a", None]}], n=1)
    assert one.error is None
    with pytest.raises(InputError, match=r"no item can be used; item 1: no question"):
        prompts([bad[0][0]])


def test_the_record_is_what_usc_select_reads(scorers, replies):
    items = [ITEMS[0], {**ITEMS[1], "input": "fails"}]
    report = run("usc-generate", scorers("tiny-qwen2"), items, n=2)
    record, lost = report.items
    [prompt, _] = prompts(items)
    assert list(record.items()) == [
        ("session_id", "a"),
        ("chat_history", [prompt.text]),
        ("model_input", f"<|im_start|>user\n{prompt.text}<|im_end|>\n<|im_start|>assistant\n"),
        ("output", ["Response 1"]),
        ("prompt_token_ids", replies[0].prompt.tolist()),
        ("token_ids", [[0]]),
        ("generator", MODEL),
        ("configs", {"temperature": 0.0, "top_p": 1.0, "max_tokens": 1024, "dtype": "float32"}),
        ("responses", ["one", "two"]),
        ("id", "a"),
        ("x", 1),
    ]
    assert (lost["output"], lost["error"]) == ([], "no room")
    chosen, failed = evaluate("usc-select", None, [record, lost], dataset_type="open").items
    assert chosen["output"] == ["two"]
    assert failed["error"]


def test_each_item_draws_with_a_seed_of_its_own(scorers, replies):
    options = {"max_new_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 10}
    run("usc-generate", scorers("tiny-qwen2"), ITEMS, n=2, **options)
    _, r = replies
    assert (r.max_new_tokens, r.temperature, r.top_p, r.seed) == (7, 0.5, 0.9, 11)


def test_a_later_run_keeps_replies_to_the_same_prompts(scorers, replies):
    items, scorer = [*ITEMS, ITEMS[1]], scorers("tiny-qwen2")
    made = run("usc-generate", scorer, items, n=2).items

    def resumed(previous):
        replies.clear()
        assert run("usc-generate", scorer, items, previous, n=2).items == made
        return len(replies)

    assert (resumed(made), resumed(made[:1]), resumed([])) == (0, 2, 3)
    lost = {**made[1], "output": [], "error": "no room"}
    assert resumed([made[0], lost]) == 2  # tried again, and not called changed
    assert recall("usc-generate", items, [made[0], lost], MADE, n=2)[1] == 0
    changed = [lost | {"chat_history": 3}, *made[1:]]
    assert (resumed(changed), recall("usc-generate", items, changed, MADE, n=2)[1]) == (1, 1)
    for output in ([], [None], "R", ["a", "b"], None):
        assert resumed([made[0] | {"output": output}]) == 3
    assert run("usc-generate", None, items, made, n=2).items == made  # no model is needed


def test_files_of_other_inputs_and_settings(scorers, replies):
    made = run("usc-generate", scorers("tiny-qwen2"), ITEMS, n=2).items
    for name, model, options in (
        ("generator", {"model": "n"}, {}),
        ("temperature", {}, {"temperature": 1.0}),
        ("max_tokens", {}, {"max_new_tokens": 3}),
        ("dtype", {"dtype": "bfloat16"}, {}),
    ):
        part = rf"item 1 \(id a\) was computed with {name} "
        with pytest.raises(InputError, match=part):
            recall("usc-generate", ITEMS, made, {**MADE, **model}, n=2, **options)
    with pytest.raises(InputError, match="none of its items is the one in the same place"):
        recall("usc-generate", ITEMS, made[::-1], MADE, n=2)
    with pytest.raises(InputError, match="holds 3 items and the input 2"):
        recall("usc-generate", ITEMS, [*made, made[0]], MADE, n=2)
    published = made[0] | {"configs": {"engine": "vllm", "temperature": 0, "top_p": 1}}
    with pytest.raises(InputError, match="computed with max_tokens None"):
        recall("usc-generate", ITEMS, [published], MADE, n=2)


def test_a_summary_is_of_the_records_alone(scorers, replies):
    scorer, items = scorers("tiny-qwen2"), [*ITEMS, {**ITEMS[1], "input": "fails"}, {"input": "?"}]
    parts = [run("usc-generate", scorer, part, n=2) for part in (items[:1], items[1:])]
    assert summaries_agree("usc-generate", run("usc-generate", scorer, items, n=2), parts, n=2)
