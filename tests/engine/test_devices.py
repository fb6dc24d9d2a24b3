"""Which device a run takes, and the message if there is none."""

import dataclasses
import os
import subprocess
import sys
import threading
from collections import Counter

import jax
import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from jax.experimental.compilation_cache import compilation_cache
from jaxlib.xla_client import generate_pjrt_gpu_plugin_options

from jaxscore import Scorer
from jaxscore.cli.main import parse
from jaxscore.device.init_params import init_params
from jaxscore.device.lm_head.divergence import MIN_POSITIONS
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sharding import DeviceMesh
from jaxscore.engine import (
    BATCH_TOKENS,
    GPU_MEMORY_VARIABLES,
    batch_tokens,
    footprint,
    set_gpu_memory,
)
from jaxscore.engine.auto_mesh import auto_mesh, mesh_estimates, rates_of
from jaxscore.engine.batch_tokens import (
    LEAST,
    LENGTH,
    MOST_ACCELERATOR,
    MOST_CPU,
    SHARE,
    BatchTokens,
    auto_batch_tokens,
)
from jaxscore.engine.devices import (
    choose_mesh,
    free_bytes,
    mesh_choice,
    parse_mesh,
)
from jaxscore.errors import InputError
from jaxscore.model_pair import DivergenceScorer
from jaxscore.models import native
from jaxscore.models.costs import parameter_bytes
from jaxscore.models.model import Devices
from jaxscore.plan.requests import TokenSequence
from tests.conftest import CASES
from tests.device.configs import llamalike

MODEL = str(CASES / "models/tiny-qwen2")


def process(*words, **environment):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("device", ["tpu", "cuda", "gpu"])
def test_a_device_that_is_absent(tmp_path, device):
    # No card is visible to the process, also where there is one.
    (tmp_path / "in.jsonl").write_text('{"continuation": "x"}\n', encoding="utf-8")
    ran = process(
        "-m", "jaxscore", "score", "--model", MODEL, "--input", tmp_path / "in.jsonl",
        "--output", tmp_path / "out.jsonl", "--device", device,
        CUDA_VISIBLE_DEVICES="", TPU_SKIP_MDS_QUERY="1",
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"error: --device {device}: JAX finds none here" in ran.stderr
    assert "omit --device" in ran.stderr
    wanted = "tpu" if device == "tpu" else "cuda13"
    assert f'pip install "jax[{wanted}]"' in ran.stderr
    assert "Traceback" not in ran.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_device_is_not_changed_behind_the_users_back():
    # JAX keeps its first device, whatever is set later.
    code = (
        "import jax; jax.devices()\n"
        "from jaxscore.errors import InputError\n"
        "from jaxscore.engine.devices import use_device\n"
        "use_device('cpu'); use_device(None)\n"
        "try:\n    use_device('tpu')\n"
        "except InputError as problem:\n    print(problem)\n"
    )
    ran = process("-c", code, JAX_PLATFORMS="cpu")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--device tpu: JAX finds none here (it runs on another device already)" in ran.stdout


def test_a_failed_choice_of_a_device_leaves_the_default():
    code = (
        "import jax\n"
        "from jaxscore.errors import InputError\n"
        "from jaxscore.engine.devices import use_device\n"
        "before = jax.config.jax_platforms\n"
        "try:\n    use_device('tpu')\n"
        "except InputError:\n"
        "    print(jax.config.jax_platforms == before, jax.default_backend())\n"
    )
    for platforms in ("cpu", ""):
        ran = process(
            "-c", code, JAX_PLATFORMS=platforms, CUDA_VISIBLE_DEVICES="", TPU_SKIP_MDS_QUERY="1"
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == "True cpu\n"


CONFIG = llamalike(vocab_size=1000, head_tied=False)


def shapes(config):
    return jax.eval_shape(lambda: init_params(jax.random.key(0), config))


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        ("auto", None),
        ("data=2,model=4", MeshShape(2, 4)),
        ("model=4,data=2", MeshShape(2, 4)),
        ("model=8", MeshShape(1, 8)),
        ("data=16", MeshShape(16, 1)),
        ("fsdp=4,model=2", MeshShape(4, 2, fsdp=True)),
        ("fsdp=8", MeshShape(8, 1, fsdp=True)),
    ],
)
def test_meshes(text, mesh):
    assert parse_mesh(text) == mesh
    assert mesh is None or parse_mesh(str(mesh)) == mesh


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "''"),
        ("Auto", "'Auto'"),
        ("auto,model=2", "'auto'"),
        ("data=2,", "''"),
        ("data=2,data=2", "'data=2'"),
        ("data=2,fsdp=2", "'fsdp=2'"),
        ("data=0", "'data=0'"),
        ("model=-1", "'model=-1'"),
        ("model=1.5", "'model=1.5'"),
        ("model=٣", "'model=٣'"),
        ("model=4 ", "'model=4 '"),
        ("model=4\n", r"'model=4\n'"),
        ("tensor=4", "'tensor=4'"),
        ("2,4", "'2'"),
        ("data=99999999999999999999", "'data=99999999999999999999'"),
    ],
)
def test_no_meshes(text, part):
    with pytest.raises(InputError) as problem:
        parse_mesh(text)
    assert f": {part} is not expected there" in str(problem.value)
    assert "data=N,model=M" in str(problem.value)


def test_parameters_on_a_device():
    tree = shapes(CONFIG)
    everything = sum(leaf.size * 4 for leaf in jax.tree.leaves(tree))
    assert parameter_bytes(tree, CONFIG, MeshShape(5, 1)) == everything
    norms = (2 * 2 + 1) * 24 * 4
    assert parameter_bytes(tree, CONFIG, MeshShape(1, 2)) == (everything - norms) // 2 + norms
    with pytest.raises(ValueError, match="model=3 does not split"):
        parameter_bytes(tree, CONFIG, MeshShape(1, 3))


def chosen_mesh(tree, config, n_devices, memory, working=0):
    rates = rates_of("TPU v5 lite")
    estimates = mesh_estimates(tree, config, n_devices, memory, rates, working=working)
    return auto_mesh(estimates, memory, working)


@pytest.mark.parametrize("working", [0, 1000])
def test_auto_takes_the_smallest_model_that_fits(working):
    tree = shapes(CONFIG)
    sizes = {n: parameter_bytes(tree, CONFIG, MeshShape(1, n)) + working for n in (1, 2, 4)}
    assert sizes[1] > sizes[2] > sizes[4]
    for memory, mesh in (
        (sizes[1], MeshShape(8, 1)),
        (sizes[1] - 1, MeshShape(4, 2)),
        (sizes[2], MeshShape(4, 2)),
        (sizes[2] - 1, MeshShape(2, 4)),
    ):
        assert chosen_mesh(tree, CONFIG, 8, memory, working) == mesh
    assert chosen_mesh(tree, CONFIG, 1, sizes[1], working) == MeshShape(1, 1)
    with pytest.raises(InputError, match=r"of 8 devices .* model=1, .* model=2, .* model=4"):
        chosen_mesh(tree, CONFIG, 8, sizes[4] - 1, working)
    # 2 divides 6 devices and 4 does not; 3 is no power of two
    assert chosen_mesh(tree, CONFIG, 6, sizes[2], working) == MeshShape(3, 2)
    with pytest.raises(InputError, match="no mesh of 6 devices"):
        chosen_mesh(tree, CONFIG, 6, sizes[2] - 1, working)


def test_auto_leaves_out_what_does_not_split():
    config = llamalike(vocab_size=1000, n_heads=6, n_kv_heads=3, mlp_width=48)
    tree = shapes(config)
    everything = parameter_bytes(tree, config, MeshShape())
    assert chosen_mesh(tree, config, 8, everything) == MeshShape(8, 1)
    with pytest.raises(InputError, match=r"take [^,]* with model=1, [^,]* with fsdp=8,model=1 per"):
        chosen_mesh(tree, config, 8, everything - 1)


def test_too_few_devices():
    words = r"mesh data=64,model=2 takes 128 devices, and there are"
    with pytest.raises(ValueError, match=words):
        DeviceMesh(MeshShape(64, 2))
    with pytest.raises(InputError, match=words):
        choose_mesh(MeshShape(64, 2), None, None)


def test_one_device_is_no_mesh():
    assert mesh_choice(None) is None
    choose = mesh_choice("data=1")
    assert choose is not None
    assert choose(None, None) is None


@pytest.fixture(scope="module")
def working(scorers):
    """Bytes that a batch of so many tokens takes, asked of the compiler at that very size."""
    model = scorers("tiny-llama3").model
    found = {}

    def get(tokens: int) -> int:
        if tokens not in found:
            length = min(LENGTH, model.max_positions)
            rows = max(1, tokens // length)
            found[tokens] = footprint.measure(model, rows, length).working_bytes
        return found[tokens]

    return get


@pytest.mark.slow
def test_with_room_it_is_the_most_that_pays(scorers):
    assert auto_batch_tokens(scorers("tiny-llama3").model, 1 << 40) == MOST_CPU


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1024, 2048])
def test_it_is_the_largest_that_fits(scorers, working, tokens):
    between = (working(tokens) + working(2 * tokens)) / 2
    got = auto_batch_tokens(scorers("tiny-llama3").model, int(between / SHARE))
    assert got == tokens


@pytest.mark.slow
def test_without_room_the_least_is_tried(scorers):
    assert auto_batch_tokens(scorers("tiny-llama3").model, 0) == LEAST


@pytest.mark.slow
def test_two_models_take_the_memory_of_both(monkeypatch):
    """The compiler leaves out what nothing is asked of: the second model."""
    asked, measure = [], footprint.measure

    def watched(model, rows, length, **of):
        asked.append((measure(model, rows, length, **of), rows, length))
        return asked[-1][0]

    monkeypatch.setattr(footprint, "measure", watched)
    name = str(CASES / "models/tiny-qwen2")
    scorer = DivergenceScorer.from_pretrained(
        name, name, reference_dtype="bfloat16", batch_tokens="auto"
    )
    for found, rows, length in asked:
        alone = [measure(one, rows, length).temporary_bytes for one in scorer.models]
        held = 2 * 4 * MIN_POSITIONS * scorer.model.vocab_size  # the logits of a block under both
        assert found.temporary_bytes > max(alone) + held / 2


def test_a_batch_that_the_compiler_refuses_is_a_large_one(scorers, monkeypatch):
    """As a TPU's does, which names the parameters with the rest."""
    model = scorers("tiny-llama3").model
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    reported = "RESOURCE_EXHAUSTED: HLO temporaries ({:.6f}G) exceeds available HBM (1.00G)."

    def refuse(model, rows, length, **_):
        raise JaxRuntimeError(reported.format((held + rows * length * 2**20) / 2**30))

    monkeypatch.setattr(footprint, "measure", refuse)
    assert auto_batch_tokens(model, int(1500 * 2**20 / SHARE)) == 1024  # 1 MiB for each token
    reported = "INTERNAL: a bug ({:.6f}G)"
    with pytest.raises(JaxRuntimeError, match="a bug"):
        auto_batch_tokens(model, 1)


def test_programs_compile_before_the_weights_are_read_and_a_run_finds_them(monkeypatch, tmp_path):
    model = str(CASES / "models/tiny-llama3")
    compiled, measured = [], batch_tokens._working_bytes
    reading = threading.Event()

    def load_later(*args, **kwargs):
        reading.set()
        assert compiling.wait(60)
        return load_params(*args, **kwargs)

    def measure(model, *args):
        assert reading.wait(60)  # while weights are read
        compiling.set()
        compiled.append(measured(model, *args))
        return compiled[-1]

    compiling, load_params = threading.Event(), native.load_params
    monkeypatch.setattr(batch_tokens, "_working_bytes", measure)
    monkeypatch.setattr(batch_tokens, "MOST_CPU", 1024)
    monkeypatch.setattr(native, "load_params", load_later)
    events = Counter()
    jax.monitoring.register_event_listener(count := lambda event, **_: events.update([event]))
    caching = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: jax.config.values[name] for name in caching}
    compilation_cache.reset_cache()
    try:
        for name, value in caching.items():
            jax.config.update(name, value)
        scorer = Scorer.from_pretrained(model, batch_tokens="auto")
        assert (scorer.batch_tokens, len(compiled)) == (1024, 1)
        events.clear()
        ids = np.arange(scorer.model.max_positions, dtype=np.int32)
        scorer.score_sequences([TokenSequence(ids, 1)])
    finally:
        jax.monitoring.unregister_event_listener(count)
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert [program.name for program in scorer.engine.programs.compiled] == [("score", 1, 1024)]
    assert events["/jax/compilation_cache/cache_hits"] == 1


def test_without_a_number_the_platform_decides(scorers, monkeypatch):
    here = scorers("tiny-llama3").model
    there = dataclasses.replace(here, devices=Devices("tpu"))
    monkeypatch.setattr(batch_tokens, "free_bytes", lambda: 1 << 40)

    def chosen(asked, model, reproducible=False):
        return BatchTokens(asked, reproducible=reproducible).choose(model)

    assert [chosen(asked, here) for asked in (None, "auto", 700)] == [BATCH_TOKENS, MOST_CPU, 700]
    assert [chosen(asked, there) for asked in (None, 700)] == [MOST_ACCELERATOR, 700]
    assert [chosen(asked, there, True) for asked in (None, "auto")] == [BATCH_TOKENS] * 2


@pytest.mark.slow
def test_the_flag(tmp_path, capsys):
    from jaxscore.cli.main import main

    given, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text('{"context": "a", "continuation": " b"}\n', encoding="utf-8")
    words = ["score", "--model", str(CASES / "models/tiny-gpt2"), "--input", str(given)]
    assert main([*words, "--output", str(output), "--batch-tokens", "auto"]) == 0
    assert f"--batch-tokens auto: {MOST_CPU}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse([*words, "--output", "o", "--batch-tokens", "automatic"])


def test_what_is_free_is_told():
    assert free_bytes() > 1 << 26


@pytest.mark.parametrize(
    ("variable", "share"), [(None, 0.9), *[(name, 0.5) for name in GPU_MEMORY_VARIABLES]]
)
def test_jax_takes_most_of_a_gpu_unless_the_user_decides(monkeypatch, variable, share):
    for name in GPU_MEMORY_VARIABLES:
        monkeypatch.setenv(name, "")  # undone at the end
    if variable is not None:
        monkeypatch.setenv(variable, "0.5")
    set_gpu_memory()
    assert generate_pjrt_gpu_plugin_options()["memory_fraction"] == share
