"""`divergence`: the documented lines and files, with the documented exit codes."""

import csv
import math

import numpy as np
import pytest

from jaxscore.shell.system import table_columns
from jaxscore.systems.divergence import SYSTEM, Settings
from jaxscore.systems.divergence.summary import NUMBERS, PER_TOKEN
from tests.cli import adapters
from tests.cli.conftest import QWEN, strict

LINES = (
    {"id": "b", "context": "The cat", "continuation": " sat"},
    "",
    {"continuation": "The cat ran"},
    {"id": "b", "context": "The cat", "continuation": "s"},
    {"id": "é\u202e<b>", "context": "a|b\u202e", "continuation": " été <script>🙂", "topic": [1]},
)
ARRAYS = ["token_ids", "tokens", *PER_TOKEN]
MEANS = table_columns(SYSTEM, Settings(summary_only=True)).keys() - {"truncated"}
INT8 = ("--reference-quantize", "int8")


def flags(folder, *more, output="out.jsonl"):
    return (
        "divergence", "--model", QWEN, "--reference", QWEN, "--input", folder / "in.jsonl",
        "--output", folder / output, "--batch-tokens", 128, "--quiet", *more,
    )  # fmt: skip


def lines(folder, name="out.jsonl"):
    return [strict(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_lines_files_and_resuming(run, place):
    folder = place(*LINES)
    code, out, err = run(*flags(folder, *INT8))
    assert (code, err) == (0, "")
    assert "model    qwen2, native, float32 against qwen2, native, float32, int8\n" in out
    assert "result   mean KL divergence " in out
    found = lines(folder)
    assert [one["id"] for one in found] == ["b", 3, "b", "é\u202e<b>"]
    for one in found:
        assert set(one) - {"id", "topic"} == {*ARRAYS, *MEANS}
        assert {len(one[name]) for name in ARRAYS} == {one["n_tokens"]}
        for name in NUMBERS:
            known = [value for value in one[name] if value is not None]
            assert len(known) == one["n_scored"]
            mean = one[f"mean_{name}"]
            assert mean == (pytest.approx(np.mean(known)) if known else None)
        if one["n_scored"]:
            assert one["perplexity"] == pytest.approx(math.exp(-one["mean_logprob"]))
            difference = np.array(known_of(one, "logprob")) - known_of(one, "reference_logprob")
            np.testing.assert_allclose(known_of(one, "logprob_difference"), difference, atol=1e-6)
            cross = np.array(known_of(one, "entropy")) + known_of(one, "kl")
            np.testing.assert_allclose(known_of(one, "cross_entropy"), cross, atol=1e-6)
    assert found[1]["kl"][0] is found[1]["same_argmax"][0] is None
    assert found[1]["n_scored"] == found[1]["n_tokens"] - 1
    assert found[-1]["topic"] == [1]
    page = (folder / "out.jsonl.report.md").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "\u202e" not in page
    assert "## Tokens, largest KL divergence first" in page
    report = strict((folder / "out.jsonl.report.json").read_text(encoding="utf-8"))
    assert report["settings"]["reference_quantized"] == "int8"
    every = [value for one in found for value in known_of(one, "kl")]
    assert report["summary"]["kl"]["n"] == len(every)
    assert report["summary"]["kl"]["mean"] == pytest.approx(np.mean(every))
    assert f"| {max(every):.4g} |" in page.partition("## Tokens, largest KL")[2].splitlines()[4]
    manifest = strict((folder / "out.jsonl.run.json").read_text(encoding="utf-8"))
    assert manifest["model"]["reference_quantize"] == "int8"
    assert manifest["flags"]["reference_quantize"] == "int8"

    before = (folder / "out.jsonl").read_bytes()
    (folder / "out.jsonl").unlink()
    code, out, _ = run(*flags(folder, *INT8))
    assert code == 0
    assert "4 of 4 texts come from it" in out  # one has no token to keep
    assert (folder / "out.jsonl").read_bytes() == before

    adapter = adapters.written(folder / "adapter")
    code, out, _ = run(*flags(folder, "--reference-lora", adapter, "--summary-only", "--limit", 2))
    assert code == 0
    assert "0 of 2 texts come from it" in out  # those of another reference
    assert [set(one) for one in lines(folder)] == [{"id", *MEANS}] * 2


def known_of(one, name):
    return [value for value in one[name] if value is not None]


@pytest.mark.slow
def test_a_table(run, place):
    folder = place(*LINES)
    code, _, _ = run(*flags(folder, *INT8, output="out.csv"))
    assert code == 0
    with (folder / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["b", "3", "b", "é\u202e<b>"]
    assert {*ARRAYS, *MEANS} <= set(rows[0])
    assert float(rows[2]["mean_kl"]) > 0
    assert len(strict(rows[1]["kl"])) == int(rows[1]["n_tokens"])


@pytest.mark.slow
def test_a_bad_text_fails_alone(run, place):
    folder = place(LINES[0], {"id": "long", "continuation": "cat " * 9000}, LINES[2])
    code, _, err = run(*flags(folder, *INT8))
    assert code == 1
    name = f"{folder / 'in.jsonl'}:2 (id long)"
    assert f"failed: {name}: " in err
    found = lines(folder)
    assert found[1] == {"id": "long", "error": found[1]["error"]}
    report = strict((folder / "out.jsonl.report.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in report["failures"]] == ["long"]
    n_scored = [found[0]["n_scored"], found[2]["n_scored"]]
    assert min(n_scored) > 0
    assert report["summary"]["kl"]["n"] == sum(n_scored)


@pytest.mark.parametrize(
    ("line", "more", "message"),
    [
        ({"continuation": "x"}, (), "the same model with the same settings"),
        ({"continuation": "x", "kl": 1}, INT8, 'in.jsonl:1: field "kl" is one of the results'),
        ({"continuation": 3}, INT8, "in.jsonl:1: "),
        ({"text": "x"}, INT8, "in.jsonl:1: "),
        ('{"continuation": "\\ud800"}', INT8, "in.jsonl:1: "),
        ("[" * 500, INT8, "in.jsonl:1: "),
        ("", INT8, "in.jsonl"),
        ({"continuation": "x"}, ("--reference-quantize", "int4"), "'int4', expected one of"),
        ({"continuation": "x"}, ("--reference-lora", "nowhere"), "nowhere"),
    ],
    ids="alike taken number missing half nested empty quantize lora".split(),
)
def test_unusable_input(run, place, line, more, message):
    folder = place(line)
    code, _, err = run(*flags(folder, *more))
    assert code == 2
    assert message in err
    assert sorted(one.name for one in folder.iterdir() if one.is_file()) == ["in.jsonl"]


@pytest.mark.slow
def test_the_noise_floor_of_the_divergence(run, place):
    folder = place(*LINES)
    code, out, _ = run(*flags(folder, *INT8, "--audit-noise", 2))
    assert code == 0
    assert "(token_kl)" in out
    report = strict((folder / "out.jsonl.report.json").read_text(encoding="utf-8"))
    assert 0 <= report["noise"]["spread"]["token_kl"]["largest"] < 1e-5
    page = (folder / "out.jsonl.report.md").read_text(encoding="utf-8")
    assert "KL divergence of two models at a token, nats" in page
