"""`self-certainty`: the published script's files, resumed runs, and files that go wrong."""

import json
import re
import shutil

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from jaxscore.cli import model_flags
from jaxscore.scorer import WINDOW, Scorer
from jaxscore.systems import self_certainty
from jaxscore.systems.self_certainty.confidences import read_inputs
from tests.cli.conftest import QWEN, strict
from tests.conftest import CASES, MODELS

ITEMS = [
    {"session_id": "a", "model_input": "Who ran?", "output": [" the cat", " a dog ran"]},
    {"session_id": "b", "model_input": "Who sat?", "output": [" the cat", "", " nobody"]},
]


@pytest.fixture
def folder(tmp_path):
    """A folder with `in.json`."""
    (tmp_path / "in.json").write_text(json.dumps(ITEMS), encoding="utf-8")
    return tmp_path


def flags(folder, *more, name="in.json", model=QWEN):
    return (
        "self-certainty", "--input-file", folder / name, "--model-name", model,
        "--dtype", "float32", "--journal", "off", "--batch-tokens", 1024, *more,
    )  # fmt: skip


def result(folder, name="in-confidence-list.json"):
    return strict((folder / name).read_text(encoding="utf-8"))


@pytest.fixture
def counted(monkeypatch):
    """The ids of all requests that are scored."""
    seen = []
    genuine = Scorer.stream

    def stream(self, requests, **options):
        def watched():
            for request in requests:
                seen.append(request.id)
                yield request

        return genuine(self, watched(), **options)

    monkeypatch.setattr(Scorer, "stream", stream)
    return seen


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("words", "column"),
    [((), "confidence_list"), (("--alignment", "upstream"), "published_alignment")],
)
def test_the_shared_cases_as_a_user_would_run_them(run, tmp_path, name, words, column):
    shutil.copy(CASES / "self_certainty/samples.json", tmp_path / "in.json")
    model = CASES / "models" / name
    code, out, _ = run(*flags(tmp_path, *words, model=model))
    assert code == 0
    want = json.loads((CASES / "expected" / name / "self_certainty.json").read_text())
    given = json.loads((tmp_path / "in.json").read_text())
    for k, (got, item, other) in enumerate(zip(result(tmp_path), given, want, strict=True)):
        assert got["confidence_list"] == pytest.approx(other[column], abs=1e-4)
        assert got["processed_index"] == k
        assert got["confidence_settings"] == {
            "model": str(model),
            "alignment": words[-1] if words else "formula",
            "input_field": "model_input",
            "output_field": "output",
            "dtype": "float32",
        }
        assert {name: got[name] for name in item} == item
    values = [value for item in want for value in item[column]]
    mean = float(re.search(r"mean self-certainty (\S+) nats per token", out)[1])
    assert mean == pytest.approx(sum(values) / len(values), abs=1e-4)


def test_what_is_printed(run, folder):
    code, out, err = run(*flags(folder, "--quiet"))
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("done     2 items, 1 failed in ")
    assert lines[3].startswith("result   mean self-certainty ")
    assert lines[3].endswith(", 4 of 5 outputs")
    path = folder / "in-confidence-list.json"
    reports = [f"         {path.with_suffix('')}_report.{kind}" for kind in ("md", "json", "html")]
    assert lines[4:] == [f"files    {path}", *reports, f"         {path}.run.json"]
    assert err == (
        "failed: item 2 (session_id b): output 2: no tokens, so nothing is predicted\n"
        "1 failed, the others are kept\n"
    )
    first, second = result(folder)
    assert "confidence_errors" not in first
    assert second["confidence_list"][1] is None
    assert len(second["confidence_errors"]) == 1


def test_the_model_is_the_first_generator(run, folder):
    items = [ITEMS[0] | {"generator": QWEN}, ITEMS[0] | {"generator": "another"}]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    code, _, err = run("self-certainty", "--input-file", folder / "in.json")
    assert code == 0
    assert f"1 item with another generator; all are scored with {QWEN}" in err
    first, second = result(folder)
    assert first["confidence_list"] == second["confidence_list"]
    assert first["confidence_settings"]["model"] == QWEN


def test_a_table_gives_what_the_array_gives(run, folder):
    assert run(*flags(folder, "--quiet")).code == 1
    lists = [item["output"] for item in ITEMS]
    for outputs in (lists, [json.dumps(one) for one in lists]):
        columns = {"model_input": [item["model_input"] for item in ITEMS], "output": outputs}
        parquet.write_table(pyarrow.table(columns), folder / "table.parquet")
        code, _, _ = run(*flags(folder, "--quiet", name="table.parquet"))
        assert code == 1
        got = result(folder, "table-confidence-list.json")
        for one, other in zip(got, result(folder), strict=True):
            assert one["output"] == other["output"]
            assert one["confidence_list"] == other["confidence_list"]
        (folder / "table-confidence-list.json").unlink()


def test_a_finished_file_is_left_and_the_model_not_loaded(run, folder, monkeypatch):
    assert run(*flags(folder)).code == 1
    before = (folder / "in-confidence-list.json").read_bytes()
    monkeypatch.setattr(model_flags, "load_scorer", None)
    code, out, err = run(*flags(folder))
    assert code == 1  # the output without tokens is still without a confidence
    assert out.startswith("nothing was left to do in ")
    assert "continuing" in err
    assert (folder / "in-confidence-list.json").read_bytes() == before


def test_a_run_goes_on_where_another_ended(run, folder, counted):
    assert run(*flags(folder)).code == 1
    whole = result(folder)
    assert len(counted) == 4
    path = folder / "in-confidence-list.json"
    for records, wanted in (
        (whole[:1], ["item 2 (session_id b), output 1", "item 2 (session_id b), output 3"]),
        (
            [whole[0] | {"confidence_list": [whole[0]["confidence_list"][0], None]}, whole[1]],
            ["item 1 (session_id a), output 1", "item 1 (session_id a), output 2"],
        ),
    ):
        path.write_text(json.dumps(records), encoding="utf-8")
        counted.clear()
        code, _, err = run(*flags(folder))
        assert code == 1
        assert counted == wanted
        assert f"continuing {path}, which holds {len(records)} item" in err
        for one, other in zip(result(folder), whole, strict=True):
            assert one == {
                **other,
                "confidence_list": pytest.approx(other["confidence_list"], abs=1e-5),
            }


def test_a_published_file_is_continued(run, folder, counted):
    published = [{**ITEMS[0], "confidence_list": [1.0, 2.0], "processed_index": 0}]
    path = folder / "in-confidence-list.json"
    path.write_text(json.dumps(published), encoding="utf-8")
    code, _, err = run(*flags(folder))
    assert code == 1
    assert "1 items do not record how they were computed and are kept unchanged" in err
    assert [one.split(",")[0] for one in counted] == ["item 2 (session_id b)"] * 2
    first, second = result(folder)
    assert first == published[0]
    assert second["confidence_settings"]["model"] == QWEN

    (folder / "in-confidence-list.json.run.json").unlink()  # published files have none
    nan = {**ITEMS[1], "confidence_list": [1.0, float("nan"), 2.0], "processed_index": 1}
    path.write_text(json.dumps([*published, nan]), encoding="utf-8")
    counted.clear()
    assert run(*flags(folder)).code == 1  # NaN is the published 0/0: the empty output
    assert counted == []
    assert result(folder)[1]["confidence_list"] == [1.0, None, 2.0]


def test_files_that_cannot_be_continued(run, folder, monkeypatch):
    assert run(*flags(folder)).code == 1
    path = folder / "in-confidence-list.json"
    whole = result(folder)
    monkeypatch.setattr(model_flags, "load_scorer", None)
    for records, words, parts in (
        (whole, ("--model-name", "other"), [f"computed with model {QWEN}, this run has model oth"]),
        (whole, ("--alignment", "upstream"), ["computed with alignment formula, this run has"]),
        (whole, ("--dtype", "bfloat16"), ["computed with dtype float32, this run has dtype bf"]),
        (whole, ("--revision", "x"), ["computed with revision None, this run has revision x"]),
        ([*whole, whole[0]], (), ["holds 3 items and the input 2, so it is not of this input"]),
        ([whole[1], whole[0]], (), ["none of its items is the one in the same place"]),
        ("not an array", (), ["found a string, expected a JSON array"]),
        ([3], (), ["item 1 is a whole number"]),
    ):
        text = json.dumps(records)
        path.write_text(text, encoding="utf-8")
        code, out, err = run(*flags(folder, *words))
        assert (code, out) == (2, "")
        for part in (str(path), *parts, "another --output", "delete it"):
            assert part in err
        assert path.read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_the_dtype_that_auto_means_is_checked_too(run, folder):
    assert run(*flags(folder, "--dtype", "bfloat16")).code == 1
    path = folder / "in-confidence-list.json"
    text = json.dumps(result(folder)[:1])
    path.write_text(text, encoding="utf-8")
    code, _, err = run(*flags(folder, "--dtype", "auto"))
    assert code == 2
    assert "computed with dtype bfloat16, this run has dtype float32" in err
    assert path.read_text(encoding="utf-8") == text


def test_confidences_of_another_field_are_not_taken_for_this_ones(run, folder, monkeypatch):
    """Every record holds all fields of its item, so what is in them does not tell."""
    items = [ITEMS[0] | {"greedy": [" a fish", " nobody"], "prompt": "Why?"}]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    assert run(*flags(folder)).code == 0
    before = (folder / "in-confidence-list.json").read_bytes()
    monkeypatch.setattr(model_flags, "load_scorer", None)
    for flag, name, found in (
        ("output", "greedy", "output"),
        ("input", "prompt", "model_input"),
    ):
        code, _, err = run(*flags(folder, f"--{flag}-field-name", name))
        assert code == 2
        assert f"computed with {flag}_field {found}, this run has {flag}_field {name}" in err
    assert (folder / "in-confidence-list.json").read_bytes() == before


@pytest.mark.slow
def test_confidences_of_a_cut_input_say_so_and_are_not_mixed_with_whole_ones(run, folder):
    long = ITEMS[0] | {"model_input": "Who ran? " * 400, "output": [" the cat", " a dog"]}
    (folder / "in.json").write_text(json.dumps([long, ITEMS[0]]), encoding="utf-8")
    assert run(*flags(folder)).code == 1
    first, whole = result(folder)
    assert first["confidence_list"] == [None, None]

    code, _, err = run(*flags(folder, "--truncate", "left"))  # fills in what was too long
    assert code == 0
    assert "2 outputs were scored after an input cut at its left" in err
    first, second = result(folder)
    assert first["confidence_settings"]["truncate"] == "left"
    assert second == whole
    assert "truncate" not in whole["confidence_settings"]

    code, _, err = run(*flags(folder))
    assert code == 2
    assert "was computed with truncate left, this run has truncate None" in err


def test_a_changed_item_is_scored_again(run, folder, counted):
    assert run(*flags(folder)).code == 1
    changed = [ITEMS[0] | {"output": [" the cat", " a fish"]}, ITEMS[1]]
    (folder / "in.json").write_text(json.dumps(changed), encoding="utf-8")
    counted.clear()
    code, _, err = run(*flags(folder))
    assert code == 1
    assert "1 of them have changed and are computed again" in err
    assert counted == [f"item 1 (session_id a), output {k}" for k in (1, 2)]
    assert result(folder)[0]["output"] == [" the cat", " a fish"]


def test_an_interrupt_leaves_the_output_and_its_manifest(run, folder, monkeypatch):
    many = [ITEMS[0] | {"model_input": f"Question {k}?"} for k in range(5)]
    (folder / "in.json").write_text(json.dumps(many), encoding="utf-8")
    assert run(*flags(folder, "--limit", 2, "--output", folder / "out.json")).code == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    genuine = Scorer.stream

    def interrupted(self, requests, **options):
        for k, scored in enumerate(genuine(self, requests, **options)):
            if k == 3:
                raise KeyboardInterrupt
            yield scored

    monkeypatch.setattr(Scorer, "stream", interrupted)
    code, out, err = run(*flags(folder, "--output", folder / "out.json"))
    assert (code, out) == (130, "")
    assert "interrupted; unfinished files are left as they were" in err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    monkeypatch.setattr(Scorer, "stream", genuine)
    assert run(*flags(folder, "--output", folder / "out.json")).code == 0
    assert len(result(folder, "out.json")) == 5


def test_an_interrupt_before_anything_is_done(run, folder, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(model_flags, "load_scorer", interrupted)
    ran = run(*flags(folder))
    assert ran == (
        130,
        "",
        "jaxscore self-certainty: interrupted; unfinished files are left as they were\n",
    )
    assert [one.name for one in folder.iterdir()] == ["in.json"]


@pytest.mark.slow
def test_outputs_that_are_too_long(run, folder):
    long = "word " * 40_000  # 200 KB
    items = [
        {"model_input": "Q", "output": [" a", long, " b"]},
        {"model_input": "very " * 1100, "output": [" a b"]},
    ]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    code, out, err = run(*flags(folder, "--quiet"))
    assert code == 1
    assert ", 2 of 4 outputs\n" in out
    assert "failed: item 1: output 2: " in err
    assert "failed: item 2: output 1: " in err
    assert "1024 positions" in err
    code, out, err = run(*flags(folder, "--truncate", "left"))
    assert code == 1
    assert ", 3 of 4 outputs\n" in out
    assert "1 outputs were scored after an input cut at its left" in err


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[]", ["in.json: found no items"]),
        ('[{"output": ["x"]}]', ['no item can be used; item 1: no field "model_input"']),
        ('{"a": 1}\n{"a": 1}\n', ["in.json:2: found more than one JSON value (JSONL?)"]),
        (
            '[{"model_input": "", "output": []}, 3]',
            ["in.json: item 2 is a whole number"],
        ),
    ],
)
def test_unusable_input(run, folder, monkeypatch, text, parts):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    (folder / "in.json").write_text(text, encoding="utf-8")
    code, out, err = run(*flags(folder))
    assert (code, out) == (2, "")
    for part in parts:
        assert part in err
    assert [one.name for one in folder.iterdir()] == ["in.json"]


def test_usage_that_cannot_work(run, folder, monkeypatch):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    name = ("self-certainty", "--input-file", folder / "in.json")
    ran = run(*name)
    assert ran.code == 2
    assert 'item 1 (session_id a) lacks the string "generator" that names the model' in ran.err
    ran = run(*flags(folder, "--output-file", folder / "out.parquet"))
    assert ran.code == 2
    assert "the output is JSON; give a name ending in .json" in ran.err
    ran = run(*flags(folder, "--output-file", folder / "in.json"))
    assert ran.code == 2
    assert f"--output {folder / 'in.json'} is an input of this run" in ran.err
    ran = run(*flags(folder, "--output-file", folder))
    assert ran.code == 2
    assert "found a folder, expected the name of a file" in ran.err
    assert [one.name for one in folder.iterdir()] == ["in.json"]


def test_a_window_holds_some_batches_of_text_and_every_output_of_an_item():
    text = "x" * 3000  # about 1,000 tokens
    given = [{"model_input": text, "output": [text] * 20} for _ in range(100)]
    settings = self_certainty.Settings()
    items = [
        self_certainty.Scorable(read_inputs("", one, settings), [*range(20)], is_missing=True)
        for one in given
    ]
    # 64 batches of 4,096 tokens hold 262 outputs, of which 12 or 13 inputs are shared
    assert 240 < self_certainty.window_size(items, 4096) < 262
    assert self_certainty.window_size(items, 16) == 20
    assert self_certainty.window_size(items, 1 << 22) == WINDOW


@pytest.mark.slow
def test_a_continued_run_has_the_bits_of_one_left_alone(run, folder, monkeypatch, counted):
    """What is missing is planned in the windows of a run from the beginning."""
    monkeypatch.setattr(self_certainty, "window_size", lambda *_: 7)
    draw = np.random.default_rng(3)

    def text(n: int) -> str:
        return " ".join(f"w{k}" for k in draw.integers(0, 99, n))

    items = [{"model_input": text(9), "output": [text(5), text(30), text(60)]} for _ in range(20)]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    path = folder / "in-confidence-list.json"
    assert run(*flags(folder, "--journal", folder / "a")).code == 0
    whole = path.read_bytes()
    path.write_text(json.dumps(json.loads(whole)[:9]), encoding="utf-8")
    counted.clear()
    assert run(*flags(folder, "--journal", folder / "b")).code == 0
    assert path.read_bytes() == whole
    assert counted[0] == "item 8, output 1"  # the fourth window begins in it


def test_batch_size_is_told_as_of_no_effect(run, folder):
    (folder / "in.json").write_text(json.dumps(ITEMS[:1]), encoding="utf-8")
    ran = run(*flags(folder, "--batch_size", 4))
    assert ran.code == 0
    assert "--batch-size 4: of no effect; see --batch-tokens" in ran.err
    (folder / "in-confidence-list.json").unlink()
    assert "--batch-size" not in run(*flags(folder)).err


@pytest.mark.parametrize("outputs", [[], [""]])
def test_a_mean_over_nothing_is_no_number(run, folder, outputs):
    items = [{"model_input": "Q", "output": outputs}]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    ran = run(*flags(folder, "--quiet"))
    assert ran.code == 1
    assert f"result   no confidence: none of {len(outputs)} outputs was scored\n" in ran.out


def test_the_spellings_that_all_commands_have(run, folder):
    words = ("self-certainty", "--input", folder / "in.json", "--output", folder / "out.json")
    words = (*words, "--model", QWEN, "--limit", 1, "--journal", "off")
    assert run(*words, "--input-field", "model_input", "--output-field", "output").code == 0
    assert len(result(folder, "out.json")) == 1
