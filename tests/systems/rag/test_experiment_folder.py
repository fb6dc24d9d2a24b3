"""Experiment folders: what is read, what is refused, and what survives a write."""

import json

import pytest

from jaxscore.errors import InputError
from jaxscore.systems.rag import experiment_folder, judge
from tests.conftest import CASES

GOOD = {"q_id": "q1", "response": "Oslo", "label": ["Oslo"], "question": "where"}


def folder(tmp_path, content, name="one", file="eval_dev_out.json"):
    (tmp_path / name).mkdir(exist_ok=True)
    content = content if isinstance(content, str | bytes) else json.dumps(content)
    raw = content if isinstance(content, bytes) else content.encode("utf-8")
    (tmp_path / name / file).write_bytes(raw)
    return tmp_path / name


def rows(place, file="eval_dev_out.json"):
    return json.loads((place / file).read_text(encoding="utf-8"))


def test_the_shared_cases():
    output = experiment_folder.load(CASES / "judge/theirs", "dev")
    assert [item.q_id for item in output.usable] == "q5 q6 q4 q2 q0 q3 q1".split()
    assert output.usable[1].label == ("Osk", "Port Lune")
    assert output.usable[1].question == "where was Sana born"
    assert output.usable[1].ranking_label == [["12"], []]
    assert output.failures == []


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (None, "found null, expected an object"),
        (["q1"], "found a list, expected an object"),
        ({"response": "x", "label": ["y"]}, 'no field "q_id", expected a string or a whole'),
        ({**GOOD, "q_id": None}, 'field "q_id" is null'),
        ({**GOOD, "q_id": True}, 'field "q_id" is true or false'),
        ({**GOOD, "response": None}, 'field "response" is null, expected a string'),
        ({"q_id": "q", "label": ["y"]}, 'no field "response"'),
        ({**GOOD, "label": 3}, 'field "label" is a whole number, expected a list or a string'),
        ({**GOOD, "label": []}, 'field "label" is empty'),
        ({**GOOD, "label": ["Oslo", None]}, 'field "label", entry 2: found null'),
        ({**GOOD, "label": [["Oslo"]]}, 'field "label", entry 1: found a list'),
        ({**GOOD, "response": "\ud83d"}, "a lone surrogate"),
        ({**GOOD, "question": 3}, 'field "question" is a whole number'),
    ],
)
def test_a_bad_record_is_named_and_the_others_stay(tmp_path, row, why):
    place = folder(tmp_path, [GOOD, row, {**GOOD, "q_id": 7}])
    output = experiment_folder.load(place, "dev")
    first, bad, last = judge.SYSTEM.entries(output)
    assert (first.item.q_id, last.item.q_id) == ("q1", 7)
    assert bad.name.startswith(f"{place}/eval_dev_out.json: record 2")
    assert bad.error.startswith(why) or why in bad.error
    output.save({"F1": {0: 0.5, 2: 1.0}}, {"F1": 0.75})
    kept = rows(place)
    assert kept[0] == {**GOOD, "F1": 0.5}
    assert kept[1] == ({**row, "F1": None} if isinstance(row, dict) else row)
    assert kept[2] == {**GOOD, "q_id": 7, "F1": 1.0}


def test_a_missing_question_matters_only_where_asked(tmp_path):
    row = {name: GOOD[name] for name in ("q_id", "response", "label")}
    place = folder(tmp_path, [row])
    assert experiment_folder.load(place, "dev").usable[0].question == ""
    [entry] = judge.SYSTEM.entries(experiment_folder.load(place, "dev"))
    assert entry.error.startswith('no field "question"')


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[]", "the list is empty"),
        ("", "not JSON"),
        ("{}", "found an object, expected a list of records"),
        ("null", "found null"),
        ('{"q_id": "a"}\n{"q_id": "b"}\n', ":2: found more than one JSON value (JSONL?)"),
        ('[{"q_id": ]', ":1: not JSON"),
        (b'["\xff"]', "byte 3 is not UTF-8"),
        ("[" * 100_000, "not usable JSON"),
        ("[" + "[" * 600 + "]" * 601, "not usable JSON"),  # read, but too deep to write
        ("[" + "1" * 5000 + "]", "not usable JSON"),
    ],
)
def test_a_file_that_is_no_list_of_records(tmp_path, content, why):
    place = folder(tmp_path, content)
    with pytest.raises(InputError, match=r"eval_dev_out\.json") as problem:
        experiment_folder.load(place, "dev")
    assert why in str(problem.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"eval_test_out\.json: No such file"):
        experiment_folder.load(folder(tmp_path, [GOOD]), "test")


def test_bom_and_carriage_returns(tmp_path):
    text = json.dumps([{**GOOD, "response": "é"}], ensure_ascii=False, indent=1)
    place = folder(tmp_path, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode("utf-8"))
    assert experiment_folder.load(place, "dev").usable[0].response == "é"


def test_what_is_not_known_stays_in_its_order(tmp_path):
    row = {"z": {"deep": [1, None]}, **GOOD, "LLMeval_x": 0.25, "a": "שלום \ud83d"}
    place = folder(tmp_path, [row])
    folder(tmp_path, {"BEM": 0.5, "EM": 1, "note": "x"}, file="eval_dev_metrics.json")
    experiment_folder.load(place, "dev").save(
        {"EM": {0: 0.0}, "M": {0: 1.0}}, {"EM": 0.0, "M": 1.0}
    )
    assert list(rows(place)[0].items()) == [*row.items(), ("EM", 0.0), ("M", 1.0)]
    metrics = rows(place, "eval_dev_metrics.json")
    assert list(metrics.items()) == [("BEM", 0.5), ("EM", 0.0), ("note", "x"), ("M", 1.0)]


def test_nan_that_others_wrote_is_null_and_ours_is_never_written(tmp_path):
    place = folder(tmp_path, '[{"q_id": 1, "response": "", "label": ["a"], "old": NaN}]')
    folder(tmp_path, '{"LLMeval": NaN}', file="eval_dev_metrics.json")
    experiment_folder.load(place, "dev").save({"x": {0: float("nan")}}, {"x": float("nan")})
    assert rows(place)[0]["old"] is None
    assert rows(place)[0]["x"] is None
    assert rows(place, "eval_dev_metrics.json") == {"LLMeval": None, "x": None}


def test_columns_that_others_wrote_meanwhile_stay(tmp_path):
    place = folder(tmp_path, [GOOD])
    one, other = experiment_folder.load(place, "dev"), experiment_folder.load(place, "dev")
    one.save({"M": {0: 1.0}}, {"M": 1.0})
    other.save({"LLMeval_x": {0: 0.5}}, {"LLMeval_x": 0.5})
    assert rows(place) == [{**GOOD, "M": 1.0, "LLMeval_x": 0.5}]
    assert rows(place, "eval_dev_metrics.json") == {"M": 1.0, "LLMeval_x": 0.5}


@pytest.mark.parametrize("now", [[], [GOOD, GOOD], [{**GOOD, "response": "Rome"}], [None]])
def test_other_records_than_when_the_run_began(tmp_path, now):
    place = folder(tmp_path, [GOOD])
    output = experiment_folder.load(place, "dev")
    folder(tmp_path, now)
    with pytest.raises(InputError, match=r"eval_dev_out\.json"):
        output.save({"M": {0: 1.0}}, {"M": 1.0})
    assert rows(place) == now
    assert not experiment_folder.metrics_path(place, "dev").exists()


@pytest.mark.parametrize("call", [1, 2])
def test_an_interruption_never_leaves_a_mean_of_another_column(tmp_path, monkeypatch, call):
    """Of an old mean that is replaced: null before the column is new, a number after."""
    place = folder(tmp_path, [{**GOOD, "M": 0.0, "EM": 0.0}])
    folder(tmp_path, {"M": 0.0, "EM": 0.25}, file="eval_dev_metrics.json")
    output = experiment_folder.load(place, "dev")
    merge, merged = experiment_folder.merge_metrics, []

    def interrupted(path, means):
        merged.append(means)
        if len(merged) == call:
            raise KeyboardInterrupt
        merge(path, means)

    monkeypatch.setattr(experiment_folder, "merge_metrics", interrupted)
    with pytest.raises(KeyboardInterrupt):
        output.save({"M": {0: 1.0}}, {"M": 1.0})
    assert merged == [{"M": None}, {"M": 1.0}][:call]
    metrics = rows(place, "eval_dev_metrics.json")
    if call == 1:
        assert (rows(place)[0]["M"], metrics) == (0.0, {"M": 0.0, "EM": 0.25})
    else:
        assert (rows(place)[0]["M"], metrics) == (1.0, {"M": None, "EM": 0.25})
    assert sorted(one.name for one in place.iterdir()) == [
        "eval_dev_metrics.json", "eval_dev_out.json",
    ]  # fmt: skip


def test_an_interruption_never_leaves_a_mean_without_its_column(tmp_path, monkeypatch):
    place = folder(tmp_path, [GOOD])
    output = experiment_folder.load(place, "dev")

    def interrupted(path, means):
        assert rows(place) == [{**GOOD, "M": 1.0}]
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment_folder, "merge_metrics", interrupted)
    with pytest.raises(KeyboardInterrupt):
        output.save({"M": {0: 1.0}}, {"M": 1.0})
    assert not experiment_folder.metrics_path(place, "dev").exists()


def test_metrics_that_are_no_object(tmp_path):
    place = folder(tmp_path, "[1]", file="eval_dev_metrics.json")
    with pytest.raises(InputError, match="found a list, expected an object of metrics"):
        experiment_folder.read_metrics(experiment_folder.metrics_path(place, "dev"))


def test_a_sample_has_its_own_file_and_keeps_its_columns(tmp_path):
    given = [{**GOOD, "q_id": k} for k in range(4)]
    place = folder(tmp_path, given)
    experiment_folder.load(place, "dev", sample=2).save({"x_2": {0: 1.0, 1: 0.0}}, {"x_2": 0.5})
    output = experiment_folder.load(place, "dev", sample=2)
    assert [item.q_id for item in output.usable] == [0, 1]
    output.save({"y_2": {1: 1.0}}, {"y_2": 1.0})
    assert rows(place) == given
    want = [{**given[0], "x_2": 1.0, "y_2": None}, {**given[1], "x_2": 0.0, "y_2": 1.0}]
    assert rows(place, "eval_dev_out_2.json") == want
    assert rows(place, "eval_dev_metrics.json") == {"x_2": 0.5, "y_2": 1.0}
    # Other records under the same name: the stored scores do not belong to them.
    changed = [{**GOOD, "q_id": k + 10} for k in range(4)]
    folder(tmp_path, changed)
    experiment_folder.load(place, "dev", sample=2).save({"z_2": {0: 1.0}}, {"z_2": 1.0})
    assert rows(place, "eval_dev_out_2.json")[0] == {**changed[0], "z_2": 1.0}


def test_a_damaged_sample_is_known_before_the_work(tmp_path):
    place = folder(tmp_path, [GOOD])
    folder(tmp_path, "[", file="eval_dev_out_1.json")
    assert experiment_folder.load(place, "dev", sample=2).usable
    with pytest.raises(InputError, match=r"eval_dev_out_1\.json:1: not JSON"):
        experiment_folder.load(place, "dev", sample=1)


def test_folders(tmp_path):
    for name in ("b", "a", "tmp_c"):
        folder(tmp_path, [GOOD], name)
    folder(tmp_path, [GOOD], "other", "eval_test_out.json")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert [path.name for path in experiment_folder.folders(tmp_path, "dev")] == ["a", "b"]
    assert [path.name for path in experiment_folder.folders(tmp_path, "test")] == ["other"]
    with pytest.raises(InputError, match=r"none of its 4 folders holds eval_dev_metrics\.json"):
        experiment_folder.folders(tmp_path, "dev", "metrics")
    with pytest.raises(InputError, match="no such folder"):
        experiment_folder.folders(tmp_path / "nowhere", "dev")
    with pytest.raises(InputError, match="Not a directory"):
        experiment_folder.folders(tmp_path / "file", "dev")


def test_places_that_cannot_be_looked_at_are_told_when_they_are_read(tmp_path, monkeypatch):
    folder(tmp_path, [GOOD], "closed")
    stat = experiment_folder.os.stat

    def denied(path, **options):
        if "closed/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(experiment_folder.os, "stat", denied)
    assert experiment_folder.folders(tmp_path, "dev") == [tmp_path / "closed"]
    monkeypatch.undo()
    split = "x" * 300
    assert experiment_folder.folders(tmp_path, split) == [tmp_path / "closed"]
    with pytest.raises(InputError, match=r"x_out\.json: File name too long"):
        experiment_folder.load(tmp_path / "closed", split)
    with pytest.raises(InputError, match=r"x_metrics\.json: File name too long"):
        experiment_folder.read_metrics(experiment_folder.metrics_path(tmp_path / "closed", split))
