"""The invented world: the same every time, held-out names kept out, prompts to the letter."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tools.demo_world import held_out, prompts
from tools.demo_world.documents import KINDS, Document, draw_document
from tools.demo_world.facts import fixed_world
from tools.demo_world.names import Names, invented_word, is_held_out
from tools.demo_world.rows import TrainingRows, encode_document, step_rows
from tools.demo_world.tokenizer import NAME, train_tokenizer

SEED = 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(640, SEED)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    rng = random.Random(0)
    return [draw_document(rng, fixed_world(SEED), progress=i % 10 / 10) for i in range(2000)]


def batches(tokenizer: Tokenizer, seed: int) -> list[TrainingRows]:
    return [step_rows(tokenizer, seed, step, 8, 4, 160) for step in (0, 5)]


def test_a_step_depends_on_seed_and_step_alone(tokenizer: Tokenizer) -> None:
    first, other = batches(tokenizer, SEED), batches(tokenizer, SEED + 1)
    for ours, again in zip(first, batches(tokenizer, SEED), strict=True):
        for array, same in zip(ours, again, strict=True):
            np.testing.assert_array_equal(array, same)
    assert not np.array_equal(first[0].ids, first[1].ids)
    assert not np.array_equal(first[0].ids, other[0].ids)


def test_the_tokenizer_is_the_same_every_time(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(640, SEED).to_str() == tokenizer.to_str()


def test_a_vocabulary_beyond_the_merges_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 5000"):
        train_tokenizer(5000, SEED)


def test_held_out_names_are_in_no_training_document(documents: list[Document]) -> None:
    words = {found[0] for document in documents for found in NAME.finditer(document.text)}
    assert len(words) > 2000
    assert not {word for word in words if is_held_out(word)}
    known = {name for fact in fixed_world(SEED).facts for name in (fact.subject, fact.object)}
    assert not {name for name in known if NAME.search(name) and is_held_out(invented_word(name))}


def test_held_out_items_have_held_out_names_only() -> None:
    for item in held_out.path_items(SEED, 60):
        names = [*item.chain.path[::2], *item.wrong]
        assert len(set(names)) == len(names)
        assert all(is_held_out(invented_word(name)) for name in names)


def test_names_differ_and_some_are_not_ascii() -> None:
    names = Names(random.Random(0), held_out=False)
    drawn = [invented_word(names.draw("city")) for _ in range(300)]
    assert len(set(drawn)) == 300
    assert any(not name.isascii() for name in drawn)


def test_every_kind_occurs_and_decodes(tokenizer: Tokenizer, documents: list[Document]) -> None:
    counts = Counter(document.kind for document in documents)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) > 50
    for document in documents[:300]:
        ids, weights = encode_document(tokenizer, document)
        assert tokenizer.decode(ids, skip_special_tokens=False) == prompts.BOS + document.text
        assert len(weights) == len(ids)
        assert max(weights) == max(segment.weight for segment in document.segments)


def test_path_documents_have_the_prompt_of_the_evaluation(documents: list[Document]) -> None:
    form = re.compile(
        r"(?P<system>[^\n]+)\n(Support Path: (?P<path>[^\n]+)\n)?"
        r"Question: (?P<question>[^\n]+\?) Answer:"
    )
    found = Counter()
    for document in documents:
        if document.kind != "path":
            continue
        prompt, answer, end = document.segments
        match = form.fullmatch(prompt.text)
        assert match is not None
        assert match["system"] in prompts.SYSTEM_PROMPTS
        assert end.text == prompts.EOS
        assert answer.own == (not answer.text.startswith(" "))
        if match["path"]:
            assert match["path"].split(" -> ")[-1] == answer.text.strip()
        found[answer.own, bool(match["path"])] += 1
    assert min(found[own, supported] for own in (0, 1) for supported in (0, 1)) > 5


def test_an_own_answer_is_tokenized_alone(tokenizer: Tokenizer, documents: list[Document]) -> None:
    document = next(d for d in documents if d.kind == "path" and d.segments[1].own)
    prompt, answer, end = (segment.text for segment in document.segments)
    alone = tokenizer.encode(answer, add_special_tokens=False).ids
    closing = tokenizer.encode(end, add_special_tokens=False).ids
    assert encode_document(tokenizer, document)[0] == [
        *tokenizer.encode(prompt).ids,
        *alone,
        *closing,
    ]


def test_documents_in_a_row_are_disjoint_and_start_at_position_zero(
    tokenizer: Tokenizer,
) -> None:
    rows = batches(tokenizer, SEED)[0]
    bos = tokenizer.token_to_id(prompts.BOS)
    for row in range(rows.ids.shape[0]):
        at, tokens = 0, 0
        while at < rows.ids.shape[1]:
            end = rows.subtree_end[row, at]
            n = end - at
            assert (rows.subtree_end[row, at:end] == end).all()
            np.testing.assert_array_equal(rows.position[row, at:end], np.arange(n))
            assert rows.weight[row, end - 1] == 0
            if n > 1:
                assert rows.ids[row, at] == bos
                np.testing.assert_array_equal(
                    rows.target[row, at : end - 1], rows.ids[row, at + 1 : end]
                )
                tokens += n
            at = end
        assert tokens > 0.7 * rows.ids.shape[1]


def test_the_template_writes_what_documents_have(tokenizer: Tokenizer) -> None:
    from transformers import PreTrainedTokenizerFast

    chat = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=prompts.BOS)
    chat.chat_template = prompts.CHAT_TEMPLATE
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hm? "}]
    expected = prompts.turn("system", "Be brief.") + prompts.turn("user", "Hm?")
    rendered = chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == prompts.BOS + expected + prompts.turn_start("assistant")
    assert "system" in prompts.CHAT_TEMPLATE


def test_inputs_are_in_the_form_of_paths(tmp_path: Path) -> None:
    path = held_out.write_inputs(tmp_path, SEED)
    text = path.read_text(encoding="utf-8")
    items = [json.loads(line) for line in text.splitlines()]
    assert len(items) == held_out.INPUT_ITEMS == len({item["id"] for item in items})
    for item in items:
        assert set(item) == {"id", "question", "paths"}
        assert all(len(path) >= 3 for path in item["paths"])
        assert item["paths"][0][0] in item["question"]
    assert held_out.write_inputs(tmp_path / "again", SEED).read_text(encoding="utf-8") == text
