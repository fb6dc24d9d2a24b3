"""`chronologic` and `probsem` over many files: shards, addresses and one report of all."""

import io
import json
import sys

import pytest

from tests.cli.conftest import QWEN
from tests.conftest import CASES
from tests.io.test_remote import content, store  # noqa: F401

QUESTIONS = (CASES / "chronologic/questions.jsonl").read_text(encoding="utf-8").splitlines()
BAD = '{"main_question": "?"}'
SUITES = CASES / "probsem"
# What of a report differs: a remark says that the audits of two files have two samples.
OTHERS = {"settings", "remarks"}


def chronologic(source, output, *more):
    return ("chronologic", QWEN, source, "--output", output, "--full-eval", "--reproducible",
            "--batch-tokens", 512, "--quiet", "--no-html", *more)  # fmt: skip


def probsem(source, output, *more):
    return ("probsem", "--model", QWEN, "--input", source, "--output", output, "--reproducible",
            "--batch-tokens", 512, "--quiet", "--no-html", *more)  # fmt: skip


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def rounded(path):
    """A JSON file whose numbers are texts of nine digits."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text, parse_float=lambda number: f"{float(number):.9g}")


@pytest.fixture
def questions(tmp_path):
    """Two files of questions, one of which cannot be used, and one file of all."""
    folder = tmp_path / "in"
    folder.mkdir()
    parts = [*QUESTIONS[:4], BAD], QUESTIONS[4:]
    for name, lines in zip(("a", "b", "../all"), (*parts, [*parts[0], *parts[1]]), strict=True):
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "more", [("--calibrate",), pytest.param(("--mcq",), marks=pytest.mark.slow)]
)
def test_shards_of_questions_have_the_report_of_one_run(run, questions, more):
    def command(source, output):
        words = chronologic(source, output, *more)
        return tuple(word for word in words if "--mcq" not in more or word != "--full-eval")

    assert run(*command(questions / "all.jsonl", questions / "one.json")).code == 1
    assert run(*command(questions / "in", f"{questions}/out/")).code == 1
    ran = run("merge", questions / "out", "--output", questions / "merged.json", "--no-html")
    assert ran.code == 1
    assert 'failed: a.jsonl:5: no field "answer_strings"' in ran.err
    one, merged = (read(questions / f"{name}.json") for name in ("one", "merged"))
    assert [record.pop("line") for record in merged][:5] == [
        "a.jsonl:1", "a.jsonl:2", "a.jsonl:3", "a.jsonl:4", "a.jsonl:5",
    ]  # fmt: skip
    assert merged == [{k: v for k, v in record.items() if k != "line"} for record in one]
    facts, found = (rounded(questions / f"{name}_report.json") for name in ("one", "merged"))
    for part in [facts.get("temperature_scaling"), found.get("temperature_scaling")]:
        for name in ("fitted_on", "evaluated_on") if part else ():
            part[name] = len(part[name])
    for report in (facts, found):
        report["failures"] = [failure["error"] for failure in report["failures"]]
    assert [remark[:10] for remark in found["remarks"]] == ["audits: ea"] * ("--mcq" not in more)
    for name in facts.keys() - OTHERS:
        assert found[name] == facts[name], name
    paths = (questions / f"{name}.json" for name in ("one", "merged"))
    compared = run("compare", *paths, "--output", questions / "compared.json", "--no-html")
    assert "n = 9 pairs" in compared.out, compared.err
    again = run(*command(questions / "in", f"{questions}/out/"))
    assert (again.code, "2 were finished" in again.out) == (1, True)


def test_failures_and_remarks_of_shards_in_subfolders_have_their_paths(run, tmp_path):
    question = json.loads(QUESTIONS[0])
    twice = question | {"answer_strings": ["Oslo"] * len(question["answer_strings"])}
    for folder in "xy":
        (tmp_path / "in" / folder).mkdir(parents=True)
        path = tmp_path / "in" / folder / "b.jsonl"
        path.write_text(f"{json.dumps(twice)}\n{BAD}\n", encoding="utf-8")
    assert run(*chronologic(tmp_path / "in", f"{tmp_path}/out/")).code == 1
    ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.json", "--no-html")
    assert ran.code == 1
    names = [f"{folder}/b.jsonl:2" for folder in "xy"]
    for name in names:
        assert f"failed: {name}: no field" in ran.err
    report = read(tmp_path / "m_report.json")
    assert [failure["name"] for failure in report["failures"]] == names
    notes = [note.split(": ")[0] for note in report["remarks"] if "more than once" in note]
    assert notes == ["x/b.jsonl:1", "y/b.jsonl:1"]


def test_merged_notes_name_items_by_their_place_in_the_merged_file(run, tmp_path):
    item = {"output": ["no answer", "none"], "confidence_list": [1.0, 2.0], "answer": "a"}
    read_one = item | {"output": ['{"answer": "a"}', "none"]}
    for folder in "xy":
        (tmp_path / "in" / folder).mkdir(parents=True)
        (tmp_path / "in" / folder / "a.json").write_text(json.dumps([item, read_one]))
    words = ("--input", tmp_path / "in", "--output", f"{tmp_path}/out/", "--best-N", 2)
    assert run("select", *words).code == 0
    ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.json")
    assert ran.code == 0
    assert [line.split(": ")[:2] for line in ran.err.splitlines()] == [
        ["note", "item 1"], ["note", "item 3"],
    ]  # fmt: skip


def test_questions_are_read_from_standard_input(run, tmp_path, monkeypatch):
    text = io.BytesIO("\n".join(QUESTIONS[:2]).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text))
    assert run(*chronologic("-", tmp_path / "out.json")).code == 0
    assert [record["line"] for record in read(tmp_path / "out.json")] == [1, 2]


def test_questions_are_drawn_from_one_file_alone(run, questions):
    words = [
        word for word in chronologic(questions / "in", f"{questions}/out/") if word != "--full-eval"
    ]
    ran = run(*words)
    assert ran.code == 2
    assert "each file of a folder is scored alone; give --full-eval or --mcq" in ran.err


def test_suites_are_shards_with_their_prompts(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("towns.txt", "towns_A.json", "towns_C.json"):
        (folder / name).write_bytes((SUITES / name).read_bytes())
    command = probsem(folder, f"{tmp_path}/out/")
    assert run(*command).code == 0
    places = ("--input-dir", SUITES, "--output-dir", tmp_path, "--no-html", "--reproducible")
    words = ("probsem", "--model", QWEN, "--prompt", "towns", "--quiet", "--batch-tokens", 512)
    records = []
    for test in "AC":
        assert run(*words, "--test", test, *places).code == 0
        [path] = tmp_path.glob(f"towns_{test}_*_results.json")
        for record in read(path)["contexts"]:
            records.append(record | {"context": f"towns_{test}.json:{record['context']}"})
    assert run("merge", tmp_path / "out", "--output", tmp_path / "all.json").code == 0
    assert read(tmp_path / "all.json") == records
    report = read(tmp_path / "all_report.json")
    judged = [record["passed"] for record in records if record["passed"] is not None]
    assert report["accuracy"]["mean"] == pytest.approx(sum(judged) / len(judged))
    assert "2 were finished" in run(*command).out
    (folder / "towns.txt").write_text("Another prompt.")
    ran = run(*command)
    assert (ran.code, "0 were finished" in ran.out) == (0, True)


def test_suite_in_a_store_is_read_with_its_prompt(run, store, tmp_path):  # noqa: F811
    for name in ("towns.txt", "towns_A.json"):
        store.pipe_file(f"/bucket/in/{name}", (SUITES / name).read_bytes())
    source = "faulty://bucket/in/towns_A.json"
    assert run(*probsem(source, "faulty://bucket/out/")).code == 0
    assert run(*probsem(SUITES / "towns_A.json", tmp_path / "one.json")).code == 0
    found = json.loads(content(store)["/bucket/out/towns_A.json"])
    places = [record.pop("context") for record in found]
    assert places == [f"towns_A.json:{k}" for k in range(1, len(found) + 1)]
    one = read(tmp_path / "one.json")
    assert found == [{k: v for k, v in record.items() if k != "context"} for record in one]
    ran = run(*probsem(source, "faulty://bucket/out/"))
    assert "1 were finished" in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "expected --prompt and --test, or --input FILES and --output"),
        (("--prompt", "towns"), "--test is missing"),
        (("--input", SUITES / "towns.txt", "--output", "x.json"), "expected an object with"),
        (("--input", SUITES / "towns_A.json", "--output", "x.csv"), "x.csv: the output is JSON"),
        (("--prompt", "p", "--test", "t", "--shard", "0/2"), "name one suite; leave them out"),
        (("--prompt", "p", "--test", "t", "--input", "a", "b"), "expected one folder"),
    ],
)
def test_what_names_no_suite_is_refused(run, words, message):
    ran = run("probsem", "--model", QWEN, *words)
    assert ran.code == 2
    assert message in ran.err


def test_suite_without_a_prompt_is_refused(run, tmp_path):
    suite = tmp_path / "a_b_c.json"
    suite.write_bytes((SUITES / "towns_A.json").read_bytes())
    ran = run(*probsem(suite, tmp_path / "out.json"))
    assert ran.code == 2
    assert "found no prompt, expected a_b.txt or a.txt in its folder, or a text as its" in ran.err
    suite.write_text(json.dumps(read(suite) | {"prompt": "Towns."}), encoding="utf-8")
    assert run(*probsem(suite, tmp_path / "out.json")).code == 0
    suite.write_text(json.dumps(read(suite) | {"prompt": None}), encoding="utf-8")
    assert run(*probsem(suite, tmp_path / "out.json")).code == 2
    (tmp_path / "a_b.txt").write_text("Towns.")
    assert run(*probsem(suite, tmp_path / "again.json")).code == 0
    assert read(tmp_path / "again.json") == read(tmp_path / "out.json")


def test_output_that_is_the_prompt_beside_a_suite_is_refused(run, store, tmp_path):  # noqa: F811
    for name in ("towns.txt", "towns_A.json"):
        data = (SUITES / name).read_bytes()
        (tmp_path / name).write_bytes(data)
        store.pipe_file(f"/bucket/in/{name}", data)
    suite, prompt = tmp_path / "towns_A.json", tmp_path / "towns.txt"
    there = "faulty://bucket/in/towns"
    page = ("probsem", "--model", QWEN, "--input", suite, "--output", tmp_path / "out.json",
            "--html", prompt)  # fmt: skip
    for command in (probsem(suite, prompt), page, probsem(f"{there}_A.json", f"{there}.txt")):
        ran = run(*command)
        assert (ran.code, "towns.txt is an input of this run" in ran.err) == (2, True)
    assert prompt.read_bytes() == (SUITES / "towns.txt").read_bytes()
    assert content(store)["/bucket/in/towns.txt"] == prompt.read_bytes()
    assert not (tmp_path / "out.json").exists()
