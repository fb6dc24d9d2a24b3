"""`evaluate`: a system as one call, and what its report can be turned into."""

import dataclasses
import json

import numpy as np
import pytest

from jaxscore import DivergenceScorer, InputError, Report, Request, evaluate
from jaxscore.cli.schema import schema_of
from jaxscore.endpoints import Endpoint
from jaxscore.endpoints.completions import CompletionsEndpoint
from jaxscore.evaluate import compare
from jaxscore.io.json_output import json_text
from jaxscore.shell.system import id_field
from jaxscore.systems import SYSTEMS, declaration
from tests.cli.conftest import QWEN as MODEL
from tests.cli.conftest import run  # noqa: F401
from tests.systems.json_schemas import check, rows_of_config

PATHS = [
    {"id": "q1", "question": "Where was Ada born?", "paths": [["Ada", "born in", "Oslo"], []]},
    {"question": "Who ran?", "paths": [["the cat", "ran"], ["a", "b", "the dog"]]},
]
TEXTS = [
    {"id": "a", "context": "The cat", "continuation": " sat", "gold": 1},
    {"continuation": "The cat ran"},
]
LONG = {"id": "long", "context": " and then" * 2000, "continuation": " x"}


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-qwen2")


def test_it_is_a_function_of_the_package(scorer):
    import jaxscore.evaluate  # importing the module leaves the function in its place

    assert jaxscore.evaluate is evaluate
    assert isinstance(evaluate("score", scorer, TEXTS), Report)


@pytest.mark.parametrize(
    ("system", "settings", "message"),
    [
        ("path", {}, "no system 'path'; is it paths?"),
        ("zzz", {}, "no system 'zzz'; expected one of score, "),
        ("paths", {"boundry": "joint"}, "no setting 'boundry'; is it boundary?"),
        ("paths", {"zzz": 1}, "no setting 'zzz'; expected one of "),
        (
            "paths",
            {"boundary": "middle"},
            "setting boundary is 'middle', expected one of 'separate', ",
        ),
        (
            "score",
            {"boundary": "upstream"},
            "setting boundary is 'upstream', expected one of 'joint', ",
        ),
        ("paths", {"n_bootstrap": 0}, "setting n_bootstrap is 0, expected a whole number of at"),
        ("paths", {"audit_noise": -1}, "setting audit_noise is -1, expected a whole number"),
        ("paths", {"seed": "x"}, "setting seed is 'x', expected a whole number"),
        ("paths", {"seed": True}, "setting seed is True, expected a whole number"),
        (
            "score",
            {"truncate": "right"},
            "setting truncate is 'right', expected one of None, 'left'",
        ),
        ("paths", {"system_prompts": "Be brief."}, "system_prompts is a string, expected a list"),
        ("paths", {"system_prompts": None}, "system_prompts is None, expected a list of strings"),
        ("score", {"summary_only": "no"}, "setting summary_only is 'no', expected True or False"),
        ("score", {"audit_boundary": None}, "setting audit_boundary is None, expected True or"),
        ("score", {"audit_noise": -1}, "setting audit_noise is -1, expected a whole number of"),
        ("score", {"n_requests": 3}, "no setting 'n_requests'"),
        ("score", {"best_n": 9}, "no setting 'best_n'; expected one of against, "),
        ("probsem", {"n_bootstrap": 9}, "no setting 'n_bootstrap'; expected one of truncate, "),
        ("metrics", {"audit_noise": 9}, "no setting 'audit_noise'; expected one of names, seed, "),
        ("metrics", {"truncate": "left"}, "no setting 'truncate'; expected one of names, seed, "),
        ("metrics", {"names": ()}, "setting names is empty, expected some of M, EM, F1, "),
        ("metrics", {"names": "M"}, "setting names is a string, expected a list of strings"),
        ("metrics", {"names": None}, "setting names is None, expected a list of strings"),
        ("metrics", {"seed": "x"}, "setting seed is 'x', expected a whole number"),
        ("paths", {"system_prompts": []}, "system_prompts is (), expected at least one string"),
    ],
)
def test_what_it_refuses(system, settings, message):
    """Before any text is scored, so that no scorer is needed."""
    with pytest.raises(InputError) as caught:
        evaluate(system, None, [], **settings)
    assert message in str(caught.value)


def test_an_item_that_cannot_be_read_is_named(scorer):
    with pytest.raises(InputError, match="item 2"):
        evaluate("paths", scorer, [PATHS[0], 7])


class Server(Endpoint):
    """An endpoint whose server must not be asked."""

    CAPABILITIES = CompletionsEndpoint.CAPABILITIES
    NOT_FOUND = ""

    def __init__(self, **capabilities):
        super().__init__("m", "http://localhost:1")
        self.CAPABILITIES = dataclasses.replace(self.CAPABILITIES, **capabilities)


@pytest.mark.parametrize(
    ("system", "source", "settings", "message"),
    [
        ("score", "demo", {}, "a source that is str 'demo', but score needs a Scorer, as"),
        ("score", Server(scores=False), {}, "a source that is Server, but score needs a Scorer"),
        ("paths", "demo", {}, "a source that is str 'demo', but paths needs a Scorer, as"),
        ("probsem", None, {}, "a source that is NoneType, but probsem needs a Scorer"),
        ("chronologic", "demo", {}, "a source that is str 'demo', but chronologic needs a Scorer"),
        (
            "chronologic",
            Server(labels=False),
            {"mode": "mcq"},
            "a source that is Server, but chronologic",
        ),
        (
            "paths",
            Server(),
            {},
            "boundary separate: an endpoint encodes context and answer as one t",
        ),
        ("probsem", Server(), {"boundary": "upstream"}, "boundary upstream: an endpoint encodes"),
        ("probsem", Server(), {"truncate": "left"}, "truncate: an endpoint takes texts as they"),
        ("paths", Server(), {"audit_noise": 2}, "audit_noise: an endpoint's layouts are its own"),
        ("probsem", Server(), {"audit_noise": 2}, "audit_noise: an endpoint's layouts are its own"),
        ("metrics", Server(), {}, "metrics computes nothing with a model; give None in place of"),
    ],
)
def test_sources_that_a_system_cannot_use(system, source, settings, message):
    with pytest.raises(InputError) as caught:
        evaluate(system, source, SMALL[system], **settings)
    assert message in str(caught.value)


def test_a_report_of_texts(scorer):
    report = evaluate("score", scorer, [*TEXTS, LONG])
    assert [one.get("id") for one in report.items] == ["a", 1, "long"]
    assert (report.items[0]["gold"], report.items[0]["n_scored"]) == (1, 2)
    known = [v for one in report.items for v in one.get("logprob", []) if v == v and v is not None]
    assert report.summary["n_scored"] == len(known)
    assert report.summary["mean_logprob"] == pytest.approx(sum(known) / len(known))
    [failure] = report.failures
    assert failure.name == "long"
    assert "1024 positions" in failure.error
    assert repr(report).startswith("<Report score: 3 items, 1 failed; mean log-probability -")
    assert report.markdown().startswith("# Scores: ")
    assert report._repr_markdown_() == report.markdown()
    assert "n_bootstrap" not in report.settings


def test_texts_in_every_form_that_score_takes(scorer):
    given = ["The cat ran", ("The cat", " sat"), Request("r", "The cat", " ran"), TEXTS[0]]
    report = evaluate("score", scorer, given, summary_only=True)
    want = scorer.score(given)
    assert [one["id"] for one in report.items] == [one.id for one in want] == [0, 1, "r", "a"]
    sums = [one.sum_logprob for one in want]
    assert [one["sum_logprob"] for one in report.items] == pytest.approx(sums, abs=1e-5)
    assert report.items[3]["gold"] == 1


def test_a_frame_of_texts(scorer):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"context": ["The cat"], "continuation": [" sat"], "gold": ["x"]})
    [one] = evaluate("score", scorer, frame).items
    assert (one["id"], one["gold"]) == (0, "x")


def test_texts_that_cannot_be_used_fail_alone(scorer):
    bad = [7, {"id": "b", "context": "a", "gold": 2}, {"continuation": "x", "error": 1, "gold": 3}]
    report = evaluate("score", scorer, [*bad[:2], "The cat ran", bad[2]])
    assert [(one["id"], "error" in one) for one in report.items] == [
        (0, True), ("b", True), (2, False), (3, True),
    ]  # fmt: skip
    assert [list(one)[2:] for one in report.items if "error" in one] == [
        [], [], ["context", "continuation", "gold"],
    ]  # fmt: skip
    first, second, third = report.failures
    assert (first.name, second.name, third.name) == ("0", "b", "3")
    assert "item 0 is of type int; expected a Request, a string" in first.error
    assert "item 1: continuation is missing" in second.error
    assert 'field "error" is one of the results' in third.error
    assert report.summary["n_requests"] == 4
    only = evaluate("score", scorer, bad)
    assert (len(only.failures), only.headline) == (3, "no token was scored")


@pytest.mark.parametrize("given", ["text", ("a", " b"), TEXTS[0], 7])
def test_one_text_is_no_list_of_texts(scorer, given):
    with pytest.raises(InputError, match="expected a list of requests; put it in brackets"):
        evaluate("score", scorer, given)


def test_a_report_of_paths(scorer):
    report = evaluate("paths", scorer, PATHS, boundary="joint", n_bootstrap=20, seed=3)
    gains = [e["absolute_improvement"] for one in report.items for e in one["path_evaluations"]]
    assert report.summary["absolute"].mean == pytest.approx(sum(gains) / 3)
    assert report.settings["boundary"] == "joint"
    assert (report.settings["n_bootstrap"], report.settings["seed"]) == (20, 3)
    assert report.settings["model_type"] == "qwen2"
    assert repr(report) == f"<Report paths: 2 items; {report.headline}>"
    page = report.markdown()
    assert page.startswith("# Path Evaluation: ")
    assert report._repr_markdown_() == page
    assert "| Absolute improvement |" in page


def test_to_dict_is_the_json_file(scorer, run, tmp_path):  # noqa: F811
    """Of the command with the same settings, but for what names the input and the time."""
    given, output = tmp_path / "in.jsonl", tmp_path / "out.json"
    given.write_text("".join(f"{json.dumps(one)}\n" for one in PATHS), encoding="utf-8")
    words = ("--input", given, "--output", output, "--n-bootstrap", 20, "--quiet")
    assert run("paths", "--model", MODEL, *words).code == 0
    file = json.loads((tmp_path / "out_report.json").read_text(encoding="utf-8"))
    report = evaluate("paths", scorer, PATHS, n_bootstrap=20)
    here = json.loads(report.json())
    assert list(here) == list(report.to_dict()) == list(file)
    for name in ("input", "input_sha256", "limit"):
        del file["settings"][name]
    for one in (file, here):
        del one["settings"]["date"]
    assert here == file
    assert json.loads(output.read_text(encoding="utf-8")) == report.items


RESPONSES = {"model_input": "1 + 1 =", "output": ['{"answer": 2}', "```python\nx\n```"]}
RESPONSES |= {"confidence_list": [2.0, float("inf")], "responses": ["a", "b"]}
RECORD = {"q_id": 1, "question": "Where?", "response": "In Oslo.", "label": ["Oslo"]}
SUITE = {"prompt": "A prompt.", "pretext": "True?", "posttext": "Answer:", "queries": ["Yes", "No"],
         "context": [{"text": "It rains.", "expected": 0}]}  # fmt: skip
QUESTION = {"main_question": "Which city?", "question_category": "cloze",
            "answer_strings": ["Oslo", "Vael"], "answer_types": ["ground_truth", "manual"],
            "answer_probabilities": [1.0, 0.0]}  # fmt: skip
SMALL = {
    "score": [*TEXTS, LONG],
    "divergence": [*TEXTS, LONG],
    "choose": [{"context": "The cat", "options": [" sat", " ran"], "gold": 0}, {"id": "x"}],
    "perplexity": ["The cat sat", {"id": "x"}],
    "preferences": [{"prompt": "The cat", "chosen": " sat", "rejected": " ran"}, {"id": "x"}],
    "paths": PATHS,
    "chronologic": [QUESTION] * 5,
    "probsem": SUITE,
    "judge": [RECORD],
    "sample": [{"prompt": "Who ran?"}],
    "metrics": [RECORD],
    **{name: [RESPONSES] for name in ("self-certainty", "usc-generate", "usc-select")},
    **{name: [RESPONSES] for name in ("select", "vote", "livecode-select", "livecode-parse")},
}
WITHOUT_MODEL = {*("select", "vote", "livecode-select", "livecode-parse", "usc-select", "metrics")}


@pytest.mark.parametrize(
    "system", [one for one in SYSTEMS if one not in ("bem", "divergence")]
)  # which have a model of their own, and two
def test_to_dict_is_plain(scorer, system):
    settings = {"n": 2, "max_new_tokens": 2} if system in ("sample", "usc-generate") else {}
    source = None if system in WITHOUT_MODEL else scorer
    if system == "divergence":
        source = DivergenceScorer.from_pretrained(MODEL, MODEL, reference_quantize="int8")
    items = SMALL[system] if system in SMALL else rows_of_config(system)[:2]
    report = evaluate(system, source, items, **settings)
    plain = json.dumps(report.to_dict(), allow_nan=False)
    assert json.loads(plain) == json.loads(report.json())
    assert report.to_dict() == json.loads(plain)
    schema = schema_of(declaration(system))
    for record in report.items:
        check(schema, "record", json.loads(json_text(record)))


def test_records_are_taken_as_they_are_finished(scorer):
    taken = []
    report = evaluate("score", scorer, iter(TEXTS), on_item=taken.append)
    assert [one["id"] for one in taken] == ["a", 1]
    assert report.summary["n_requests"] == 2
    for one, kept in zip(taken, report.items, strict=True):
        assert list(one) == list(kept)
        for name, value in one.items():
            if isinstance(value, np.ndarray):  # with NaN where JSON has null
                np.testing.assert_array_equal(value, np.array(kept[name], value.dtype))
            else:
                assert value == kept[name]


def test_what_the_caller_says_of_the_items_is_among_the_settings(scorer):
    report = evaluate("score", scorer, TEXTS, about={"input": "texts of mine"})
    assert report.settings["input"] == "texts of mine"
    assert "audit_noise" not in report.settings


def test_a_noise_audit(scorer):
    report = evaluate("paths", scorer, PATHS, audit_noise=3)
    noise = report.to_dict()["noise"]
    assert noise["n_requests"] == 3
    assert all("within_noise" in e for one in report.items for e in one["path_evaluations"])
    assert "noise" not in evaluate("paths", scorer, PATHS).to_dict()
    long = {"question": " and" * 1100, "paths": [["a", "b"]]}
    report = evaluate("paths", scorer, [long], audit_noise=3)
    assert report.to_dict()["noise"] is None
    assert repr(report) == "<Report paths: 1 items, 1 failed; no path was scored>"


@pytest.mark.parametrize(
    ("system", "items", "message"),
    [
        ("score", [], "found no requests, expected at least one"),
        ("paths", [], "found no items, expected at least one"),
        ("paths", [{"question": "?", "paths": [[]]}], "found no path in 1 item, expected at"),
        ("judge", [], "found no records, expected at least one"),
    ],
)
def test_nothing_to_evaluate(scorer, system, items, message):
    with pytest.raises(InputError, match=message):
        evaluate(system, scorer, items)


def test_a_frame(scorer):
    pandas = pytest.importorskip("pandas")
    report = evaluate("paths", scorer, PATHS)
    frame = report.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(zip(frame["id"], frame["path"], strict=True)) == [
        ("q1", "Ada -> born in -> Oslo"), (2, "the cat -> ran"), (2, "a -> b -> the dog"),
    ]  # fmt: skip
    assert frame["absolute_improvement"].mean() == pytest.approx(report.summary["absolute"].mean)


def test_a_frame_without_pandas_says_what_to_install(scorer, monkeypatch):
    report = evaluate("paths", scorer, PATHS)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        report.to_frame()


def test_every_system_is_there():
    for name in SYSTEMS:
        declared = declaration(name)
        assert declared.name == name
        assert dataclasses.is_dataclass(declared.settings)
        assert id_field(declared) in (None, "id", "line", "context", "index")


OUTPUTS = [{"model_input": "1 + 1 =", "output": [" 2", " three"]},
           {"model_input": "The sea is", "output": [" blue", " deep"]}]  # fmt: skip


def test_audited_confidences_get_the_noise_floor_after_they_are_given(scorer):
    taken = []
    report = evaluate("self-certainty", scorer, OUTPUTS, on_item=taken.append, audit_noise=4)
    assert not any("noise" in record["confidence_settings"] for record in taken)
    records = report.items
    assert all(record["confidence_settings"].pop("noise") >= 0 for record in records)
    assert json.loads(json_text(taken)) == records


def test_confidences_whose_noise_floor_is_infinite_are_compared(scorer, tmp_path):
    records = json.loads(json_text(evaluate("self-certainty", scorer, OUTPUTS).items))
    for record in records:
        record["confidence_settings"]["noise"] = "Infinity"
    file = tmp_path / "list.json"
    file.write_text(json.dumps(records), encoding="utf-8")
    found = compare(str(file), str(file)).to_dict()
    assert found["pairs"]["compared"] == len(OUTPUTS)
