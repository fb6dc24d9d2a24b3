"""BEM against torch and the model card's own way to make an input."""

import json
import types

import numpy as np
import pytest
import torch
from transformers import BertTokenizerFast

from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.systems.rag import Item, bem
from jaxscore.systems.rag.bem import Bem, fitted
from jaxscore.text.bounded_tokenizer import BoundedTokenizer
from tests.models.transformers_flax.test_bert_classifier import POSITIONS, torch_model
from tests.releases import HAS_FLAX_CLASSES, NO_FLAX_CLASSES
from tests.text.test_bounded_tokenizer import PANICS, panicking_backend

pytestmark = pytest.mark.lines

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] where was ada born oslo in norway the answer is bergen ##s . ?"
).split()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A random classifier with a tokenizer of a few words."""
    if not HAS_FLAX_CLASSES:
        pytest.skip(NO_FLAX_CLASSES)
    folder = tmp_path_factory.mktemp("bem")
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=POSITIONS)
    tokenizer.save_pretrained(folder)
    model = torch_model()
    model.save_pretrained(folder)
    return folder, model, tokenizer


@torch.no_grad()
def by_the_card(checkpoint, question, reference, candidate) -> float:
    """As the model card of kortukov/answer-equivalence-bem shows it."""
    _, model, tokenizer = checkpoint
    inputs = tokenizer(
        text=f"[CLS] {candidate} [SEP]",
        text_pair=f"{reference} [SEP] {question} [SEP]",
        add_special_tokens=False,
        padding="max_length",
        truncation=True,
        return_tensors="pt",
    )
    return torch.softmax(model(**inputs).logits.double(), -1)[0, 1].item()


def item(response, *label, question="where was Ada born?"):
    return Item("q", response, list(label), question)


def test_it_agrees_with_torch(checkpoint):
    items = [
        item("Oslo", "Oslo"),
        item("the answer is Bergen.", "Oslo", "Bergen in Norway", "Norways"),
        item("", "Oslo", question=""),
        item("אוסלו", "Oslo", "é"),
        item("is " * 80, "Oslo"),
    ]
    matches = Bem(checkpoint[0]).match(items)
    for given, one in zip(items, matches, strict=True):
        want = [
            by_the_card(checkpoint, given.question, reference, given.response)
            for reference in given.label
        ]
        assert one.by_reference == pytest.approx(want, abs=1e-5)
        assert one.score == max(one.by_reference)
        assert given.label.index(one.best) == int(np.argmax(one.by_reference))
        assert one.trimmed == 0
    assert len({round(p, 6) for one in matches for p in one.by_reference}) > 5


def test_the_best_of_the_references_whatever_their_order(checkpoint):
    one, other = Bem(checkpoint[0]).match(
        [item("Oslo", "Bergen", "is"), item("Oslo", "is", "Bergen")]
    )
    assert one.score == other.score
    assert one.best == other.best
    assert one.by_reference == pytest.approx(other.by_reference[::-1], abs=1e-7)


def test_what_is_longer_than_the_positions_is_cut_at_its_longest(checkpoint):
    long = "bergen " * 30_000  # 200 KB
    one, short = Bem(checkpoint[0]).match([item(long, "Oslo", "Bergen"), item("Oslo", "Oslo")])
    n_question, n_reference = 5, 1
    left = POSITIONS - 4 - n_question - n_reference
    assert one.trimmed == 2 * (30_000 - left)  # once for each reference
    assert one.by_reference[0] == pytest.approx(
        by_the_card(checkpoint, "where was Ada born?", "Oslo", "bergen " * left), abs=1e-5
    )
    assert short.trimmed == 0
    rows = [
        {"q_id": k, "question": "where was Ada born?", "response": response, "label": label}
        for k, (response, label) in enumerate([(long, ["Oslo", "Bergen"]), ("Oslo", ["Oslo"])])
    ]
    report = evaluate("bem", Bem(checkpoint[0]), rows)
    assert report.summary["n_trimmed"] == 1
    assert report.summary["mean"].mean == pytest.approx((one.score + short.score) / 2)


def test_a_text_that_cannot_be_read_fails_its_record_alone():
    source = Bem.__new__(Bem)
    source._facts = {"model": "random"}
    source._tokenizer, source._cls, source._sep = BoundedTokenizer(panicking_backend()), 1, 2
    source.classifier = types.SimpleNamespace(
        max_positions=POSITIONS,
        n_types=2,
        probabilities=lambda inputs: np.full((len(inputs), 2), 0.5, np.float32),
    )
    items = [
        {"q_id": k, "question": "who?", "response": response, "label": ["Oslo", label]}
        for k, (response, label) in enumerate([("a", "b"), (PANICS, PANICS), ("c", PANICS)])
    ]
    report = evaluate("bem", source, items)
    assert ["error" in record for record in report.items] == [False, True, True]
    names, errors = zip(*report.failures, strict=True)
    assert names == ("record 2 (q_id 1)", "record 3 (q_id 2)")
    assert "cannot read the text" in errors[0]
    assert report.summary["n_failed"] == 2
    [listed] = bem.SYSTEM.listed(report)["records"]
    assert listed == report.items[0]


@pytest.mark.parametrize(
    ("lengths", "room", "want"),
    [
        ([3, 4, 5], 12, [3, 4, 5]),
        ([3, 4, 50], 12, [3, 4, 5]),
        ([1000, 30, 30], 60, [20, 20, 20]),
        ([30, 0, 31], 60, [30, 0, 30]),
        ([0, 0, 0], 60, [0, 0, 0]),
        ([9, 9, 9], 2, [0, 0, 0]),
    ],
)
def test_fitted(lengths, room, want):
    assert fitted(lengths, room) == want


def test_three_token_types_where_the_model_has_them(checkpoint, tmp_path):
    folder, _, tokenizer = checkpoint
    torch_model(type_vocab_size=3).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    parts = [[5, 6], [7], [8, 9]]
    (ids, types), _ = Bem(tmp_path)._input(parts)
    assert ids.tolist() == [2, 5, 6, 3, 7, 3, 8, 9, 3]
    assert types.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2]
    (_, types), _ = Bem(folder)._input(parts)
    assert types.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_classifiers_of_another_kind_are_refused(checkpoint, tmp_path):
    torch_model(num_labels=3).save_pretrained(tmp_path)
    checkpoint[2].save_pretrained(tmp_path)
    with pytest.raises(InputError, match="a classifier of 3 classes, expected two"):
        Bem(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        bem.load("./nowhere", None, dtype="auto")


def test_from_python(checkpoint):
    folder = checkpoint[0]
    rows = [
        {"q_id": 1, "question": "who was it", "label": ["a cat", "the cat"], "response": "cat"},
        {"q_id": 2, "question": "who", "label": ["a"], "response": "b"},
        {"q_id": 3, "question": "who", "label": [], "response": "b"},
    ]
    report = evaluate("bem", bem.load(str(folder), None, dtype="auto"), rows)
    scores = [one["score"] for one in report.items[:2]]
    assert report.summary["mean"].mean == pytest.approx(sum(scores) / 2)
    assert [name for name, _ in report.failures] == ["record 3"]
    assert json.loads(json.dumps(report.to_dict())) == json.loads(report.json())
    settings = report.to_dict()["settings"]
    assert (settings["model"], settings["dtype"]) == (str(folder), "float32")
    assert "Best reference" in report.markdown()
    with pytest.raises(InputError, match="found no records, expected at least one"):
        evaluate("bem", Bem(folder), [])
