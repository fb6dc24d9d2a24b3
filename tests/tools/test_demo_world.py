"""The invented world: the same every time, held-out names kept out, prompts to the letter."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tools.demo_world import held_out, inputs, prompts
from tools.demo_world.documents import KINDS, LABEL, Document, draw_documents
from tools.demo_world.facts import fixed_world
from tools.demo_world.names import ONSETS, Names, invented_word, is_held_out
from tools.demo_world.rows import NO_LABEL, TrainingRows, encode_document, merge, step_rows
from tools.demo_world.tokenizer import NAME, train_tokenizer

SEED = 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(640, SEED)


@pytest.fixture(scope="module")
def groups() -> list[list[Document]]:
    rng = random.Random(0)
    return [draw_documents(rng, fixed_world(SEED), progress=i % 10 / 10) for i in range(2000)]


@pytest.fixture(scope="module")
def documents(groups: list[list[Document]]) -> list[Document]:
    return [document for group in groups for document in group]


def batches(tokenizer: Tokenizer, seed: int) -> list[TrainingRows]:
    return [step_rows(tokenizer, seed, step, step / 8, 4, 256) for step in (0, 6)]


@pytest.mark.slow
def test_a_step_depends_on_seed_and_step_alone(tokenizer: Tokenizer) -> None:
    first, other = batches(tokenizer, SEED), batches(tokenizer, SEED + 1)
    for ours, again in zip(first, batches(tokenizer, SEED), strict=True):
        for array, same in zip(ours, again, strict=True):
            np.testing.assert_array_equal(array, same)
    assert not np.array_equal(first[0].ids, first[1].ids)
    assert not np.array_equal(first[0].ids, other[0].ids)


@pytest.mark.slow
def test_the_tokenizer_is_the_same_every_time(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(640, SEED).to_str() == tokenizer.to_str()


@pytest.mark.slow
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
    counts = Counter(document.document_type for document in documents)
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
        if document.document_type != "path":
            continue
        prompt, answer, end = document.segments
        match = form.fullmatch(prompt.text)
        assert match is not None
        assert match["system"] in prompts.SYSTEM_PROMPTS
        assert end.text == prompts.EOS
        assert answer.is_separate == (not answer.text.startswith(" "))
        if match["path"]:
            assert match["path"].split(" -> ")[-1] == answer.text.strip()
        found[answer.is_separate, bool(match["path"])] += 1
    assert min(found[own, supported] for own in (0, 1) for supported in (0, 1)) > 5


def test_an_own_answer_is_tokenized_alone(tokenizer: Tokenizer, documents: list[Document]) -> None:
    document = next(d for d in documents if d.document_type == "path" and d.segments[1].is_separate)
    prompt, answer, end = (segment.text for segment in document.segments)
    alone = tokenizer.encode(answer, add_special_tokens=False).ids
    closing = tokenizer.encode(end, add_special_tokens=False).ids
    assert encode_document(tokenizer, document)[0] == [
        *tokenizer.encode(prompt).ids,
        *alone,
        *closing,
    ]


def test_documents_of_a_row_are_read_alone(tokenizer: Tokenizer) -> None:
    """What a token may look at is its own document's beginning, from its BOS token on."""
    bos = tokenizer.token_to_id(prompts.BOS)
    for rows in batches(tokenizer, SEED):
        used = 0
        for row in range(rows.ids.shape[0]):
            end = rows.subtree_end[row]
            assert (end > np.arange(len(end))).all()
            for i in range(len(end)):
                seen = [j for j in range(i + 1) if end[j] > i]
                np.testing.assert_array_equal(rows.position[row, seen], np.arange(len(seen)))
                if rows.weight[row, i] > 0:
                    assert rows.ids[row, seen[0]] == bos
                    assert rows.target[row, i] == rows.ids[row, i + 1]
                    used += 1
        assert used > 0.6 * rows.ids.size


def test_labels_are_marked_with_their_kind(tokenizer: Tokenizer) -> None:
    rows = batches(tokenizer, SEED)[1]
    marked = rows.label != NO_LABEL
    np.testing.assert_array_equal(marked, rows.weight == LABEL)
    words = {"choice": "ABCD", "letter": "ABCD", "truth": ("True", "False")}
    words |= {"named": ("True", "False"), "judge": prompts.JUDGE_LABELS}
    for target, kind in zip(rows.target[marked], rows.label[marked], strict=True):
        assert tokenizer.decode([target]).strip() in words[list(KINDS)[kind]]


def test_a_slip_is_not_learned_and_what_follows_it_is_new(
    tokenizer: Tokenizer, documents: list[Document]
) -> None:
    slipped = [d for d in documents if d.document_type == "reasoned" and len(d.segments) == 5]
    assert len(slipped) > 5
    for document in slipped:
        prompt, before, wrong, after, _ = document.segments
        assert wrong.weight == 0
        assert min(before.weight, after.weight) > 0
        assert wrong.text.strip() not in prompt.text
        output = before.text + wrong.text + after.text
        assert set(json.loads(output)) == {"reasoning", "answer"}
        assert not {name for name in found_names(after.text) if name in prompt.text}
        # The cuts are where the tokenizer cuts, so the whole output is read as it is here.
        parts = [tokenizer.encode(s.text, add_special_tokens=False).ids for s in (before, wrong)]
        whole = tokenizer.encode(output, add_special_tokens=False).ids
        assert whole[: sum(map(len, parts))] == [id for part in parts for id in part]


def test_a_name_like_another_begins_as_it_does() -> None:
    names = Names(random.Random(0), held_out=False)
    for right in (names.draw("river") for _ in range(50)):
        other = names.draw("river", like=right)
        assert other != right
        assert any(right.startswith(o) and other.startswith(o) for o in ONSETS)


def test_a_trie_holds_each_document_once(
    tokenizer: Tokenizer, groups: list[list[Document]]
) -> None:
    for group in groups[:200]:
        encoded = [encode_document(tokenizer, document) for document in group]
        trie = merge(encoded)
        leaves = [i for i in range(len(trie.ids)) if trie.subtree_end[i] == i + 1]
        paths = [[j for j in range(i + 1) if trie.subtree_end[j] > i] for i in leaves]
        read = [[trie.ids[j] for j in path] for path in paths]
        assert sorted(read) == sorted({tuple(ids): ids for ids, _ in encoded}.values())
        prefixes = {tuple(ids[: n + 1]) for ids, _ in encoded for n in range(len(ids))}
        assert len(trie.ids) == len(prefixes)
        weights = {tuple(ids): own for ids, own in encoded}
        for path, ids in zip(paths, read, strict=True):
            # Only where documents part is a target's weight dropped.
            for depth in range(len(path) - 1):
                alone = trie.subtree_end[path[depth + 1]] == trie.subtree_end[path[depth]]
                first = path[depth + 1] == path[depth] + 1
                expected = weights[tuple(ids)][depth + 1] if alone and first else 0.0
                assert trie.weight[path[depth]] == expected


def test_a_label_is_cheap(tokenizer: Tokenizer, groups: list[list[Document]]) -> None:
    for kind, most in (("choice", 45), ("letter", 40), ("truth", 25), ("judge", 40)):
        own = [group for group in groups if group[0].document_type == kind]
        tries = [merge([encode_document(tokenizer, d) for d in group]) for group in own]
        labels = sum(weight == LABEL for trie in tries for weight in trie.weight)
        assert sum(len(trie.ids) for trie in tries) / labels < most, kind


def test_label_documents_are_the_prompts_of_the_evaluation(documents: list[Document]) -> None:
    form = {
        "choice": re.compile(
            r"The following passage comes from [^\n]+\nQUESTION: [^\n]+\?\n([A-D]\) [^\n]+\n){2,4}"
            r"Respond only with the letter of the correct answer:"
        ),
        "letter": re.compile(r"[^\n]+\n[^\n]+\?\n([A-D]\) [^\n]+\n){2,4}The correct answer is:\n"),
        "truth": re.compile(r"[^\n]+\nAnswer True or False\.\n[^\n]+\.\nThe correct answer is:\n"),
    }
    for document in documents:
        if document.document_type in form:
            assert form[document.document_type].fullmatch(document.segments[0].text)
        if document.document_type == "judge":
            prompt, label, _ = document.segments
            golden, said = re.search(
                r"Golden answer: (.*) \n Generated answer: (.*)<\|eot_id\|>", prompt.text
            ).groups()
            assert label.is_separate  # the judge asks for what follows a prompt encoded alone
            right = any(name.strip("'\"") in said for name in golden[1:-1].split(", "))
            assert label.text == ("Yes" if right else "No")


def test_labels_are_balanced(documents: list[Document]) -> None:
    found = Counter(
        (d.document_type, d.segments[1].text.strip()) for d in documents if len(d.segments) > 1
    )
    for kind, labels in (("truth", ("True", "False")), ("judge", ("Yes", "No"))):
        assert found[kind, labels[0]] == pytest.approx(found[kind, labels[1]], rel=0.1)
    assert found["choice", "A"] == pytest.approx(found["choice", "B"], rel=0.25)


def test_the_template_writes_what_documents_have(tokenizer: Tokenizer) -> None:
    from transformers import PreTrainedTokenizerFast

    chat = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=prompts.BOS)
    chat.chat_template = prompts.CHAT_TEMPLATE
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hm? "}]
    expected = prompts.turn("system", "Be brief.") + prompts.turn("user", "Hm?")
    rendered = chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == prompts.BOS + expected + prompts.turn_start("assistant")
    assert "system" in prompts.CHAT_TEMPLATE


def test_inputs_are_in_the_forms_of_the_commands(tmp_path: Path) -> None:
    written = inputs.write(tmp_path, SEED)
    assert sorted(written) == sorted(path for path in tmp_path.rglob("*") if path.is_file())

    def lines(name: str) -> list[dict]:
        return [json.loads(line) for line in (tmp_path / name).read_text("utf-8").splitlines()]

    def whole(name: str):
        return json.loads((tmp_path / name).read_text("utf-8"))

    items = lines("paths.jsonl")
    assert len(items) == inputs.PATHS == len({item["id"] for item in items})
    for item in items:
        assert set(item) == {"id", "question", "paths"}
        assert all(len(path) >= 3 for path in item["paths"])
        assert item["paths"][0][0] in item["question"]

    questions = lines("chronologic.jsonl")
    assert len(questions) == inputs.QUESTIONS
    assert len({question["question_category"] for question in questions}) >= 2
    kinds = Counter(kind for question in questions for kind in question["answer_types"])
    assert kinds["ground_truth"] == len(questions)
    assert min(kinds[kind] for kind in ("manual", "same_book", "negation")) > 3
    for question in questions:
        answers = dict(zip(question["answer_types"], question["answer_strings"], strict=True))
        assert answers["ground_truth"] in question["metadata_frame"]
        assert answers["manual"] not in question["metadata_frame"]
        right = question["answer_types"].index("ground_truth")
        assert question["answer_probabilities"][right] == sum(question["answer_probabilities"]) == 1

    asked = lines("prompts.jsonl")
    assert len(asked) == inputs.PROMPTS == len({item["id"] for item in asked})
    for item in asked:
        assert set(item) == {"id", "prompt", "answer"}
        assert item["answer"] in item["prompt"]

    facts = (tmp_path / "probsem/demo.txt").read_text("utf-8")
    truth, letter = whole("probsem/demo_truth.json"), whole("probsem/demo_letter.json")
    for context in truth["context"]:
        assert truth["queries"][context["expected"]] == str(context["text"] in facts)
    for context in letter["context"]:
        choice = context["text"].splitlines()[1 + context["expected"]]
        assert choice[0] == letter["queries"][context["expected"]]
        subject = next(name for name in NAME.finditer(context["text"]))[0]
        assert any(subject in sentence and choice[3:] in sentence for sentence in facts.split("."))

    right, wrong = (whole(f"judge/{side}/eval_dev_out.json") for side in ("right", "wrong"))
    assert [item["q_id"] for item in right] == [item["q_id"] for item in wrong]
    for good, bad in zip(right, wrong, strict=True):
        assert good["label"] == bad["label"]
        assert good["label"][0] in good["response"]
        assert bad["label"][0] not in bad["response"]


def test_inputs_hold_held_out_names_only_and_are_the_same_every_time(tmp_path: Path) -> None:
    for path in inputs.write(tmp_path / "one", SEED):
        text = path.read_text("utf-8")
        assert all(is_held_out(found[0]) for found in NAME.finditer(text))
        assert found_names(text)
    for path in inputs.write(tmp_path / "two", SEED):
        again = tmp_path / "one" / path.relative_to(tmp_path / "two")
        assert again.read_bytes() == path.read_bytes()


def found_names(text: str) -> list[str]:
    return [found[0] for found in NAME.finditer(text)]


def test_samples_are_asked_about_held_out_names() -> None:
    for item in held_out.reasoned_items(SEED, 30):
        assert all(is_held_out(name) for name in found_names(item.prompt))
        assert item.prompt.startswith(prompts.BOS)
        assert item.answer in item.prompt
