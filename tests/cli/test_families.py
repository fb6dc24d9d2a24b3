"""`families`: the list, and what it says of one checkpoint."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from jaxscore.models.inspect_checkpoint import inspect_checkpoint
from jaxscore.models.model_types import REFUSED, SINCE, covered, reason
from jaxscore.models.weights.gguf.architectures import ARCHITECTURES
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES
from tests.models import gguf_files

pytestmark = pytest.mark.lines


@pytest.fixture
def config(tmp_path):
    def write(**raw):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(raw), encoding="utf-8")
        return file

    return write


def test_the_list_has_every_model_type(run):
    code, out, err = run("families")
    assert (code, err) == (0, "")
    first = [line.split()[0] for line in out.splitlines() if line]
    table = out.partition("read from GGUF files")[0].splitlines()
    for one in covered():
        [line] = [line for line in table if line.split()[:1] == [one.model_type]]
        assert f" {', '.join(one.implementations)} " in line
        assert f" {SINCE}  {', '.join(one.lines)}" in line
    words = out.replace(",", " ").split()
    assert set(REFUSED) | set(ARCHITECTURES) <= set(words)
    assert first[-1] == "done"


def test_the_list_as_json(run):
    code, out, err = run("families", "--json")
    assert (code, err) == (0, "")
    reported = strict(out)
    assert [one["model_type"] for one in reported["covered"]] == [
        one.model_type for one in covered()
    ]
    assert {one["model_type"]: one["why"] for one in reported["refused"]} == {
        kind: reason(kind, one) for kind, one in REFUSED.items()
    }
    assert set(reported["gguf"]["read"]) == set(ARCHITECTURES)
    assert reported["gguf"]["refused"]["rwkv7"] == "recurrent state"


@pytest.mark.parametrize("model", ["demo", QWEN, f"{QWEN}/config.json"])
def test_a_model_that_would_load(run, model):
    code, out, err = run("families", "--model", model)
    assert (code, err) == (0, "")
    assert "\nweights     names, types and shapes of " in out
    assert "\nresult   it would load\n" in out
    assert "\nhidden_act " in out


def test_a_model_as_json(run):
    code, out, err = run("families", "--model", QWEN, "--json")
    assert (code, err) == (0, "")
    reported, found = strict(out), inspect_checkpoint(CASES / "models/tiny-qwen2")
    assert reported["attributes"] == [vars(one) for one in found.attributes]
    assert (reported["family"], reported["refused"]) == ("qwen2", [])


def test_a_model_that_would_not_load(run, config):
    file = config(model_type="llama", my_scale=2.0, hidden_act="mish")
    code, out, err = run("families", "--model", file)
    assert code == 2
    assert err.startswith(f"jaxscore families: error: {file}: attributes that are not handled")
    assert "my_scale=2.0" in err
    assert "it would load" not in out
    assert "hidden_act" in out
    assert "the config alone is checked" in out
    code, out, err = run("families", "--model", file, "--json")
    assert code == 2
    assert f"jaxscore families: error: {strict(out)['refused'][0]}\n" == err


def test_a_hybrid(run, config):
    code, out, err = run("families", "--model", config(model_type="rwkv"))
    assert code == 2
    assert "a rwkv has layers that carry a recurrent state" in err
    assert "covered     no\n" in out
    assert "native" not in out


def test_what_is_no_model(run, tmp_path):
    code, out, err = run("families", "--model", tmp_path / "none")
    assert (code, out) == (2, "")
    assert "neither a folder, a config.json nor a GGUF file" in err


@pytest.mark.parametrize("command", ["families", "plan", "score"])
def test_a_folder_with_gguf_files_alone_lists_them(run, tmp_path, command):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "small.gguf").write_bytes(b"GGUF")
    items = tmp_path / "items.jsonl"
    items.write_text('{"context": "a", "continuation": " b"}\n')
    more = ["--input", items, "--output", tmp_path / "out.jsonl"] if command == "score" else []
    code, _, err = run(command, "--model", folder, *more)
    assert code == 2
    assert f"{folder}: has only GGUF files; give one of them as the model: small.gguf" in err


def test_a_gguf_file_would_load(run, tmp_path):
    config = SimpleNamespace(
        num_hidden_layers=1, max_position_embeddings=64, hidden_size=32, intermediate_size=48,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens": (64, 32), "model.norm": (32,),
        f"{layer}input_layernorm": (32,), f"{layer}post_attention_layernorm": (32,),
        f"{layer}self_attn.q_proj": (32, 32), f"{layer}self_attn.k_proj": (16, 32),
        f"{layer}self_attn.v_proj": (16, 32), f"{layer}self_attn.o_proj": (32, 32),
        f"{layer}mlp.gate_proj": (48, 32), f"{layer}mlp.up_proj": (48, 32),
        f"{layer}mlp.down_proj": (32, 48),
    }  # fmt: skip
    file = tmp_path / "sha256-blob"
    tensors = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    gguf_files.write(file, "llama", config, tensors)
    code, out, err = run("families", "--model", file)
    assert (code, err) == (0, "")
    assert "runs as     native, family llama" in out
    assert "stored as   GGUF" in out
    assert "names, types and shapes of 11 tensors fit" in out


def with_keys(folder, **keys):
    """The config of a checkpoint, alone in a folder, with more keys."""
    raw = json.loads((CASES / "models/tiny-qwen2/config.json").read_text())
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw | keys))
    return folder


def test_the_manifest_records_an_accepted_key(run, tmp_path):
    folder = with_keys(tmp_path / "a", my_scale=2.0)
    for file in (CASES / "models/tiny-qwen2").iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)
    items, output = tmp_path / "items.jsonl", tmp_path / "out.jsonl"
    items.write_text('{"context": "a", "continuation": " b"}\n')
    words = ("--model", folder, "--input", items, "--output", output, "--quiet")
    assert run("score", *words, "--accept-config", "my_scale").code == 0
    manifest = json.loads((tmp_path / "out.jsonl.run.json").read_text())
    assert manifest["flags"]["accept_config"] == ["my_scale"]
    assert '"accepted_config": {"my_scale": 2.0}' in json.dumps(manifest)
    code, _, err = run("score", *words)
    assert code == 2
    assert "my_scale=2.0" in err


def test_what_is_refused_is_not_said_to_run(run, tmp_path):
    code, out, err = run("families", "--model", with_keys(tmp_path / "a", my_scale=2.0))
    assert code == 2
    assert "runs as" not in out
    assert "my_scale=2.0" in err
    assert "--accept-config NAME" in err


def test_an_accepted_key_is_displayed_and_the_others_stay_refused(run, tmp_path):
    folder = with_keys(tmp_path / "a", my_scale=2.0, my_name="x")
    code, out, err = run("families", "--model", folder, "--accept-config", "my_scale")
    assert code == 2
    assert "my_name='x'" in err
    assert "my_scale" not in err
    both = ("--accept-config", "my_scale", "--accept-config", "my_name")
    code, out, err = run("families", "--model", folder, *both)
    assert (code, err) == (0, "")
    assert "\naccepted    my_scale, my_name\n" in out
    assert run("plan", "--model", folder, "--row-lengths", "64", *both).code == 0


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("absent", "the file has no such key"),
        ("hidden_act", "is read and determines the scores of model_type 'qwen2'"),
        ("rope_theta", "is read and determines the scores of model_type 'qwen2'"),
        ("attention_dropout", "is handled already"),
        ("_name_or_path", "is handled already"),
        ("unk_token_id", "is handled already"),
    ],
)
def test_a_key_that_needs_no_acceptance_is_an_error(run, tmp_path, key, why):
    named = {} if key == "absent" else {"_name_or_path": "x", "unk_token_id": 3}
    named |= {"attention_dropout": 0.1, "rope_theta": 1e4} if key != "absent" else {}
    folder = with_keys(tmp_path / "a", **named)
    code, _, err = run("families", "--model", folder, "--accept-config", key)
    assert code == 2
    assert f"--accept-config {key}: {why}" in err
