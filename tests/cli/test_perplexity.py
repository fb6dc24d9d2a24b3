"""`perplexity`: the documented files, every kind of input, and exit codes."""

import csv
import gzip

import pytest

from jaxscore.cli import model_flags
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES

FIELDS = (
    "id begin text_sha256 n_tokens n_scored n_bytes n_words n_windows sum_logprob mean_logprob "
    "perplexity bits_per_byte bits_per_word"
).split()
TEXTS = ("The cat sat on the mat.\n" * 4, "One\ntwo, three")


def flags(folder, source, *more, output="out.jsonl"):
    return (
        "perplexity", "--model", QWEN, "--input", source, "--output", folder / output,
        "--max-length", 16, "--batch-tokens", 256, "--quiet", *more,
    )  # fmt: skip


def records(folder, name="out.jsonl"):
    return [strict(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_the_documented_files(run, place):
    lines = [{"id": "a", "text": TEXTS[0], "topic": "x"}, {"text": TEXTS[1]}, {"id": "bad"}]
    folder = place(*lines)
    code, out, err = run(*flags(folder, folder / "in.jsonl"))
    assert code == 1
    assert err.startswith(f'failed: {folder / "in.jsonl"}:3 (id bad): no field "text", expected')
    assert "done     3 documents, 1 failed in " in out
    assert "result   bits per byte " in out
    first, second, bad = records(folder)
    assert list(first) == [*FIELDS, "topic"]
    assert list(second) == FIELDS
    assert list(bad) == ["id", "error"]
    assert [first["id"], second["id"], second["n_words"]] == ["a", 2, 3]
    assert first["n_bytes"] == len(TEXTS[0])
    report = strict((folder / "out.jsonl.report.json").read_text("utf-8"))
    settings = report["settings"]
    assert (settings["max_length"], settings["stride"]) == (16, 16)
    assert report["summary"]["n_left_out"] == 2  # qwen2 writes no BOS
    page = (folder / "out.jsonl.report.md").read_text("utf-8")
    assert page.startswith("# Perplexity: ")
    assert "## Failed: 1 document, in no mean" in page
    assert strict((folder / "out.jsonl.run.json").read_text("utf-8"))["failed"] == 1
    again = run(*flags(folder, folder / "in.jsonl"))
    n_windows = report["summary"]["n_windows"]
    assert f"{n_windows} of {n_windows} texts come from it" in again.out
    assert records(folder) == [first, second, bad]


@pytest.mark.parametrize(("ending", "newline"), [("", "\r\n"), ("", "\r"), (".gz", "\r\n")])
def test_newlines_of_other_systems_give_the_same_perplexity(run, tmp_path, ending, newline):
    for name, text in {"lf": TEXTS[0], "other": TEXTS[0].replace("\n", newline)}.items():
        data = text.encode() if name == "lf" else b"\xef\xbb\xbf" + text.encode()
        (tmp_path / f"{name}.txt{ending}").write_bytes(gzip.compress(data) if ending else data)
        source = tmp_path / f"{name}.txt{ending}"
        assert run(*flags(tmp_path, source, output=f"{name}.jsonl")).code == 0
    [want], [found] = records(tmp_path, "lf.jsonl"), records(tmp_path, "other.jsonl")
    assert {**found, "id": want["id"]} == want


def test_newlines_in_strings_and_cells_are_scored(run, place):
    text = "The cat sat.\r\nIt ran."
    folder = place({"text": text}, {"text": text.replace("\r", "")})
    assert run(*flags(folder, folder / "in.jsonl")).code == 0
    kept, other = records(folder)
    assert kept["n_bytes"] == other["n_bytes"] + 1
    (folder / "in.csv").write_bytes(f'text\r\n"{text}"\r\n'.encode())
    assert run(*flags(folder, folder / "in.csv")).code == 0
    [cell] = records(folder)
    assert cell["text_sha256"] == kept["text_sha256"]


def test_text_files_and_a_table(run, place):
    folder = place({"id": "0.txt", "text": TEXTS[0]}, {"id": "1.txt", "text": TEXTS[1]})
    assert run(*flags(folder, folder / "in.jsonl")).code == 0
    want = records(folder)
    (folder / "texts").mkdir()
    for k, text in enumerate(TEXTS):
        (folder / f"texts/{k}.txt").write_text(text, encoding="utf-8")
    assert run(*flags(folder, folder / "texts")).code == 0
    assert records(folder) == want
    one = run(*flags(folder, folder / "texts/1.txt", output="one.csv"))
    assert one.code == 0
    with (folder / "one.csv").open(encoding="utf-8", newline="") as file:
        [row] = csv.DictReader(file)
    assert row["begin"] == TEXTS[1]
    assert float(row["sum_logprob"]) == pytest.approx(want[1]["sum_logprob"], abs=1e-4)
    assert (row["error"], row["extra"]) == ("", "")


@pytest.mark.slow
def test_more_context_by_a_stride(run, place):
    folder = place({"text": TEXTS[0]})
    run(*flags(folder, folder / "in.jsonl"))
    [disjoint] = records(folder)
    assert run(*flags(folder, folder / "in.jsonl", "--stride", 4)).code == 0
    [strided] = records(folder)
    assert strided["n_windows"] > disjoint["n_windows"]
    assert strided["n_scored"] == disjoint["n_scored"]
    assert strided["sum_logprob"] != disjoint["sum_logprob"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--truncate", "left"), "truncate: texts are read in windows"),
        (("--prefix-token-id", "-1"), "argument --prefix-token-id: -1, expected a whole"),
        (("--column", "text=body"), "no column 'body', which should be 'text'; there are 'x'"),
        ((), "no document is usable; the first, "),
    ],
)
def test_what_is_unusable_leaves_nothing(run, place, monkeypatch, more, message):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    folder = place({"x": 1})
    code, out, err = run(*flags(folder, folder / "in.jsonl", *more))
    assert (code, out) == (2, "")
    assert message in err
    assert [one.name for one in folder.iterdir()] == ["in.jsonl"]


def test_windows_that_the_model_cannot_read(run, place):
    folder = place({"text": "one two"})
    code, out, err = run(*flags(folder, folder / "in.jsonl", "--stride", 17))
    assert (code, out) == (2, "")
    assert "stride is 17, and a window reads 16 tokens" in err
    assert not (folder / "out.jsonl").exists()


def test_windows_without_bos_are_reported_and_merged(run, tmp_path):
    """Shards have samples of their own, and `merge` reports all of them as one."""
    (tmp_path / "in").mkdir()
    for name, text in zip("ab", (TEXTS[0] * 2, TEXTS[0]), strict=True):
        (tmp_path / f"in/{name}.txt").write_text(text, encoding="utf-8")
    words = ("perplexity", "--model", str(CASES / "models/tiny-llama3"), "--max-length", 16)
    records = []
    for name in "ab":
        output = tmp_path / f"{name}.jsonl"
        code, out, err = run(*words, "--input", tmp_path / f"in/{name}.txt", "--output", output)
        assert code == 0, err
        found = strict((tmp_path / f"{name}.jsonl.report.json").read_text())
        assert f"finding  {found['findings'][0]}\n" in out
        records.append(found["window_bos"])
    parts = [tmp_path / f"in/{name}.txt" for name in "ab"]
    code, _, err = run(*words, "--input", *parts, "--output", f"{tmp_path / 'out'}/")
    assert code == 0, err
    code, out, err = run("merge", tmp_path / "out", "--output", tmp_path / "all.jsonl")
    assert code == 0, err
    merged = strict((tmp_path / "all.jsonl.report.json").read_text())
    for name in ("n_windows", "n_tokens", "sum_logprob", "sum_gain", "sum_squared_gain"):
        total = sum(record[name] for record in records)
        assert merged["window_bos"][name] == pytest.approx(total, rel=1e-4), name
    [finding] = merged["findings"]
    assert f"a sample of {merged['window_bos']['n_windows']} of them is" in finding
    assert f"finding  {finding}\n" in out
