"""Inputs that are replaced or written while they are scored: refused, and nothing is finished."""

import json
import os

import pytest

from jaxscore.cli import execute, model_flags
from tests.cli.conftest import QWEN
from tests.conftest import CASES
from tests.io.test_remote import Faulty
from tests.io.test_remote import store as store  # a fixture

LINES = [{"context": f"The cat {k}", "continuation": " sat"} for k in range(3)]
DOCUMENTS = [{"text": f"Some words {k}."} for k in range(3)]
OUTPUTS = [{"id": f"{k}", "input": f"Say {k}.", "output": ["One.", "Two."]} for k in range(2)]
PROMPTS = [{"id": f"{k}", "prompt": f"The cat {k}"} for k in range(2)]
CHOICES = [{"context": "Q:", "options": [" yes", " no"], "gold": 0}]
SYSTEMS = {  # command -> items, more flags
    "score": (LINES, ()),
    "perplexity": (DOCUMENTS, ()),
    "choose": (CHOICES, ()),
    "self-certainty": (OUTPUTS, ()),
    "sample": (PROMPTS, ("-n", 1, "--max-new-tokens", 2)),
}


def lines(items):
    return "".join(json.dumps(item) + "\n" for item in items)


def changed(text):
    """Other values of the same size."""
    for old, new in (
        ("cat", "dog"),
        ("Some", "Many"),
        ("Say", "Ask"),
        ("yes", "yep"),
        ("Pr", "pR"),
    ):
        text = text.replace(old, new)
    return text


def replace(path):
    """Another file of the same size under the same name."""
    other = path.with_name("other")
    other.write_text(changed(path.read_text()))
    other.replace(path)


def write(path):
    """Other bytes of the same size in the same file, whose time is set back."""
    facts = path.stat()
    path.write_text(changed(path.read_text()))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def append(path):
    path.write_text(path.read_text() * 2)


def remove(path):
    path.unlink()


@pytest.fixture
def while_scoring(monkeypatch):
    """`while_scoring(action)`: runs an action after the input is checked, before it is scored."""

    def set_up(action):
        load = model_flags.load_scorer

        def then_load(*args: object, **options: object) -> object:
            action()
            return load(*args, **options)

        monkeypatch.setattr(model_flags, "load_scorer", then_load)

    return set_up


def words(command, source, output, *more):
    page = () if command == "sample" else ("--no-html",)
    return (
        command,
        "--model",
        QWEN,
        "--quiet",
        *page,
        "--input",
        source,
        "--output",
        output,
        *more,
    )


@pytest.mark.parametrize("command", SYSTEMS)
@pytest.mark.parametrize("change", [replace, write, append, remove])
def test_input_that_changes_while_it_is_scored_is_refused(
    run, tmp_path, while_scoring, command, change
):
    items, more = SYSTEMS[command]
    source, output = tmp_path / "in.jsonl", tmp_path / "out/out.json"
    if command in ("score", "perplexity", "choose"):
        output = output.with_suffix(".jsonl")
    source.write_text(lines(items))
    while_scoring(lambda: change(source))
    ran = run(*words(command, source, output, *more))
    assert ran.code == 2, ran
    assert f"{source}: " in ran.err
    assert not list(tmp_path.rglob("*.run.json"))
    assert not list(tmp_path.rglob("*report*"))
    if not more and command != "self-certainty":  # these two keep what is finished
        assert not output.exists()


def test_earlier_output_stays_if_the_input_changes(run, tmp_path, while_scoring):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(lines(LINES))
    assert run(*words("score", source, output)).code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.glob("out*")}
    while_scoring(lambda: replace(source))
    assert run(*words("score", source, output)).code == 2
    assert {path.name: path.read_bytes() for path in tmp_path.glob("out*")} == before


def test_new_mode_of_an_input_is_no_change(run, tmp_path, while_scoring):
    source = tmp_path / "in.jsonl"
    source.write_text(lines(LINES))
    while_scoring(lambda: source.chmod(0o600))
    assert run(*words("score", source, tmp_path / "out.jsonl")).code == 0


@pytest.mark.parametrize("form", ["", "out/"])
def test_prompt_of_a_suite_that_changes_is_refused(run, tmp_path, while_scoring, form):
    suite, prompt = tmp_path / "p_t.json", tmp_path / "p.txt"
    suite.write_text(json.dumps({"queries": ["x", "y"], "context": [{"text": "z", "expected": 0}]}))
    prompt.write_text("Prompt.")
    while_scoring(lambda: write(prompt))
    if form:
        given = ("--input", suite, "--output", f"{tmp_path}/out/")
    else:
        given = ("--prompt", "p", "--test", "t", "--input-dir", tmp_path,
                 "--output-dir", tmp_path / "out")  # fmt: skip
    ran = run("probsem", "--model", QWEN, "--quiet", *given)
    assert (ran.code, f"{prompt}: changed while this run read it" in ran.err) == (2, True)
    assert not list(tmp_path.rglob("*.run.json"))


def test_dated_report_of_changed_questions_is_not_written(run, tmp_path, while_scoring):
    source = tmp_path / "questions.jsonl"
    source.write_bytes((CASES / "chronologic/questions.jsonl").read_bytes())
    while_scoring(lambda: replace(source))
    ran = run("chronologic", QWEN, source, "--full-eval", "--limit", 2, "--output-dir",
              tmp_path / "out", "--quiet")  # fmt: skip
    assert (ran.code, f"{source}: changed while" in ran.err) == (2, True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".jaxscore"]


def test_dated_report_of_a_system_prompt_that_changes_after_it_is_read_is_not_written(
    run, tmp_path, monkeypatch
):
    source, system = tmp_path / "questions.jsonl", tmp_path / "system.txt"
    source.write_bytes((CASES / "chronologic/questions.jsonl").read_bytes())
    system.write_text("Some words.")
    monkeypatch.setattr(execute, "with_examples", lambda _, settings: replace(system) or settings)
    ran = run("chronologic", QWEN, source, "--full-eval", "--limit", 2, "--output-dir",
              tmp_path / "out", "--quiet", "--system-file", system)  # fmt: skip
    assert (ran.code, f"{system}: changed while" in ran.err) == (2, True)


def test_examples_that_change_are_refused(run, tmp_path, while_scoring):
    source, examples = tmp_path / "in.jsonl", tmp_path / "shots.jsonl"
    source.write_text(lines(LINES))
    examples.write_text(lines(LINES[:1]))
    while_scoring(lambda: replace(examples))
    ran = run(*words("score", source, tmp_path / "out.jsonl", "--fewshot", examples))
    assert (ran.code, f"{examples}: changed while" in ran.err) == (2, True)
    assert not (tmp_path / "out.jsonl").exists()


def test_changed_shard_is_refused_and_the_others_are_finished(run, tmp_path, while_scoring):
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / f"in/{name}.jsonl").write_text(lines(LINES))
    changes = [replace]
    while_scoring(lambda: changes and changes.pop()(tmp_path / "in/b.jsonl"))  # a is scored then
    assert run(*words("score", tmp_path / "in", f"{tmp_path}/out/")).code == 0
    changes.append(lambda path: replace(path.with_name("a.jsonl")))
    ran = run(*words("score", tmp_path / "in", f"{tmp_path}/other/"))
    assert ran.code == 1
    assert f"failed: a.jsonl: {tmp_path}/in/a.jsonl: changed while this run read it" in ran.err
    assert not (tmp_path / "other/a.jsonl.run.json").exists()
    assert (tmp_path / "other/b.jsonl.run.json").exists()


def test_object_that_is_replaced_between_listing_and_copy_is_refused(
    run, tmp_path, store, monkeypatch
):
    """Its listed version would be finished with the results of another one."""
    monkeypatch.setattr(Faulty, "_etag", "1", raising=False)
    info, find = Faulty.info, Faulty.find

    def with_tag(facts):
        return {**facts, "ETag": Faulty._etag}

    monkeypatch.setattr(Faulty, "info", lambda self, path, **o: with_tag(info(self, path, **o)))

    def listed(self, path, detail=False, **options):
        found = find(self, path, detail=True, **options)
        out = {name: with_tag(facts) for name, facts in found.items()}
        Faulty._etag = "2"
        return out

    store.pipe_file("/b/in/a.jsonl", lines(LINES).encode())
    with monkeypatch.context() as patch:
        patch.setattr(Faulty, "find", listed)
        ran = run(*words("score", "faulty://b/in/", f"{tmp_path}/out/"))
    assert (ran.code, "faulty://b/in/a.jsonl: changed while this run" in ran.err) == (2, True)
    assert not list((tmp_path / "out").rglob("*.run.json"))
