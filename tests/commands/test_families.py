"""`families`: the list, and what it says of one checkpoint."""

import json

import pytest

from jaxscore.models.coverage import covered
from jaxscore.models.looking import look
from jaxscore.models.refused_families import REFUSED, reason
from jaxscore.version import VERSION
from tests.commands.conftest import QWEN, strict
from tests.conftest import CASES


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
    told, found = strict(out), look(CASES / "models/tiny-qwen2")
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
    assert "runs as" in out


def test_what_is_no_model(run, tmp_path):
    code, out, err = run("families", "--model", tmp_path / "none")
    assert (code, out) == (2, "")
    assert "neither a folder nor a config.json" in err
