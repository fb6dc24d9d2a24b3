"""`preferences`: the documented files, and exit codes."""

from tests.cli.conftest import QWEN, strict

LINES = (
    {"id": "a", "prompt": "The cat", "chosen": " sat", "rejected": " ran", "source": {"n": 1}},
    {"prompt": "One", "chosen": " two", "rejected": 7},
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
    assert "done     2 pairs, 1 failed in " in out
    assert "result   mean log-probability of chosen less rejected " in out
    first, second = [strict(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert list(first) == [*FIELDS, "prompt", "chosen", "rejected", "source"]
    assert {name: first[name] for name in LINES[0]} == LINES[0]
    assert list(second) == ["id", "error"]
    assert first["ref_chosen_logps"] < 0
    manifest = strict((folder / "out.jsonl.run.json").read_text("utf-8"))
    assert (manifest["command"], manifest["flags"]["max_length"]) == ("preferences", 1024)
