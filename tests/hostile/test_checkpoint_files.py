"""Models and adapters from anywhere: refused by name, and nothing beside their folder is read."""

import json
import os
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.errors import InputError
from jaxscore.io import gguf_file
from jaxscore.models import native
from jaxscore.models.weights import checkpoint, fingerprint, generation_config, lora, tensor_files
from jaxscore.models.weights.generation_config import read_generation_config
from jaxscore.systems.rag import experiment_folder
from jaxscore.text import tokenizer_files
from jaxscore.text.gguf_tokenizer import read_gguf_tokenizer
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


SCALARS = {int: (4, "<I"), float: (6, "<f")}


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(values, tensors=((0, 16), (32, 16)), tail=b"", n_keys=None, names="ab"):
    """A GGUF file: values by key, and F32 tensors as (offset, bytes).

    A value is a number, a text, or the bytes of a type and a value.
    """
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values) if n_keys is None else n_keys)
    for key, value in values:
        if isinstance(value, str):
            value = struct.pack("<I", 8) + text(value)
        elif not isinstance(value, bytes):
            number, code = SCALARS[type(value)]
            value = struct.pack("<I", number) + struct.pack(code, value)
        data += text(key) + value
    for name, (offset, n_bytes) in zip(names, tensors, strict=False):
        data += text(name) + struct.pack("<IQIQ", 1, n_bytes // 4, 0, offset)
    data += bytes(-len(data) % 32)
    end = max((offset + n_bytes for offset, n_bytes in tensors), default=0)
    return data + bytes(end) + tail


def array(inner, n, content=b""):
    return struct.pack("<IIQ", 9, inner, n) + content


KEYS = [("general.architecture", "llama"), ("x", 7)]


def test_small_gguf_files_are_read(tmp_path):
    for content in (gguf(KEYS), gguf(KEYS, tail=bytes(16)), gguf(KEYS, ())):
        path = put(tmp_path / "m.gguf", content)
        assert gguf_file.read_gguf(path).metadata["x"] == 7


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gguf([*KEYS, ("k", array(9, 1, struct.pack("<IQ", 4, 0)))]), "key k is an array of array"),
        (gguf([*KEYS, ("k", array(9, 10**6, bytes(12 * 10**6)))]), "key k is an array of arrays"),
        (gguf([*KEYS, ("k", array(13, 1, bytes(8)))]), "key k is an array of values of type 13"),
        (gguf([*KEYS, ("k", array(4, 2**63))]), "key k has 9,223,372,036,854,775,808 entries"),
        (gguf([*KEYS, ("k", array(8, 2**40))]), "key k has 1,099,511,627,776 entries"),
        (gguf([*KEYS, ("k", array(8, 10**6))]), "entries of k, for which"),
        (gguf([*KEYS, ("k", struct.pack("<IQ", 8, 2**62))]), "ends within its metadata"),
        (gguf([*KEYS, ("k", struct.pack("<I", 99))]), "key k has a value of type 99"),
        (gguf([*KEYS, *KEYS]), "key general.architecture is there twice"),
        (gguf(KEYS, n_keys=2**60), "keys, for which"),
        (gguf(KEYS, names="aa"), "tensor a is there twice"),
        (gguf(KEYS, ((0, 48), (32, 16))), "tensor b begins at byte 32 of the tensors, expected 64"),
        (gguf(KEYS, ((0, 16), (0, 16))), "tensor b begins at byte 0 of the tensors, expected 32"),
        (gguf(KEYS, ((0, 16), (64, 16))), "tensor b begins at byte 64 of the tensors, expected 32"),
        (gguf(KEYS, ((32, 16), (64, 16))), "tensor a begins at byte 32 of the tensors, expected 0"),
        (gguf(KEYS, ((0, 16), (40, 16))), "tensor b begins at byte 40 of the tensors"),
        (gguf(KEYS, tail=bytes(17)), "17 bytes after the last tensor, which belong to none"),
        (gguf(KEYS, tail=bytes(10**6)), "1,000,000 bytes after the last tensor"),
        (gguf(KEYS, (), tail=bytes(10**6)), "bytes after the last tensor"),
        (gguf([*KEYS, ("general.alignment", 24)]), "alignment is 24, expected a power of two"),
        (gguf([*KEYS, ("general.alignment", 0)]), "alignment is 0, expected a power of two"),
        (gguf([*KEYS, ("general.alignment", 4)]), "alignment is 4, expected a power of two"),
        (gguf([*KEYS, ("general.alignment", "32")]), "alignment is '32', expected a power of two"),
        (gguf([*KEYS, ("general.alignment", 1 << 31)]), "the file is cut off"),
    ],
)
def test_gguf_files_that_lie_are_refused_without_memory(tmp_path, content, reason):
    path = put(tmp_path / "m.gguf", content)
    tracemalloc.start()
    assert reason in refused(lambda: gguf_file.read_gguf(path), path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (None, "bytes after the last tensor"),
        ([(f"k{n}", array(8, 1 << 22, bytes(8 << 22))) for n in range(5)], "have more than 134,2"),
        ([("k", array(8, 1 << 40))], "expected at most 4,194,304"),
        ([("k", array(4, 1 << 30))], "expected at most 4,194,304"),
        ([("k", struct.pack("<IQ", 8, 1 << 26))], "a text of 67,108,864 bytes, expected at most"),
    ],
)
def test_sparse_gguf_file_of_a_terabyte_is_refused(tmp_path, monkeypatch, values, reason):
    content = gguf(KEYS) if values is None else gguf([*KEYS, *values], (), n_keys=2 + len(values))
    path = put(tmp_path / "m.gguf", content)
    os.truncate(path, 1 << 40)
    monkeypatch.setattr(fingerprint, "_chunk_digest", None)  # nothing is hashed
    assert reason in refused(lambda: fingerprint.fingerprint(path), path)
    assert reason in refused(lambda: checkpoint.read_config(path), path)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_scores_of_a_gguf_tokenizer_are_finite(score):
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab"]
    scores = np.array([0, 0, 0, -1, score, -3], np.float32)
    keys = {"model": "llama", "tokens": tokens, "scores": scores, "bos_token_id": 1}
    path = Path("m.gguf")
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    file = gguf_file.GgufFile(path, (path,), metadata, {})
    message = refused(lambda: read_gguf_tokenizer(file), path)
    assert f"scores of token 4 is {score}, expected a finite number" in message


def test_safetensors_file_with_a_terabyte_after_its_tensors_is_refused(tmp_path):
    path = put(tmp_path / "m.safetensors", safetensors(HEADER))
    os.truncate(path, 1 << 40)
    assert "bytes after the last tensor" in refused(lambda: tensor_files.map_file(path), path)


SIDE_FILES = [
    "chat_template.jinja", "additional_chat_templates/a.jinja", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "generation_config.json", "config.json",
]  # fmt: skip


def read_all(folder):
    """Read a checkpoint's texts as a run does."""
    raw = checkpoint.read_config(folder)
    read_generation_config(folder, raw)
    tokenizer_files.digest(folder)
    return tokenizer_files.load_tokenizer(folder)


@pytest.fixture
def model(tmp_path):
    """A small checkpoint with all of `SIDE_FILES` and a secret next to its folder."""
    folder = tmp_path / "model"
    shutil.copytree(CASES / "models/tiny-llama3", folder)
    (folder / "additional_chat_templates").mkdir()
    for name in SIDE_FILES:
        if not (folder / name).exists():
            put(folder / name, b"{}")
    put(tmp_path / "secret", b"root:x:0:0")
    return folder


@pytest.mark.parametrize("name", SIDE_FILES)
def test_link_out_of_a_checkpoint_is_not_followed(model, tmp_path, name):
    read_all(model)
    (model / name).unlink()
    (model / name).symlink_to("../" * name.count("/") + "../secret")
    message = refused(lambda: read_all(model), model / name)
    assert f"found a link out of the folder, to {tmp_path / 'secret'}, expected a file" in message
    assert "root" not in message.replace(str(tmp_path), "")


def test_linked_folder_of_templates_is_not_followed(model, tmp_path):
    shutil.rmtree(model / "additional_chat_templates")
    put(tmp_path / "secrets.jinja", b"root:x:0:0")
    (model / "additional_chat_templates").symlink_to(tmp_path)
    refused(lambda: read_all(model), model / "additional_chat_templates/secrets.jinja")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt", "tokenizer.json", "config.json"])
def test_side_file_of_a_terabyte_is_not_read(model, name):
    put(model / name, b"")
    os.truncate(model / name, 1 << 40)
    tracemalloc.start()
    assert "found" in refused(lambda: read_all(model), model / name)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 << 20


def test_links_within_a_checkpoint_and_to_the_blobs_of_the_hub_s_cache_are_followed(
    model, tmp_path
):
    expected = read_all(model).get_vocab()
    repository = tmp_path / "hub/models--org--name"
    snapshot, blobs = repository / "snapshots/0123abc", repository / "blobs"
    blobs.mkdir(parents=True)
    (snapshot / "additional_chat_templates").mkdir(parents=True)
    for k, name in enumerate(sorted({*SIDE_FILES, *(path.name for path in model.iterdir())})):
        if (model / name).is_file():
            (model / name).rename(blobs / str(k))
            up = "../" * (2 + name.count("/"))
            (snapshot / name).symlink_to(f"{up}blobs/{k}")
    assert read_all(snapshot).get_vocab() == expected
    (tmp_path / "link").symlink_to(snapshot)
    assert read_all(tmp_path / "link").get_vocab() == expected
    (snapshot / "copy.jinja").symlink_to("tokenizer.json")
    (snapshot / "chat_template.jinja").unlink()
    (snapshot / "chat_template.jinja").symlink_to("copy.jinja")
    read_all(snapshot)
    (snapshot / "chat_template.jinja").unlink()
    (snapshot / "chat_template.jinja").symlink_to("../../../../secret")
    refused(lambda: read_all(snapshot), snapshot / "chat_template.jinja")


def test_weights_may_be_links_to_another_disk(sharded):
    (sharded / "one.safetensors").rename(sharded.parent / "elsewhere")
    (sharded / "model.safetensors").symlink_to(sharded.parent / "elsewhere")
    assert set(tensor_files.open_tensors(sharded).arrays) == set(HEADER)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", checkpoint.read_config),
        ("model.safetensors", tensor_files.open_tensors),
        ("model.safetensors.index.json", tensor_files.open_tensors),
        (
            "generation_config.json",
            lambda folder: generation_config.read_generation_config(folder, {}),
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
@given(st.sampled_from([*generation_config.COMPUTED, *generation_config.ANY_TEXT]), values)
def test_any_generation_default(tmp_path, name, value):
    """A value that can be asked for, or an entry that is named."""
    put(tmp_path / "generation_config.json", json.dumps({name: value}).encode())
    _, defaults = read_generation_config(tmp_path, {})
    plain = generation_config.GenerationDefaults()
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
    assert "patterns takes more than 0.2 s, stopped at '(a|aa)+'" in message


@pytest.mark.parametrize("alpha", [10**400, 1e300, 2**40])
def test_an_alpha_that_is_no_scale(tmp_path, alpha):
    where = adapter(tmp_path, ADAPTER | {"lora_alpha": alpha})
    assert "lora_alpha of module" in refused(lambda: lora.read(tmp_path), where)


def test_what_an_adapter_calls_its_base_is_one_line(tmp_path):
    adapter(tmp_path, ADAPTER | {"base_model_name_or_path": "a\n\x1b[31mb\u202e"})
    assert lora.read(tmp_path).base_model == r"a\n\x1b[31mb\u202e"
    adapter(tmp_path, ADAPTER | {"base_model_name_or_path": ["a"]})
    assert lora.read(tmp_path).base_model is None
