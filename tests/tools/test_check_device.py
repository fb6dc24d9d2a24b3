"""The device check must pass where the numbers are right, and must not where they are wrong."""

import dataclasses
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import lm_head
from jaxscore.engine.generation.slots import SlotTable
from tools import check_device
from tools.device_check import (
    bits,
    families,
    kernels,
    memory,
    qwen,
    random_model,
    resumed,
    speed,
    values,
    vocabulary,
)
from tools.device_check.checks import Options, compare_devices, compare_processes
from tools.device_check.timing import datasheet_peak

SMALL = Options(small=True, seconds=60)


def fails(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("FAIL")]


@pytest.mark.slow
def test_expected_values_pass_where_the_numbers_are_right(capsys):
    assert values.run(SMALL)
    out = capsys.readouterr().out
    assert "PASS  tiny-qwen2: expected values" in out
    assert out.count("PASS") == 3
    assert not fails(out)


@pytest.mark.slow
def test_expected_values_fail_where_a_number_is_wrong(monkeypatch, capsys):
    right = lm_head.score_positions

    def wrong(hidden, asked, head, top, measures):
        scores = right(hidden, asked, head, top, measures)
        return scores._replace(entropy=scores.entropy + 2e-4)

    monkeypatch.setattr("jaxscore.device.score.score_positions", wrong)
    assert not values.agrees("tiny-qwen2")
    [line] = fails(capsys.readouterr().out)
    assert "tiny-qwen2: expected values, float32 2.0" in line


@pytest.mark.slow
def test_families(tmp_path):
    assert families.run(Options(small=True, out=tmp_path / "numbers.npz"))
    with np.load(tmp_path / "numbers.npz") as numbers:
        assert set(numbers) == {*families.FEW, families.WIDE}
        assert all(numbers[name].shape[0] == 3 for name in numbers)
        assert all(np.isfinite(numbers[name]).all() for name in numbers)


def test_a_device_that_is_off_in_one_family_fails(capsys):
    right = {"caps": np.zeros((3, 4), np.float32), "experts": np.ones((3, 4), np.float32)}
    assert compare_devices(right, right)
    assert not fails(capsys.readouterr().out)
    assert not compare_devices(right, right | {"caps": right["caps"] + 2e-4})
    assert fails(capsys.readouterr().out) == [
        "FAIL  random decoder against the CPU, caps: 2.0e-04",
    ]
    assert not compare_devices(right, right | {"caps": right["caps"] * np.nan})


@pytest.mark.slow
def test_kernels(monkeypatch, capsys):
    assert kernels.run(SMALL)
    assert capsys.readouterr().out.count("PASS") == 15
    right = kernels.blocked

    def wrong(*args, **how):
        out, lse = right(*args, **how)
        return out + 0.1, lse

    monkeypatch.setattr(kernels, "blocked", wrong)
    assert not kernels.run(SMALL)
    assert len(fails(capsys.readouterr().out)) == 12


def test_kernels_where_there_are_none(capsys):
    assert kernels.run(Options())
    assert capsys.readouterr().out.count("NOTE") == 2


@pytest.mark.slow
def test_vocabulary(monkeypatch, capsys):
    assert vocabulary.run(SMALL)
    assert capsys.readouterr().out.count("PASS") == 2
    right = vocabulary.score_positions

    def wrong(*args):
        scores = right(*args)
        return scores._replace(self_certainty=scores.self_certainty + 2e-3)

    monkeypatch.setattr(vocabulary, "score_positions", wrong)
    assert not vocabulary.run(SMALL)
    assert len(fails(capsys.readouterr().out)) == 2


@pytest.mark.slow
def test_bits(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bits, "DTYPES", ("bfloat16",))
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    assert bits.run(Options(small=True, out=first))
    assert capsys.readouterr().out.count("PASS") == 5
    assert bits.again(Options(small=True, out=second))
    with np.load(first) as one, np.load(second) as other:
        assert compare_processes(one, other)
        assert set(one) == {"bfloat16, default", "bfloat16, --reproducible"}


@pytest.mark.slow
def test_bits_fail_where_one_moves_with_the_order(monkeypatch, tmp_path, capsys):
    right = bits.bits

    def with_flipped_bit(scorer, sequences):
        found = right(scorer, sequences)
        found[0][0] ^= 1
        return found

    monkeypatch.setattr(bits, "bits", with_flipped_bit)
    monkeypatch.setattr(bits, "DTYPES", ("float32",))
    assert not bits.run(Options(small=True, out=tmp_path / "bits.npz"))
    assert "float32, --reproducible: other bits in 2 of " in capsys.readouterr().out


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
    assert not compare_processes(one, other)
    [line] = fails(capsys.readouterr().out)
    assert "other bits in 1 of 2 numbers, by 2.4e-07 at most, in a second process" in line


def test_memory_is_left_alone_on_a_cpu(capsys):
    assert memory.run(SMALL)
    assert capsys.readouterr().out.startswith("NOTE  out of memory: not reachable")


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
    assert memory.run(SMALL)
    assert "PASS  out of memory: did not fit: 8 x 64, 4 x 64; halved and scored" in (
        capsys.readouterr().out
    )


@pytest.mark.slow
def test_speed(monkeypatch, capsys):
    monkeypatch.setattr(qwen, "SIZES", {"Qwen2.5-7B": qwen.SIZES["Qwen2.5-7B"]})
    assert speed.run(Options(small=True, seconds=600))
    out = capsys.readouterr().out
    assert out.count("PASS") == 3
    assert "PASS  Qwen2.5-7B, batches of 512 in rows of 64: " in out
    assert "NOTE  Qwen2.5-7B, 1000 questions on one prompt of 300: " in out


def test_speed_leaves_out_what_does_not_fit(monkeypatch, capsys):
    monkeypatch.setattr(random_model, "memory_limit", lambda: 1000)
    assert speed.run(SMALL)
    assert capsys.readouterr().out.count("skipped, ") == 3


def test_speed_begins_nothing_when_its_time_is_over(capsys):
    assert speed.run(Options(small=True, seconds=0))
    out = capsys.readouterr().out
    assert out.count("no time for") == 3 * 3
    assert "PASS" not in out


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("Qwen2.5-0.5B", 494_032_768), ("Qwen2.5-1.5B", 1_543_714_304), ("Qwen2.5-7B", 7_615_616_512)],
)
def test_shapes_are_those_that_are_published(name, parameters):
    config = qwen.decoder_config(name)
    two, four = (random_model.n_bytes(config, dtype) for dtype in ("bfloat16", "float32"))
    assert (four, two < 2.001 * parameters) == (4 * parameters, True)


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
    assert datasheet_peak(kind) == peak


@pytest.mark.slow
def test_sections_in_processes_of_their_own(capfd):
    arguments = ["--small", "--device", "cpu", "--only", "vocabulary", "memory"]
    assert check_device.main(arguments) == 0
    out = capfd.readouterr().out
    assert "PASS  vocabulary of 5003" in out
    assert "NOTE  out of memory" in out
    assert out.splitlines()[-1].startswith("PASS  all sections in ")


def test_a_wrong_section_is_the_exit_code(monkeypatch, capfd):
    monkeypatch.setattr(check_device, "check", lambda section, machine: section != "bits")
    assert check_device.main(["--device", "cpu", "--only", "values", "bits", "speed"]) == 1
    assert capfd.readouterr().out.splitlines()[-1].startswith("FAIL  bits in ")


def test_an_absent_device_is_told_before_anything_else(capfd):
    assert check_device.main(["--device", "tpu"]) == 2
    assert "--device tpu: JAX finds none here" in capfd.readouterr().err


def test_a_section_that_takes_too_long_is_ended(capsys):
    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    machine = check_device.Machine([], time.monotonic() + 60)
    assert machine.code(running, 1) == -1
    assert running.poll() is not None
    assert not check_device._ended("speed", [-1])
    assert fails(capsys.readouterr().out) == [
        "FAIL  speed: its process took too long and was ended"
    ]
