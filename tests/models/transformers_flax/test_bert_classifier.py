"""The BERT classifier against torch, and checkpoints that it must refuse."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification

from jaxscore.errors import InputError
from jaxscore.models.transformers_flax.bert_classifier import BertClassifier
from tests.releases import flax_classes

pytestmark = [pytest.mark.numeric, flax_classes]

POSITIONS = 100  # no power of two: the last bucket is shorter than the next would be
VOCABULARY = 97


def torch_model(**config) -> torch.nn.Module:
    torch.manual_seed(3)
    options = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 56,
        "max_position_embeddings": POSITIONS,
        "hidden_dropout_prob": 0.3,
        **config,
    }
    model = BertForSequenceClassification(BertConfig(**options)).eval()
    with torch.no_grad():  # norms and biases away from one and zero
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    model = torch_model()
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture
def copy(saved, tmp_path):
    """A folder of the same checkpoint to damage: its path, config and tensors."""
    _, folder = saved
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")

    def write(config=config, tensors=tensors):
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return write, config, tensors


def sequences(*lengths: int) -> list[tuple[np.ndarray, np.ndarray]]:
    drawn = np.random.default_rng(5)
    return [
        (
            drawn.integers(1, VOCABULARY, n).astype(np.int32),
            np.sort(drawn.integers(0, 2, n)).astype(np.int32),
        )
        for n in lengths
    ]


@torch.no_grad()
def reference(model, items) -> np.ndarray:
    rows = []
    for ids, types in items:
        out = model(
            input_ids=torch.tensor(ids[None].astype(np.int64)),
            token_type_ids=torch.tensor(types[None].astype(np.int64)),
        )
        rows.append(torch.softmax(out.logits.double(), -1)[0].numpy())
    return np.array(rows)


def test_every_length_agrees_with_torch_in_the_order_given(saved):
    model, folder = saved
    classifier = BertClassifier(folder)
    items = sequences(POSITIONS, 1, 33, 2, 32, 64, 65, 3, 99)
    got = classifier.probabilities(items)
    assert (got.shape, got.dtype) == ((len(items), 2), np.float32)
    assert np.abs(got - reference(model, items)).max() < 1e-5
    assert got[:, 1].std() > 0.001  # the inputs tell
    assert classifier.n_compiled == 3  # buckets of 32, 64 and 100


@pytest.mark.slow
def test_reproducible_bits_do_not_depend_on_neighbours(saved):
    _, folder = saved
    items = sequences(*range(1, 40))
    classifier = BertClassifier(folder, reproducible=True)
    want = classifier.probabilities(items)
    assert classifier.probabilities(items[::-1])[::-1].tobytes() == want.tobytes()
    alone = np.concatenate([classifier.probabilities([one]) for one in items])
    assert alone.tobytes() == want.tobytes()


@pytest.mark.slow
def test_more_inputs_compile_nothing_more(saved, monkeypatch):
    _, folder = saved
    monkeypatch.setattr("jaxscore.models.transformers_flax.bert_classifier.BATCH_TOKENS", 128)
    classifier = BertClassifier(folder)
    items = sequences(*range(1, 33))
    together = classifier.probabilities(items)  # eight batches of four
    assert classifier.n_compiled == 1
    alone = np.concatenate([classifier.probabilities([one]) for one in items])
    assert np.abs(together - alone).max() < 1e-6
    assert classifier.n_compiled == 1
    assert classifier.probabilities([]).shape == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("config", [{"hidden_act": "relu"}, {"type_vocab_size": 3}])
def test_other_configs(tmp_path, config):
    model = torch_model(**config)
    model.save_pretrained(tmp_path)
    items = sequences(7, 40)
    got = BertClassifier(tmp_path).probabilities(items)
    assert np.abs(got - reference(model, items)).max() < 1e-5


def test_names_and_buffers_of_old_checkpoints(copy, saved):
    write, config, tensors = copy
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in tensors.items()
    }
    assert old.keys() != tensors.keys()
    old["bert.embeddings.position_ids"] = np.arange(POSITIONS)[None]
    items = sequences(9)
    got = BertClassifier(write(config, old)).probabilities(items)
    assert np.abs(got - reference(saved[0], items)).max() < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta', expected 'bert'"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"surprise": 3}, "surprise=3"),
        ({"vocab_size": 96}, "has shape"),
        ({"num_hidden_layers": 3}, "missing"),
        ({"num_hidden_layers": 1}, "not used"),
    ],
)
def test_configs_that_are_refused(copy, change, message):
    write, config, _ = copy
    with pytest.raises(InputError, match=message):
        BertClassifier(write({**config, **change}))


@pytest.mark.slow
def test_tensors_that_are_missing_or_left_over(copy):
    write, _, tensors = copy
    for name in tensors:
        part = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(InputError, match="tensors missing"):
            BertClassifier(write(tensors=part))
    more = {**tensors, "bert.encoder.layer.0.extra.weight": np.zeros((2, 2), np.float32)}
    with pytest.raises(InputError, match=r"not used \['bert.encoder.layer.0.extra.weight'\]"):
        BertClassifier(write(tensors=more))


def test_a_pickle_is_not_read(saved, tmp_path):
    model, folder = saved
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickles are not read"):
        BertClassifier(tmp_path)


@pytest.mark.slow
def test_bfloat16_is_near(saved):
    model, folder = saved
    items = sequences(7, 40)
    got = BertClassifier(folder, dtype="bfloat16").probabilities(items)
    assert np.abs(got - reference(model, items)).max() < 0.05
