"""`plan` for accelerators that are not here, and of released models."""

import importlib.util
import json
import os

import jax
import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from jaxscore.cli import plan_facts
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.engine import VARIABLES, targets
from jaxscore.engine.auto_mesh import mesh_estimates, rates_of
from jaxscore.engine.targets import Target
from jaxscore.models.costs import parameter_bytes
from jaxscore.models.weights.params import shapes_of
from tests.cli.conftest import QWEN, strict
from tests.device.configs import llamalike
from tests.models.published import RELEASED

SMALL = ("--batch-tokens", 64, "--quiet")  # one program
TOLD = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(2.00M) exceeds available HBM (1.00M)."
)


@pytest.fixture
def target(monkeypatch):
    """This machine's first device, as `--topology` and `--gpu-target` would have given it."""
    names = {name for own in VARIABLES.values() for name in own}
    for name in {"JAX_PLATFORMS", *names} & set(os.environ):
        monkeypatch.setenv(name, os.environ[name])
    for name in names - set(os.environ):
        monkeypatch.setenv(name, "")  # removed at the end, also where the command sets it
        monkeypatch.delenv(name)
    found = Target("one", "cpu", (jax.devices()[0],), 2**30, 1e12, "xla", "7")
    monkeypatch.setattr(targets, "tpu", lambda name: found)
    monkeypatch.setattr(targets, "gpu", lambda name, n: found)


def reported(run, tmp_path, *words):
    code, out, err = run("plan", "--model", QWEN, "--json", tmp_path / "plan.json", *words)
    assert code == 0, err
    return strict((tmp_path / "plan.json").read_text(encoding="utf-8")), out


@pytest.mark.parametrize("flag", ["--topology=v5e:1x1", "--gpu-target=h100"])
def test_what_is_said_of_a_target(run, tmp_path, target, flag):
    report, page = reported(run, tmp_path, flag, *SMALL)
    plain, _ = reported(run, tmp_path, *SMALL)
    assert {"target", "compiler", "batches", "layer", "vocabulary"}.isdisjoint(plain)
    assert report["compiler"] == {"name": "xla", "version": "7"}
    assert report["device_memory"] == 2**30
    assert report["mesh"] == {"data": 1, "model": 1, "fsdp": False}
    [program], [batch] = report["programs"], report["batches"]
    assert program["temporary_bytes"] == plain["programs"][0]["temporary_bytes"]
    assert batch == {
        "rows": 1, "length": 64, "temporary_bytes": program["temporary_bytes"],
        "peak_bytes": program["peak_bytes_a_device"], "fits": True, "collectives": [],
    }  # fmt: skip
    assert report["layer"] == [
        {"rows": 1, "length": 64, "is_recurrent": False, "seconds": None, "mfu": None,
         "operations_left_out": 0, "collectives": [], "kernels": []}
    ]  # fmt: skip
    [vocabulary] = report["vocabulary"]
    assert (vocabulary["queries"], vocabulary["seconds"]) == (64, None)
    assert " by xla 7; nothing ran\n" in page
    assert page.count("the compiler's model of the chip, not a measurement") == 2


def test_memory_that_is_given_counts(run, tmp_path, target):
    words = ("--topology", "v5e:1x1", "--device-memory", "1MB", "--mesh", "model=1")
    report, page = reported(run, tmp_path, *SMALL, *words)
    assert report["batches"][0]["fits"] is False
    assert "\ndoes not fit: 1.00 MB per device\n" in page


@pytest.mark.parametrize(("share", "shape"), [(2.0, (4, 1)), (1.1, (2, 2)), (0.001, (2, 2, True))])
def test_the_mesh_of_a_topology(share, shape):
    """As a run there would take it, which leaves a fifth for batches; where nothing fits, the one
    that stores least on a device."""
    config = llamalike(n_heads=4, n_kv_heads=2)
    shapes = shapes_of(config, np.dtype(np.float32))
    memory = int(share * parameter_bytes(shapes, config, MeshShape()))
    rates = rates_of("TPU v5 lite")
    meshes = mesh_estimates(shapes, config, 4, memory, rates, generates=True)
    found = plan_facts.mesh_of_run(meshes, memory, None, or_last=True)
    assert found == MeshShape(*shape)


def test_what_gathers_its_weights_would_fit():
    """Where heads do not divide, and only with room for two layers beside the shares."""
    config = llamalike(n_layers=20, n_heads=3, n_kv_heads=3)
    everything = parameter_bytes(shapes_of(config, np.dtype(np.float32)), config, MeshShape())
    kept = ("float32", None)
    room, mesh = int(0.7 * everything), MeshShape()
    found = plan_facts._would_fit(config, kept, room, 0, mesh, 1)
    assert found[0] == {"dtype": "float32", "quantize": None, "model": None, "fsdp": 2}
    assert [one["model"] for one in found[1:]] == [1, 1]
    beside = plan_facts._would_fit(config, kept, room, 3 * everything // 20, mesh, 1)
    assert beside[0] == {**found[0], "fsdp": 4}
    # Of two shards a program says nothing about whole models.
    assert plan_facts._would_fit(config, kept, 2 * everything, 0, MeshShape(1, 2), 2) == []


@pytest.mark.slow
def test_a_program_that_is_refused(run, tmp_path, target, monkeypatch):
    """It is a row that says so, with the bytes that the compiler named; other rows stay."""
    measure = plan_facts.measure

    def refuse_long_rows(model, rows, length, device):
        if length > 64:
            raise JaxRuntimeError(TOLD)
        return measure(model, rows, length, device)

    monkeypatch.setattr(plan_facts, "measure", refuse_long_rows)
    words = ("--topology", "v5e:1x1", "--batch-tokens", 128, "--row-lengths", 64, 128)
    report, page = reported(run, tmp_path, *words)
    small, large = report["batches"]
    assert small["fits"] is True
    assert (large["fits"], large["temporary_bytes"]) == (False, None)
    assert large["peak_bytes"] == 2 * 2**20
    assert [one["fits"] for one in report["programs"]] == [True, False]
    assert "\n1 x 128    refused  2.10 MB" in page
    assert "\nfits in part: " in page
    assert "\ndone     1 model, 1 programs compiled, 0 failed\n" in page


def test_another_error_of_the_compiler_is_none_of_memory(run, target, monkeypatch):
    def fail(*_):
        raise JaxRuntimeError("INTERNAL: a bug")

    monkeypatch.setattr(plan_facts, "measure", fail)
    with pytest.raises(JaxRuntimeError, match="a bug"):
        run("plan", "--model", QWEN, "--topology", "v5e:1x1", *SMALL)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--topology", "v5e:2x2", "--device", "cpu"), "not allowed with argument --topology"),
        (("--topology", "v5e:2x2", "--gpu-target", "h100"), "not allowed with argument --topology"),
        (("--gpu-target", "h100", "--device", "gpu"), "not allowed with argument --gpu-target"),
        (("--gpu-target", "k80"), "'k80', expected one of"),
        (("--gpu-target", "h100", "--mesh", "auto"), "with --mesh auto needs --devices"),
        (("--topology", "v5e:1x1", "--mesh", "model=2"),
         "--mesh data=1,model=2 is of 2 devices, and --topology v5e:1x1 has 1; give a mesh of 1"),
        (("--topology", "v5e:1x1", "--devices", 4), "--devices says 4, and --topology v5e:1x1 has"),
        (("--gpu-target", "h100", "--mesh", "data=2", "--devices", 4), "--devices says 4; leave"),
    ],
)  # fmt: skip
def test_flags_that_cannot_be_meant(run, tmp_path, target, words, message):
    code, out, err = run("plan", "--model", QWEN, "--json", tmp_path / "plan.json", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_is_absent(run, monkeypatch):
    installed = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *_: installed(name) if name.startswith("jaxscore.") else None,
    )
    for words, message in (
        (("--topology", "v5e:2x2"), "pip install -e '.[tpu-compiler]'"),
        (("--gpu-target", "h100"), "pip install jax-cuda13-plugin=="),
    ):
        code, out, err = run("plan", "--model", QWEN, *words)
        assert (code, out) == (2, "")
        assert message in err


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "mesh", "parameters", "active"),
    [
        ("GPT_OSS_20B", "data=1,model=8", "20,914,757,184", "4,187,440,704"),
        ("DEEPSEEK_V3", "data=1,model=128", "671,026,419,200", "37,552,297,472"),
    ],
)
def test_a_config_from_the_hub(run, tmp_path, name, mesh, parameters, active):
    """20.9 billion (arXiv 2508.10925, table 1) and 671 billion (arXiv 2412.19437)."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(RELEASED[name]), encoding="utf-8")
    facts = tmp_path / "plan.json"
    words = ("--model", file, "--mesh", mesh, "--row-lengths", 64, "--quiet", "--json", facts)
    code, page, err = run("plan", *words)
    assert code == 0, err
    assert f"{parameters} parameters ({active} for each token), bfloat16\n" in page
    report = strict(facts.read_text(encoding="utf-8"))
    assert report["parameters"] == int(parameters.replace(",", ""))
    assert report["active_parameters"] == int(active.replace(",", ""))
