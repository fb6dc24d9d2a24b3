"""The device check must pass where the numbers are right, and must not where they are wrong."""

import dataclasses
import io
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import lm_head
from jaxscore.engine.generation.slots import SlotTable
from tools import check_device
from tools.device_check import (
    against_torch,
    bits,
    child,
    families,
    kernels,
    memory,
    random_model,
    resumed,
    shapes,
    speed,
    timing,
    values,
    vocabulary,
)
from tools.device_check.checks import (
    RECORD,
    Options,
    compare_devices,
    compare_processes,
    largest_difference,
)

# The check starts its sections by a fork, which JAX warns of; the check itself never starts JAX.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")

SMALL = Options(small=True)


def records(out: str) -> list[dict]:
    lines = [line for line in out.splitlines() if line.startswith(RECORD)]
    return [json.loads(line.removeprefix(RECORD)) for line in lines]


def texts(out: str, verdict: str) -> list[str]:
    """The texts of the records with this verdict."""
    return [entry["text"] for entry in records(out) if entry["verdict"] == verdict]


def fails(out: str) -> list[str]:
    return texts(out, "FAIL")


@pytest.mark.slow
def test_expected_values_pass_where_the_numbers_are_right(capsys):
    values.run(SMALL)
    out = capsys.readouterr().out
    assert texts(out, "PASS")[0].startswith("tiny-qwen2: expected values")
    assert len(texts(out, "PASS")) == len(records(out)) == 3


@pytest.mark.slow
def test_expected_values_fail_where_a_number_is_wrong(monkeypatch, capsys):
    right = lm_head.score_positions

    def wrong(hidden, asked, head, top, measures):
        scores = right(hidden, asked, head, top, measures)
        return scores._replace(entropy=scores.entropy + 2e-4)

    monkeypatch.setattr("jaxscore.device.score.score_positions", wrong)
    values.agrees("tiny-qwen2")
    [line] = fails(capsys.readouterr().out)
    assert "tiny-qwen2: expected values, float32 2.0" in line


@pytest.mark.slow
def test_families_in_two_processes(tmp_path, capsys):
    families.run(Options(small=True, ends=time.monotonic() + 600, folder=tmp_path))
    out = capsys.readouterr().out
    names = [families.WIDE, *families.SMALL, "qwen3_moe, int8"]
    assert len(texts(out, "PASS")) == len(records(out)) == len(names)
    for name in names:
        assert any(f"against the CPU, {name}: " in text for text in texts(out, "PASS"))


def test_decoders_of_all_families_translate():
    configs = {name: config for name, config, _ in families.decoders(False)}
    assert set(configs) == {families.WIDE, *families.RAW, "qwen3_moe, int8"}
    assert configs["qwen3_5_text"].recurrent is not None
    assert configs["deepseek_v2"].attention.latent is not None
    assert configs["gemma2"].attention.scores.score_softcap == 2.0
    assert configs["qwen3_moe, int8"].quantized == "float32"


def test_a_device_that_is_off_in_one_family_fails(capsys):
    right = {"caps": np.zeros((3, 4), np.float32), "experts": np.ones((3, 4), np.float32)}
    compare_devices(right, right)
    assert not fails(capsys.readouterr().out)
    compare_devices(right, right | {"caps": right["caps"] + 2e-4})
    assert fails(capsys.readouterr().out) == ["random decoder against the CPU, caps: 2.0e-04"]
    compare_devices(right, right | {"caps": right["caps"] * np.nan})
    assert len(fails(capsys.readouterr().out)) == 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            f"print('{RECORD}" + '{"verdict": "FAIL", "text": "on cpu: KeyError"}\')',
            "on cpu: KeyError",
        ),
        ("raise SystemExit(3)", "the process on the CPU ended with exit code 3"),
    ],
)
def test_families_that_the_cpu_does_not_score_do_not_pass(
    monkeypatch, tmp_path, capsys, body, text
):
    """The process on the CPU reports the reason, and no comparison takes its place."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!{sys.executable}\n{body}\n")
    interpreter.chmod(0o700)
    monkeypatch.setattr(families.sys, "executable", str(interpreter))
    monkeypatch.setattr(families, "numbers", lambda options: {"x": np.zeros(3, np.float32)})
    families.run(Options(small=True, ends=time.monotonic() + 60, folder=tmp_path))
    out = capsys.readouterr().out
    assert [(entry["verdict"], entry["text"]) for entry in records(out)] == [("FAIL", text)]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["attention", "experts"])
def test_kernels(monkeypatch, capsys, part):
    kernels.run(dataclasses.replace(SMALL, subject=part))
    out = capsys.readouterr().out
    assert len(texts(out, "PASS")) == len(texts(out, "NOTE")) > 2
    assert not fails(out)
    monkeypatch.setattr(kernels, "ALLOWED", dict.fromkeys(kernels.ALLOWED, 1e-12))
    kernels.run(dataclasses.replace(SMALL, subject=part))
    assert fails(capsys.readouterr().out)


def test_a_kernel_that_is_wrong_fails_and_the_next_runs(capsys):
    """One is off by 0.1, one raises as it compiles, and one is right."""

    def right(x):
        return x + 1

    def broken(x):
        raise RuntimeError("PTX assembly failed")

    args = (np.ones(3, np.float32),)
    cases = [
        kernels.Case(name, kernel, right, args, args, 1e-2)
        for name, kernel in (("off", lambda x: x + 1.1), ("broken", broken), ("good", right))
    ]
    kernels.compare(cases, SMALL)
    out = capsys.readouterr().out
    off, raised = fails(out)
    assert off == "off: worst difference 1.0e-01"
    assert raised.startswith("broken: RuntimeError: PTX assembly failed\nTraceback")
    assert texts(out, "PASS") == ["good: worst difference 0.0e+00"]


@pytest.mark.parametrize("part", ["attention", "experts", "replacement"])
def test_a_device_without_kernels_is_skipped(capsys, part):
    kernels.run(Options(subject=part))
    [entry] = records(capsys.readouterr().out)
    assert entry["verdict"] == "SKIPPED"
    assert entry["text"].startswith(f"{part}: there is no such kernel on this device")


@pytest.mark.slow
@pytest.mark.parametrize("error", [2e-3, math.nan])
def test_vocabulary(monkeypatch, capsys, error):
    vocabulary.run(SMALL)
    assert len(texts(capsys.readouterr().out, "PASS")) == 2
    right = vocabulary.score_positions

    def wrong(*args):
        scores = right(*args)
        return scores._replace(self_certainty=scores.self_certainty + error)

    monkeypatch.setattr(vocabulary, "score_positions", wrong)
    vocabulary.run(SMALL)
    assert len(fails(capsys.readouterr().out)) == 2


@pytest.mark.slow
def test_bits(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bits, "DTYPES", ("bfloat16",))
    options = Options(small=True, folder=tmp_path)
    bits.run(options)
    assert len(texts(capsys.readouterr().out, "PASS")) == 5
    bits.again(options)
    passed = texts(capsys.readouterr().out, "PASS")
    assert [text.partition(":")[0] for text in passed] == [
        "bfloat16, default",
        "bfloat16, --reproducible",
    ]


@pytest.mark.slow
def test_bits_fail_where_one_moves_with_the_order(monkeypatch, tmp_path, capsys):
    right = bits.bits

    def with_flipped_bit(scorer, sequences):
        numbers = right(scorer, sequences)
        numbers[0][0] ^= 1
        return numbers

    monkeypatch.setattr(bits, "bits", with_flipped_bit)
    monkeypatch.setattr(bits, "DTYPES", ("float32",))
    bits.run(Options(small=True, folder=tmp_path))
    out = capsys.readouterr().out
    assert any("float32, --reproducible: other bits in 2 of " in text for text in fails(out))


@pytest.mark.slow
def test_texts_that_depend_on_their_neighbours_fail(monkeypatch, capsys):
    """Here the steps of all rows are drawn by how many of them are at work."""
    model = random_model.from_host(bits._config(SMALL), "float32")
    assert resumed.compare_resumed("right", model, SMALL)
    right = SlotTable._decode_block

    def wrong(slots, everything):
        (state, sampling, eos), tokens = right(slots, everything)
        n = np.uint32(len(slots._running))
        own = sampling._replace(seed=sampling.seed + n)
        return (state, own, eos), tokens

    monkeypatch.setattr(SlotTable, "_decode_block", wrong)
    assert not resumed.compare_resumed("wrong", model, SMALL)
    assert len(fails(capsys.readouterr().out)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_texts_whose_neighbours_move_a_last_bit_fail(monkeypatch, capsys, dtype):
    """One number of one row, which no token shows, in blocks with idle rows."""
    model = random_model.from_host(bits._config(SMALL), dtype)
    right = SlotTable._decode_block

    def wrong(slots, everything):
        (state, sampling, eos), tokens = right(slots, everything)
        if len(slots._running) < slots._n_rows:
            row, value = min(slots._running), state.cache.value
            kind = jnp.uint16 if value.dtype.itemsize == 2 else jnp.uint32
            moved = jax.lax.bitcast_convert_type(value, kind).at[-1, row, -1, 0, -1].add(1)
            moved = jax.lax.bitcast_convert_type(moved, value.dtype)
            state = state._replace(cache=state.cache._replace(value=moved))
        return (state, sampling, eos), tokens

    monkeypatch.setattr(SlotTable, "_decode_block", wrong)
    assert not resumed.compare_resumed("wrong", model, SMALL)
    [line] = fails(capsys.readouterr().out)
    assert " of 40 texts have other bits" in line
    assert " 0 of 40" not in line


def test_texts_that_fail_say_why(capsys):
    model = random_model.from_host(bits._config(SMALL), "float32")
    params = jax.tree.map(lambda leaf: leaf * np.nan, model.params)
    assert not resumed.compare_resumed("wrong", dataclasses.replace(model, params=params), SMALL)
    [line] = fails(capsys.readouterr().out)
    assert "80 of 80 texts fail; text 0: the model gave logits that are not finite" in line


def test_bits_of_two_processes_are_compared(capsys):
    one = {"float32, default": np.array([1.0, 2.0], np.float32).view(np.uint32)}
    other = {"float32, default": one["float32, default"] ^ np.array([0, 1], np.uint32)}
    compare_processes(one, other)
    [line] = fails(capsys.readouterr().out)
    assert "other bits in 1 of 2 numbers, by 2.4e-07 at most, in a second process" in line


def test_memory_is_left_alone_on_a_cpu(capsys):
    memory.run(SMALL)
    [text] = texts(capsys.readouterr().out, "SKIPPED")
    assert text == "out of memory: this device does not report a limit"


@pytest.mark.slow
def test_too_large_a_batch_is_halved(monkeypatch, capsys):
    """A device with room for 32 tokens, which tells so as a real one does."""
    from jax.errors import JaxRuntimeError

    from jaxscore.engine.dispatch import Dispatch

    right = Dispatch._run

    def run(self, variant, batches, *rest):
        rows, length = batches[0].rows.shape
        if rows * length > 2 * memory.LENGTH:
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return right(self, variant, batches, *rest)

    monkeypatch.setattr(Dispatch, "_run", run)
    monkeypatch.setattr(memory, "LENGTH", 64)
    monkeypatch.setattr(memory.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(random_model, "memory_limit", lambda: 16 * memory.HEADS * 64**2)
    memory.run(SMALL)
    [text] = texts(capsys.readouterr().out, "PASS")
    assert text.startswith("out of memory: did not fit: 8 x 64, 4 x 64; halved and scored")


PARTS = [section.subject for section in check_device.SECTIONS if section.group == "speed"]


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in PARTS if part != speed.SHARED])
def test_speed(monkeypatch, capsys, part):
    monkeypatch.setattr(speed, "datasheet_peak", lambda kind: 1e15)
    speed.run(dataclasses.replace(SMALL, subject=part))
    out = capsys.readouterr().out
    rows = [entry["figures"] for entry in records(out)]
    assert [row["batch"] for row in rows] == ["4 x 64"]
    for row in rows:
        assert (
            row["model"]
            == f"{part}, 2 of {shapes.SHAPES[part]['num_hidden_layers']} layers, width 64"
        )
        assert row["tokens_per_s"] > 0
        assert 0 < row["program_MFU"] < 1
        assert 0 < row["layers_MFU"] < 1
        # What is timed is the whole batch: the useful FLOPs of its tokens at the measured rate.
        config = shapes.decoder_config(part, small=True)
        flops = speed._row_flops(config, int(row["batch"].split()[2]))
        of_token = flops / int(row["batch"].split()[2])
        assert row["MFU"] == pytest.approx(row["tokens_per_s"] * of_token / 1e15)


@pytest.mark.slow
def test_speed_of_a_shared_prompt(capsys):
    speed.run(dataclasses.replace(SMALL, subject=speed.SHARED))
    out = capsys.readouterr().out
    shared, unshared = texts(out, "PASS")
    assert "16 continuations of 8 tokens on one prompt of 96" in shared
    assert "4 continuations of 8 tokens each on a separate prompt" in unshared
    [ratio] = texts(out, "NOTE")
    assert "a text on the shared prompt takes 1/" in ratio


def test_a_difference_that_is_nan_is_the_largest():
    """Whichever number it is: Python's `max` would drop it unless it is the first."""
    zeros = np.zeros(2, np.float32)
    for column in range(2):
        got = [zeros, zeros]
        got[column] = np.array([0, np.nan], np.float32)
        assert np.isnan(largest_difference((x, zeros) for x in got))
    assert largest_difference([(zeros, zeros), (zeros, zeros + 2), (zeros, zeros - 1)]) == 2


def test_an_unknown_device_has_no_mfu():
    assert speed._mfu(1e12) is None


def test_speed_leaves_out_what_does_not_fit(monkeypatch, capsys):
    monkeypatch.setattr(random_model, "memory_limit", lambda: 1000)
    speed.run(dataclasses.replace(SMALL, subject="Qwen2.5-7B"))
    [text] = texts(capsys.readouterr().out, "SKIPPED")
    assert "Qwen2.5-7B, 2 of 28 layers, width 64: does not fit: " in text


def test_speed_begins_nothing_when_its_time_is_over(capsys):
    speed.run(Options(small=True, ends=0.0, subject="Qwen2.5-0.5B"))
    out = capsys.readouterr().out
    [text] = texts(out, "SKIPPED")
    assert text.endswith("rows of 64: no time left")
    assert len(records(out)) == 1


@pytest.mark.slow
def test_scores_and_speed_against_pytorch(tmp_path, capsys):
    options = Options(small=True, subject="cpu", folder=tmp_path)
    against_torch.run_torch(options)
    against_torch.run_jaxscore(options)
    out = capsys.readouterr().out
    compared, measured = texts(out, "PASS")
    assert "scores against PyTorch, float32 " in compared
    assert "4 x 64 tokens" in measured
    assert len([entry for entry in records(out) if "figures" in entry]) == 2
    assert not fails(out)
    result = json.loads((tmp_path / against_torch.FILE).read_text())
    result["logprobs"][1][5] += 2e-4
    (tmp_path / against_torch.FILE).write_text(json.dumps(result))
    against_torch.run_jaxscore(options)
    [text] = fails(capsys.readouterr().out)
    assert "float32 2.0e-04" in text


def test_no_pytorch_is_skipped_with_a_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(against_torch.importlib.util, "find_spec", lambda name: None)
    options = Options(small=True, subject="gpu", folder=tmp_path)
    against_torch.run_torch(options)
    against_torch.run_jaxscore(options)
    [entry] = records(capsys.readouterr().out)
    assert entry == {
        "verdict": "SKIPPED",
        "text": "PyTorch is not installed: no comparison with it",
    }


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen3.5-4B", 4_205_751_296),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("Llama-3.1-8B", 8_030_261_248),
    ],
)
def test_shapes_are_those_that_are_published(name, parameters):
    config = shapes.decoder_config(name)
    two, four = (random_model.n_bytes(config, dtype) for dtype in ("bfloat16", "float32"))
    assert (four, two < 2.001 * parameters) == (4 * parameters, True)


@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "Qwen3.5-4B"])
def test_weights_drawn_on_the_device_differ_by_layer_and_expert(name):
    model = random_model.on_device(shapes.decoder_config(name, small=True), "float32")
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        matrices = np.asarray(leaf).reshape(-1, leaf.shape[-1]) if leaf.ndim > 1 else None
        assert np.isfinite(np.asarray(leaf)).all(), path
        if matrices is not None and leaf.shape[-1] > 1:
            assert len(np.unique(matrices, axis=0)) == len(matrices), path


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("TPU v5", 459e12),
        ("TPU v6e", 918e12),
        ("TPU v6 lite", 918e12),
        ("cpu", None),
    ],
)
def test_peaks_by_datasheet(kind, peak):
    assert timing.datasheet_peak(kind) == peak


@pytest.mark.slow
def test_sections_in_processes_of_their_own(tmp_path, capfd):
    arguments = ["--small", "--device", "cpu", "--only", "vocabulary", "memory"]
    assert check_device.main([*arguments, "--output", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert (tmp_path / check_device.NAME).read_text() == out
    assert "PASS    vocabulary of 5003" in out
    assert "SKIPPED out of memory: this device does not report a limit" in out
    assert "| vocabulary | PASS | 2 | 0 | 0 |" in out
    assert "| memory | SKIPPED | 0 | 0 | 1 |" in out
    assert "- versions: jaxscore " in out
    assert out.splitlines()[-1].startswith("1 PASS, 0 FAIL, 1 SKIPPED of 2 sections in ")


ABOUT = (
    'print(\'@record {"verdict": "NOTE", "text": "device: x", "figures": {"platform": "cpu"}}\')'
)


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """Replaces the code of the steps' processes; `about` is found."""
    module = tmp_path / "tools" / "device_check"
    module.mkdir(parents=True)
    for folder in (module, module.parent):
        (folder / "__init__.py").touch()

    def replace(**code: str) -> None:
        lines = [f"{name.replace('_', '-')!r}: {body!r}," for name, body in code.items()]
        code = f"CODE = {{'about': {ABOUT!r}, {''.join(lines)}}}"
        (module / "child.py").write_text(f"import sys\n{code}\nexec(CODE[sys.argv[1]])\n")

    monkeypatch.setattr(check_device, "ROOT", tmp_path)
    return replace


def passing(text: str) -> str:
    return f'print(\'@record {{"verdict": "PASS", "text": "{text}"}}\', flush=True)'


def test_a_section_that_crashes_fails_with_its_last_lines_and_the_others_go_on(
    steps, tmp_path, capsys
):
    steps(
        values=f"{passing('one')}\nimport os\nos.write(2, b'CUDA_ERROR\\n')\nos.abort()",
        memory=passing("two"),
    )
    output = tmp_path / "out.md"
    assert check_device.main(["--only", "values", "memory", "--output", str(output)]) == 1
    out = capsys.readouterr().out
    assert out == output.read_text()
    assert "FAIL    values: its process ended with exit code -6:\nCUDA_ERROR" in out
    assert "| values | FAIL | 1 | 1 | 0 |" in out
    assert "| memory | PASS | 1 | 0 | 0 |" in out
    assert out.splitlines()[-1].startswith("1 PASS, 1 FAIL, 0 SKIPPED of 2 sections")


def test_a_device_that_is_gone_later_fails(steps, capsys):
    steps(values="sys.exit(2)", memory=passing("two"))
    assert check_device.main(["--only", "values", "memory"]) == 1
    assert "FAIL    values: its process ended with exit code 2" in capsys.readouterr().out


def test_lines_are_in_the_file_before_the_section_ends(steps, tmp_path, capsys):
    """The section itself reads them there."""
    output = tmp_path / "out.md"
    steps(
        values=f"{passing('first')}\nimport time\n"
        f"while 'PASS    first' not in open({str(output)!r}).read(): time.sleep(0.01)\n"
        f"{passing('second')}"
    )
    assert check_device.main(["--only", "values", "--output", str(output)]) == 0
    assert "PASS    second" in output.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_ended_run_ends_its_processes_and_leaves_its_lines(steps, tmp_path, number):
    """The section itself ends the run, and has a process of its own."""
    steps(
        values=f"{passing('first')}\nimport os, subprocess, time\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        f"os.kill(os.getppid(), {int(number)})\ntime.sleep(600)"
    )
    tools = Path(check_device.__file__).parent
    for name in ("check_device.py", "device_check/checks.py"):
        shutil.copy(tools / name, tmp_path / "tools" / name)
    command = [sys.executable, tmp_path / "tools/check_device.py", "--only", "values"]
    done = subprocess.run([*command, "--output", tmp_path / "out.md"], check=False)
    assert done.returncode == (130 if number != signal.SIGKILL else -signal.SIGKILL)
    assert "PASS    first" in (tmp_path / "out.md").read_text()
    status = Path("/proc", (tmp_path / "pid").read_text(), "status")
    for _ in range(100):
        # A zombie has ended, and waits for the first process of this machine.
        if not status.exists() or "State:\tZ" in status.read_text():
            return
        time.sleep(0.1)
    pytest.fail("the process of the section is still there")


def test_output_that_ends_in_a_slash_is_a_new_folder(steps, tmp_path, capsys):
    steps(memory=passing("one"))
    assert check_device.main(["--only", "memory", "--output", f"{tmp_path}/new/folder/"]) == 0
    assert "PASS    one" in (tmp_path / "new/folder" / check_device.NAME).read_text()


def test_a_section_that_hangs_fails_and_is_killed(steps, monkeypatch, capsys):
    monkeypatch.setattr(check_device, "GRACE_SECONDS", -1e9)  # at once
    steps(values="import time\ntime.sleep(600)")
    assert check_device.main(["--only", "values"]) == 1
    assert "FAIL    values: ended after 1 s; the rest has not run" in capsys.readouterr().out


def test_sections_that_no_longer_fit_are_skipped(steps, capsys):
    steps(values=passing("one"), memory=passing("two"))
    assert check_device.main(["--minutes", "0.01", "--only", "values", "memory"]) == 1
    out = capsys.readouterr().out
    assert out.count("SKIPPED no time left: ") == 2
    assert "PASS" not in out.split("| section |")[0]
    assert out.splitlines()[-1].startswith("0 PASS, 0 FAIL, 2 SKIPPED of 2 sections")


def test_an_exception_is_a_fail_with_its_traceback(monkeypatch, tmp_path, capsys):
    def broken(options):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setitem(child.RUN, "memory", broken)
    words = ["memory", "--seconds", "9", "--folder", str(tmp_path)]
    assert child.main(words) == 0
    [text] = fails(capsys.readouterr().out)
    assert text.startswith("memory: RuntimeError: RESOURCE_EXHAUSTED: Out of memory\nTraceback ")


def test_tables_have_unknown_mfu_empty_and_the_cause_of_a_failure():
    section = check_device.Section("speed", "X", 1, ("speed",))
    rows = [
        {"model": "X", "batch": "2 x 8", "tokens_per_s": 1234.5, "MFU": None},
        {"model": "X", "batch": "4 x 8", "tokens_per_s": 2e6, "MFU": 0.4567},
    ]
    check = check_device.Check([], 0.0, io.StringIO())
    for row in rows:
        check.add("PASS", "fine", row)
    check.add("FAIL", "X: ValueError: a | b\nTraceback")
    lines = check_device.tables([(section, 1.2, check.records)])
    assert "| speed: X | FAIL | 2 | 1 | 0 | 1 | X: ValueError: a \\| b |" in lines
    assert "| X | 2 x 8 | 1,234 |  |  |  |  |" in lines
    assert "| X | 4 x 8 | 2,000,000 | 45.7% |  |  |  |" in lines


def test_every_step_of_a_section_exists():
    assert {step for section in check_device.SECTIONS for step in section.steps} <= set(child.RUN)
    parts = [s.subject for s in check_device.SECTIONS if s.group == "kernels"]
    assert set(parts) == set(kernels.CASES)
    assert set(PARTS) - {speed.SHARED} < set(shapes.SHAPES)


@pytest.mark.parametrize("device", ["tpu", "gpu"])
def test_an_absent_device_is_named_in_one_line(capfd, device):
    assert check_device.main(["--device", device]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith(f"--device {device}: JAX finds none here")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "--minutes 0: expected more than 0 and at most 1440"),
        (["--minutes", "inf"], "--minutes inf: expected more than 0 and at most 1440"),
        (["--minutes", "nan"], "--minutes nan: expected more than 0 and at most 1440"),
        (["--only", "speeed"], "speeed"),
        (["--output", "absent/folder/file.md"], "--output absent/folder/file.md: No such file"),
    ],
)
def test_wrong_usage_is_exit_code_2(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        check_device.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
