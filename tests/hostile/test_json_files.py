"""Every reader of JSON or JSONL: a value, or a refusal that names the file; nothing else."""

import dataclasses
import functools
import io
import json

import pytest
from hypothesis import given

from jaxscore.errors import UNPRINTABLE, InputError
from jaxscore.evaluate import evaluate
from jaxscore.io.items import read_items, read_previous_output
from jaxscore.io.json_output import json_text, write_array
from jaxscore.shell.items import read_file, with_examples
from jaxscore.shell.prompts import read_example_rows
from jaxscore.systems.choose import SYSTEM as CHOOSE
from jaxscore.systems.chronologic import SYSTEM as CHRONOLOGIC
from jaxscore.systems.chronologic import answer_scores
from jaxscore.systems.paths import SYSTEM as PATHS_SYSTEM
from jaxscore.systems.paths import name_of
from jaxscore.systems.perplexity import SYSTEM as PERPLEXITY
from jaxscore.systems.probsem import SYSTEM as PROBSEM
from jaxscore.systems.probsem import repeated_queries
from jaxscore.systems.probsem.suite import load as load_suite
from jaxscore.systems.rag import experiment_folder, results_table, retrieval_runs
from jaxscore.systems.sample import SYSTEM as SAMPLING
from jaxscore.systems.score import SYSTEM as SCORE
from jaxscore.systems.selection.select_and_vote import SELECT
from jaxscore.systems.self_certainty import SYSTEM as SELF_CERTAINTY
from jaxscore.systems.self_certainty import right_responses
from jaxscore.systems.self_certainty.confidences import read_inputs
from jaxscore.systems.usc_generate import SYSTEM as USC_GENERATE
from tests.hostile.inputs import FILES, HOSTILE, contents, fields, outcome, put, refused, values
from tests.systems.checked import checked_items, recall, run

SAMPLE = {
    "id": "s1",
    "input": "2 + 2?",
    "output": ['{"answer": "4"}', "so it is 5"],
    "confidence_list": [0.5, 0.25],
    "generator": "Llama-3.1",
    "dataset": "crux",
    "responses": ["4", "5"],
    "chat_history": ["2 + 2?"],
}
RECORD = {
    "q_id": "q1",
    "response": "In Oslo.",
    "label": ["Oslo"],
    "question": "Where?",
    "ranking_label": [["d1"]],
    "M": 0.5,
}
SUITE = {
    "pretext": "A",
    "posttext": "B",
    "queries": ["true", "false"],
    "context": [{"text": "C", "expected": 0}],
}
QUESTION = {
    "metadata_frame": "It is 1901.",
    "main_question": "Who reigns?",
    "question_category": "reign",
    "answer_strings": ["Edward", "George"],
    "answer_types": ["right", "wrong"],
    "answer_probabilities": [1.0, 0.0],
}
PATHS = {"id": 7, "question": "Where?", "paths": [["a", "in", "b"], []]}
CHOICE = {"id": "a", "context": "The", "options": [" cat", " dog"], "gold": 0}
PROMPT = {"id": "a", "messages": [{"role": "user", "content": "Where?"}]}
SAMPLED = {
    "output": ["a", "b"],
    "finish": ["eos", "eos"],
    "model_input": "Where?",
    "configs": SAMPLING.drawn_with(SAMPLING.settings(n=2)),
    **PROMPT,
}
PLAIN = {"id": "a", "context": "The", "continuation": " cat"}


def rag(read):
    """A reader of the files of an experiment: `eval_dev_out.json` and `eval_dev_metrics.json`."""
    return lambda path: read(path.parent)


def shots(system):
    """A reader of few-shot examples, as commands read them."""

    def read(path):
        return with_examples(system, system.settings(fewshot=read_example_rows(path))).drawn()

    return read


def items_of(system, **options):
    """A reader of a file's items, as commands read them."""
    return lambda path: read_file(system, path, system.settings(**options))


# name of the file, what is good in it, the reader
WHOLE = {
    "items": ("in.json", [SAMPLE], read_items),
    "previous": ("in.json", [SAMPLE], read_previous_output),
    "select": ("in.json", [SAMPLE], items_of(SELECT)),
    "usc-generate": ("in.json", [SAMPLE], items_of(USC_GENERATE, n=2)),
    "self-certainty": ("in.json", [SAMPLE], items_of(SELF_CERTAINTY)),
    "records": (
        "eval_dev_out.json",
        [RECORD],
        rag(lambda place: experiment_folder.load(place, "dev")),
    ),
    "metrics": ("eval_dev_metrics.json", {"M": 0.5}, experiment_folder.read_metrics),
    "suite": ("p_t.json", SUITE, lambda path: load_suite(path.parent, "p", "t")),
}
LINES = {
    "score": (PLAIN, items_of(SCORE)),
    "paths": (PATHS, items_of(PATHS_SYSTEM)),
    "chronologic": (QUESTION, items_of(CHRONOLOGIC)),
    "examples of score": (PLAIN, shots(SCORE)),
    "examples of paths": (PATHS, shots(PATHS_SYSTEM)),
    "examples of chronologic": (QUESTION, shots(CHRONOLOGIC)),
    "examples of probsem": ({"text": "A", "expected": 0}, shots(PROBSEM)),
    "choose": (CHOICE, items_of(CHOOSE)),
    "perplexity": ({"id": "a", "text": "The cat"}, items_of(PERPLEXITY)),
    "sample": (PROMPT, items_of(SAMPLING, n=1)),
}


@pytest.fixture
def folder(tmp_path):
    """An experiments folder's one experiment, with what a suite needs beside it."""
    place = tmp_path / "one"
    place.mkdir()
    put(place / "p.txt", b"prompt\r\n")
    return place


def written(report):
    """Write the output and the report of a run that was not refused."""
    if not isinstance(report, InputError):
        write_array(io.StringIO(), report.items)
        report.json().encode()


def read_whatever_it_holds(path, good, read):
    """A value or a message, of bytes made from good ones and of some that are known to be bad."""

    @HOSTILE
    @given(contents(json.dumps(good).encode()))
    def check(content):
        outcome(lambda: read(put(path, content)), path)

    check()
    for content in FILES:
        outcome(lambda content=content: read(put(path, content)), path)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_files(name, folder):
    file, good, read = WHOLE[name]
    path = folder / file
    read_whatever_it_holds(path, good, read)


@pytest.mark.parametrize("name", LINES)
def test_files_of_lines(name, tmp_path):
    good, read = LINES[name]
    path = tmp_path / "in.jsonl"
    read_whatever_it_holds(path, good, read)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize(
    "line",
    [b"\xff", b"{", b"[]", b"[" * 5000, b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"a": "\0"}',
     b'{"a": ' + b"[" * 150 + b"]" * 150 + b"}", b'{"a": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_the_line_is_named(name, line, tmp_path):
    good, read = LINES[name]
    path = put(tmp_path / "in.jsonl", b"\r\n".join([json.dumps(good).encode(), b"", line, b""]))
    assert refused(lambda: read(path)).startswith(f"{path}:3: ")


@HOSTILE
@given(fields(PROMPT), fields(SAMPLED))
def test_any_values_in_a_prompts_fields_and_in_an_earlier_record(prompt, record):
    """It is read, or fails by name; what an earlier run has left is taken, or refused."""
    items, _ = checked_items("sample", [PROMPT, prompt], n=2)
    assert not any(UNPRINTABLE.search(entry.name) for entry in items.entries())
    made = {"model": record.get("generator")}
    outcome(lambda: recall("sample", [PROMPT, prompt], [record], made, n=2))
    written(outcome(lambda: run("sample", None, [PROMPT], [record], n=2)))


def test_whole_earlier_records_are_taken_without_a_model():
    """The random records of the other tests are damaged versions of these."""
    [sampled] = run("sample", None, [PROMPT], [SAMPLED], n=2).items
    assert {name: sampled[name] for name in SAMPLED} == SAMPLED
    [scored] = run("self-certainty", None, [SAMPLE], [SAMPLE]).items
    assert scored["confidence_list"] == SAMPLE["confidence_list"]


@HOSTILE
@given(values)
def test_any_value_as_gold(value):
    """The choice is right, or wrong, or has no gold, or fails by name; and all can be written."""
    items = [{**SAMPLE, "g": [True, False]}, {**SAMPLE, "g": value}]
    for system in ("select", "vote", "usc-select", "livecode-select"):
        report = evaluate(system, None, [items[0], *items], gold="g", n_bootstrap=2)
        assert {one["right"] for one in report.items} <= {True, False, None}
        report.markdown().encode()
        report.json().encode()
        write_array(io.StringIO(), map(dict, report.items))
    inputs = [read_inputs("an item", item, SELF_CERTAINTY.settings()) for item in items]
    found = right_responses.grade_responses(inputs, "g")
    assert found.graded[0].right == [True, False]


@HOSTILE
@given(fields(SAMPLE))
def test_any_values_in_an_items_fields(tmp_path, item):
    """What is read is decided, or fails by name, and can be written."""
    path = put(tmp_path / "in.json", json.dumps([SAMPLE, item]).encode())
    entries = items_of(SELECT)(path).entries()
    assert not any(UNPRINTABLE.search(entry.name) for entry in entries)
    for system, settings in (
        ("select", {"best_n": 2}),
        ("livecode-select", {"best_n": 2}),
        ("livecode-parse", {}),
        ("usc-select", {"dataset_type": "close"}),
    ):
        report = evaluate(system, None, read_items(path), **settings)
        assert len(report.items) == 2
        write_array(io.StringIO(), report.items)
    previous = outcome(lambda: read_previous_output(path))
    assert previous[0] == SAMPLE
    for system, settings in (("self-certainty", {}), ("usc-generate", {"n": 2})):
        outcome(functools.partial(recall, system, path, previous, {"model": "m"}, **settings))
        assert checked_items(system, path, **settings)[0].n_all == 2
        written(outcome(functools.partial(run, system, None, path, previous, **settings)))


@HOSTILE
@given(fields(RECORD), fields({"M": 0.5, "EM": 0.25}))
def test_any_values_in_a_records_fields(tmp_path, record, metrics):
    place = tmp_path / "one"
    place.mkdir(exist_ok=True)
    put(place / "eval_dev_out.json", json.dumps([RECORD, record]).encode())
    put(place / "eval_dev_metrics.json", json.dumps(metrics).encode())
    output = experiment_folder.load(place, "dev")
    assert len(output.usable) + len(output.failures) == 2
    output.save({"X": {0: 0.5}}, {"X": 0.5})
    scored = retrieval_runs.Scored({"q1": {"d1": 1.0}}, [], set())
    run = retrieval_runs.Run(place / "run", 5, place / "means.json")
    retrieval_runs.evaluate(run, scored, output)
    rows, _ = results_table.load(tmp_path, "dev")
    assert results_table.table(rows, "all", "X")[0]["X"] == 0.5


@HOSTILE
@given(fields(QUESTION), fields(PATHS), fields(PLAIN))
def test_any_values_in_a_lines_fields(tmp_path, question, paths, request):
    path = tmp_path / "in.jsonl"

    def lines(*items):
        return put(path, b"".join(json.dumps(item).encode() + b"\n" for item in items))

    got = outcome(lambda: items_of(CHRONOLOGIC)(lines(QUESTION, question)), path)
    if not isinstance(got, InputError):
        assert got.n_all == 2
        json_text([dataclasses.asdict(entry) for entry in got.entries()])
        for item in got:
            answer_scores.requests(item)
            record = {"answers": item.answer_strings, "truth": item.answer_probabilities}
            answer_scores.repeated_answers([record], "answers")
            answer_scores.without_right_answer([record])
    got = outcome(lambda: items_of(PATHS_SYSTEM)(lines(PATHS, paths)), f"{path}:2")
    if not isinstance(got, InputError):
        names = [name_of(one.id, shown) for one in got.entries() for shown in one.item.paths]
        assert not any(map(UNPRINTABLE.search, names))
    outcome(lambda: items_of(SCORE)(lines(PLAIN, request)), f"{path}:2")


@HOSTILE
@given(fields(SUITE), fields(SUITE["context"][0]))
def test_any_values_in_a_suites_fields(folder, suite, context):
    if isinstance(suite.get("context"), list):
        suite["context"] = [*suite["context"], context]
    path = put(folder / "p_t.json", json.dumps(suite).encode())
    got = outcome(lambda: load_suite(folder, "p", "t"), path)
    if not isinstance(got, InputError):
        repeated_queries([{"queries": got.queries}])


def test_many_equal_texts_take_no_longer_than_many_others(tmp_path):
    """30,000 answers and queries: compared each with each they would take minutes."""
    many = [str(k) for k in range(30_000)]
    question = QUESTION | {
        "answer_strings": [*many, many[-1]],
        "answer_types": None,
        "answer_probabilities": [0] * 30_001,
    }
    path = put(tmp_path / "in.jsonl", json.dumps(question).encode())
    [item] = items_of(CHRONOLOGIC)(path)
    record = {"line": 1, "answers": item.answer_strings}
    assert answer_scores.repeated_answers([record], "answers") == [
        "line 1: answer '29999' occurs more than once"
    ]
    put(tmp_path / "p.txt", b"")
    put(tmp_path / "p_t.json", json.dumps(SUITE | {"queries": [*many, "7"]}).encode())
    [warning] = repeated_queries([{"queries": load_suite(tmp_path, "p", "t").queries}])
    assert warning.startswith("query '7' occurs 2 times")
