"""Folders and files that are not what they should be: each is refused, and named."""

import json
import re
import shutil
import struct

import pytest

from jaxscore.errors import InputError
from jaxscore.models.weights import folder as files
from tests.models.checkpoints import loaded

NORM = "model.norm.weight"


def refused(folder, *parts):
    pattern = ".*".join(re.escape(str(part)) for part in parts)
    with pytest.raises(InputError, match=f"(?s)^{pattern}"):
        loaded(folder)


def rewritten(folder, change=lambda header: None, *, data=lambda data: data):
    """The file with its header's JSON object changed, or replaced by what `change` returns."""
    file = folder / "model.safetensors"
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    replaced = change(header)
    text = json.dumps(header if replaced is None else replaced).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data(content[8 + length :]))
    return file


@pytest.mark.parametrize("stop", [0, 1, 7, 8, 9, 100, -50_000, -4, -1])
def test_a_truncated_file(checkpoint, stop):
    """In the length, in the header, in the data."""
    folder = checkpoint("llama")
    file = folder / "model.safetensors"
    content = file.read_bytes()
    assert len(content) > 60_000
    file.write_bytes(content[:stop])
    refused(folder, file, "truncated")


@pytest.mark.parametrize("length", [0, 2, 10**7, 2**63, 2**64 - 1])
def test_a_header_length_that_is_wrong(checkpoint, length):
    folder = checkpoint("llama")
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
    refused(folder, file, "header")


def test_a_header_that_is_not_json(checkpoint):
    folder = checkpoint("llama")
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[20:24] = b"\xff{{{"
    file.write_bytes(content)
    refused(folder, file, "damaged safetensors header")


@pytest.mark.parametrize("header", [[], "text", 3, None, {NORM: 5}, {NORM: []}, {NORM: {}}])
def test_a_header_of_another_kind(checkpoint, header):
    folder = checkpoint("llama")
    # `rewritten` keeps the header if it is given None.
    file = rewritten(folder, lambda old: header if header is not None else [None])
    refused(folder, file, "damaged safetensors header")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F8_E4M3"}, f"tensor {NORM}: 128 bytes for shape [32] of F8_E4M3"),
        ({"dtype": "F6_E2M3"}, f"tensor {NORM} is stored as F6_E2M3, which is not handled"),
        ({"dtype": "BF16"}, f"tensor {NORM}: 128 bytes for shape [32] of BF16"),
        ({"dtype": None}, f"tensor {NORM} is stored as None"),
        ({"shape": [31]}, f"tensor {NORM}: 128 bytes for shape [31]"),
        ({"shape": [-32]}, f"tensor {NORM} has shape [-32]"),
        ({"shape": [-4, -8]}, f"tensor {NORM} has shape [-4, -8]"),
        ({"shape": [32.0]}, f"tensor {NORM} has shape [32.0]"),
        ({"shape": 32}, f"tensor {NORM} has shape 32"),
        ({"shape": [2**40, 4]}, f"tensor {NORM}: 128 bytes for shape"),
        ({"shape": [2**62, 4]}, f"tensor {NORM} has shape [4611686018427387904, 4]"),
        ({"data_offsets": [-128, 0]}, f"tensor {NORM} has"),
        ({"data_offsets": [128, 0]}, f"tensor {NORM}: -128 bytes"),
        ({"data_offsets": [10**12, 10**12 + 128]}, f"tensor {NORM} ends at byte 1000000"),
        ({"data_offsets": [0]}, f"tensor {NORM} has"),
        ({"data_offsets": [0, 64, 128]}, f"tensor {NORM} has"),
        ({"data_offsets": "ab"}, f"tensor {NORM} has"),
        ({"data_offsets": None}, f"tensor {NORM} has"),
    ],
    ids=str,
)
def test_an_entry_that_does_not_fit_the_file(checkpoint, entry, message):
    folder = checkpoint("llama")
    file = rewritten(folder, lambda header: header[NORM].update(entry))
    refused(folder, file, message)


def test_tensors_that_share_bytes(checkpoint):
    """Legal offsets, within the file, but those of another tensor."""
    folder = checkpoint("llama")

    def shared(header):
        header[NORM]["data_offsets"] = header["model.layers.0.input_layernorm.weight"][
            "data_offsets"
        ]

    refused(folder, rewritten(folder, shared), f"tensor {NORM}")


def test_bytes_that_belong_to_no_tensor(checkpoint):
    """A header that was cut, or a file that something was appended to."""
    folder = checkpoint("llama")
    refused(folder, rewritten(folder, data=lambda data: data + bytes(64)), "64 bytes")


def test_an_empty_tensor_is_a_tensor(checkpoint):
    folder = checkpoint("llama")
    empty = {"dtype": "F32", "shape": [0, 5], "data_offsets": [0, 0]}
    rewritten(folder, lambda header: header.update(nothing=empty))
    refused(folder, folder, "does not use", "nothing")


def test_metadata_is_no_tensor(checkpoint):
    folder = checkpoint("llama")
    rewritten(folder, lambda header: header.update(__metadata__={"format": "pt", "x": "y"}))
    assert loaded(folder).vocab_size == 211


def test_config_json(checkpoint):
    folder = checkpoint("llama")
    config = folder / "config.json"
    for content in (b"{not json", b"", b'{"model_type": "ll', b"[" * 10_000, b"9" * 5000):
        config.write_bytes(content)
        refused(folder, config, "not", "JSON")
    config.write_bytes(b"{}\n \xff\xfe")
    refused(folder, f"{config}:2: byte 2 is not UTF-8")
    for content in ("[]", "3", "null", "{}", '{"model_type": null}', '{"model_type": ["llama"]}'):
        config.write_text(content, encoding="utf-8")
        refused(folder, config, "expected an object with a string `model_type`")
    config.unlink()
    refused(folder, config, "No such file", "config.json")
    config.mkdir()
    refused(folder, config, "Is a directory")


def test_folders(checkpoint, tmp_path):
    folder = checkpoint("llama")
    refused(tmp_path / "nowhere", tmp_path / "nowhere", "the folder")
    with pytest.raises(InputError, match=r"model /.*/nowhere: no such folder"):
        files.resolve(str(tmp_path / "nowhere"), None)
    file = folder / "model.safetensors"
    with pytest.raises(InputError, match=r"model .*model\.safetensors: found a file, expected a"):
        files.resolve(str(file), None)
    refused(file, file / "config.json", "Not a directory")
    assert files.resolve(str(folder), None) == folder


def test_no_weights(checkpoint):
    folder = checkpoint("llama")
    file = folder / "model.safetensors"
    shutil.move(file, folder / "pytorch_model.bin")
    refused(folder, folder, "no model.safetensors", "pytorch_model.bin", "pickles are not read")
    (folder / "pytorch_model.bin").unlink()
    refused(folder, folder, "no model.safetensors", "it holds config.json")
    file.mkdir()
    refused(folder, file, "Is a directory")
