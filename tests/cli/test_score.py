"""`score`: the documented lines, in order, with the documented exit codes."""

import decimal
import json
import math
import os
import re
import shutil
import subprocess
import sys

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from jaxscore.cli import made
from jaxscore.io import records as records_module
from jaxscore.version import VERSION
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES
from tests.releases import flax_classes

SUMMARY = [
    "sum_logprob", "mean_logprob", "perplexity", "mean_entropy", "mean_self_certainty",
    "n_tokens", "n_scored",
]  # fmt: skip
ARRAYS = ["token_ids", "tokens", "logprob", "entropy", "self_certainty", "greedy"]
LINES = (
    {"id": "b", "context": "The cat", "continuation": " sat"},
    "",
    {"continuation": "The cat ran"},
    {"id": 7, "context": "The cat", "continuation": "s"},
    {"id": "é🙂", "context": "a" * 40, "continuation": " été 🙂"},
)


def flags(folder, *more):
    model = () if "--model" in more else ("--model", QWEN)
    return (
        "score", *model, "--input", folder / "in.jsonl", "--output", folder / "out.jsonl",
        "--batch-tokens", 128, "--quiet", *more,
    )  # fmt: skip


def records(folder, name="out.jsonl"):
    return [strict(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_mistral_first_pattern_is_warned_of_unless_it_is_replaced(run, place, monkeypatch):
    monkeypatch.setattr("jaxscore.text.tokenizer_files.MOST_UNFIXED", 1000)
    folder = place({"context": "The cat", "continuation": " 186"})
    model = folder / "mistral"
    shutil.copytree(CASES / "models/tiny-llama3", model)
    for name, values in {
        "config.json": {"model_type": "mistral", "transformers_version": "4.57.1"},
        "tokenizer_config.json": {},
    }.items():
        content = json.loads((model / name).read_text("utf-8")) | values
        (model / name).write_text(json.dumps(content), encoding="utf-8")
    words = [word for word in flags(folder, "--model", model) if word != "--quiet"]
    code, _, err = run(*words)
    assert code == 0
    assert "tokenizer.json: splits texts by a pattern that Mistral has replaced" in err
    [first] = records(folder)
    manifest = strict((folder / "out.jsonl.run.json").read_text("utf-8"))
    warnings = manifest["facts"]["warnings"]
    assert sum("set fix_mistral_regex to true" in line for line in warnings) == 1
    content["fix_mistral_regex"] = True
    (model / "tokenizer_config.json").write_text(json.dumps(content), encoding="utf-8")
    code, _, err = run(*words)
    assert (code, "Mistral" in err) == (0, False)
    [right] = records(folder)
    assert (first["tokens"], right["tokens"]) == (["Ġ", "186"], ["Ġ", *"186"])


def test_a_table_has_the_numbers_of_the_lines(run, place):
    folder = place(*LINES, {"id": "c", "continuation": "x", "topic": "y"})
    assert run(*flags(folder))[0] == 0
    words = [
        word if word != folder / "out.jsonl" else folder / "out.parquet" for word in flags(folder)
    ]
    code, out, _ = run(*words)
    assert code == 0
    assert "out.parquet.run.json" in out
    rows = parquet.read_table(folder / "out.parquet").to_pylist()
    for row, line in zip(rows, records(folder), strict=True):
        assert row["id"] == str(line["id"])
        for name in ARRAYS:
            want = line[name]
            if name in ("logprob", "entropy", "self_certainty"):
                want = [None if value is None else float(np.float32(value)) for value in want]
            assert row[name] == want
        assert [row[name] for name in SUMMARY] == [line[name] for name in SUMMARY]
    assert rows[-1]["extra"] == '{"topic":"y"}'


@pytest.mark.parametrize("form", ["parquet", "dataset"])
def test_columns_of_a_users_table_keep_their_types(run, tmp_path, monkeypatch, form):
    monkeypatch.setattr(records_module, "TOGETHER", 2)  # row groups
    table = pyarrow.table(
        {
            "id": pyarrow.array([7, 8, 9], pyarrow.int32()),
            "answer": ["The cat sat", "One two", None],
            "price": pyarrow.array([decimal.Decimal("1.50")] * 3, pyarrow.decimal128(5, 2)),
            "tags": [["a"], [], None],
        }
    )
    source = tmp_path / "in.parquet"
    if form == "parquet":
        parquet.write_table(table, source)
    else:
        source = tmp_path / "in"
        datasets.Dataset(table).save_to_disk(source)
    words = ["score", "--model", QWEN, "--input", source, "--output", tmp_path / "out.parquet"]
    words += ["--column", "continuation=answer", "--batch-tokens", 256, "--quiet", "--no-html"]
    assert run(*words, "--limit", 2)[0] == 0
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.select(table.column_names).equals(table.slice(0, 2).replace_schema_metadata())
    assert found.column_names == [*table.column_names, *ARRAYS, *SUMMARY, "truncated", "error"]
    assert found.schema.field("logprob").type == pyarrow.list_(pyarrow.float32())
    metadata = json.loads(found.schema.metadata[b"jaxscore"])
    manifest = json.loads((tmp_path / "out.parquet.run.json").read_text(encoding="utf-8"))
    digest = made.digest(manifest["made"])
    assert metadata == {"version": VERSION, "system": "score", "made_sha256": digest}
    words[6] = tmp_path / "out.jsonl"
    assert run(*words, "--limit", 2)[0] == 0
    for row, line in zip(found.to_pylist(), records(tmp_path), strict=True):
        assert row["id"] == line["id"]
        assert row["sum_logprob"] == line["sum_logprob"]
    ran = run(
        "compare", tmp_path / "out.jsonl", tmp_path / "out.parquet", "--output", tmp_path / "c.json"
    )
    assert ran.code == 0
    assert strict((tmp_path / "c_report.json").read_text("utf-8"))["pairs"]["compared"] == 2


def test_rows_without_ids_get_numbers_and_of_several_files_texts(run, tmp_path):
    for name in ("a", "b"):
        table = pyarrow.table({"continuation": ["The cat sat", "One two"]})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    words = ("score", "--model", QWEN, "--batch-tokens", 256, "--quiet", "--no-html")
    one = ("--input", tmp_path / "a.parquet", "--output", tmp_path / "out.parquet")
    assert run(*words, *one).code == 0
    assert parquet.read_table(tmp_path / "out.parquet").column("id").to_pylist() == [1, 2]
    both = ("--input", tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert run(*words, *both, "--output", f"{tmp_path}/out/").code == 0
    found = parquet.read_table(tmp_path / "out" / "b.parquet")
    assert found.schema.field("id").type == pyarrow.string()
    assert [id[-1] for id in found.column("id").to_pylist()] == ["1", "2"]


def test_a_users_column_with_the_name_of_a_result_is_refused(run, tmp_path):
    parquet.write_table(pyarrow.table({"logprob": ["a"]}), tmp_path / "in.parquet")
    words = ["score", "--model", QWEN, "--input", tmp_path / "in.parquet", "--output",
             tmp_path / "out.parquet", "--column", "continuation=logprob"]  # fmt: skip
    ran = run(*words)
    assert ran.code == 2
    assert 'a column "logprob", which is the name of a result' in ran.err
    assert not (tmp_path / "out.parquet").exists()


def test_fields_order_and_ids(run, place, scorers):
    folder = place(*LINES)
    code, out, err = run(*flags(folder))
    assert (code, err) == (0, "")
    assert out.startswith("done     4 requests, 0 failed in ")
    got = records(folder)
    assert [list(one) for one in got] == [["id", *ARRAYS, *SUMMARY]] * 4
    # A missing id is the number of the line, blank lines counted.
    assert [one["id"] for one in got] == ["b", 3, 7, "é🙂"]
    for one in got:
        assert {len(one[name]) for name in ARRAYS} == {one["n_tokens"]}
        # Each is written with as many digits as a float32 needs, and read back as one.
        known = [float(np.float32(value)) for value in one["logprob"] if value is not None]
        assert one["n_scored"] == len(known)
        if not known:
            assert [one[name] for name in SUMMARY[:5]] == [None] * 5
            continue
        assert one["sum_logprob"] == pytest.approx(math.fsum(known), rel=1e-12)
        assert one["mean_logprob"] == pytest.approx(math.fsum(known) / len(known), rel=1e-12)
        assert one["perplexity"] == pytest.approx(math.exp(-one["mean_logprob"]), rel=1e-12)
    # qwen2 has no BOS, so that the first token of a text has no probability.
    without = got[1]
    assert without["tokens"][0] == "The"
    assert [without[name][0] for name in ARRAYS[2:]] == [None] * 4
    assert without["n_scored"] == without["n_tokens"] - 1
    assert "é" in (folder / "out.jsonl").read_text(encoding="utf-8")
    assert sorted(one.name for one in folder.iterdir()) == [
        ".jaxscore",
        "in.jsonl",
        "out.jsonl",
        "out.jsonl.report.html",
        "out.jsonl.report.json",
        "out.jsonl.report.md",
        "out.jsonl.run.json",
    ]
    # No lock file and no write-ahead log are left.
    assert [one.name for one in (folder / ".jaxscore").iterdir()] == ["out.jsonl.journal"]


def test_the_numbers_are_the_scorers(run, place, scorers):
    folder = place(*LINES)
    assert run(*flags(folder)).code == 0
    want = scorers("tiny-qwen2").score([line for line in LINES if line])
    for got, one in zip(records(folder), want, strict=True):
        assert got["token_ids"] == one.token_ids.tolist()
        assert got["sum_logprob"] == pytest.approx(one.sum_logprob, abs=1e-4)
        assert got["mean_entropy"] == pytest.approx(one.mean_entropy, abs=1e-5)


def test_summary_only_and_separate(run, place):
    folder = place({"context": "ANSWER: ", "continuation": "Oslo"})
    assert run(*flags(folder, "--summary_only", "--boundary=separate")).code == 0
    [one] = records(folder)
    assert list(one) == ["id", *SUMMARY]
    assert (one["id"], one["n_tokens"], one["n_scored"]) == (1, 3, 3)


def test_other_fields_of_a_line_are_repeated(run, place):
    lines = (
        {"gold": True, "continuation": "The cat", "id": "a", "tags": ["x", {"é": None}]},
        {"continuation": "ran"},
        {"id": "long", "context": " and then" * 2000, "continuation": " x", "tag": 3},
    )
    folder = place(*lines)
    assert run(*flags(folder, "--summary-only", "--batch-tokens", 2048)).code == 1
    got = records(folder)
    assert (got[0]["gold"], got[0]["tags"]) == (True, ["x", {"é": None}])
    assert list(got[1]) == ["id", *SUMMARY]
    assert set(got[2]) == {"id", "error", "tag"}


def test_the_first_requests_alone(run, place):
    folder = place(*LINES)
    code, out, _ = run(*flags(folder, "--limit", 2))
    assert code == 0
    assert out.startswith("done     2 requests, 0 failed")
    assert [one["id"] for one in records(folder)] == ["b", 3]


def test_the_closing_block(run, place):
    folder = place({"context": "ANSWER: ", "continuation": "Oslo"}, {"continuation": "x"})
    words = [word for word in flags(folder) if word != "--quiet"]
    code, out, _ = run(*words)
    assert code == 0
    block = {line.split()[0]: line for line in out.splitlines()}
    titles = "done shared model result boundary  files     journal"
    assert [line[:9].strip() for line in out.splitlines()] == titles.split(" ")
    assert re.search(
        r"\n {9}mean log-probability per token over 1 requests: -\d+\.\d+ \(joint\), -\d+\.\d+ "
        r"\(separate\); believe joint, the text as the model reads it; take separate to compare",
        out,
    )
    # ANSWER : ĠO s lo, and x; `lo` is only a target and `x` has nothing before it.
    assert "6 tokens given, 4 computed, 1.5 given per computed token, 3 scored" in block["shared"]
    assert block["model"] == "model    qwen2, native, float32"
    assert block["boundary"] == "boundary joint: of 2 requests separate would change 1"
    mean = records(folder)[0]["mean_logprob"]
    assert block["result"].endswith(f"log-probability {mean:.4f} nats per token, 3 tokens")
    reports = (f"out.jsonl.report.{ending}" for ending in ("md", "json", "html"))
    paths = [str(folder / name) for name in ("out.jsonl", *reports, "out.jsonl.run.json")]
    assert "files    " + "\n         ".join(paths) in out


def test_quiet_leaves_stdout_as_it_is(run, place):
    folder = place({"context": "ANSWER: ", "continuation": "Oslo"})
    quiet = flags(folder, "--journal", "off")
    reported = [run(*(word for word in quiet if word != "--quiet")), run(*quiet)]
    said = [[line for line in one.out.splitlines() if "done" not in line] for one in reported]
    assert said[0] == said[1]
    assert "boundary joint: of 1 request separate would change 1" in said[1]


@pytest.mark.slow
def test_a_request_that_is_too_long_fails_alone(run, place):
    long = {"id": "long", "context": " and then" * 2000, "continuation": " x"}
    good = {"id": "good", "context": "The cat", "continuation": " sat"}
    folder = place(long, good)
    code, _, err = run(*flags(folder, "--batch-tokens", 2048))
    assert code == 1
    assert err.startswith(f"failed: {folder / 'in.jsonl'}:1 (id long): ")
    assert "the model takes 1024 positions" in err
    assert "--truncate left" in err
    assert "1 failed, the others are kept" in err
    manifest = strict((folder / "out.jsonl.run.json").read_text(encoding="utf-8"))
    assert (manifest["command"], manifest["failed"]) == ("score", 1)
    failed, kept = records(folder)
    assert list(failed) == ["id", "error"]
    assert list(kept) == ["id", *ARRAYS, *SUMMARY]

    code, _, err = run(*flags(folder, "--batch-tokens", 2048, "--truncate", "left"))
    assert (code, err) == (0, "")
    cut, again = records(folder)
    assert list(cut) == ["id", *ARRAYS, *SUMMARY, "truncated"]
    # What is left fills the positions, and the last token takes none.
    assert cut["truncated"] > 0
    assert cut["n_scored"] == 1
    assert again["sum_logprob"] == pytest.approx(kept["sum_logprob"], abs=1e-4)


def test_many_failures_are_listed_in_part(run, place):
    long = " and" * 1100
    folder = place(*({"id": k, "context": "x", "continuation": long} for k in range(25)))
    code, _, err = run(*flags(folder))
    assert code == 1
    assert err.count("failed: ") == 20
    assert "and 5 more\n25 failed" in err
    assert [list(one) for one in records(folder)] == [["id", "error"]] * 25


def test_an_old_output_is_replaced_and_parents_are_made(run, place):
    folder = place({"continuation": "The cat"})
    (folder / "out.jsonl").write_text("old\n" * 100, encoding="utf-8")
    assert run(*flags(folder)).code == 0
    assert len(records(folder)) == 1
    assert run(*flags(folder, "--output", folder / "a" / "b" / "out.jsonl")).code == 0
    assert records(folder, "a/b/out.jsonl") == records(folder)


@pytest.mark.parametrize(
    ("more", "way", "within"),
    [
        pytest.param(
            ("--model-impl", "transformers"), ("transformers", "float32"), 1e-4, marks=flax_classes
        ),
        (("--dtype", "bfloat16"), ("native", "bfloat16"), 0.05),
    ],
)
def test_other_implementation_and_dtype(run, place, more, way, within):
    folder = place({"context": "The cat", "continuation": " sat"})
    gpt2 = ("--model", CASES / "models/tiny-gpt2")
    sums, ways = [], []
    for chosen in ((), more):
        assert run(*flags(folder, *gpt2, *chosen)).code == 0
        sums.append(records(folder)[0]["sum_logprob"])
        manifest = strict((folder / "out.jsonl.run.json").read_text(encoding="utf-8"))
        ways.append([manifest["model"][name] for name in ("implementation", "dtype")])
    assert sums[1] == pytest.approx(sums[0], abs=within)
    assert ways == [["native", "float32"], [*way]]


@pytest.mark.slow
def test_as_a_process(place, tmp_path):
    folder = place(LINES[0], "{")
    words = [sys.executable, "-m", "jaxscore", *map(str, flags(folder))]
    bad = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert bad.returncode == 2
    assert bad.stderr.startswith(f"jaxscore score: error: {folder / 'in.jsonl'}:2: not JSON")
    assert not (folder / "out.jsonl").exists()

    (folder / "in.jsonl").write_text('{"continuation": "The cat"}\n', encoding="utf-8")
    good = subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ)
    )
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("done     1 request, 0 failed in ")
    assert records(folder)[0]["n_scored"] == 2
