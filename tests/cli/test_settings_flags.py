"""Tables as input, and `--column`: the numbers of the same items as JSONL."""

import csv
import json

import pytest

from jaxscore import InputError
from jaxscore.cli import settings_flags
from tests.cli.conftest import QWEN, strict

FIELDS = ("id", "context", "continuation")


def test_pairs():
    assert settings_flags.parse_columns([], FIELDS) == {}
    found = settings_flags.parse_columns(["context=prompt", "continuation=a=b"], FIELDS)
    assert found == {"context": "prompt", "continuation": "a=b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["context"], "--column context: expected FIELD=NAME, such as id=NAME"),
        (["=x"], "--column =x: expected FIELD=NAME"),
        (
            ["contxt=x"],
            "no field 'contxt' is read; is it context?; the fields are id, context, con",
        ),
        (["x=context"], "no field 'x' is read; the other way round?; the fields are id, context"),
        (["x=y"], "no field 'x' is read; expected one of them; the fields are"),
        (["id=a", "id=b"], "--column id=b: id is given twice"),
    ],
)
def test_words_that_are_no_pairs(words, message):
    with pytest.raises(InputError) as caught:
        settings_flags.parse_columns(words, FIELDS)
    assert message in str(caught.value)


def table(folder, *items):
    with (folder / "in.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, items[0])
        writer.writeheader()
        writer.writerows(items)
    return folder / "in.csv"


def flags(folder, command, source, *more):
    return (
        command, "--model", QWEN, "--input", source, "--output", folder / "out.json", "--quiet",
        "--journal", "off", *more,
    )  # fmt: skip


def test_score(run, place, tmp_path):
    folder = place({"id": "1", "context": "The, cat", "continuation": " sat\n", "n": "7"})
    assert run(*flags(folder, "score", folder / "in.jsonl")).code == 0
    want = (folder / "out.json").read_bytes()
    source = table(folder, {"id": "1", "prompt": "The, cat", "answer": " sat\n", "n": "7"})
    words = ("--column", "context=prompt", "continuation=answer")
    assert run(*flags(folder, "score", source, *words)).code == 0
    assert (folder / "out.json").read_bytes() == want
    manifest = strict((folder / "out.json.run.json").read_text(encoding="utf-8"))
    assert manifest["flags"]["column"] == ["context=prompt", "continuation=answer"]
    # A configuration file has the same as a list, and the command line overrides it.
    config = tmp_path / "c.yaml"
    config.write_text("command: score\ncolumn: [continuation=nothing]\n", encoding="utf-8")
    repeated = ("--column", words[1], "--column", words[2])
    assert run("--config", config, *flags(folder, "score", source, *repeated)[1:]).code == 0
    assert (folder / "out.json").read_bytes() == want
    ran = run("--config", config, *flags(folder, "score", source)[1:])
    assert ran.code == 2
    reported = (
        "in.csv:2: no column 'nothing', which should be 'continuation'; there are 'id', 'prompt'"
    )
    assert reported in ran.err


@pytest.mark.slow
def test_paths_and_chronologic(run, place):
    folder = place({"id": "q", "question": "Who?", "paths": [["Ada", "born in", "Oslo"]]})
    assert run(*flags(folder, "paths", folder / "in.jsonl")).code == 0
    want = (folder / "out.json").read_bytes()
    paths = json.dumps([["Ada", "born in", "Oslo"]])
    source = table(folder, {"id": "q", "q": "Who?", "paths": paths})
    assert run(*flags(folder, "paths", source, "--column", "question=q")).code == 0
    assert (folder / "out.json").read_bytes() == want
    source = table(
        folder,
        {
            "main_question": "Which city?", "metadata_frame": "It is 1887.", "category": "place",
            "answer_strings": '["Oslo", "Vael"]', "answer_probabilities": "[1, 0]",
            "answer_types": "",
        },
    )  # fmt: skip
    words = ("--full-eval", "--output", folder / "c", "--column", "question_category=category")
    code, out, _ = run(*flags(folder, "chronologic", source, *words))
    assert code == 0
    assert "done     1 question, 0 failed" in out
    [path] = (folder / "c").glob("eval_results_*.json")
    [question] = strict(path.read_text(encoding="utf-8"))["questions"]
    assert question["question_category"] == "place"
    assert question["answers"] == ["Oslo", "Vael"]
