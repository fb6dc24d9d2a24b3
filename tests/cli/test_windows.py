"""Long texts on the command line: windows in each command, plain text, and what is refused."""

import re
import shlex

import pytest

from tests.cli.conftest import strict
from tests.conftest import CASES, ROOT

LLAMA = CASES / "models/tiny-llama3"
TEXT = "The cat sat, été 🙂 7.\n"
ITEMS = [
    {"id": "a", "context": "Zero one.", "continuation": f" {TEXT}" * 4, "other": "Was."},
    {"id": "b", "continuation": "One two", "other": ""},
    {"id": "c", "context": "", "continuation": "今天天气很好。我们去公园散步。" * 3, "other": ""},
]
LINES = b"\xef\xbb\xbfOne two three\n\n \t\nFour five six seven\r\nEight"


def words(command, source, output, *more, length=16):
    model = ("--model", LLAMA, *(("--reference", LLAMA) if command == "divergence" else ()))
    if command == "divergence":
        model += ("--reference-dtype", "bfloat16")
    files = ("--input", source, "--output", output)
    return (command, *model, *files, "--max-length", length, *more)


def records(path):
    return [strict(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow_after(4)
def test_windows_with_every_addition_are_merged_and_resumed(run, place):
    folder = place(*ITEMS)
    more = ("--stride", 8, "--measures", "rank,top_k,min_k_pp", "--unit", "word",
            "--against-field", "other", "--audit-noise", 2, "--quiet")  # fmt: skip
    asked = words("score", folder / "in.jsonl", folder / "out.jsonl", *more)
    code, out, err = run(*asked)
    assert (code, err) == (0, "")
    assert "noise floor: 2 requests" in out
    first = (folder / "out.jsonl").read_bytes()
    found = records(folder / "out.jsonl")
    assert [record["n_windows"] > 1 for record in found] == [True, False, True]
    for record, item in zip(found, ITEMS, strict=True):
        n = record["n_tokens"]
        names = ("tokens", "rank", "top_id", "top_token", "against_logprob", "gain", "greedy")
        assert [len(record[name]) for name in names] == [n] * len(names)
        assert "".join(record["words"]) == "".join(item["continuation"].split())
        assert record["n_both"] == record["n_scored"] == n
    code, out, _ = run(*asked, "--force")
    assert "0 of " not in next(line for line in out.splitlines() if line.startswith("journal"))
    assert (folder / "out.jsonl").read_bytes() == first
    (folder / "parts").mkdir()
    for k, item in enumerate(ITEMS):
        place(item)
        (folder / "in.jsonl").rename(folder / f"parts/{k}.jsonl")
    assert run(*words("score", folder / "parts", f"{folder / 'out'}/", *more)).code == 0
    code, out, err = run("merge", folder / "out", "--output", folder / "all.jsonl")
    assert code == 0
    assert "texts of several windows: 2; each window after the first begins with the BOS" in err
    for merged, record in zip(records(folder / "all.jsonl"), found, strict=True):
        assert merged["sum_logprob"] == pytest.approx(record["sum_logprob"], abs=1e-3)
        assert merged["n_windows"] == record["n_windows"]


@pytest.mark.parametrize("command", ["score", "divergence", "perplexity"])
def test_plain_text_is_a_document_or_lines(run, tmp_path, command):
    (tmp_path / "one.txt").write_text(TEXT * 3, encoding="utf-8")
    (tmp_path / "lines.txt").write_bytes(LINES)
    more = () if command == "perplexity" else ("--summary-only",)
    code, _, err = run(*words(command, tmp_path / "one.txt", tmp_path / "one.jsonl", *more))
    assert (code, "texts of several windows: 1; each window after" in err) == (0, True)
    [document] = records(tmp_path / "one.jsonl")
    assert (document["id"], document["n_windows"] > 1) == ("one.txt", True)
    source = tmp_path / "lines.txt"
    assert run(*words(command, source, tmp_path / "lines.jsonl", "--lines", *more)).code == 0
    assert [record["id"] for record in records(tmp_path / "lines.jsonl")] == [1, 4, 5]
    (tmp_path / "in.jsonl").write_text('{"text": "a", "continuation": "a"}\n', encoding="utf-8")
    refused = run(*words(command, tmp_path / "in.jsonl", tmp_path / "no.jsonl", "--lines"))
    assert refused.code == 2
    assert (
        "in.jsonl: --lines reads plain text, whose name ends in .txt; leave it out" in refused.err
    )
    source.write_bytes(b"\n \n")
    empty = run(*words(command, source, tmp_path / "no.jsonl", "--lines"))
    assert (empty.code, "lines.txt: found no " in empty.err) == (2, True)
    assert not (tmp_path / "no.jsonl").exists()


def test_runs_over_lines_are_compared_by_their_texts(run, tmp_path):
    for name, data in {"a": LINES, "b": LINES.replace(b"five", b"nine")}.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
        more = ("--lines", "--summary-only", "--quiet")
        source, output = tmp_path / f"{name}.txt", tmp_path / f"{name}.jsonl"
        assert run(*words("score", source, output, *more)).code == 0
    code, out, err = run("compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert code == 0, err
    assert "done     2 pairs" in out


def test_a_folder_of_lines_has_names_and_numbers(run, tmp_path):
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / f"in/{name}.txt").write_bytes(LINES)
    more = ("--lines", "--summary-only", "--quiet", "--limit", 4)
    assert run(*words("score", tmp_path / "in", tmp_path / "out.jsonl", *more)).code == 0
    names = [record["id"] for record in records(tmp_path / "out.jsonl")]
    assert names == ["a.txt:1", "a.txt:4", "a.txt:5", "b.txt:1"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--stride", 17), "stride is 17, and a window reads 16 tokens, so that some would have"),
        (("--stride", 4, "--score-from", "half"), "stride is 4 and score_from half, whose windows"),
        (("--truncate", "left"), "truncate: texts are read in windows, so that none is too long"),
        (("--window-bos", "last"), "expected one of 'every', 'first'"),
        (("--max-length", 2000), "max_length is 2000, and the model takes 1024 positions"),
    ],
)
@pytest.mark.parametrize("command", ["score", "divergence", "perplexity"])
def test_windows_that_are_refused(run, place, command, more, message):
    folder = place({"continuation": "One two", "text": "One two"})
    code, out, err = run(*words(command, folder / "in.jsonl", folder / "out.jsonl", *more))
    assert (code, out) == (2, "")
    assert message in err
    assert [path.name for path in folder.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("command", ["score", "divergence"])
def test_a_rule_for_windows_is_refused_without_windows(run, place, command):
    folder = place({"continuation": "One two"})
    asked = [*words(command, folder / "in.jsonl", folder / "out.jsonl", "--window-bos", "first")]
    at = asked.index("--max-length")
    code, _, err = run(*asked[:at], *asked[at + 2 :])
    assert (code, "which only matters in windows; add --stride or" in err) == (2, True)


def test_an_endpoint_has_no_windows(run, place):
    folder = place(*ITEMS)
    asked = words(
        "score", folder / "in.jsonl", folder / "out.jsonl", "--api-base", "http://[::1]:9/v1"
    )
    code, _, err = run(*asked)
    assert code == 2
    assert "windows are cut from token ids, which an endpoint does not take" in err


def test_the_example_of_the_page(run, tmp_path, monkeypatch):
    page = (ROOT / "jaxscore/systems/README.md").read_text(encoding="utf-8")
    section = page.partition("## Long texts: windows")[2]
    line, command = re.search(r"```sh\n(.*)\n(.*)\n```", section).groups()
    monkeypatch.chdir(tmp_path)
    text = shlex.split(line)[1].replace("\\n", "\n")
    (tmp_path / "report.txt").write_text(text, encoding="utf-8")
    assert run(*shlex.split(command)[3:]).code == 0
    [record] = records(tmp_path / "scored.jsonl")
    assert record["id"] == "report.txt"
    assert record["n_windows"] > 1
    assert len(record["logprob"]) == record["n_tokens"]
