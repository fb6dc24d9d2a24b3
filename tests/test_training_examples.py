"""The examples of configs/training/, on a mesh of four CPU devices."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT, with_devices

pytestmark = pytest.mark.slow


def run(name, *flags):
    """Records that an example prints."""
    done = subprocess.run(
        [sys.executable, f"configs/training/{name}", *flags],
        env=with_devices(4), cwd=ROOT, capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_dpo_starts_at_its_reference_and_evaluates_the_weights_of_the_moment():
    found = run("dpo.py", "--steps", "4", "--every", "2", "--lm-eval")
    assert [record["step"] for record in found] == [0, 1, 2, 3]
    assert abs(found[0]["margin"]) < 1e-4  # the scorer and the training step have the same numbers
    assert found[-1]["margin"] > 1
    evaluated = [record for record in found if "accuracy" in record]
    assert [record["step"] for record in evaluated] == [1, 3]
    assert evaluated[0]["bits_per_byte"] != evaluated[1]["bits_per_byte"]
    assert all(0 <= record["accuracy"] <= 1 for record in evaluated)


def test_grpo_rewards_are_learned_with_one_program():
    found = run("grpo.py", "--rounds", "3")
    assert found[-1]["rewarded"] > 2 * found[0]["rewarded"]
    assert {record["programs"] for record in found} == {1}
