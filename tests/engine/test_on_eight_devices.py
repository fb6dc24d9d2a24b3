"""Eight devices against one: the same numbers, and only small ones sent between devices."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT, with_devices
from tests.engine.on_eight_devices import CONFIGS, RECURRENT, ROUTINGS, SHAPES

pytestmark = pytest.mark.numeric

HIDDEN = 192 * 32  # a batch's tokens, the half-step row over its 128, and the width
SCORES = 192 * 4  # a batch's queries and their targets


def on_eight_devices(module, *words):
    command = [sys.executable, "-m", module, *map(str, words)]
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=with_devices(8), check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.fixture(scope="module")
def report(request):
    """What `on_eight_devices` prints, of the parts that the tests of this run read."""
    parts = {part_of(item) for item in request.session.items if "report" in item.fixturenames}
    return json.loads(on_eight_devices("tests.engine.on_eight_devices", *sorted(parts)).stdout)


def part_of(item) -> str:
    """The part of the report that a test reads."""
    if "are_those_of_one_device" in item.originalname:
        return f"{item.callspec.params['name']} {item.callspec.params['shape']}"
    if item.originalname == "test_the_most_probable_tokens":
        return f"top {item.callspec.params['shape']}"
    if item.originalname == "test_measures":
        return f"measures {item.callspec.params['shape']}"
    if item.originalname == "test_routing":
        return f"routed {item.callspec.params['backend']} {item.callspec.params['routing']}"
    if "equal_logits" in item.originalname:
        return "ties"
    if "reproducible" in item.originalname:
        return "reproducible"
    if "continued" in item.originalname:
        return f"continued {item.callspec.params['name']}"
    if "prefix" in item.originalname:
        return f"prefixes {item.callspec.params['name']}"
    return "written"


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_numbers_are_those_of_one_device(report, name, shape):
    difference, same, sent = report[f"{name} {shape}"]
    data, model = shape
    assert difference < 1e-5
    # Each device scores whole batches as one device does, if it has the whole layers.
    assert same or model > 1
    sizes = dict(sent)
    assert sizes["all-gather"] == data * SCORES
    if model == 1:
        assert set(sizes) == {"all-gather"}
    else:
        assert set(sizes) == {"all-gather", "all-reduce"}
        assert sizes["all-reduce"] == HIDDEN


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", [(8, 1)], ids=str)
@pytest.mark.parametrize("name", RECURRENT)
def test_bits_of_recurrent_layers_are_those_of_one_device(report, name, shape):
    _, same, sent = report[f"{name} {shape}"]
    assert same
    assert dict(sent) == {"all-gather": shape[0] * SCORES}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_most_probable_tokens(report, shape):
    far, same, n_greedy, n_other = report[f"top {shape}"]
    assert far < 1e-5
    assert same or shape[1] > 1
    assert n_greedy > n_other == 0


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_measures(report, shape):
    far, same, n_wrong = report[f"measures {shape}"]
    assert far < 1e-5
    assert same or shape[1] > 1
    assert n_wrong == 0


def test_equal_logits_of_several_shards_keep_the_order_of_their_columns(report):
    got, z = map(np.array, report["ties"])
    np.testing.assert_array_equal(got, np.argsort(-z, axis=1, kind="stable")[:, :30])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", [(4, 2)], ids=str)
@pytest.mark.parametrize("name", RECURRENT)
def test_split_recurrent_layers_are_those_of_one_device(report, name, shape):
    difference, _, sent = report[f"{name} {shape}"]
    assert difference < 1e-5
    assert "all-reduce" in dict(sent)  # the layers are split


@pytest.mark.slow
@pytest.mark.parametrize("name", RECURRENT)
def test_text_continued_by_split_recurrent_layers(report, name):
    alone, split = report[f"continued {name}"]
    assert all(len(ids) > 4 for ids in alone)
    assert split == alone


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grouped", *RECURRENT])
def test_a_prefix_on_a_mesh(report, name):
    difference, sent = report[f"prefixes {name}"]
    assert difference < 1e-5
    assert "all-reduce" in dict(sent)  # the layers are split


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("backend", ["cpu", "tpu", "gpu"])
def test_routing(report, backend, routing):
    """Shards of two experts, with any number of pairs: several chunks on some, none on others."""
    difference, largest, chunks = report[f"routed {backend} {routing}"]
    assert difference < 1e-5 < largest
    assert (max(chunks) > 1) == (routing != "even")
    assert (min(chunks) == 0) == (routing != "even")


@pytest.mark.slow
@pytest.mark.parametrize("model", [1, 4])
def test_reproducible_bits_do_not_depend_on_the_devices_that_share_the_rows(report, model):
    digests = report[f"reproducible {model}"]
    assert len(digests) == 3 - (model == 4)
    assert len(set(digests)) == 1


@pytest.mark.slow
def test_text_written_on_a_mesh(report):
    (n_replaced, alone), *others = report["written"]
    assert n_replaced >= 24  # 20 texts in 8 rows, two times
    assert all(len(ids) > 3 for ids in alone)
    assert others == [[n_replaced, alone]] * 2


@pytest.mark.slow
def test_commands_on_a_mesh(tmp_path):
    """The same bytes from one device and from four that share the rows."""
    model = ROOT / "tests/cases/models/tiny-qwen2"
    lines = [{"context": f"The {k} ", "continuation": f"cat {k % 7}"} for k in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    for name, mesh in (("one", "data=1"), ("four", "data=4"), ("split", "data=2,model=2")):
        words = ("score", "--model", model, "--input", tmp_path / "in.jsonl", "--quiet")
        output = tmp_path / f"{name}.jsonl"
        on_eight_devices("jaxscore", *words, "--output", output, "--mesh", mesh)
    one, four, split = (tmp_path / f"{name}.jsonl" for name in ("one", "four", "split"))
    assert one.read_bytes() == four.read_bytes()
    pairs = zip(*(path.read_text().splitlines() for path in (one, split)), strict=True)
    for a, b in pairs:
        assert json.loads(a)["logprob"] == pytest.approx(json.loads(b)["logprob"], abs=1e-5)
