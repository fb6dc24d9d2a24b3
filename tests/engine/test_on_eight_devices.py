"""Eight devices against one: the same numbers, and only small ones sent between devices."""

import json

import numpy as np
import pytest

from tests.conftest import ROOT, with_devices
from tests.engine.answering import answering
from tests.engine.on_eight_devices import CONFIGS, RECURRENT, ROUTINGS, SHAPES
from tests.io.test_processes import start, well

HIDDEN = 192 * 32  # a batch's tokens, the half-step row over its 128, and the width
SCORES = 192 * 4  # a batch's queries and their targets
LOGITS = 192 * 2  # a batch's sums of exponentials over a vocabulary


def numeric(values, *chosen):
    """Parameters, of which the chosen ones are marked `numeric`.

    Bits that have to be equal are compared in the code of users' runs, which takes six times as
    long to make. So is one model of each mechanism that is compared within a tolerance.
    """
    return [pytest.param(x, marks=pytest.mark.numeric if x in chosen else ()) for x in values]


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
    """`on_eight(name, ...)`: what a function of on_eight_devices.py returns."""
    errors = tmp_path_factory.mktemp("eight") / "stderr"
    words = ("-m", "tests.engine.on_eight_devices")
    with answering(*words, environment=with_devices(8), errors=errors) as ask:
        yield lambda *words: ask(json.dumps(words))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", numeric(SHAPES, (8, 1)), ids=str)
@pytest.mark.parametrize("name", numeric(CONFIGS, "grouped"))
def test_the_numbers_are_those_of_one_device(on_eight, name, shape):
    difference, same, sent = on_eight("against_one_device", name, shape)
    data, model = shape
    assert difference < 1e-5
    # Each device scores whole batches as one device does, if it has the whole layers.
    assert same or model > 1
    sizes = dict(sent)
    if model == 1:
        assert sizes == {"all-gather": data * SCORES}
    else:
        assert sizes["all-gather"] == HIDDEN
        assert sizes["reduce-scatter"] == HIDDEN // model
        assert sizes.pop("all-reduce", 0) <= LOGITS
        assert set(sizes) == {"all-gather", "reduce-scatter"}


@pytest.mark.numeric
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", [(8, 1)], ids=str)
@pytest.mark.parametrize("name", RECURRENT)
def test_bits_of_recurrent_layers_are_those_of_one_device(on_eight, name, shape):
    _, same, sent = on_eight("against_one_device", name, shape)
    assert same
    assert dict(sent) == {"all-gather": shape[0] * SCORES}


@pytest.mark.numeric
@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "shape"),
    [("int8 experts", (2, 4)), ("ragged vocabulary", (8, 1)), ("short convolution", (8, 1))],
    ids=str,
)
def test_weights_split_over_data_change_no_bit(on_eight, name, shape):
    same, whole, split, gathered = on_eight("with_split_weights", name, shape)
    assert same
    assert split < whole / 1.5  # bytes of all parameters on a device, vectors included
    assert 0 < gathered <= whole - split


@pytest.mark.numeric
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_most_probable_tokens(on_eight, shape):
    far, same, n_greedy, n_other = on_eight("top_on", shape)
    assert far < 1e-5
    assert same or shape[1] > 1
    assert n_greedy > n_other == 0


@pytest.mark.numeric
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_measures(on_eight, shape):
    far, same, n_wrong = on_eight("measured_on", shape)
    assert far < 1e-5
    assert same or shape[1] > 1
    assert n_wrong == 0


@pytest.mark.numeric
def test_equal_logits_of_several_shards_keep_the_order_of_their_columns(on_eight):
    got, z = map(np.array, on_eight("ties"))
    np.testing.assert_array_equal(got, np.argsort(-z, axis=1, kind="stable")[:, :30])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", [(4, 2)], ids=str)
@pytest.mark.parametrize("name", numeric(RECURRENT, "short convolution"))
def test_split_recurrent_layers_are_those_of_one_device(on_eight, name, shape):
    difference, _, sent = on_eight("against_one_device", name, shape)
    assert difference < 1e-5
    assert "reduce-scatter" in dict(sent)  # the layers are split


@pytest.mark.slow
@pytest.mark.parametrize("name", RECURRENT)
def test_text_continued_by_split_recurrent_layers(on_eight, name):
    alone, split = (on_eight("continued", name, shape) for shape in (None, (1, 8)))
    assert all(len(ids) > 4 for ids in alone)
    assert split == alone


@pytest.mark.slow
@pytest.mark.parametrize("name", numeric(["grouped", *RECURRENT], "grouped"))
def test_a_prefix_on_a_mesh(on_eight, name):
    difference, sent = on_eight("with_prefixes", name, (2, 4) if name == "grouped" else (1, 8))
    assert difference < 1e-5
    assert "reduce-scatter" in dict(sent)  # the layers are split


@pytest.mark.numeric
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("backend", ["cpu", "tpu", "gpu"])
def test_routing(on_eight, backend, routing):
    """Shards of two experts, with any number of pairs: several chunks on some, none on others."""
    difference, largest, chunks = on_eight("routed", backend, routing)
    assert difference < 1e-5 < largest
    assert (max(chunks) > 1) == (routing != "even")
    assert (min(chunks) == 0) == (routing != "even")


@pytest.mark.numeric
@pytest.mark.slow
@pytest.mark.parametrize("model", [1, 4])
def test_reproducible_bits_do_not_depend_on_the_devices_that_share_the_rows(on_eight, model):
    digests = on_eight("reproducible", {1: [None, (2, 1), (8, 1)], 4: [(1, 4), (2, 4)]}[model])
    assert len(set(digests)) == 1


@pytest.mark.numeric
@pytest.mark.slow
def test_text_written_on_a_mesh(on_eight):
    meshes = (None, "data=2,model=2", "model=2")
    (n_replaced, alone), *others = (on_eight("written", mesh) for mesh in meshes)
    assert n_replaced >= 24  # 20 texts in 8 rows, two times
    assert all(len(ids) > 3 for ids in alone)
    assert others == [[n_replaced, alone]] * 2


@pytest.mark.numeric
@pytest.mark.slow
def test_commands_on_a_mesh(tmp_path):
    """The same bytes from one device and from four that share the rows and the weights."""
    model = ROOT / "tests/cases/models/tiny-qwen2"
    lines = [{"context": f"The {k} ", "continuation": f"cat {k % 7}"} for k in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    for name, mesh in (("one", "data=1"), ("four", "fsdp=4"), ("split", "data=2,model=2")):
        words = ("score", "--model", model, "--input", tmp_path / "in.jsonl", "--quiet")
        output = tmp_path / f"{name}.jsonl"
        well(start(1, *words, "--output", output, "--mesh", mesh, devices=8))
    one, four, split = (tmp_path / f"{name}.jsonl" for name in ("one", "four", "split"))
    assert one.read_bytes() == four.read_bytes()
    pairs = zip(*(path.read_text().splitlines() for path in (one, split)), strict=True)
    for a, b in pairs:
        assert json.loads(a)["logprob"] == pytest.approx(json.loads(b)["logprob"], abs=1e-5)
