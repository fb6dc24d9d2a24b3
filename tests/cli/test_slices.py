"""`--by` from the command line: tables as people have them, `merge`, `report`, shards, streams."""

import csv
import json
import os
import re
import subprocess
import sys

import pytest

from tests.cli.conftest import QWEN
from tests.conftest import CASES, ROOT

ITEMS = json.loads((CASES / "slices.json").read_text("utf-8"))["items"]
REQUESTS = [
    {"continuation" if name == "text" else name: value for name, value in item.items()}
    for item in ITEMS
]
EXCEL = (
    "\ufeffcontinuation;场景;Frage;jahr\r\n"
    "猫坐在垫子上。;动物;wo;1912\r\n"
    "狗在花园里睡觉。;动物;;1912\r\n"
    "火车晚点了。;交通;wo;\r\n"
    '"飞机飞过城市;\n很快。";交通;"a;""b""";1913\r\n'
)


def slices(path):
    return json.loads(path.with_name(f"{path.name}.report.json").read_text("utf-8"))["slices"]


def sizes(table):
    return {name: numbers["n_items"] for name, numbers in table["values"].items()}


def words(folder, output="out.jsonl", *more):
    return (
        "score", "--model", QWEN, "--input", folder / "in.jsonl", "--output", folder / output,
        "--quiet", *more,
    )  # fmt: skip


def test_a_table_of_excel_with_missing_cells(tmp_path):
    (tmp_path / "in.csv").write_bytes(EXCEL.encode("utf-8"))
    command = [
        sys.executable, "-m", "jaxscore", "score", "--model", "demo", "--input", "in.csv",
        "--output", "out.csv", "--by", "场景", "--by", "Frage", "--by", "jahr",
    ]  # fmt: skip
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    tables = slices(tmp_path / "out.csv")
    assert {field: sizes(table) for field, table in tables.items()} == {
        "场景": {"动物": 2, "交通": 2},
        "Frage": {"wo": 2, "(none)": 1, 'a;"b"': 1},
        "jahr": {"1912": 2, "(none)": 1, "1913": 1},
    }
    assert "field 'Frage' of --by: missing in 1 of 4 requests, whose value is (none)" in ran.stderr
    assert re.search(r"^动物 +2 +\d+ +-\d", ran.stdout, re.MULTILINE)
    markdown = (tmp_path / "out.csv.report.md").read_text("utf-8")
    assert "## By 场景\n" in markdown
    assert "\n| 动物 | 2 | " in markdown
    page = (tmp_path / "out.csv.report.html").read_text("utf-8")
    assert "<h2>By jahr</h2>" in page
    assert "Mean log-probability, nats per token, by 场景" in page


CHOICES = [
    {"context": "The cat", "options": [" sat", " s", " ran"], "gold": 0, "topic": "sea", "n": 1},
    {"context": "A dog", "options": [" sat", " s", " ran"], "gold": 1, "topic": "sum", "n": 2.5},
    {"context": "", "options": [" a", " b"], "gold": 1, "topic": "sea", "n": None},
    {"context": "It was", "options": [" late", " it"], "topic": "", "n": True},
]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_report_makes_the_slices_of_choices_from_a_table(run, place, ending):
    """Right and wrong, missing gold options and failed items are read back from cells."""
    folder = place(*CHOICES)
    output = folder / f"out.{ending}"
    command = ("choose", "--model", QWEN, "--input", folder / "in.jsonl", "--output", output)
    assert run(*command, "--by", "topic", "--by", "n", "--quiet").code == 1  # no BOS, no context
    tables = slices(output)
    assert sizes(tables["topic"]) == {"sea": 1, "sum": 1, "(none)": 1}
    assert sizes(tables["n"]) == {"1": 1, "2.5": 1, "true": 1}
    assert run("report", output, "--by", "topic", "--by", "n").code == 1
    assert slices(output) == tables


def test_runs_that_differ_in_by_alone_do_not_differ(run, place):
    folder = place(*REQUESTS)
    assert run(*words(folder, "a.jsonl")).code == 0
    assert run(*words(folder, "b.jsonl", "--by", "topic")).code == 0
    ran = run("compare", folder / "a.jsonl", folder / "b.jsonl", "--output", folder / "c")
    assert ran.code == 0, ran.err
    assert "topic" not in (folder / "c.report.md").read_text("utf-8")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_report_makes_the_slices_of_an_output_that_named_none(run, place, ending):
    folder = place(*REQUESTS)
    output = f"out.{ending}"
    assert run(*words(folder, output, "--by", "topic", "--by", "lang")).code == 0
    tables = slices(folder / output)
    assert run(*words(folder, output)).code == 0
    assert "slices" not in json.loads((folder / f"{output}.report.json").read_text("utf-8"))
    before = (folder / output).read_bytes()
    ran = run("report", folder / output, "--by", "topic", "--by", "lang")
    assert ran.code == 0, ran.err
    assert slices(folder / output) == tables
    assert (folder / output).read_bytes() == before


def test_columns_of_the_users_table(run, place):
    """The output of a table from a table has its columns in place of `extra`."""
    folder = place(*REQUESTS)
    with (folder / "in.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["id", "continuation", "topic", "lang"])
        writer.writeheader()
        writer.writerows(REQUESTS)
    shared = ("--model", QWEN, "--quiet", "--summary-only")
    for source, output in (("in.csv", "out.csv"), ("in.csv", "out.jsonl")):
        paths = ("--input", folder / source, "--output", folder / output)
        assert run("score", *paths, *shared, "--by", "topic").code == 0
    tables = slices(folder / "out.jsonl")
    assert slices(folder / "out.csv") == tables
    assert run("report", "--by", "topic", folder / "out.csv").code == 0
    assert slices(folder / "out.csv") == tables
    assert sizes(tables["topic"]) == {"sea": 3, "sum": 3, "code": 1, "(none)": 1}


def test_merged_shards_have_the_slices_of_one_run(run, place):
    folder = place(*REQUESTS)
    assert run(*words(folder, "out.jsonl", "--by", "topic")).code == 0
    (folder / "in").mkdir()
    for name, part in (("a", REQUESTS[:6]), ("b", REQUESTS[6:7]), ("c", REQUESTS[7:])):
        text = "".join(f"{json.dumps(each)}\n" for each in part)
        (folder / "in" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    shards = ("score", "--model", QWEN, "--input", folder / "in", "--output", f"{folder}/out/")
    assert run(*shards, "--by", "topic", "--quiet").code == 0  # b has no item with a topic
    merged = folder / "all.jsonl"
    assert run("merge", folder / "out", "--output", merged).code == 0
    one = slices(folder / "out.jsonl")
    for mean in ("mean_logprob", "perplexity"):
        for value, numbers in slices(merged)["topic"]["values"].items():
            for bound, number in numbers[mean].items():
                want = one["topic"]["values"][value][mean][bound]
                assert number == (want and pytest.approx(want, abs=1e-3))
    ran = run("merge", folder / "out", "--output", merged, "--by", "lang")
    assert (ran.code, list(slices(merged))) == (0, ["lang"])
    manifest = json.loads((folder / "all.jsonl.run.json").read_text("utf-8"))
    assert manifest["flags"]["by"] == ["lang"]
    refused = run("merge", folder / "out", "--output", merged, "--by", "lan")
    assert (refused.code, "out: --by lan: no item has this field; is it lang?" in refused.err) == (
        2, True,
    )  # fmt: skip
    again = run(*shards, "--by", "lang", "--quiet")
    assert "3 were finished" in again.out  # their records are the same


def test_a_stream_prints_its_tables(place):
    folder = place(*REQUESTS)
    command = [sys.executable, "-m", "jaxscore", "score", "--model", QWEN, "--output", "-"]
    command += ["--input", "-", "--by", "topic", "--quiet"]
    lines = (folder / "in.jsonl").read_text("utf-8")
    ran = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line)["id"] for line in ran.stdout.splitlines()] == [
        item["id"] for item in ITEMS
    ]
    assert re.search(r"^topic +Requests +Tokens +Mean log-prob", ran.stderr, re.MULTILINE)
    assert re.search(r"^Mean of the values +- +- +-\d", ran.stderr, re.MULTILINE)


def test_fields_of_a_config_file(run, place):
    folder = place(*REQUESTS)
    lines = ["command: score", f"model: {QWEN}", f"input: {folder / 'in.jsonl'}", "quiet: true"]
    lines += [f"output: {folder / 'out.jsonl'}", "by: [topic, lang]"]
    (folder / "run.yaml").write_text("\n".join(lines), encoding="utf-8")
    assert run("--config", folder / "run.yaml").code == 0
    assert list(slices(folder / "out.jsonl")) == ["topic", "lang"]


def test_of_many_values_a_page_has_the_largest_and_the_json_file_all(run, place):
    items = [{"continuation": "A cat ran.", "n": k % 53} for k in range(60)]
    folder = place(*items)
    ran = run(*words(folder, "out.jsonl", "--by", "n", "--summary-only", "--batch-tokens", 4096))
    assert ran.code == 0
    assert "and 33 more values of n" in ran.out
    [table] = slices(folder / "out.jsonl").values()
    assert len(table["values"]) == 53
    assert [*table["values"]][:8] == ["0", "1", "2", "3", "4", "5", "6", "7"]
    markdown = (folder / "out.jsonl.report.md").read_text("utf-8")
    section = markdown.partition("## By n: 50 of 53 values, those of most requests\n")[2]
    rows = re.findall(r"^\| (\d+) \| (\d) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert rows == [(str(k), "2" if k < 7 else "1") for k in range(50)]
    page = (folder / "out.jsonl.report.html").read_text("utf-8")
    assert "The 16 values of most requests." in page


def test_a_name_that_is_markup_stays_a_text(run, place):
    field, value = "<b>_x_</b>", "</td><script>alert(1)</script>|"
    folder = place(*[{"continuation": "A cat ran.", field: value} for _ in range(2)])
    assert run(*words(folder, "out.jsonl", "--by", field)).code == 0
    page = (folder / "out.jsonl.report.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert "<h2>By &lt;b&gt;_x_&lt;/b&gt;</h2>" in page
    markdown = (folder / "out.jsonl.report.md").read_text("utf-8")
    assert r"## By &lt;b>\_x\_&lt;/b>" in markdown


def test_values_that_a_terminal_cannot_show_are_printed_by_number(place):
    folder = place(
        {"continuation": "A cat ran.", "t": "动物"}, {"continuation": "A", "t": "\x1b[3m"}
    )
    command = [sys.executable, "-m", "jaxscore", *map(str, words(folder)), "--by", "t"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert rb"\u52a8\u7269" in ran.stdout
    assert b"\x1b" not in ran.stdout


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("topc", "in.jsonl: --by topc: no item has this field; is it topic? expected one that the "
         "output repeats, found topic, tags"),
        ("tags", "in.jsonl:2: --by tags: found a list, expected a text, a number, true, false or"),
        ("", "argument --by: '', expected the name of a field of the items"),
    ],
)  # fmt: skip
def test_what_is_refused_before_a_model_is_loaded(run, place, by, message):
    item = {"continuation": "A cat ran.", "topic": "a"}
    folder = place(item, {**item, "tags": ["a", "b"]})
    ran = run("score", "--model", "nowhere", *words(folder)[3:], "--by", by)
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_systems_without_means_have_no_slices(run, place):
    folder = place({"question": "Who?", "paths": [["a", "b", "c"]]})
    output = folder / "out.json"
    command = ("paths", "--model", QWEN, "--input", folder / "in.jsonl", "--output", output)
    assert "--by: no such flag" in run(*command, "--by", "question").err
    assert run(*command, "--quiet").code == 0
    refused = run("report", output, "--by", "question")
    assert (refused.code, "paths does not report means" in refused.err) == (2, True)


def test_the_example_of_the_page(run, tmp_path, monkeypatch):
    page = (ROOT / "jaxscore/systems/README.md").read_text(encoding="utf-8")
    section = page.partition("## By topic, language or condition")[2]
    text, first, second = re.search(
        r"```sh\nprintf '(.*)' > in.csv\n(.*)\n(.*)\n```", section
    ).groups()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text(text.replace("\\n", "\n"), encoding="utf-8")
    for command in (first, second):
        ran = run(*command.split()[3:])
        assert ran.code == 0, ran.err
        for line in re.search(r"```\n(topic .*?)```", section, re.DOTALL)[1].splitlines():
            assert (line in ran.out) == (command == first), line
    assert list(slices(tmp_path / "out.csv")) == ["year"]
