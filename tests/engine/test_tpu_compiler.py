"""What the real TPU compiler says of the programs, for chips that are not here.

A time is the compiler's model of the chip. The compiler runs in processes of its own; without
libtpu (the extra `tpu-compiler`) these tests are skipped.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from jaxscore.device.attention.kernel_tpu import block_sizes
from jaxscore.device.attention.score_rule import pair_counts
from jaxscore.device.lm_head.kernel_tpu import COLUMNS, QUERIES
from tests.conftest import CASES, ROOT
from tests.engine.answering import answering

WORKER = "tests/engine/on_tpu_compiler.py"
CLOCK = 1.5e9  # bundles per second of a v5e: 197e12 / (4 units * 128 * 128 * 2)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tpu_compiler,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="libtpu is not installed: pip install -e '.[tpu-compiler]'",
    ),
]


def environment(**variables):
    """That of a Python process without the variables of this one that steer JAX."""
    kept = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    return {**kept, **variables, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def process(*words, stdin="", **variables):
    """stdout of a Python process."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, check=False,
        timeout=600, cwd=ROOT, env=environment(**variables), input=stdin,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """`said(case)`: what the compiler says of a chip, a mesh, a model and a program."""
    errors = tmp_path_factory.mktemp("compiler") / "stderr"
    with answering(WORKER, environment=environment(), errors=errors) as ask:
        yield ask


@pytest.mark.parametrize(
    ("case", "most"),
    [
        ("v5e 1x1 0.5B score:8x512", 30e6),
        ("v5e 1x1 0.5B-int8 score:8x512", 30e6),
        ("v5e 1x1 0.5B prefix:1024", 30e6),
        ("v5e 1x1 0.5B behind:8x512x1024", 150e6),
        ("v5p 1x1 8B prefix:1024", 300e6),
        ("v5p 1x1 MoE score:8x512", 1.5e9),
        ("v5p 1x1 8B score:1x32768", 6e9),
        ("v5p 4x16 DeepSeek score:8x2048", 3e9),
        ("v5e 1x1 gemma4 score:8x512", 1e9),
        ("v6e 1x1 0.5B score:8x512", 200e6),
    ],
)
def test_memory_of_one_chip(said, case, most):
    """Beside the parameters; neither the logits (2.5 GB), nor a copy of the vocabulary (272 MB),
    nor the scores of all pairs of a long row (137 GB)."""
    assert said(case)["temporary_bytes"] < most


@pytest.mark.parametrize(
    ("case", "most"),
    [
        ("v5e 1x1 0.5B step:32x512", 30e6),
        ("v5p 1x1 8B-int8 step:32x512", 300e6),
        ("v5p 1x1 latent step:32x512", 500e6),
    ],
)
def test_memory_of_a_step_of_one_chip(said, case, most):
    """Beside the parameters; no copy of the KV cache (201 MB, 2.1 GB, 1 GB), with wide heads, with
    narrow ones and with a single one."""
    assert said(case)["temporary_bytes"] < most


@pytest.mark.parametrize(
    ("chip", "model", "least"), [("v5e", "8B", 0.68), ("v5e", "0.5B", 0.5), ("v5p", "8B", 0.68)]
)
def test_a_layer_of_a_long_row(said, chip, model, least):
    """Of the chip's peak, by the compiler's model; scores of all pairs reach 0.49 (8B) and 0.15 on
    v5e, and seven heads of a key head one by one 0.476."""
    reported = said(f"{chip} 1x1 {model} layer:1x4096")
    assert reported["kernels"] == ["interval_attention"]
    assert reported["mfu"] > least


def test_an_estimate_that_leaves_out_operations_that_move_nothing(said):
    reported = said("v6e 1x1 0.5B layer:8x512")
    assert reported["operations_left_out"] > 0
    assert 0.2 < reported["mfu"] < 1


@pytest.mark.parametrize(
    ("case", "most"),
    [("v5e 1x1 0.5B attention:1x262144", 5e9), ("v5p 1x1 8B attention:8x32768", 8e9)],
)
def test_long_rows_and_large_batches_fit_in_scalar_memory(said, case, most):
    """One row has 525,312 block pairs, which are computed in parts, and eight rows have 33,280;
    262,144 fill the scalar memory."""
    assert said(case)["temporary_bytes"] < most


def final_bundles(folder, case, kernel):
    """What is said of a case, and the bundles of a kernel's final schedule."""
    schedules = {"LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"}
    reported = json.loads(process(WORKER, stdin=case, **schedules))
    [schedule] = folder.glob(f"*-{kernel}*-schedule-analysis_final_bundles.txt")
    found = re.search(r"total scheduled bundles: +([0-9]+)", schedule.read_text(encoding="utf-8"))
    return reported, int(found[1])


def test_the_attention_kernel(tmp_path):
    """By the final schedule, as if each step of its grid ran all that there is in it; seven heads
    one by one take 1.12 ms."""
    _, bundles = final_bundles(tmp_path, "v5e 1x1 0.5B attention:1x4096", "interval_attention")
    sizes = block_sizes(4096, 7, 64)
    steps = 14 // sizes.group * sum(pair_counts(4096, 4096, sizes.queries, sizes.keys))
    assert steps * bundles / CLOCK < 0.00108


def test_the_vocabulary_pass(tmp_path):
    """At most half of the 32 ms that blocks of columns take; as the kernel declares itself, and by
    the final schedule, as if each step of its grid ran all that there is in it."""
    reported, bundles = final_bundles(tmp_path, "v5e 1x1 0.5B vocabulary:4096", "vocabulary_sums")
    assert reported["kernels"] == ["vocabulary_sums"]
    assert reported["seconds"] < 0.016
    steps = 4096 // QUERIES * -(-151936 // COLUMNS)
    assert steps * bundles / CLOCK < 0.016


@pytest.mark.parametrize("chip", ["v5p", "v6e"])
def test_the_vocabulary_pass_of_a_wide_model(said, chip):
    """Blocks of 512 positions, or a v6e reads the weights for longer than it multiplies; they fit
    the memory of a v5p, which is smaller."""
    assert said(f"{chip} 1x1 70B vocabulary:4096")["products_share"] > 0.8


@pytest.mark.parametrize(
    ("case", "most"),
    [
        ("v5e 1x4 8B score:1x4096", 1e8),
        ("v5e 1x4 MoE score:8x512", 3e8),
    ],
)
def test_shards_of_four_chips(said, case, most):
    """A layer's two sums stand once, in the loop, and one is of the embedding: each chip keeps its
    tokens. Three are of the LM head, and one is of the answers that scoring has."""
    reported = said(case)
    moved = reported["collectives"]
    assert moved["reduce-scatter"] == 2 + 1
    assert moved["all-reduce"] == 3 + 1
    assert moved["all-gather"] >= 2 + 1
    assert reported["temporary_bytes"] < most


def test_a_mixture_with_latent_attention_of_64_chips(said):
    """0.22 of the peak if rows are added to tokens by a scatter, and each shard makes the latents
    of all tokens."""
    reported = said("v5p 4x16 DeepSeek layer:8x2048")
    assert reported["kernels"] == ["grouped_products", "interval_attention", "weighted_sums"]
    assert reported["mfu"] > 0.33


def test_a_step_of_four_chips(said):
    """Two sums of a layer, one of the embedding, and three of the LM head."""
    reported = said("v5e 1x4 8B-int8 step:32x512")
    assert reported["collectives"] == {"all-reduce": 2 + 1 + 3}
    assert reported["temporary_bytes"] < 1e9


def test_rows_over_four_chips(said):
    """Each chip scores rows of its own; the five arrays of scores are gathered."""
    reported = said("v5e 4x1 0.5B score:8x512")
    assert reported["collectives"] == {"all-gather": 5}
    assert reported["temporary_bytes"] < 30e6


def test_a_layer_gathers_its_weights_once_and_as_stored(said):
    """Seven matrices and the few rows of the embedding in bfloat16, of which each chip has parts;
    no norms and biases."""
    reported = said("v5e 4x1x1 0.5B layer:1x512")
    numbers = 2 * 896 * 896 + 2 * 128 * 896 + 3 * 896 * 4864 + 257 * 896
    assert reported["collectives"] == [{"op": "all-gather", "count": 8, "bytes": 2 * numbers}]


def test_tokens_that_are_drawn_with_a_penalty_gather_the_logits_once(said):
    reported = said("v5e 1x4 8B-int8 drawn:32x512")
    assert reported["collectives"] == {"all-reduce": 2 + 1, "all-gather": 1}
    assert reported["temporary_bytes"] < 1e9


@pytest.mark.parametrize(("slots", "rows"), [(64, 256), (256, 128)])
def test_a_lane_fits_beside_the_model(said, slots, rows):
    """Drawn tokens, with the largest batch of prompts whose rows are not free yet."""
    reported = said(f"v5e 1 8B-int8 lane:{slots}")
    assert reported["rows"] == rows
    assert reported["bytes"] < reported["limit"]


def test_rows_begin_without_a_copy_of_the_cache(said):
    reported = said("v5e 1x1 8B-int8 begin:256x128")
    assert reported["temporary_bytes"] < reported["cache_bytes"] / 2


def test_the_command(tmp_path):
    """A topology of one chip, with what only libtpu can say; a row that does not fit is a row."""
    out = tmp_path / "plan.json"
    model = CASES / "models/tiny-llama3"
    reported = process(
        "-m", "jaxscore", "plan", "--model", model, "--topology", "v5e:1x1", "--dtype", "bfloat16",
        "--row-lengths", 64, "--batch-tokens", 256, "--json", out, "--quiet",
    )  # fmt: skip
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["compiler"]["name"] == "libtpu"
    assert report["compiled_for"] == "tpu (TPU v5 lite)"
    assert report["device_memory"] == 16 * 2**30
    assert [one["fits"] for one in report["batches"]] == [True]
    assert 0 < report["layer"][0]["seconds"] < 0.001
    assert 0 < report["layer"][0]["mfu"] < 1
    assert 0 < report["vocabulary"][0]["seconds"] < 0.01
    assert "compiled for tpu (TPU v5 lite) by libtpu" in reported


def test_joined_products():
    """Of a step the compiler has an estimate for each way, so that they can be compared."""
    lines = process("tools/joined_products.py", "--program", "step:8x64").splitlines()
    assert len(lines) == 5
    assert all(
        re.search(r" [0-9.]+ us [+-][0-9.]+%, [0-9]+ cycles [+-][0-9.]+%$", line) for line in lines
    )


@pytest.mark.parametrize("name", ["v5e:2x3", "v99:2x2", "v5e:0x2"])
def test_topologies_that_libtpu_does_not_know(name):
    code = (
        "import sys\n"
        "from jaxscore.cli.main import main\n"
        f"sys.exit(main(['plan', '--model', {str(CASES / 'models/tiny-llama3')!r}, "
        f"'--topology', {name!r}]) != 2)"
    )
    assert process("-c", code) == ""


def test_value_and_gradient_of_token_scores_are_near_those_of_whole_logits():
    out = process("tools/token_scores_estimate.py", "--width", 768, "--dtype", "float32")
    assert 0 < json.loads(out)["ratio"] < 1.3
