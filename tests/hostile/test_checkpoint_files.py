"""Models and adapters from anywhere: refused by name, and nothing beside their folder is read."""

import json
import os
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.errors import InputError
from jaxscore.models import native
from jaxscore.models.weights import checkpoint, lora, tensor_files
from jaxscore.models.weights.checkpoint import read_generation_config
from jaxscore.systems.rag import experiment_folder
from tests.conftest import CASES
from tests.hostile.inputs import FILES, HOSTILE, any_texts, contents, outcome, put, refused, values

ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
HEADER = {"a": ENTRY, "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}}
DATA = bytes(range(22))
MODULE = f"{lora.ROOT}model.layers.0.self_attn.q_proj"
ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "task_type": "CAUSAL_LM", "bias": "none"}
CONFIG = json.loads((CASES / "models/tiny-llama3/config.json").read_bytes())
METRICS = "eval_dev_metrics.json"
HUGE = (2**22 + 1, 2**31, 2**63, 10**30, 10**400)


def safetensors(header, data=DATA, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def adapter(folder, config, module=MODULE):
    names = [f"{module}.lora_{half}.weight" for half in "AB"]
    shapes = [[2, 4], [4, 2]]
    header = {
        name: {"dtype": "F32", "shape": shape, "data_offsets": [32 * k, 32 * k + 32]}
        for k, (name, shape) in enumerate(zip(names, shapes, strict=True))
    }
    put(folder / lora.WEIGHTS, safetensors(header, bytes(64)))
    return put(folder / lora.CONFIG, json.dumps(config).encode())


def mapped(path, content):
    """Views, if it is a safetensors file: within the file, and not to be written."""
    put(path, content)
    got = outcome(lambda: tensor_files.map_file(path), path)
    if not isinstance(got, InputError):
        assert sum(array.nbytes for array in got.values()) < len(content)
        assert not any(array.flags.writeable for array in got.values())
    return got


def test_a_good_file_is_read(tmp_path):
    got = mapped(tmp_path / "m.safetensors", safetensors(HEADER))
    assert got["a"].tobytes() + got["b"].tobytes() == DATA


@HOSTILE
@given(contents(safetensors(HEADER)), contents(json.dumps(HEADER).encode()), st.binary(max_size=30))
def test_any_bytes_of_a_safetensors_file(tmp_path, content, header, data):
    mapped(tmp_path / "m.safetensors", content)
    mapped(tmp_path / "m.safetensors", safetensors(header, data))


@HOSTILE
@given(
    st.dictionaries(st.sampled_from(sorted(ENTRY)), values, min_size=1, max_size=3),
    st.lists(st.integers(0, 40) | st.sampled_from(HUGE), min_size=2, max_size=2),
    st.lists(st.integers(0, 3) | st.sampled_from(HUGE), max_size=3),
    any_texts,
)
def test_any_entry_of_a_header(tmp_path, change, offsets, shape, name):
    path = tmp_path / "m.safetensors"
    for entry in (ENTRY | change, ENTRY | {"data_offsets": offsets}, ENTRY | {"shape": shape}):
        mapped(path, safetensors(HEADER | {"a": entry}))
        mapped(path, safetensors({name: entry, "__metadata__": change}))


@pytest.mark.parametrize("length", [0, 1, 22, 10**5, 2**25 + 1, 2**63, 2**64 - 1])
def test_a_length_that_lies(tmp_path, length):
    path = put(tmp_path / "m.safetensors", safetensors(HEADER, length=length))
    refused(lambda: tensor_files.map_file(path), path)


@pytest.mark.parametrize(
    "header",
    [
        *FILES,
        HEADER | {"a": ENTRY | {"shape": [0, 2**70]}},
        HEADER | {"a": ENTRY | {"shape": [0, 2**47, 2**47], "data_offsets": [0, 0]}},
        HEADER | {"a": ENTRY | {"shape": [1] * 70}},
        HEADER | {"a": ENTRY | {"shape": [10**4000] * 400}},
        HEADER | {"a": ENTRY | {"shape": [10**12, 10**12], "data_offsets": [0, 4 * 10**24]}},
        HEADER | {"a": ENTRY | {"data_offsets": [8, 24]}},
        HEADER | {"a": ENTRY | {"data_offsets": [6, 22]}},
        HEADER | {"a": ENTRY | {"data_offsets": [16, 0]}},
        HEADER | {"a": ENTRY | {"dtype": ["F32"]}},
    ],
)
def test_headers_that_are_none_take_no_memory(tmp_path, header):
    path = put(tmp_path / "m.safetensors", safetensors(header))
    tracemalloc.start()
    refused(lambda: tensor_files.map_file(path), path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20


@pytest.fixture
def sharded(tmp_path):
    """A folder with one shard, and beside the folder a file that is a whole one too."""
    folder = tmp_path / "model"
    folder.mkdir()
    put(folder / "one.safetensors", safetensors(HEADER))
    put(tmp_path / "secret.safetensors", safetensors(HEADER))
    return folder


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd", "..", ".", "", "one.safetensors/", "./one.safetensors",
     "a\0b", "\ud800", "x" * 5000, "model", "\x1b[31m", None, 3, ["one.safetensors"], {}],
)  # fmt: skip
def test_an_index_names_files_of_its_folder_only(sharded, name):
    index = sharded / "model.safetensors.index.json"
    put(index, json.dumps({"weight_map": {"a": "one.safetensors", "b": name}}).encode())
    refused(lambda: tensor_files.open_tensors(sharded), sharded)
    put(index, json.dumps({"weight_map": dict.fromkeys("ab", name)}).encode())
    refused(lambda: tensor_files.open_tensors(sharded), sharded)


@HOSTILE
@given(
    values, contents(json.dumps({"weight_map": dict.fromkeys("ab", "one.safetensors")}).encode())
)
def test_any_index(sharded, value, content):
    index = sharded / "model.safetensors.index.json"
    for raw in (content, json.dumps({"weight_map": value}).encode()):
        put(index, raw)
        got = outcome(lambda: tensor_files.open_tensors(sharded), sharded)
        if not isinstance(got, InputError):
            assert set(got.where.values()) == {sharded / "one.safetensors"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", checkpoint.read_config),
        ("model.safetensors", tensor_files.open_tensors),
        ("model.safetensors.index.json", tensor_files.open_tensors),
        (
            "generation_config.json",
            lambda folder: checkpoint.read_generation_config(folder, {}),
        ),
        (lora.CONFIG, lora.read),
        ("config.yaml", lambda folder: experiment_folder.read_config(folder, "dev")),
        ("eval_dev_out.json", lambda folder: experiment_folder.load(folder, "dev")),
        ("eval_dev_metrics.json", lambda folder: experiment_folder.read_metrics(folder / METRICS)),
    ],
)
def test_a_pipe_in_a_folder_does_not_hang(tmp_path, name, read):
    os.mkfifo(tmp_path / name)
    assert "found a pipe" in refused(lambda: read(tmp_path), tmp_path / name)


ROTARY = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5}
WRAPPED = {"model_type": "qwen2_5_vl", "text_config": CONFIG | {"model_type": "qwen2_5_vl_text"}}
changes = st.dictionaries(
    st.sampled_from(
        [
            *sorted(CONFIG),
            *"rope_parameters rope_scaling layer_types num_labels text_config".split(),
        ]
    )
    | any_texts,
    values
    | st.sampled_from(HUGE)
    | st.just([None] * 100)
    | st.dictionaries(st.sampled_from([*ROTARY, "mrope_section"]), values, max_size=3),
    min_size=1,
    max_size=2,
)


@HOSTILE
@given(changes, st.sampled_from(["llama", "gemma3_text", "gpt_neox", "qwen3", "wrapped"]))
def test_any_config(tmp_path, change, kind):
    """Refused, or a decoder of sizes that the tensors can then be held against."""
    given = CONFIG | {"model_type": kind} | change
    if kind == "wrapped":
        given = WRAPPED | {"text_config": WRAPPED["text_config"] | change} | change
    put(tmp_path / "config.json", json.dumps(given).encode())

    def read():
        raw = checkpoint.read_config(tmp_path)
        read_generation_config(tmp_path, raw)
        return native.translate(tmp_path, raw)[1]

    got = outcome(read, tmp_path / "config.json")
    if not isinstance(got, InputError):
        assert all(0 < size < 2**63 for size in native.sizes_of(got).values())
        assert np.isfinite([table.frequencies for table in got.positions.rotary]).all()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"num_hidden_layers": 2**31}, "num_hidden_layers is 2147483648, expected at most 10000"),
        ({"num_labels": 2**31}, "num_labels is 2147483648, expected at most 10000"),
        ({"hidden_size": 2**31}, "hidden_size is 2147483648, expected at most 4194304"),
        ({"head_dim": 10**12}, "head_dim is 1000000000000, expected at most"),
        ({"rms_norm_eps": 10**12}, "rms_norm_eps is 1000000000000, expected at most"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, expected a value like"),
        ({"rope_theta": 0}, "rope_theta is 0, expected a number of at least 1"),
        ({"rope_theta": -1.5}, "rope_theta is -1.5, expected a number of at least 1"),
        ({"rope_theta": 1e300}, "rope_theta is 1e+300, expected a value like"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, "factor nan, expected"),
        (
            {"rope_scaling": CONFIG["rope_scaling"] | {"low_freq_factor": 5.0}},
            "low_freq_factor 5.0",
        ),
        ({"rope_scaling": {"rope_type": ["linear"]}}, "config.json"),
        ({"rope_scaling": ["linear"]}, "config.json: "),
    ],
)
def test_numbers_that_make_no_model(tmp_path, change, why):
    put(tmp_path / "config.json", json.dumps(CONFIG | change).encode())
    assert why in refused(lambda: native.translate(tmp_path, checkpoint.read_config(tmp_path)))


def test_transformers_quotes_nothing_on_the_terminal(tmp_path, capfd):
    scaling = {"rope_type": "\x1b[31m", "factor": 2.0}
    put(tmp_path / "config.json", json.dumps(CONFIG | {"rope_scaling": scaling}).encode())
    message = refused(lambda: native.translate(tmp_path, checkpoint.read_config(tmp_path)))
    assert r"rope_type '\x1b[31m', which is not handled" in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ids", [-1, 2**31, 10**30, True, "2", 1.5, [2, None], {"a": 1}, [[2]]])
def test_eos_ids(tmp_path, ids):
    path = put(tmp_path / "generation_config.json", json.dumps({"eos_token_id": ids}).encode())
    assert "expected a token id" in refused(lambda: read_generation_config(tmp_path, {}), path)


@HOSTILE
@given(st.sampled_from([*checkpoint.COMPUTED, *checkpoint.ANY_TEXT]), values)
def test_any_generation_default(tmp_path, name, value):
    """A value that can be asked for, or an entry that is named."""
    put(tmp_path / "generation_config.json", json.dumps({name: value}).encode())
    _, defaults = read_generation_config(tmp_path, {})
    plain = checkpoint.GenerationDefaults()
    assert defaults == plain or name in defaults.unhandled or vars(defaults)[name] == value


@HOSTILE
@given(
    st.dictionaries(
        st.sampled_from([*sorted(ADAPTER), "rank_pattern", "alpha_pattern", "use_rslora"])
        | any_texts,
        values | st.dictionaries(any_texts | st.just("q_proj"), values, max_size=2),
        max_size=3,
    ),
    contents(json.dumps(ADAPTER).encode()),
)
def test_any_adapter(tmp_path, change, content):
    where = adapter(tmp_path, ADAPTER | change)
    got = outcome(lambda: lora.read(tmp_path), tmp_path)
    if not isinstance(got, InputError):
        [delta] = got.deltas.values()
        assert np.isfinite(delta.scale)
    put(where, content)
    outcome(lambda: lora.read(tmp_path), tmp_path)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "(((a*)*)*)*b", "(" * 5000, "a{99999999999}", "[[a]]", "(?R)", "(?i)a",
     "(?P<x>a)(?P=y)", "\\", "[", "*", "(?<=a+)b", "a" * 10_000],
)  # fmt: skip
def test_patterns_that_hang_or_are_none(tmp_path, monkeypatch, pattern):
    monkeypatch.setattr(lora, "PATTERN_SECONDS", 0.2)
    module = f"{lora.ROOT}{'a' * 200}"
    for name in ("rank_pattern", "alpha_pattern"):
        adapter(tmp_path, ADAPTER | {name: {pattern: 2}}, module)
        outcome(lambda: lora.read(tmp_path), tmp_path / lora.CONFIG)


def test_a_pattern_that_hangs_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(lora, "PATTERN_SECONDS", 0.2)
    config = ADAPTER | {"rank_pattern": {"(a|aa)+": 2}}
    where = adapter(tmp_path, config, f"{lora.ROOT}{'a' * 200}!")
    message = refused(lambda: lora.read(tmp_path), where)
    assert "patterns take more than 0.2 s, '(a|aa)+'" in message


@pytest.mark.parametrize("alpha", [10**400, 1e300, 2**40])
def test_an_alpha_that_is_no_scale(tmp_path, alpha):
    where = adapter(tmp_path, ADAPTER | {"lora_alpha": alpha})
    assert "lora_alpha of module" in refused(lambda: lora.read(tmp_path), where)


def test_what_an_adapter_calls_its_base_is_one_line(tmp_path):
    adapter(tmp_path, ADAPTER | {"base_model_name_or_path": "a\n\x1b[31mb\u202e"})
    assert lora.read(tmp_path).base_model == r"a\n\x1b[31mb\u202e"
    adapter(tmp_path, ADAPTER | {"base_model_name_or_path": ["a"]})
    assert lora.read(tmp_path).base_model is None
