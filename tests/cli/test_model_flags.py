"""Flags that many commands have."""

import argparse
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from jaxscore.cli import model_flags
from jaxscore.cli.main import parse
from jaxscore.models.model import CheckpointFacts, Devices


def test_flags_of_no_effect_are_told(capsys):
    spec = model_flags.ModelSpec(model="m")
    spec.warn_unused(model_flags.UNUSED, "the server computes")
    assert capsys.readouterr().err == ""
    spec = dataclasses.replace(spec, mesh="data=2", batch_tokens=64)
    spec.warn_unused(model_flags.UNUSED, "the server computes")
    assert capsys.readouterr().err == "--mesh, --batch-tokens: no effect, the server computes\n"


def test_what_is_unused_is_what_nobody_has_given():
    words = ["chronologic", "m", "q.jsonl"]
    args = parse(words)
    spec = model_flags.ModelSpec.of(args)
    assert spec == model_flags.ModelSpec(model="m")


def test_the_published_spelling_of_the_limit():
    words = ["paths", "--model", "m", "--input", "i", "--output", "o"]
    assert parse([*words, "--max-samples", "3"]).limit == parse([*words, "--limit", "3"]).limit == 3
    assert parse(words).limit is None


@pytest.mark.parametrize(
    ("flags", "share"),
    [("fma avx512_bf16 amx_bf16", "half"), ("avx512_bf16", "0.6"), ("avx2", None)],
)
def test_bfloat16_share_follows_the_processor(tmp_path, flags, share):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t: amx_bf16\n")
    assert model_flags.bfloat16_share(tmp_path / "cpuinfo") == share
    assert model_flags.bfloat16_share(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("dtype", "model_dtype", "size", "remarks"),
    [
        ("auto", "float32", 50_000_000, 1),
        ("auto", "float32", 49_999_999, 0),  # a small model ends soon
        ("float32", "float32", 50_000_000, 0),
        ("auto", "bfloat16", 50_000_000, 0),
    ],
)
def test_remark_on_bfloat16_comes_once_and_only_for_the_default_dtype(
    monkeypatch, capsys, dtype, model_dtype, size, remarks
):
    monkeypatch.setattr(model_flags, "bfloat16_share", lambda _: "half")
    params = {"weight": np.broadcast_to(np.float32(0), size)}
    model = SimpleNamespace(devices=Devices("cpu"), dtype=model_dtype, params=params)
    model_flags.remark_faster_dtype(argparse.Namespace(dtype=dtype, quiet=False), model)
    err = capsys.readouterr().err
    assert err.count("about half of the time on this processor") == remarks
    assert err.count("--dtype bfloat16") == remarks


def test_kernels_that_are_replaced_are_one_remark(capsys):
    model = SimpleNamespace(devices=Devices("cpu"), dtype="float32", checkpoint=CheckpointFacts())
    scorer = SimpleNamespace(models=(model, model), model=model)
    args = argparse.Namespace(dtype="float32", quiet=False, batch_tokens=64, reproducible=False)
    for replaced, lines in (
        (None, ""),
        ("attention by 'blocked' (why)", "GPU kernels replaced: attention by 'blocked' (why)\n"),
    ):
        model.devices = Devices("cpu", replaced_kernels=replaced)
        model_flags.remark_loaded(args, scorer)
        assert capsys.readouterr().err == lines
