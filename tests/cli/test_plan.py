"""`plan`: what it says of a model, on stdout and as JSON, and what it refuses."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from gguf import GGMLQuantizationType

from jaxscore.cli import plan, plan_facts
from jaxscore.cli.plan import estimate_blocks, text
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.models import native
from jaxscore.models.load import load
from jaxscore.models.weights import params
from jaxscore.models.weights.checkpoint import Checkpoint
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES, with_devices
from tests.models import released
from tests.models.test_large_shapes import MODELS
from tests.models.weights.test_gguf import written_in

LLAMA3 = CASES / "models/tiny-llama3"
SMALL = ("--batch-tokens", 64, "--quiet")  # one program


def reported(run, folder, *words):
    """What the JSON holds, and the page on stdout."""
    code, out, err = run("plan", "--json", folder / "plan.json", *words)
    assert code == 0, err
    return strict((folder / "plan.json").read_text(encoding="utf-8")), out


@pytest.fixture
def config(tmp_path):
    """A folder with a config and nothing else; returns the file."""

    def write(raw):
        file = tmp_path / "model" / "config.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(raw), encoding="utf-8")
        return file

    return write


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama3", "tiny-qwen2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_are_those_that_load(run, tmp_path, name, dtype):
    folder = CASES / "models" / name
    report, page = reported(run, tmp_path, "--model", folder, "--dtype", dtype, *SMALL)
    params = jax.tree.leaves(load(folder, dtype=dtype, implementation="native").params)
    assert report["parameters"] == sum(leaf.size for leaf in params)
    assert report["bytes_a_device"] == sum(leaf.nbytes for leaf in params)
    assert report["active_parameters"] == report["parameters"]
    assert f"{report['parameters']:,} parameters, {dtype}\n" in page
    [program] = report["programs"]
    assert (program["rows"], program["length"]) == (1, 64)
    assert program["peak_bytes_a_device"] == (
        report["bytes_a_device"] + program["temporary_bytes"] + program["batch_bytes"]
    )


@pytest.mark.slow
def test_a_quantized_model(run, tmp_path):
    words = ("--model", QWEN, "--dtype", "float32", "--quantize", "int8", *SMALL)
    report, page = reported(run, tmp_path, *words)
    loaded = load(plan.Path(QWEN), dtype="float32", implementation="native", quantize="int8")
    assert report["bytes_a_device"] == sum(leaf.nbytes for leaf in jax.tree.leaves(loaded.params))
    assert "int8, products in float32" in page
    whole, _ = reported(run, tmp_path, "--model", QWEN, "--dtype", "float32", *SMALL)
    assert report["parameters"] == whole["parameters"]
    assert report["flops"] == whole["flops"]


@pytest.mark.slow
def test_weights_in_the_blocks_of_their_file(run, tmp_path):
    path = written_in(tmp_path, "llama", [GGMLQuantizationType.Q4_0])
    words = ("--model", path, "--dtype", "float32", "--quantize", "stored", *SMALL)
    report, _ = reported(run, tmp_path, *words)
    model = load(path, dtype="float32", quantize="stored")
    assert report["bytes_a_device"] == sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    assert report["stored_share"] == model.checkpoint.stored_share


@pytest.mark.parametrize("kind", ["gpt_oss", "deepseek_v3"])
def test_blocks_that_a_config_alone_describes(tmp_path, kind):
    """As those of the weights; the tiny checkpoint has all modules quantized that releases have."""
    getattr(released, kind)(tmp_path)
    folder, forms = tmp_path / "whole", []
    source = Checkpoint.open(folder)
    scheme = source.scheme
    family, decoder = native.translate(folder, source.config)
    for tensors in (source.tensors, None):
        forms.append(params.stored_forms(folder, family, decoder, tensors, scheme.expected_form))
    assert forms[0] == forms[1]
    assert len(forms[0]) > 2


@pytest.mark.slow
def test_a_config_alone_is_as_good_as_the_folder(run, tmp_path, config):
    file = config(json.loads((LLAMA3 / "config.json").read_text(encoding="utf-8")))
    reports = [
        reported(run, tmp_path, "--model", model, *SMALL)[0]
        for model in (LLAMA3, file, file.parent)
    ]
    for report in reports:
        del report["model"], report["date"], report["process_bytes"]
        for program in report["programs"]:
            del program["compile_seconds"]
    assert reports[0] == reports[1] == reports[2]


@pytest.mark.slow
def test_the_types_that_configs_name(run, tmp_path, config):
    raw = json.loads((LLAMA3 / "config.json").read_text(encoding="utf-8"))
    raw = {name: value for name, value in raw.items() if name not in ("dtype", "torch_dtype")}
    for own, dtype in (
        ({}, "float32"),
        ({"torch_dtype": "float32"}, "float32"),
        ({"dtype": None, "torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "bfloat16"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "bfloat16", "torch_dtype": "float32"}, "bfloat16"),
    ):
        words = ("--model", config(raw | own), "--devices", 1, *SMALL)
        assert reported(run, tmp_path, *words)[0]["dtype"] == dtype
    for strange in ("int4", ["float32"]):
        code, out, err = run("plan", "--model", config(raw | {"torch_dtype": strange}), *SMALL)
        assert (code, out) == (2, "")
        assert f"config.json: the weights' type is {strange!r}, which is not handled" in err


@pytest.mark.slow
def test_a_converted_folder_in_its_own_type(run, tmp_path):
    output = tmp_path / "converted"
    words = ("--model", LLAMA3, "--dtype", "bfloat16", "--output", output, "--quiet")
    assert run("convert", *words).code == 0
    report, _ = reported(run, tmp_path, "--model", output, *SMALL)
    assert report["dtype"] == "bfloat16"
    assert reported(run, tmp_path, "--model", LLAMA3, *SMALL)[0]["dtype"] == "float32"


@pytest.mark.slow
def test_the_shapes(run, tmp_path):
    def shapes(*words):
        report, _ = reported(run, tmp_path, "--model", LLAMA3, "--quiet", *words)
        return [(one["rows"], one["length"]) for one in report["programs"]]

    assert shapes("--batch-tokens", 64) == [(1, 64)]
    assert shapes("--batch-tokens", 200) == [(3, 64), (1, 128), (1, 192)]
    assert shapes("--batch-tokens", 1024, "--row-lengths", 96, 64, 96) == [(16, 64), (10, 96)]


@pytest.mark.slow
def test_all_shapes(run, tmp_path, monkeypatch, config):
    raw = json.loads((LLAMA3 / "config.json").read_text(encoding="utf-8"))
    file = config(raw | {"max_position_embeddings": 100, "num_hidden_layers": 1})
    report, _ = reported(
        run, tmp_path, "--model", file, "--quiet", "--all-shapes", "--batch-tokens", 1024
    )
    found = [(one["rows"], one["length"]) for one in report["programs"]]
    assert found == [(1, 64), (2, 64), (16, 64), (1, 96), (10, 96), (1, 128), (8, 128)]


def test_a_row_longer_than_the_batch(run, tmp_path):
    words = ("--model", LLAMA3, "--quiet", "--batch-tokens", 64, "--row-lengths", 128)
    report, page = reported(run, tmp_path, *words)
    assert [(one["rows"], one["length"]) for one in report["programs"]] == [(1, 128)]
    assert "\n1 x 128 " in page
    assert list(report["flops"]["attention_a_token_at"]) == ["128"]


def test_a_mesh(run, tmp_path):
    words = ("--model", QWEN, *SMALL)
    one, _ = reported(run, tmp_path, *words)
    two, page = reported(run, tmp_path, *words, "--mesh", "data=3,model=2", "--devices", 6)
    assert two["mesh"] == {"data": 3, "model": 2, "fsdp": False}
    assert one["bytes_a_device"] / 2 < two["bytes_a_device"] < one["bytes_a_device"]
    assert "mesh data=3,model=2\n" in page
    assert two["compiled_shards"] == 1
    assert "too few devices to compile for a shard" in page
    assert two["programs"][0]["temporary_bytes"] == one["programs"][0]["temporary_bytes"]
    kept = two["key_value_bytes_a_token"]
    whole = two["whole_on_every_device"]
    assert kept["device"] == (kept["model"] if "key heads" in whole else kept["model"] // 2)


def test_what_does_not_divide_is_said(run, tmp_path, config):
    raw = json.loads((LLAMA3 / "config.json").read_text(encoding="utf-8"))
    file = config(raw | {"vocab_size": 1001, "num_attention_heads": 4, "num_key_value_heads": 1})
    report, page = reported(run, tmp_path, "--model", file, *SMALL, "--mesh", "model=2")
    assert report["whole_on_every_device"] == {"key heads": 1, "vocabulary columns": 1001}
    assert "  1001 vocabulary columns do not divide by 2: whole on every device\n" in page


def test_auto_and_the_verdict(run, tmp_path):
    words = ("--model", QWEN, *SMALL)
    plain, page = reported(run, tmp_path, *words)
    assert plain["device_memory"] is plain["would_fit"] is plain["programs"][0]["fits"] is None
    assert "fits" not in page
    need = plain["programs"][0]["peak_bytes_a_device"]
    auto = (*words, "--mesh", "auto", "--devices", 4, "--device-memory")
    one, page = reported(run, tmp_path, *auto, f"{need}B")
    assert one["mesh"] == {"data": 4, "model": 1, "fsdp": False}
    assert one["programs"][0]["fits"] is True
    way = {"dtype": one["dtype"], "quantize": None}
    assert one["would_fit"][0] == {**way, "model": 1, "fsdp": None}
    assert "\nfits: " in page
    two, page = reported(run, tmp_path, *auto, f"{need - 1}B")
    assert two["mesh"] == {"data": 2, "model": 2, "fsdp": False}
    assert two["would_fit"][0]["model"] == 2
    code, out, err = run("plan", *auto, "1kB")
    assert (code, out) == (2, "")
    assert "no mesh of 4 devices fits 1.00 kB per device" in err
    small, page = reported(run, tmp_path, *words, "--device-memory", "1kB")
    assert small["would_fit"] == []
    assert small["programs"][0]["fits"] is False
    assert "\ndoes not fit: 1.00 kB per device\n  no mesh that" in page


def test_auto_counts_gathered_weights(run, tmp_path, monkeypatch):
    words = ("--model", QWEN, *SMALL, "--devices", 4, "--device-memory", "1GB")
    given, _ = reported(run, tmp_path, *words, "--mesh", "fsdp=4")
    monkeypatch.setattr(plan_facts, "mesh_of_run", lambda *_, **__: MeshShape(4, 1, fsdp=True))
    found, _ = reported(run, tmp_path, *words, "--mesh", "auto")
    assert found["mesh"] == given["mesh"]
    assert [one["peak_bytes_a_device"] for one in found["programs"]] == [
        one["peak_bytes_a_device"] for one in given["programs"]
    ]


@pytest.mark.slow
def test_what_would_fit_is_so(run, tmp_path):
    words = ("--model", QWEN, "--dtype", "float32", *SMALL)
    plain, _ = reported(run, tmp_path, *words)
    working = plain["programs"][0]["temporary_bytes"] + plain["programs"][0]["batch_bytes"]
    room = plain["bytes_a_device"] * 6 // 10  # bfloat16 has half
    memory = f"{room + working}B"
    report, page = reported(run, tmp_path, *words, "--device-memory", memory)
    kinds = {(one["dtype"], one["quantize"]): one["model"] for one in report["would_fit"]}
    assert kinds[("bfloat16", None)] == 1
    assert kinds.get(("float32", None), 2) > 1
    assert "\n  all of these batches fit with --dtype bfloat16 from model=1" in page
    for (dtype, quantize), model in kinds.items():
        own = ("--dtype", dtype, *(("--quantize", quantize) if quantize else ()))
        found, _ = reported(
            run, tmp_path, "--model", QWEN, *own, *SMALL, "--mesh", f"model={model}"
        )
        assert found["bytes_a_device"] <= room


@pytest.mark.slow
def test_a_large_model_in_seconds(run, tmp_path, config):
    large = MODELS["Qwen3-30B-A3B"]
    file = config(large.raw | {"torch_dtype": "bfloat16"})
    words = ("--model", file, "--mesh", "data=2,model=8", "--row-lengths", 64)
    report, page = reported(run, tmp_path, *words, "--device-memory", "80GB", "--quiet")
    assert report["parameters"] == large.parameters
    assert report["active_parameters"] == large.active
    assert "30,532,122,624 parameters (3,353,032,704 for each token), bfloat16\n" in page
    assert report["programs"][0]["fits"] is True


def test_progress_is_on_stderr(run):
    code, out, err = run("plan", "--model", LLAMA3, "--batch-tokens", 64)
    assert code == 0
    assert err.startswith("compiling 1 x 64 tokens\ncompiled in ")
    assert "compiling" not in out
    lines = out.splitlines()
    assert lines[-2:] == [
        "done     1 model, 1 programs compiled, 0 failed",
        lines[-1],
    ]
    sizes = [
        float(size) * (1000 if unit == "G" else 1)
        for size, unit in re.findall(r"([0-9.]+) ([MG])B", lines[-1])
    ]
    assert lines[-5].split()[5] == f"{sizes[1]:.3g}"
    assert sizes[0] == pytest.approx(sizes[1] + sizes[2], rel=0.01)


def test_a_plan_for_this_cpu_has_the_dtype_that_commands_load(run, tmp_path, config):
    stored = json.loads((Path(QWEN) / "config.json").read_text(encoding="utf-8"))
    path = config({**stored, "dtype": "bfloat16"})
    for more, dtype in (
        ((), "float32"),
        (("--dtype", "bfloat16"), "bfloat16"),
        (("--device-memory", "1GB"), "bfloat16"),
        (("--mesh", "data=1,model=2"), "bfloat16"),
    ):
        report, _ = reported(run, tmp_path, "--model", path, *more, *SMALL)
        assert report["dtype"] == dtype
        assert ("process_bytes" in report) == (not more or more[0] == "--dtype")


@pytest.mark.slow
def test_a_shards_own_program(pytestconfig, tmp_path):
    """Where there are devices enough the program is the split one."""
    words = ("--model", QWEN, "--batch-tokens", "64", "--json", str(tmp_path / "plan.json"))
    more = ("--mesh", "auto", "--devices", "4", "--device-memory")

    def process(*words):
        done = subprocess.run(
            [sys.executable, "-m", "jaxscore", "plan", "--quiet", *words],
            capture_output=True, text=True, check=False, cwd=pytestconfig.rootpath,
            env=with_devices(4),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return strict((tmp_path / "plan.json").read_text(encoding="utf-8")), done.stdout

    one, _ = process(*words)
    two, page = process(*words, *more, f"{one['programs'][0]['peak_bytes_a_device'] - 1}B")
    assert two["mesh"]["model"] == two["compiled_shards"] == 2
    assert "programs of one of 2 shards, compiled for cpu" in page
    assert two["programs"][0]["temporary_bytes"] != one["programs"][0]["temporary_bytes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mesh", "model=3"), "--mesh data=1,model=3: model=3 does not split this model evenly"),
        (("--mesh", "tensor=2"), "mesh 'tensor=2': 'tensor=2' is not expected there"),
        (("--mesh", "auto"), "--mesh auto needs --devices and --device-memory"),
        (("--mesh", "auto", "--devices", 2), "--mesh auto needs --devices and --device-memory"),
        (("--mesh", "model=2", "--devices", 4), "is of 2 devices, --devices says 4"),
        (("--device-memory", "16"), "'16' is not a size in bytes"),
        (("--row-lengths", 65), "--row-lengths 65: rows of this model have 64, 96, 128"),
        (("--batch-tokens", 63), "--batch-tokens 63: the shortest row is 64"),
    ],
)
def test_flags_that_cannot_be_meant(run, tmp_path, words, message):
    code, out, err = run("plan", "--model", QWEN, "--json", tmp_path / "plan.json", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "config.json: expected an object with a string `model_type`"),
        ({"model_type": "t5"}, "config.json: model_type 't5' is not covered by the native"),
        ({"model_type": "llama", "vocab_size": 0}, "config.json: vocab_size comes out as 0"),
        ({"model_type": "llama", "quantization_config": {"bits": 4}}, "quant_method is None"),
    ],
)
def test_configs_that_are_refused(run, config, raw, message):
    code, out, err = run("plan", "--model", config(raw))
    assert (code, out) == (2, "")
    assert message in err


def test_weights_that_are_stored_quantized_count_as_the_models_own(run, config, tmp_path):
    raw = json.loads((LLAMA3 / "config.json").read_text(encoding="utf-8")) | {"dtype": "float32"}
    quantized = raw | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    plain, other = (
        reported(run, tmp_path, "--model", config(one), "--devices", 1, *SMALL)[0]
        for one in (raw, quantized)
    )
    assert plain["parameters"] == other["parameters"]
    assert (plain["dtype"], other["dtype"]) == ("float32", "bfloat16")


def test_models_that_are_none(run, tmp_path):
    other = tmp_path / "other.json"
    shutil.copy(LLAMA3 / "config.json", other)
    for model, message in (
        ("nobody/nothing", "neither a folder, a config.json nor a GGUF file; give one"),
        ("x" * 5000, "neither a folder, a config.json nor a GGUF file"),
        (other, "neither a folder, a config.json nor a GGUF file"),
        (tmp_path, f"{tmp_path / 'config.json'}: No such file"),
    ):
        code, out, err = run("plan", "--model", model)
        assert (code, out) == (2, "")
        assert message in err


def test_its_own_config_is_not_written_over(run, config):
    text = (LLAMA3 / "config.json").read_text(encoding="utf-8")
    file = config(json.loads(text))
    before = file.read_bytes()
    code, _, err = run("plan", "--model", file, "--json", file)
    assert code == 2
    assert "is an input of this run" in err
    assert file.read_bytes() == before


REPORT = {
    "model": "config.json",
    "model_type": "qwen3_moe",
    "dtype": "bfloat16",
    "quantize": None,
    "n_layers": 48,
    "width": 2048,
    "n_heads": 32,
    "n_kv_heads": 4,
    "vocab_size": 151936,
    "max_positions": 40960,
    "parameters": 30_532_122_624,
    "active_parameters": 3_353_032_704,
    "mesh": {"data": 2, "model": 8},
    "whole_on_every_device": {"key heads": 4},
    "parts": [
        {"name": "embedding", "parameters": 311_164_928, "bytes": 622_329_856,
         "bytes_a_device": 77_791_232},
        {"name": "experts", "parameters": 28_991_029_248, "bytes": 57_982_058_496,
         "bytes_a_device": 7_247_757_312},
    ],
    "bytes_a_device": 7_325_548_544,
    "key_value_bytes_a_token": {"model": 98_304, "device": 24_576},
    "flops": {
        "linear_a_token": 6_083_837_952,
        "attention_a_token_at": {"64": 50_331_648, "4096": 999_999_999},
        "unembedding_a_query": 622_329_856,
    },
    "programs": [
        {"rows": 64, "length": 64, "temporary_bytes": 412_000_000, "compile_seconds": 1.26,
         "peak_bytes_a_device": 7_740_000_000, "fits": True},
        {"rows": 1, "length": 4096, "temporary_bytes": 9_000_000_000, "compile_seconds": 10.0,
         "peak_bytes_a_device": 16_325_548_544, "fits": False},
    ],
    "compiled_shards": 1,
    "compiled_for": "cpu (cpu)",
    "device_memory": 16_000_000_000,
    "would_fit": [
        {"dtype": "bfloat16", "quantize": None, "model": None, "fsdp": 16},
        {"dtype": "bfloat16", "quantize": "int8", "model": 8, "fsdp": 8},
    ],
}  # fmt: skip
PAGE = """\
config.json: qwen3_moe, 30,532,122,624 parameters (3,353,032,704 for each token), bfloat16
48 layers of width 2048, 32 query heads, 4 key heads, vocabulary 151936, 40960 positions
mesh data=2,model=8
  4 key heads do not divide by 8: whole on every device

part                           parameters    bytes  per device
embedding                     311,164,928   622 MB     77.8 MB
experts                    28,991,029,248  58.0 GB     7.25 GB
all                        30,532,122,624  58.6 GB     7.33 GB
keys and values per token                  98.3 kB     24.6 kB

FLOPs
weights                   6.08 G  per token
attention to 64 tokens    50.3 M  per token
attention to 4096 tokens  1000 M  per token
unembedding                622 M  per query

batch     temporary     peak  compiled in  fits
64 x 64      412 MB  7.74 GB        1.3 s   yes
1 x 4096    9.00 GB  16.3 GB       10.0 s    no
programs of the whole model, compiled for cpu (cpu); here are too few devices to compile for a shard

fits in part: 16.0 GB per device
  all of these batches fit with --dtype bfloat16 from fsdp=16
  all of these batches fit with --quantize int8 from model=8 or fsdp=8"""


def test_the_page():
    assert text(REPORT) == PAGE


def test_states_of_recurrent_layers():
    states = {"model": 52_690_944, "device": 26_345_472}
    page = text({**REPORT, "state_bytes_a_path": states})
    assert "\nstates per prefix or slot                  52.7 MB     26.3 MB\n" in page


def without_memory(program):
    return {**program, "fits": None}


def test_without_a_memory_nothing_is_judged():
    programs = [without_memory(one) for one in REPORT["programs"]]
    page = text({**REPORT, "device_memory": None, "would_fit": None, "programs": programs})
    assert "fit" not in page
    assert page.count("\n\n") == PAGE.count("\n\n") - 1


def test_shards_and_a_model_without_experts():
    page = text({**REPORT, "compiled_shards": 8, "active_parameters": REPORT["parameters"]})
    assert "\nprograms of one of 8 shards, compiled for cpu (cpu)\n" in page
    assert page.startswith("config.json: qwen3_moe, 30,532,122,624 parameters, bfloat16\n")


@pytest.mark.parametrize(
    ("fits", "verdict"),
    [((True, True), "\nfits: 16.0 GB"), ((False, False), "\ndoes not fit: 16.0 GB")],
)
def test_the_verdict(fits, verdict):
    programs = [{**one, "fits": own} for one, own in zip(REPORT["programs"], fits, strict=True)]
    page = text({**REPORT, "programs": programs, "would_fit": []})
    assert verdict in page
    assert ("  no mesh that was looked at makes all of these" in page) == (not all(fits))


ESTIMATES = {
    "batches": [
        {"rows": 8, "length": 512, "collectives": [
            {"op": "all-gather", "count": 5, "bytes": 262_144},
            {"op": "all-reduce", "count": 9, "bytes": 201_000_000},
        ]},
        {"rows": 1, "length": 32768, "collectives": []},
    ],
    "layer": [
        {"rows": 8, "length": 512, "is_recurrent": False, "seconds": 0.013155, "mfu": 0.69608,
         "operations_left_out": 3,
         "collectives": [{"op": "all-reduce", "count": 2, "bytes": 134_217_728}],
         "kernels": ["interval_attention"]},
        {"rows": 8, "length": 512, "is_recurrent": True, "seconds": 0.0208, "mfu": 0.31,
         "operations_left_out": 0, "collectives": [], "kernels": []},
        {"rows": 1, "length": 32768, "is_recurrent": False, "seconds": None, "mfu": None,
         "operations_left_out": 0, "collectives": [], "kernels": []},
    ],
    "vocabulary": [
        {"queries": 4096, "seconds": 0.00583, "products_share": 0.971, "operations_left_out": 0,
         "kernels": []},
    ],
}  # fmt: skip
TABLES = [
    """\
collectives              count   bytes
8 x 512      all-gather      5  262 kB
8 x 512      all-reduce      9  201 MB
as in the programs; the body of a loop is counted once""",
    """\
estimate of one layer     time    MFU  collectives
8 x 512                13.2 ms  69.6%       134 MB
8 x 512, recurrent     20.8 ms  31.0%
1 x 32768                 none
the compiler's model of the chip, not a measurement
a kernel counts as what it declares: interval_attention
8 x 512: without 3 operations that it does not model; they move nothing
recurrent: without the states at branch points, which are made in a loop
none: it does not model some operation, or refused the program""",
    """\
estimate of the LM head     time  products alone
4096 queries             5.83 ms           97.1%
the compiler's model of the chip, not a measurement""",
]


def test_the_tables():
    assert estimate_blocks(ESTIMATES) == TABLES


def test_parts_without_anything_are_left_out():
    """As of a GPU, whose compiler estimates no time."""
    assert (
        estimate_blocks({"batches": ESTIMATES["batches"][1:], "layer": [], "vocabulary": []}) == []
    )
