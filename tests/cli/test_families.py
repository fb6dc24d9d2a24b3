"""`families`: the list, and what it says of one checkpoint."""

import json
import shutil

import pytest

from jaxscore.models.inspect_checkpoint import inspect_checkpoint
from jaxscore.models.model_types import REFUSED, covered, reason
from jaxscore.version import VERSION
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES

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
    for one in covered():
        [line] = [line for line in out.splitlines() if line.split()[:1] == [one.model_type]]
        assert f" {', '.join(one.implementations)} " in line
        assert f" {VERSION}  {', '.join(one.lines)}" in line
    words = out.replace(",", " ").split()
    assert set(REFUSED) <= set(words)
    assert first[-1] == "done"


def test_the_list_as_json(run):
    code, out, err = run("families", "--json")
    assert (code, err) == (0, "")
    told = strict(out)
    assert [one["model_type"] for one in told["covered"]] == [one.model_type for one in covered()]
    assert {one["model_type"]: one["why"] for one in told["refused"]} == {
        kind: reason(kind, one) for kind, one in REFUSED.items()
    }


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
    told, found = strict(out), inspect_checkpoint(CASES / "models/tiny-qwen2")
    assert told["attributes"] == [vars(one) for one in found.attributes]
    assert (told["family"], told["refused"]) == ("qwen2", [])


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
    code, out, err = run("families", "--model", config(model_type="qwen3_next"))
    assert code == 2
    assert "a qwen3_next has layers that carry a recurrent state" in err
    assert "read as     native\n" in out


def test_what_is_no_model(run, tmp_path):
    code, out, err = run("families", "--model", tmp_path / "none")
    assert (code, out) == (2, "")
    assert "neither a folder nor a config.json" in err


@pytest.mark.parametrize("named", ["file", "folder"])
@pytest.mark.parametrize("command", ["families", "score"])
@pytest.mark.parametrize("config", [False, True])
def test_a_gguf_checkpoint_says_how_to_convert_it(run, tmp_path, command, named, config):
    """The file or its folder, whether or not a config.json is beside it."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    file = folder / "small.gguf"
    file.write_bytes(b"GGUF")
    if config:
        shutil.copy(CASES / "models/tiny-qwen2/config.json", folder)
    items = tmp_path / "items.jsonl"
    items.write_text('{"context": "a", "continuation": " b"}\n')
    more = ["--input", items, "--output", tmp_path / "out.jsonl"] if command == "score" else []
    code, out, err = run(command, "--model", file if named == "file" else folder, *more)
    assert code == 2
    assert f"{file}: GGUF is not read yet" in err
    assert f"from_pretrained('{folder}', gguf_file='small.gguf').save_pretrained(OUT)" in err
    assert "AutoTokenizer" in err
    assert "would load" not in out
    assert "runs as" not in out


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
        ("hidden_act", "decides the numbers of model_type 'qwen2' and is read"),
        ("rope_theta", "decides the numbers of model_type 'qwen2' and is read"),
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
