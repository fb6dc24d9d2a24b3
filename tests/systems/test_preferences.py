"""Reference log-probabilities against PyTorch and TRL's rule of tokens, written out."""

import copy
import functools
import json

import pytest
import torch
import transformers

from jaxscore import evaluate
from jaxscore.systems.preferences import SYSTEM, Settings, split_prompt
from tests.conftest import CASES, ROOT

pytestmark = pytest.mark.numeric

DEMO = ROOT / "jaxscore/demo/model"
PLAIN = [
    {"prompt": "The cat", "chosen": " sat down", "rejected": " été 🙂", "note": {"a": [1]}},
    {"id": "blank", "prompt": "The cat ", "chosen": "sat", "rejected": "ran"},
    {"id": "implicit", "chosen": "The cat sat down", "rejected": "The cat sang"},
]
SAID = {"role": "user", "content": "Who sat down?"}


def answer(text):
    return {"role": "assistant", "content": text}


CHATS = [
    {"prompt": [SAID], "chosen": [answer("The cat.")], "rejected": [answer("No one sat.")]},
    {"chosen": [SAID, answer("It did.")], "rejected": [SAID, answer("A dog, twice.")]},
]


@functools.cache
def loaded(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return transformers.AutoTokenizer.from_pretrained(folder), model


def by_trl(folder, row, max_length):
    """(sum, tokens) of both completions, as DPOTrainer of TRL 1.16 tokenizes and adds them."""
    tokenizer, model = loaded(folder)
    prompt, chosen, rejected = row.get("prompt"), row["chosen"], row["rejected"]
    if prompt is None:
        n = next(k for k, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b)
        n -= chosen[n - 1] == " "
        prompt, chosen, rejected = chosen[:n], chosen[n:], rejected[n:]
    out, starts = [], []
    for completion in (chosen, rejected):
        if isinstance(prompt, str):
            eos = tokenizer.eos_token
            completion += "" if completion.endswith(eos) else eos
            prompt_ids = tokenizer(prompt)["input_ids"]
            ids = tokenizer(prompt + completion)["input_ids"]
        else:
            text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            prompt_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            text = tokenizer.apply_chat_template(prompt + completion, tokenize=False)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        pairs = enumerate(zip(prompt_ids, ids, strict=False))
        starts.append(next((k for k, (a, b) in pairs if a != b), len(prompt_ids)))
        ids = ids[: max_length or None]
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([ids[:-1]])).logits[0].double(), -1)
        out.append(logp[range(len(ids) - 1), ids[1:]])
    own = [values[max(min(starts) - 1, 0) :] for values in out]
    return [(float(values.sum()), len(values)) for values in own]


def check(record, row, folder, max_length=0):
    (chosen, n_chosen), (rejected, n_rejected) = by_trl(folder, row, max_length)
    assert (record["n_chosen"], record["n_rejected"]) == (n_chosen, n_rejected)
    assert record["ref_chosen_logps"] == pytest.approx(chosen, abs=1e-4 * n_chosen)
    assert record["ref_rejected_logps"] == pytest.approx(rejected, abs=1e-4 * n_rejected)


@pytest.mark.parametrize("name", ["tiny-llama3", "tiny-gpt2"])
@pytest.mark.parametrize("max_length", [0, 9])
def test_texts_against_pytorch(scorers, name, max_length):
    report = evaluate("preferences", scorers(name), PLAIN, max_length=max_length)
    for row, record in zip(PLAIN, report.items, strict=True):
        check(record, row, CASES / "models" / name, max_length)
        assert {k: v for k, v in record.items() if k in row} == row
    assert report.items[0]["id"] == 1
    margins = [one["ref_chosen_logps"] - one["ref_rejected_logps"] for one in report.items]
    assert report.summary["mean_margin"] == pytest.approx(sum(margins) / 3)
    remarks = " ".join(report.remarks)
    assert ("more than 9 tokens" in remarks) == bool(max_length)
    assert "the prompt alone has other last tokens" in remarks  # of the one that ends in a blank


def test_completions_that_a_template_writes_alike_fail(scorers, monkeypatch):
    """DeepSeek's template drops the reasoning, in which alone the first pair differs."""
    encoder = scorers("tiny-qwen2").encoder
    tokenizer = copy.copy(encoder.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] | trim }}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    monkeypatch.setattr(encoder, "tokenizer", tokenizer)
    texts = [("a</think>Yes", "b</think>Yes"), ("a</think>Yes", "b</think>No"), ("Yes", "Yes ")]
    rows = [{"prompt": [SAID], "chosen": [answer(a)], "rejected": [answer(b)]} for a, b in texts]
    report = evaluate("preferences", scorers("tiny-qwen2"), rows)
    assert ["error" in record for record in report.items] == [True, False, False]
    assert "the chat template writes the same text for both" in report.items[0]["error"]
    [remark] = report.remarks
    assert remark.startswith("1 pairs have a completion whose reasoning the chat template leaves")


def test_conversations_against_pytorch(demo_scorer):
    report = evaluate("preferences", demo_scorer, CHATS)
    for row, record in zip(CHATS, report.items, strict=True):
        check(record, row, DEMO, 1024)


@pytest.fixture(scope="module")
def demo_scorer():
    from jaxscore import Scorer

    return Scorer.from_pretrained("demo", dtype="float32")


def test_a_pair_that_cannot_be_scored_fails_alone(scorers):
    bad = [
        {"prompt": "a", "chosen": "b"},
        {"prompt": "a", "chosen": [answer("b")], "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": "c", "tools": ["f"]},
        {"prompt": [SAID], "chosen": [{"role": "assistant"}], "rejected": [answer("c")]},
        {"prompt": [SAID], "chosen": [{**answer(""), "tool_calls": [1]}], "rejected": []},
        {"prompt": [SAID], "chosen": [answer("b")], "rejected": [answer("c")]},  # 43 tokens
        {"prompt": "The cat sat on the mat" * 3, "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "\ud800", "rejected": "c"},
    ]
    texts = ['"rejected"', "in part", "tools", '"content"', "tool_calls", "TRL drops",
             "TRL drops", "surrogate"]  # fmt: skip
    rows = [PLAIN[0], *bad, PLAIN[1]]
    report = evaluate("preferences", scorers("tiny-gpt2"), rows, max_length=9)
    good = evaluate("preferences", scorers("tiny-gpt2"), PLAIN[:2], max_length=9)
    for k, name in ((0, 0), (-1, 1)):
        ours, alone = report.items[k], good.items[name]
        assert ours["ref_chosen_logps"] == pytest.approx(alone["ref_chosen_logps"], abs=1e-4)
    for record, text in zip(report.items[1:-1], texts, strict=True):
        assert text in record["error"]
        assert "ref_chosen_logps" not in record
    assert [name for name, _ in report.failures] == [str(k) for k in range(2, 10)]
    assert report.summary["n_pairs"] == 2


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("The sky is blue.", "The sky is green.", "The sky is"),
        ("ab", "abc", "a"),  # as TRL: a common last element belongs to the completions
        ("x", "y", ""),
        ([SAID, answer("a")], [SAID, answer("b")], [SAID]),
    ],
)
def test_implicit_prompts(chosen, rejected, prompt):
    n = len(prompt)
    assert split_prompt(chosen, rejected) == (prompt, chosen[n:], rejected[n:])


def test_the_summary_of_stored_and_merged_records_is_that_of_one_run(scorers):
    rows = [*PLAIN, {"id": "bad", "chosen": "a"}]
    first, second, both = (
        evaluate("preferences", scorers("tiny-gpt2"), part)
        for part in (rows[:2], [dict(rows[2]), rows[3]], rows)
    )
    stored = [json.loads(json.dumps(report.items)) for report in (first, second, both)]
    assert SYSTEM.summarize(stored[2], Settings()) == both.found
    merged = SYSTEM.summarize(stored[0] + stored[1], Settings())
    assert merged.numbers == pytest.approx(both.summary, rel=1e-5)
    assert merged.failures == both.failures
