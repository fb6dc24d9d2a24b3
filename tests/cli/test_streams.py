"""Outputs that are no files: standard output, devices, pipes; and what cannot be written."""

import json
import os
import subprocess
import sys
import threading

import pytest

from jaxscore.cli.main import main
from tests.cli.conftest import QWEN, strict

ITEM = {
    "id": "i", "generator": "Llama-3.1", "dataset": "math", "gold": "1", "confidence_list": [2, 1],
    "output": ['{"answer": "1"}', '{"answer": "2"}'],
}  # fmt: skip
WORDS = {  # command -> its words without --output, and the name of its input
    "select": (["--gold", "gold"], ITEM),
    "vote": ([], ITEM),
    "perplexity": (["--model", QWEN, "--quiet"], {"text": "some text"}),
    "score": (["--model", QWEN, "--quiet"], {"context": "a", "continuation": " b"}),
    "choose": (["--model", QWEN, "--quiet"], {"context": "a", "options": [" b", " c"], "gold": 0}),
    "paths": (["--model", QWEN, "--quiet"], {"question": "q", "paths": [["a", "b", "c"]]}),
    "divergence": (
        ["--model", QWEN, "--reference", QWEN, "--reference-dtype", "bfloat16", "--quiet"],
        {"context": "a", "continuation": " b"},
    ),
    "self-certainty": (
        ["--model", QWEN, "--quiet", "--gold", "gold"],
        {"model_input": "a", "output": ["b", "c"], "gold": "b"},
    ),
    "sample": (["--model", QWEN, "--quiet", "-n", "1", "--max-new-tokens", "2"], {"prompt": "a"}),
}


def run(*words):
    try:
        return main([str(word) for word in words])
    except SystemExit as end:
        return end.code


@pytest.fixture
def here(tmp_path, monkeypatch):
    """`here(command)`: the command's words, in an empty folder that has its input."""
    monkeypatch.chdir(tmp_path)

    def words(name):
        flags, item = WORDS[name]
        (tmp_path / "in.jsonl").write_text(json.dumps(item) + "\n")
        return [name, *flags, "--input", "in.jsonl"]

    return words


def names(folder):
    return sorted(one.name for one in folder.iterdir())


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("name", WORDS)
def test_stdout_carries_the_data_and_nothing_lies_beside_it(name, here, tmp_path, capfd):
    assert run(*here(name), "--output", "file.json") in (0, 1)
    expected = (tmp_path / "file.json").read_text()
    for path in tmp_path.glob("*file*"):
        path.unlink()
    before = names(tmp_path)
    said = capfd.readouterr()
    assert run(*here(name), "--output", "-") in (0, 1)
    found = capfd.readouterr()
    assert found.out == expected
    assert found.err.count("done     ") == said.out.count("done     ") == 1
    assert names(tmp_path) == before


def test_commands_whose_output_is_a_table_or_facts(here, tmp_path, capfd):
    assert run("plan", "--model", QWEN, "--quiet", "--output", "-") == 0
    assert strict(capfd.readouterr().out)["model_type"] == "qwen2"
    for name in "ab":
        assert run(*here("vote"), "--gold", "gold", "--output", f"{name}.json") == 0
    before = names(tmp_path)
    capfd.readouterr()
    assert run("compare", "a.json", "b.json", "--output", "-") == 0
    assert strict(capfd.readouterr().out)["settings"]["a"] == "a.json"
    assert names(tmp_path) == before


def test_shards_are_merged_to_stdout(here, tmp_path, capfd):
    words = here("score")
    (tmp_path / "in2.jsonl").write_text((tmp_path / "in.jsonl").read_text())
    assert run(*words, "in2.jsonl", "--output", "out/", "--no-html") == 0
    capfd.readouterr()
    before = sorted(tmp_path.rglob("*"))
    assert run("merge", "out", "--output", "-") == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["in.jsonl:1", "in2.jsonl:1"]
    assert "done     2 requests of 2 files" in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_the_names_of_stdout(place, here, tmp_path, capfd):
    assert run(*here("vote"), "--output", place) == 0
    assert strict(capfd.readouterr().out)[0]["id"] == "i"
    assert names(tmp_path) == ["in.jsonl"]


def test_another_descriptor_and_what_it_held(here, tmp_path):
    with open(tmp_path / "held", "wb") as file:
        file.write(b"before\n")
        file.flush()
        assert run(*here("vote"), "--output", f"/dev/fd/{file.fileno()}") == 0
    before, _, array = (tmp_path / "held").read_text().partition("\n")
    assert before == "before"
    assert strict(array)[0]["id"] == "i"
    assert names(tmp_path) == ["held", "in.jsonl"]


def test_a_pipe_by_name(here, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    assert run(*here("vote"), "--output", "pipe") == 0
    reader.join()
    assert strict(found[0])[0]["id"] == "i"
    assert names(tmp_path) == ["in.jsonl", "pipe"]


def test_the_null_device_stays_one(here, tmp_path, capfd):
    assert run(*here("vote"), "--output", os.devnull) == 0
    assert "done     1 item" in capfd.readouterr().out
    assert names(tmp_path) == ["in.jsonl"]
    assert not os.path.isfile(os.devnull)


def test_a_page_and_a_journal_that_are_named_are_written(here, tmp_path, capfd):
    flags = ["--html", "page.html", "--journal", "kept.journal"]
    assert run(*here("score"), "--output", "-", *flags) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1
    assert names(tmp_path) == ["in.jsonl", "kept.journal", "page.html"]


def test_the_page_alone_on_stdout(here, tmp_path, capfd):
    assert run(*here("score"), "--output", "out.jsonl", "--html", "-") == 0
    found = capfd.readouterr()
    assert found.out.startswith("<!doctype html>")
    assert "done     1 request" in found.err
    assert run(*here("score"), "--output", "-", "--html", "/dev/stdout") == 2
    assert "--output is the same stream" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "--model", "demo", "--output", "-"],
        ["demo", "--output-dir", "/dev/stdout"],
        ["chronologic", "demo", "in.jsonl", "--output-dir", "-"],
    ],
    ids=lambda words: words[0],
)
def test_a_folder_is_no_stream(words, here, tmp_path, capfd):
    here("vote")
    assert run(*words) == 2
    assert "found a stream, and this command writes several files" in capfd.readouterr().err
    assert names(tmp_path) == ["in.jsonl"]


@pytest.mark.parametrize("place", ["-", "/dev/stdin", "/dev/fd/0"])
def test_standard_input_is_refused_by_name(place, capfd):
    assert run("compare", place, "b.jsonl", "--output", "-") == 2
    assert f"argument A: {place}: standard input is not read" in capfd.readouterr().err


def process(words, **streams):
    command = [sys.executable, "-m", "jaxscore", *words]
    return subprocess.Popen(command, text=True, **streams)


def test_a_reader_that_has_seen_enough_ends_the_run_quietly(here, tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    words = here("vote")
    (tmp_path / "in.jsonl").write_text((json.dumps(ITEM) + "\n") * 2000)  # more than a pipe holds
    ran = process([*words, "--output", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ran.stdout.readline() == "[\n"
    ran.stdout.close()
    assert ran.stderr.read() == ""
    ran.stderr.close()
    assert ran.wait(20) == 141


needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a full device")


@needs_full
def test_a_full_stderr_ends_no_run(here, tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    words = here("vote")
    broken = json.dumps({**ITEM, "output": "no list"})
    (tmp_path / "in.jsonl").write_text(json.dumps(ITEM) + "\n" + broken + "\n")
    with open("/dev/full", "w") as full:
        ran = process([*words, "--output", "out.json"], stdout=subprocess.PIPE, stderr=full)
        said, _ = ran.communicate(timeout=20)
    assert ran.returncode == 1
    assert "done     2 items, 1 failed" in said
    assert len(strict((tmp_path / "out.json").read_text())) == 2


@needs_full
@pytest.mark.parametrize(("unbuffered", "name"), [("", "jaxscore"), ("1", "jaxscore vote")])
def test_a_full_stdout_is_one_line_after_the_output_is_kept(here, tmp_path, unbuffered, name):
    words, env = [*here("vote"), "--output", "out.json"], {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ran = process(words, stdout=full, stderr=subprocess.PIPE, env={**os.environ, **env})
        _, said = ran.communicate(timeout=20)
    assert ran.returncode == 2
    assert said.startswith(f"{name}: error: standard output cannot be written (No space left")
    assert said.count("\n") == 1
    assert strict((tmp_path / "out.json").read_text())[0]["id"] == "i"


def with_closed_stdout(*words):
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "jaxscore", *words]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=20, check=False)


def test_a_closed_stdout_ends_no_run(here, tmp_path):
    done = with_closed_stdout(*here("vote"), "--output", "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert strict((tmp_path / "out.json").read_text())[0]["id"] == "i"


def test_a_closed_stdout_takes_no_data(here, tmp_path):
    done = with_closed_stdout(*here("vote"), "--output", "-")
    assert done.returncode == 2
    assert "standard output, which is closed; give a file" in done.stderr
    assert names(tmp_path) == ["in.jsonl"]


ENDS = """
import os, sys
import jaxscore.cli.main
from jaxscore.__main__ import run

def main():
    {}

jaxscore.cli.main.main = main
run()
"""


@pytest.mark.parametrize(("unbuffered", "written"), [("1", "written"), ("", "")])
def test_pythonunbuffered_leaves_stdout_unbuffered(unbuffered, written):
    code = ENDS.format("print('written', end=''); os._exit(0)")
    command, env = [sys.executable, "-c", code], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    assert subprocess.check_output(command, text=True, timeout=20, env=env) == written


def test_the_last_unfinished_line_of_stderr_is_written():
    code = ENDS.format("print('written', end='', file=sys.stderr); return 2")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (2, "written")


@needs_full
def test_a_full_stream_of_data_is_one_line(here, capfd):
    assert run(*here("vote"), "--output", "/dev/full") == 2
    assert "/dev/full: cannot be written (No space left on device)" in capfd.readouterr().err
