"""`preferences`: the documented files, and exit codes."""

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from tests.cli.conftest import QWEN, strict

LINES = (
    {"id": "a", "prompt": "The cat", "chosen": " sat", "rejected": " ran", "source": {"n": 1}},
    {"prompt": "One", "chosen": " two", "rejected": 7},
    {"prompt": "One", "chosen": " two", "rejected": " six", "tools": "x"},
    {"id": "d", "prompt": "One", "chosen": " two", "rejected": " six", "n_chosen": 9, "m": None},
)
FIELDS = ["id", "ref_chosen_logps", "ref_rejected_logps", "n_chosen", "n_rejected"]


def flags(folder, source, output):
    return (
        "preferences", "--model", QWEN, "--input", folder / source, "--output", folder / output,
        "--batch-tokens", 256, "--quiet",
    )  # fmt: skip


def test_the_documented_files(run, place):
    folder = place(*LINES)
    code, out, err = run(*flags(folder, "in.jsonl", "out.jsonl"))
    assert code == 1
    assert "in.jsonl:2: " in err
    assert "done     4 pairs, 3 failed in " in out
    assert "result   mean log-probability of chosen less rejected " in out
    first, *failed = [strict(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert list(first) == [*FIELDS, "prompt", "chosen", "rejected", "source"]
    assert {name: first[name] for name in LINES[0]} == LINES[0]
    for record, given in zip(failed, LINES[1:], strict=True):
        assert list(record)[:2] == ["id", "error"]
        kept = {name: value for name, value in given.items() if name != "n_chosen"}
        assert {name: record[name] for name in kept} == kept
        assert record.keys() == kept.keys() | {"id", "error"}
    assert first["ref_chosen_logps"] < 0
    manifest = strict((folder / "out.jsonl.run.json").read_text("utf-8"))
    assert (manifest["command"], manifest["flags"]["max_length"]) == ("preferences", 1024)


@pytest.mark.parametrize("form", ["parquet", "dataset"])
def test_conversations_in_a_table(run, tmp_path, form):
    """The output has the columns of the input with their types, as TRL reads them."""
    said = {"role": "user", "content": "Who sat?", "name": "me"}
    answers = [{"role": "assistant", "content": text, "name": None} for text in ("It.", "No one.")]
    rows = [{"prompt": [{**said, "name": None}], "chosen": answers[:1], "rejected": answers[1:]}]
    rows += [{"prompt": [said], "chosen": answers[:1], "rejected": answers[1:]}]
    table = pyarrow.Table.from_pylist(rows)
    source = tmp_path / "in.parquet"
    if form == "parquet":
        parquet.write_table(table, source)
    else:
        source = tmp_path / "in"
        datasets.Dataset(table).save_to_disk(source)
    ran = run(*flags(tmp_path, source.name, "out.parquet"))
    assert ran.code == 1
    assert "a message has name" in ran.err
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.column_names == [*table.column_names, *FIELDS, "error"]
    assert found.select(table.column_names).to_pylist() == rows
    assert found.column("ref_chosen_logps")[0].as_py() < 0
    assert found.column("ref_chosen_logps")[1].as_py() is None
    again = datasets.Dataset.from_parquet(str(tmp_path / "out.parquet"), cache_dir=tmp_path / "c")
    assert again[0]["chosen"] == answers[:1]
