"""What users, models and folders are called, and what they wrote, is text in every report."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxscore.systems.audits import BoundaryAudit
from jaxscore.systems.scoring_run import ScoringRun

from jaxscore.errors import LONGEST, UNPRINTABLE, InputError, many_lines, one_line
from jaxscore.report import sections
from jaxscore.report.markdown import cell, table, text
from jaxscore.systems.rag.results_table import markdown
from tests.cli.conftest import QWEN
from tests.hostile.inputs import HALF_PAIR, HOSTILE, TEXTS, any_texts, put
from tests.report.html.made import tree

MARKUP = [one for one in TEXTS if 0 < len(one) < 1000 and "\0" not in one]
# GitHub's addresses: a scheme, www., and what stands on both sides of an @
LINK = re.compile(r"(?i)(?<!\\):(?=//)|(?<=www)(?<!\\)\.|@(?=[\w.+-])|(?<!\\)\]\(")


def assert_text(page: str) -> None:
    """No tag, link or comment, and nothing that a terminal obeys."""
    assert not UNPRINTABLE.search(page.replace("\n", ""))
    assert "<" not in page
    assert not LINK.search(page)


def shape(page: str) -> list[tuple[str, int]]:
    """What kind of line each is, of a row with the number of its cells."""
    kinds = []
    for line in page.split("\n"):
        if line.startswith("#"):
            kinds.append(("heading", len(line) - len(line.lstrip("#"))))
        elif line.startswith("|"):
            kinds.append(("row", len(re.findall(r"(?<!\\)\|", line)) - 1))
        else:
            kinds.append(("item" if line.startswith("- ") else "text" if line else "blank", 0))
    return kinds


@HOSTILE
@given(st.lists(any_texts, min_size=1, max_size=3).map("".join))
def test_any_text(value):
    shown = text(value)
    assert_text(shown)
    page = table(["a", "b"], [[shown, "end"]])
    assert shape(page) == [("row", 2)] * 3
    item = "\n\n".join(sections.remarks([value]))
    assert shape(item)[2:] == [("item", 0)]
    assert not re.match(r"- ([-+*>#]|\d+[.)])(\s|$)", item.split("\n")[-1])  # nor a list in it
    assert len(text(value * 1000)) < 5000


@HOSTILE
@given(any_texts, any_texts)
def test_the_table_of_results_is_one(name, value):
    page = markdown([{"exp_folder": name, "Generator": value, "M": 0.5}])
    assert shape(page) == [("row", 3)] * 3
    assert not UNPRINTABLE.search(page.replace("\n", ""))
    assert "<" not in page
    assert not re.search(r"(?<!\\)\]\(", page)
    assert markdown([{cell(name): 1}]).count("\n") == 2


@HOSTILE
@given(any_texts, st.integers(0, 300))
def test_what_is_told_is_one_line(value, longest):
    assert not UNPRINTABLE.search(one_line(value))
    assert not UNPRINTABLE.search(many_lines(value).replace("\n", "").replace("\t", ""))
    assert many_lines(value).count("\n") == value.count("\n")
    assert len(one_line(value, longest)) <= longest + 40
    message = str(InputError(f"{value * 100}: found; expected"))
    assert not UNPRINTABLE.search(message)
    assert len(message) <= LONGEST + 40
    assert message.endswith("found; expected")


def lines(folder, *items):
    return put(folder / "in.jsonl", "".join(json.dumps(one) + "\n" for one in items).encode())


def write_paths(folder, words, tail=""):
    items = [{"id": w, "question": w + tail, "paths": [[w, "in", w]]} for w in words]
    return "paths", "--input", lines(folder, *items), "--output", folder / "out" / "paths.json"


def write_chronologic(folder, words, tail=""):
    items = [
        {
            "metadata_frame": word,
            "main_question": word + tail,
            "question_category": word,
            "answer_strings": [word, f"{word} too", word],
            "answer_types": [word, "b", "c"],
            "answer_probabilities": [0.0, 0.0, 0.0] if k else [1.0, 0.0, 0.0],
        }
        for k, word in enumerate(words)
    ]
    path = lines(folder, *items)
    return "chronologic", path, "--full-eval", "--output-dir", folder / "out"


def write_probsem(folder, words, tail=""):
    (folder / "p.txt").write_text("prompt", encoding="utf-8")
    suite = {
        "queries": [*words, words[0]],
        "context": [{"text": word + tail, "expected": 0} for word in words],
    }
    (folder / "p_t.json").write_text(json.dumps(suite), encoding="utf-8")
    return (
        "probsem", "--prompt", "p", "--test", "t", "--input-dir", folder,
        "--output-dir", folder / "out",
    )  # fmt: skip


def write_judge(folder, words, tail=""):
    records = [
        {"q_id": word, "response": word, "label": [word, word], "question": word + tail}
        for word in words
    ]
    (folder / "out").mkdir()
    put(folder / "out" / "eval_dev_out.json", json.dumps(records).encode())
    return "judge", "--folder", folder / "out"


COMMANDS = {
    "paths": write_paths,
    "chronologic": write_chronologic,
    "probsem": write_probsem,
    "judge": write_judge,
}


def ran(run, folder, write, words, model):
    """The report that a command writes, the elements of its page, and all that it says."""
    folder.mkdir()
    command, *flags = write(folder, words)
    named = {"chronologic": [model], "judge": ["--llm", model, words[0]]}
    code, out, err = run(command, *named.get(command, ["--model", model]), *flags)
    assert code == 0, err
    [page] = (folder / "out").rglob("*.md")
    elements = {one.tag for one in tree(page.with_suffix(".html").read_text("utf-8")).iter()}
    return page.read_text(encoding="utf-8"), elements, out + err


@pytest.mark.parametrize("command", COMMANDS)
def test_the_pages_of_a_run(run, tmp_path, monkeypatch, command, hostile_model, plain_model):
    """The same headings, rows and cells as of plain words, and the same lines on the terminal."""
    # What boundaries and blanks do depends on the tokens of the words, and holds no text of a user.
    monkeypatch.setattr(BoundaryAudit, "effect", lambda audit: None)
    monkeypatch.setattr(ScoringRun, "_blanks", lambda run, sample: [])
    words = [*MARKUP, MARKUP[0]]
    plain = [f"word{k}" for k in range(len(MARKUP))] + ["word0"]
    page, elements, said = ran(run, tmp_path / "hostile", COMMANDS[command], words, hostile_model)
    want, usual, _ = ran(run, tmp_path / "plain", COMMANDS[command], plain, plain_model)
    assert elements <= usual
    assert_text(page)
    assert sorted(shape(page)) == sorted(shape(want))
    assert not UNPRINTABLE.search(said.replace("\n", "").replace("\t", "").replace("\r", ""))


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_failed_run_says(run, tmp_path, command, hostile_model):
    """All are longer than the model's positions, so each is listed by its name."""
    folder = tmp_path / "run"
    folder.mkdir()
    _, *flags = COMMANDS[command](folder, MARKUP, tail=" and" * 1100)
    named = {"chronologic": [hostile_model], "judge": ["--llm", hostile_model, "x"]}
    code, out, err = run(command, *named.get(command, ["--model", hostile_model]), *flags)
    assert code == 1
    assert "failed: " in err
    assert not UNPRINTABLE.search((out + err).replace("\n", "").replace("\t", ""))
    [page] = (folder / "out").rglob("*.md")
    assert_text(page.read_text(encoding="utf-8"))


def test_what_a_refused_run_says(run, tmp_path):
    for word in (*MARKUP, HALF_PAIR):
        path = lines(tmp_path, {word: word})
        code, _, err = run("score", "--model", QWEN, "--input", path, "--output", tmp_path / "out")
        assert code == 2
        assert not UNPRINTABLE.search(err.replace("\n", ""))


def test_what_score_says_of_ids(run, tmp_path, hostile_model):
    long = " and" * 1100
    path = lines(tmp_path, *({"id": word, "continuation": long} for word in MARKUP))
    words = ("--model", hostile_model, "--input", path, "--output", tmp_path / "out")
    code, _, err = run("score", *words)
    assert code == 1
    assert err.count("failed: ") == len(MARKUP)
    assert not UNPRINTABLE.search(err.replace("\n", ""))
