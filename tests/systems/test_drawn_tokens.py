"""Texts that a model drew are scored by the ids that it drew, and other texts are not."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from jaxscore.evaluate import evaluate
from jaxscore.systems.drawn_tokens import ID_FIELDS, DrawnTokens, length_limit
from jaxscore.text.decoder import TokenBytes
from jaxscore.types.requests import Request, parse_request
from tests.conftest import CASES, MODELS

PROMPTS = [
    {"id": "a", "prompt": "How many days has a leap year?"},
    {"id": "b", "prompt": "مرحبا, where is Osk?\n"},
    {"id": "c", "prompt": "x"},
]
OPTIONS = {"n": 4, "temperature": 2.0, "max_new_tokens": 12, "seed": 3}


@pytest.fixture(scope="module")
def drawn(scorers):
    """`drawn(name)`: records of `sample` whose texts mostly have other ids when encoded."""
    made = {}

    def get(name, **options):
        key = name, json.dumps(options)
        if key not in made:
            made[key] = evaluate("sample", scorers(name), PROMPTS, **(OPTIONS | options)).items
        return copy.deepcopy(json.loads(json.dumps(made[key])))

    return get


def without_ids(records):
    return [{k: v for k, v in record.items() if k not in ID_FIELDS} for record in records]


def encoded(scorer, text):
    return scorer.encoder.prompt_ids([text], special_tokens=False)[0].tolist()


def published(name, record, alignment="formula"):
    """The formula over drawn ids, of PyTorch in float64."""
    folder = CASES / "models" / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    out = []
    for ids in record["token_ids"]:
        prompt = record["prompt_token_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0]
        logp = torch.log_softmax(logits.double(), -1)
        terms = -(logp + math.log(logp.shape[1])).mean(-1)
        first = len(prompt) - (alignment == "formula")
        out.append(terms[first : first + len(ids)].mean().item())
    return out


@pytest.mark.numeric
@pytest.mark.parametrize("alignment", ["formula", "upstream"])
@pytest.mark.parametrize("name", MODELS)
def test_self_certainty_scores_the_drawn_ids(scorers, drawn, name, alignment):
    scorer, records = scorers(name), drawn(name)
    pairs = [pair for r in records for pair in zip(r["output"], r["token_ids"], strict=True)]
    assert any(encoded(scorer, text) != ids for text, ids in pairs)
    found = evaluate("self-certainty", scorer, records, alignment=alignment)
    assert found.failures == []
    for record, scored in zip(records, found.items, strict=True):
        want = published(name, record, alignment)
        assert scored["confidence_list"] == pytest.approx(want, abs=1e-4)
    assert not any("token_ids" in remark for remark in found.remarks)
    again = evaluate("self-certainty", scorer, without_ids(records), alignment=alignment)
    assert [one["confidence_list"] for one in again.items] != [
        one["confidence_list"] for one in found.items
    ]


@pytest.mark.parametrize("name", MODELS)
def test_a_record_has_the_ids_that_the_generator_read_and_wrote(scorers, drawn, name):
    scorer = scorers(name)
    decoder = TokenBytes(scorer.encoder.tokenizer)
    for record, item in zip(drawn(name), PROMPTS, strict=True):
        [prompt] = scorer.encoder.prompt_ids([item["prompt"]])
        assert record["prompt_token_ids"] == prompt.tolist()
        assert [decoder.join(ids) for ids in record["token_ids"]] == record["output"]
        for end, ids in zip(record["finish"], record["token_ids"], strict=True):
            assert end != "length" or len(ids) == OPTIONS["max_new_tokens"]


def test_ids_end_with_the_text_before_a_stop_string(scorers, drawn):
    """The last token begins in the text and ends in the stop string."""
    scorer = scorers("tiny-qwen2")
    decoder, whole = TokenBytes(scorer.encoder.tokenizer), drawn("tiny-qwen2")
    texts = [decoder.join(ids[5:6]) for record in whole for ids in record["token_ids"]]
    stop = next(text[-2:] for text in texts if len(text) > 2 and text.isascii())
    records = drawn("tiny-qwen2", stop=(stop,))
    n_inside = 0
    for record, before in zip(records, whole, strict=True):
        ends = zip(record["output"], record["finish"], record["token_ids"], strict=True)
        for (text, end, ids), drawn_ids in zip(ends, before["token_ids"], strict=True):
            assert ids == drawn_ids[: len(ids)]
            assert decoder.join(ids).startswith(text)
            if end == "stop":
                assert not ids or not decoder.join(ids[:-1]).startswith(text)
                n_inside += decoder.join(ids) != text
    assert n_inside
    found = evaluate("self-certainty", scorer, records)
    for record, scored in zip(records, found.items, strict=True):
        known = [k for k, ids in enumerate(record["token_ids"]) if ids]
        want = published(
            "tiny-qwen2", {**record, "token_ids": [record["token_ids"][k] for k in known]}
        )
        assert [scored["confidence_list"][k] for k in known] == pytest.approx(want, abs=1e-4)
    assert not any("token_ids" in remark for remark in found.remarks)


def edits(record):
    """Records whose first text or prompt is no longer that of its ids."""
    text, ids = record["output"][0], record["token_ids"][0]
    others = record["output"][1:], record["token_ids"][1:]
    return {
        "text appended": {"output": [f"{text}!", *others[0]]},
        "text cut": {"output": [text[:-1], *others[0]]},
        "id beyond the vocabulary": {"token_ids": [[*ids[:-1], 10**6], *others[1]]},
        "id negative": {"token_ids": [[-1, *ids[1:]], *others[1]]},
        "id not a number": {"token_ids": [["a"], *others[1]]},
        "id not whole": {"token_ids": [[1.5], *others[1]]},
        "id true": {"token_ids": [[True], *others[1]]},
        "no list": {"token_ids": [7, *others[1]]},
        "texts swapped": {"output": [others[0][0], text, *others[0][1:]]},
        "prompt": {"model_input": "Another question?"},
        "prompt's ids": {"prompt_token_ids": record["prompt_token_ids"][:-1]},
    }


@pytest.mark.parametrize("edit", edits({"output": ["a", "b"], "token_ids": [[1], [2]],
                                        "prompt_token_ids": [1]}))  # fmt: skip
def test_a_text_that_is_not_that_of_its_ids_is_encoded_and_counted(scorers, drawn, edit):
    scorer = scorers("tiny-qwen2")
    record = drawn("tiny-qwen2")[0]
    record |= edits(record)[edit]
    n_stale = {"texts swapped": 2, "prompt": 4, "prompt's ids": 4}.get(edit, 1)
    found = evaluate("self-certainty", scorer, [record])
    [remark] = [one for one in found.remarks if "token_ids" in one]
    assert remark.startswith(f"{n_stale} outputs have token_ids that are not those of the texts")
    plain = evaluate("self-certainty", scorer, without_ids([record]))
    stale = slice(0, n_stale)
    want = plain.items[0]["confidence_list"][stale]
    assert found.items[0]["confidence_list"][stale] == pytest.approx(want, abs=1e-5)


def test_padded_ids_are_not_scored(scorers, drawn):
    """Rows of transformers' `generate` are padded after the EOS, often with the EOS."""
    scorer, record = scorers("tiny-qwen2"), drawn("tiny-qwen2")[0]
    ids, eos = record["token_ids"], scorer.encoder.tokenizer.eos_token_id
    padded = {**record, "token_ids": [[*ids[0], eos, eos, eos], [*ids[1], eos], *ids[2:]]}
    found = evaluate("self-certainty", scorer, [padded])
    [remark] = [one for one in found.remarks if "padded" in one]
    assert remark.startswith("1 outputs ")
    plain = evaluate("self-certainty", scorer, without_ids([record]))
    first, second, *_ = found.items[0]["confidence_list"]
    assert first == pytest.approx(plain.items[0]["confidence_list"][0], abs=1e-5)
    want = published("tiny-qwen2", padded)
    assert second == pytest.approx(want[1], abs=1e-4)  # a model draws an EOS, too


def test_samples_of_another_tokenizer_are_encoded_by_their_text(scorers, drawn):
    records = drawn("tiny-llama3")
    found = evaluate("self-certainty", scorers("tiny-gpt2"), records)
    plain = evaluate("self-certainty", scorers("tiny-gpt2"), without_ids(records))
    for one, other in zip(found.items, plain.items, strict=True):
        assert one["confidence_list"] == pytest.approx(other["confidence_list"], abs=1e-5)
    assert [one.split()[0] for one in found.remarks if "edited" in one] == ["12"]


def test_files_without_ids_have_the_same_bytes_and_a_remark(scorers, drawn):
    """Of texts without ids it is counted which cannot be what was drawn."""
    scorer = scorers("tiny-qwen2")
    records = drawn("tiny-qwen2")
    found = evaluate("self-certainty", scorer, without_ids(records))
    differ, without = [one for one in found.remarks if "token_ids" in one]
    n_certain = 0
    for record in records:
        ends = zip(record["output"], record["finish"], record["token_ids"], strict=True)
        for text, end, ids in ends:
            again = encoded(scorer, text)
            certain = "\ufffd" in text or (end == "length" and len(again) != 12)
            assert not certain or again != ids
            n_certain += certain
    assert n_certain > 0
    assert without.startswith("12 outputs have no token_ids: their texts were encoded again")
    assert differ.startswith(f"{n_certain} outputs without token_ids certainly have other tokens")
    requests = [Request("", r["model_input"], text) for r in records for text in r["output"]]
    scored = scorer.score(requests, boundary="separate", special_tokens=False)
    values = [v for one in found.items for v in one["confidence_list"]]
    assert values == pytest.approx([one.mean_self_certainty for one in scored], abs=1e-5)


def test_a_text_cut_at_the_models_last_position_is_not_said_to_differ(scorers):
    scorer = scorers("tiny-qwen2")
    checks = DrawnTokens(scorer)
    ids = encoded(scorer, "Who ran?")
    most = scorer.capabilities.max_positions
    assert checks.differ("x", "Who ran?", ids, len(ids) + 1)
    assert checks.differ("x", "Who ran?", ids, len(ids) - 1)
    assert checks.differ("x" * most, "Who ran?", ids, len(ids) - 1)
    assert not checks.differ("x" * most, "Who ran?", ids, len(ids) + 1)
    assert not checks.differ("x", "Who ran?", ids, len(ids))
    assert not checks.differ("x", "Who ran?", ids, None)
    assert checks.differ("x", "caf\ufffd", encoded(scorer, "caf\ufffd"), None)


@pytest.mark.parametrize(
    ("item", "limit"),
    [
        ({"finish": ["eos", "length"], "configs": {"max_tokens": 7}}, 7),
        ({"finish": ["length", "eos"], "configs": {"max_tokens": 7}}, None),
        ({"finish": ["length"], "configs": {"max_tokens": 7}}, None),
        ({"configs": {"max_tokens": 7}}, None),
        ({"finish": ["eos", "length"], "configs": {"max_tokens": True}}, None),
        ({"finish": "length", "configs": []}, None),
    ],
)
def test_where_a_text_was_cut(item, limit):
    assert length_limit(item, 1) == limit


def test_a_sample_of_special_tokens_alone_is_scored(scorers):
    """Its text is empty, and its ids are not."""
    scorer = scorers("tiny-qwen2")
    special = scorer.encoder.tokenizer.convert_tokens_to_ids("<|im_start|>")
    record = {"model_input": "Who?", "output": ["", ""], "token_ids": [[special], []]}
    found = evaluate("self-certainty", scorer, [record])
    record["prompt_token_ids"] = encoded(scorer, "Who?")
    record["token_ids"] = [[special]]
    [want] = published("tiny-qwen2", record)
    assert found.items[0]["confidence_list"] == [pytest.approx(want, abs=1e-4), None]
    assert [why for _, why in found.failures] == ["output 2: no tokens, so nothing is predicted"]


def test_other_fields_than_the_published_ones_have_no_ids(scorers, drawn):
    """`token_ids` are of `output`, whatever field is scored."""
    scorer = scorers("tiny-qwen2")
    records = [{**one, "responses": one["output"]} for one in drawn("tiny-qwen2")]
    found = evaluate("self-certainty", scorer, records, output_field="responses")
    plain = evaluate("self-certainty", scorer, without_ids(records))
    for one, other in zip(found.items, plain.items, strict=True):
        assert one["confidence_list"] == pytest.approx(other["confidence_list"], abs=1e-5)


def test_selected_and_judged_texts_keep_their_own_ids(scorers, drawn):
    scorer, records = scorers("tiny-qwen2"), drawn("tiny-qwen2")
    for record in records:
        record["output"] = [f'{{"answer": "{k}"}}' for k in range(4)]
    certain = evaluate("self-certainty", scorer, records).items
    for system, options in (("select", {"best_n": 3}), ("vote", {"power": 1.0})):
        for one, other in zip(
            evaluate(system, None, certain, **options).items, certain, strict=True
        ):
            index = other["output"].index(one["output"][0])
            assert one["token_ids"] == [other["token_ids"][index]]
            assert one["prompt_token_ids"] == other["prompt_token_ids"]
    replies = evaluate("usc-generate", scorer, certain, n=2, max_new_tokens=5).items
    decoder = TokenBytes(scorer.encoder.tokenizer)
    for reply in replies:
        [ids] = reply["token_ids"]
        assert decoder.join(ids).strip() == reply["output"][0]
        assert reply["prompt_token_ids"] == encoded(scorer, reply["model_input"])
    scored = evaluate("self-certainty", scorer, replies)
    for one in scored.items:
        want = published("tiny-qwen2", one)
        assert one["confidence_list"] == pytest.approx(want, abs=1e-4)
    for one in evaluate("usc-select", None, replies, dataset_type="open").items:
        assert not set(ID_FIELDS) & one.keys()


def test_requests_with_ids_are_scored_unchanged(scorers):
    scorer = scorers("tiny-llama3")  # has a BOS
    request = Request("a", "Who", " ran?", ((5, 6, 7), (8, 9)))
    for boundary in ("joint", "exact", "separate", "skip_context", "last_query", "reencoded"):
        [scored] = scorer.score([request], boundary=boundary)
        assert scored.token_ids.tolist() == [8, 9]
    [encoded] = scorer.encoder.encode([request], "joint")
    assert encoded[0].ids.tolist() == [5, 6, 7, 8, 9]
    [whole] = scorer.score_sequences(encoded)
    assert scored.logprob == pytest.approx(whole.logprob, abs=1e-5)
    for id in (-1, 10**6, 2**40):
        [scored] = scorer.score([Request("a", "", "x", ((5,), (id,)))])
        assert f"token id {id} is" in scored.error
    named = parse_request(Request(np.int64(4), "Who", " ran?", ((5,), (8,))), 0)
    assert named == Request(4, "Who", " ran?", ((5,), (8,)))
