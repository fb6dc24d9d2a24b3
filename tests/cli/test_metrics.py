"""`metrics`: the folders as a user has them, whole and damaged."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from tests.cli.conftest import strict
from tests.conftest import CASES

WANT = json.loads((CASES / "expected/lexical_metrics.json").read_text(encoding="utf-8"))
SIDES = ("ours", "theirs")


@pytest.fixture
def experiments(tmp_path):
    """The shared cases in a fresh folder."""
    return shutil.copytree(CASES / "judge", tmp_path / "experiments")


def read(path):
    return strict(Path(path).read_text(encoding="utf-8"))


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_the_shared_cases(run, experiments):
    before = {side: read(experiments / side / "eval_dev_out.json") for side in SIDES}
    code, out, err = run("metrics", "--experiments_folder", experiments)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith(f"{experiments}/ours: M 0.7143, EM 0.4286, F1 0.6190")
    assert out.splitlines()[0].endswith("over 7 records")
    for side in SIDES:
        got = read(experiments / side / "eval_dev_metrics.json")
        assert got == pytest.approx(WANT[side]["mean"], abs=1e-12)
        assert list(got) == list(WANT[side]["mean"])
        rows = read(experiments / side / "eval_dev_out.json")
        for name, values in WANT[side]["per_item"].items():
            assert [row[name] for row in rows] == pytest.approx(values, abs=1e-12)
        for row, old in zip(rows, before[side], strict=True):
            assert list(row.items())[: len(old)] == list(old.items())
        assert not (experiments / side / "eval_dev_ranking_metrics.json").exists()
        manifest = read(experiments / side / "eval_dev_metrics.json.run.json")
        assert (manifest["command"], manifest["failed"]) == ("metrics", 0)
    assert out.splitlines()[2:4] == [
        "done     14 records in 2 folders, 0 failed",
        "result   EM: means from 0.1429 to 0.4286 over 2 folders",
    ]
    for path in experiments.glob("*/*"):
        assert str(path) in out


def test_one_folder_and_what_is_there_is_skipped(run, experiments):
    place = experiments / "ours"
    write(place / "eval_dev_metrics.json", {"EM": 0.125, "LLMeval_x": 0.5})
    assert run("metrics", "--folder", place).code == 0
    got = read(place / "eval_dev_metrics.json")
    assert list(got)[:3] == ["EM", "LLMeval_x", "M"]
    assert (got["EM"], got["LLMeval_x"]) == (0.125, 0.5)
    assert "EM" not in read(place / "eval_dev_out.json")[0]
    assert not (experiments / "theirs/eval_dev_metrics.json").exists()
    stamp = os.stat(place / "eval_dev_out.json").st_mtime_ns
    code, out, err = run("metrics", "--folder", place)
    assert (code, out) == (
        0,
        "done     0 records in 0 folders, 1 skipped: the metrics exist, 0 failed\n",
    )
    assert "the metrics exist; --force computes them again" in err
    assert os.stat(place / "eval_dev_out.json").st_mtime_ns == stamp
    assert run("metrics", "--input", place, "--quiet")[::2] == (0, "")
    assert run("metrics", "--folder", place, "--force").code == 0
    got = read(place / "eval_dev_metrics.json")
    assert got.pop("LLMeval_x") == 0.5
    assert got == pytest.approx(WANT["ours"]["mean"], abs=1e-12)


def edited(path, **fields):
    rows = read(path)
    rows[0].update(fields)
    write(path, rows)


@pytest.mark.parametrize("known", [None, {"EM": 0.125}])
def test_means_of_other_records_are_refused(run, experiments, known):
    place = experiments / "ours"
    path, means = place / "eval_dev_out.json", place / "eval_dev_metrics.json"
    assert run("metrics", "--experiments-folder", experiments).code == 0
    edited(path, response="something else", label=["another"])
    if known:  # some means are there, and the others are missing
        write(means, known)
    before = means.read_bytes()
    code, out, err = run("metrics", "--folder", place)
    assert (code, out) == (2, "")
    why = f"{means}: the metrics exist and were made of other inputs (the records changed since);"
    assert f"{why} --force computes them again" in err
    code, out, err = run("metrics", "--experiments-folder", experiments)
    assert (code, f"failed: {place}: {why}" in err) == (1, True)
    assert "1 skipped: the metrics exist, 1 failed" in out
    assert means.read_bytes() == before
    assert run("metrics", "--folder", place, "--force").code == 0
    assert read(means)["EM"] < WANT["ours"]["mean"]["EM"]
    assert run("metrics", "--folder", place).code == 0


def test_the_first_records_have_metrics_of_their_own(run, experiments):
    place = experiments / "ours"
    (place / "run.retrieve.top_5.kilt_nq.dev.some.trec").write_text("q0 Q0 12 1 2 run\n")
    rows, means = place / "eval_dev_out.json", place / "eval_dev_metrics.json"
    before = rows.read_bytes()
    code, out, _ = run("metrics", "--folder", place, "--limit", 3)
    assert (code, "over 3 records" in out) == (0, True)
    first = [one[:3] for one in (WANT["ours"]["per_item"]["EM"], WANT["ours"]["per_item"]["F1"])]
    got = read(means)
    assert (got["EM_3"], got["F1_3"]) == pytest.approx([sum(one) / 3 for one in first])
    assert all(name.endswith("_3") for name in got)
    assert [row["EM_3"] for row in read(place / "eval_dev_out_3.json")] == first[0]
    assert rows.read_bytes() == before
    assert not (place / "eval_dev_ranking_metrics.json").exists()
    assert run("metrics", "--folder", place).code == 0  # all records, beside them
    assert read(means)["EM"] == pytest.approx(WANT["ours"]["mean"]["EM"])
    assert read(means)["EM_3"] == got["EM_3"]
    assert "1 skipped" in run("metrics", "--folder", place, "--limit", 3).out
    edited(rows, response="something else")
    code, _, err = run("metrics", "--folder", place, "--limit", 3)
    assert (code, "eval_dev_out_3.json: the metrics exist and were made of" in err) == (2, True)
    assert run("metrics", "--folder", place, "--limit", 3, "--force").code == 0
    assert read(means)["EM_3"] != got["EM_3"]


def test_columns_of_others_are_no_change_of_the_records(run, experiments):
    place = experiments / "ours"
    assert run("metrics", "--folder", place).code == 0
    edited(place / "eval_dev_out.json", LLMeval_x=0.5)
    assert run("metrics", "--folder", place).code == 0
    manifest = place / "eval_dev_metrics.json.run.json"
    write(manifest, "[")
    ran = run("metrics", "--folder", place)
    assert (ran.code, f"{manifest}:1: not JSON" in ran.err) == (2, True)
    write(manifest, '{"command": "metrics", "flags": {}}')  # says nothing
    edited(place / "eval_dev_out.json", response="something else")
    assert run("metrics", "--folder", place).code == 0


def test_ranking_means_of_another_run_are_refused(run, experiments):
    place = experiments / "ours"
    trec = place / "run.retrieve.top_5.kilt_nq.dev.some.trec"
    trec.write_text("q0 Q0 12 1 2 run\n", encoding="utf-8")
    assert run("metrics", "--folder", place).code == 0
    trec.write_text("q0 Q0 13 1 2 run\n", encoding="utf-8")
    code, _, err = run("metrics", "--folder", place)
    means = place / "eval_dev_ranking_metrics.json"
    assert code == 1
    assert f"failed: {place}: ranking: {means}: the metrics exist and were made of other" in err
    assert "(the run changed since)" in err
    assert read(means)["P_1"] == 1.0
    assert run("metrics", "--folder", place, "--force").code == 0
    assert read(means)["P_1"] == 0.0


def test_a_mean_that_is_null_is_not_there(run, experiments):
    """As an interrupted --force leaves it."""
    place = experiments / "ours"
    write(place / "eval_dev_metrics.json", {"EM": None, "M": 0.5, "LLMeval_x": None})
    assert run("metrics", "--folder", place).code == 0
    got = read(place / "eval_dev_metrics.json")
    assert (got["EM"], got["M"]) == (pytest.approx(WANT["ours"]["mean"]["EM"]), 0.5)
    assert list(got)[:3] == ["EM", "M", "LLMeval_x"]
    name = "run.retrieve.top_5.kilt_nq.dev.some.trec"
    (place / name).write_text("q0 Q0 12 1 2 run\n", encoding="utf-8")
    write(place / "eval_dev_ranking_metrics.json", {"P_1": None, "recall_5": 0})
    assert run("metrics", "--folder", place).code == 0
    assert read(place / "eval_dev_ranking_metrics.json") == {"P_1": 1.0, "recall_5": 1.0}


def test_a_split_that_is_no_file_name(run, experiments):
    code, out, err = run("metrics", "--experiments-folder", experiments, "--split", "x" * 300)
    assert (code, out) == (1, "done     0 records in 0 folders, 2 failed\n")
    assert err.count("File name too long") == 2


def test_a_run_gives_ranking_metrics(run, experiments):
    lines = [f"q{k}\tq0\t{'12' if k < 3 else '7'}\t1\t2.5\trun\r\n" for k in range(5)]
    lines += [f"q{k}\tq0\t12\t2\t1.5\trun\r\n" for k in range(3, 5)]
    name = "run.retrieve.top_5.kilt_nq.dev.naver_splade-cocondenser-selfdistil.trec"
    (experiments / "ours" / name).write_bytes("".join(lines).encode())
    code, out, _ = run("metrics", "--experiments-folder", experiments)
    assert code == 0
    path = experiments / "ours/eval_dev_ranking_metrics.json"
    assert read(path) == {"P_1": pytest.approx(3 / 5), "recall_5": 1.0}
    assert f"{experiments}/ours: ranking: P_1 0.6000, recall_5 1.0000 over 5 questions" in out
    assert read(f"{path}.run.json")["failed"] == 0
    write(path, {"P_1": 0, "recall_5": 0, "map": 0.5})
    assert run("metrics", "--folder", experiments / "ours").code == 0
    assert read(path)["P_1"] == 0
    assert run("metrics", "--folder", experiments / "ours", "--force").code == 0
    assert read(path) == {"P_1": pytest.approx(3 / 5), "recall_5": 1.0, "map": 0.5}


def test_a_run_by_other_ids_is_remarked(run, experiments):
    name = "run.retrieve.top_5.kilt_nq.dev.some.trec"
    (experiments / "ours" / name).write_text("q0 Q0 passage-3 1 2 run\n", encoding="utf-8")
    code, _, err = run("metrics", "--folder", experiments / "ours")
    assert code == 0
    assert "none of its documents is a ranking label" in err
    assert read(experiments / "ours/eval_dev_ranking_metrics.json") == {"P_1": 0, "recall_5": 0}


def test_a_run_that_is_of_no_use_leaves_the_lexical_metrics(run, experiments):
    (experiments / "ours/eval_dev_ranking_run.trec").write_text("", encoding="utf-8")
    code, out, err = run("metrics", "--experiments-folder", experiments)
    assert code == 1
    assert err.startswith(f"failed: {experiments}/ours: ranking: {experiments}/ours: the k of")
    assert len(out[: out.index("done")].splitlines()) == 2
    (experiments / "ours/config.yaml").write_text("generation_top_k: 1", encoding="utf-8")
    code, _, err = run("metrics", "--folder", experiments / "ours", "--quiet")
    assert (code, "no question of the run has a record with ranking labels" in err) == (1, True)
    assert not (experiments / "ours/eval_dev_ranking_metrics.json").exists()


def test_bad_records_are_named_and_outside_the_means(run, experiments):
    path = experiments / "ours/eval_dev_out.json"
    rows = read(path)
    rows[1]["response"] = None
    rows[3]["label"] = 3
    rows[5] = None
    write(path, rows)
    code, out, err = run("metrics", "--folder", experiments / "ours")
    assert code == 1
    assert "over 4 records" in out
    assert f"failed: {path}: record 2 (q_id 'q1'): field \"response\" is null" in err
    assert f"failed: {path}: record 4 (q_id 'q3'): field \"label\" is a whole number" in err
    assert f"failed: {path}: record 6: found null" in err
    assert "3 failed, the others are kept" in err
    assert "done     4 records in 1 folder, 3 failed" in out
    assert read(experiments / "ours/eval_dev_metrics.json.run.json")["failed"] == 3
    kept = [WANT["ours"]["per_item"]["F1"][k] for k in (0, 2, 4, 6)]
    got = read(experiments / "ours/eval_dev_metrics.json")
    assert got["F1"] == pytest.approx(sum(kept) / 4)
    rows = read(path)
    assert rows[1]["F1"] is rows[3]["Rouge-L"] is rows[5] is None
    assert rows[0]["F1"] == 1.0


def test_no_usable_record(run, experiments):
    path = experiments / "ours/eval_dev_out.json"
    write(path, [{"q_id": "a", "response": None, "label": []}])
    before = path.read_bytes()
    code, out, err = run("metrics", "--folder", experiments / "ours")
    assert (code, out) == (1, "done     0 records in 0 folders, 2 failed\n")
    assert "no record is left to evaluate" in err
    assert path.read_bytes() == before
    assert not (experiments / "ours/eval_dev_metrics.json").exists()


@pytest.mark.parametrize("content", ["[]", "{}", '{"q_id": "a"}\n{"q_id": "b"}', "", "[1", "null"])
def test_a_bad_file_in_a_folder(run, experiments, content):
    write(experiments / "ours/eval_dev_out.json", content)
    code, _, err = run("metrics", "--folder", experiments / "ours")
    assert code == 2
    assert f"{experiments}/ours/eval_dev_out.json" in err
    code, out, err = run("metrics", "--experiments-folder", experiments)
    assert code == 1
    assert err.startswith(f"failed: {experiments}/ours: ")
    assert out.startswith(f"{experiments}/theirs: M 0.1429")
    assert "M" in read(experiments / "theirs/eval_dev_metrics.json")


def test_a_bad_metrics_file_is_left_alone(run, experiments):
    write(experiments / "ours/eval_dev_metrics.json", "[]")
    before = (experiments / "ours/eval_dev_out.json").read_bytes()
    code, _, err = run("metrics", "--folder", experiments / "ours")
    assert code == 2
    assert "found a list, expected an object of metrics" in err
    assert (experiments / "ours/eval_dev_out.json").read_bytes() == before


def test_strange_texts(run, tmp_path):
    """Combining marks, right to left, 200 KB, repeated ids, empty strings; with a BOM and CRLF."""
    rows = [
        {"q_id": 1, "response": "A\u0301 la carte", "label": ["a\u0301 la carte"]},
        {"q_id": 1, "response": "\u05e9\u05dc\u05d5\u05dd", "label": ["\u05e9\u05dc\u05d5\u05dd"]},
        {"q_id": 1, "response": "x yz " * 40_000, "label": ["yz", ""]},
        {"q_id": 1, "response": "", "label": [""]},
    ]
    text = json.dumps(rows, ensure_ascii=False, indent=1).replace("\n", "\r\n")
    (tmp_path / "eval_dev_out.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    code, out, _ = run("metrics", "--folder", tmp_path)
    assert (code, "over 4 records" in out) == (0, True)
    rows = read(tmp_path / "eval_dev_out.json")
    assert [row["EM"] for row in rows] == [1.0, 1.0, 0.0, 1.0]
    assert [row["M"] for row in rows] == [1.0] * 4
    assert [row["Recall_char3gram"] for row in rows] == [1.0, 1.0, 1.0, 0.0]


def test_nowhere(run, tmp_path):
    code, _, err = run("metrics", "--experiments-folder", tmp_path / "no")
    assert (code, "expected a folder of experiments" in err) == (2, True)
    code, _, err = run("metrics", "--experiments-folder", tmp_path)
    assert (code, "none of its 0 folders holds eval_dev_out.json" in err) == (2, True)
    assert run("metrics", "--folder", tmp_path, "--split", "test").code == 2


def test_from_python():
    rows = read(CASES / "judge/ours/eval_dev_out.json")
    report = evaluate("metrics", None, [*rows, {"q_id": "bad"}])
    assert {k: one.mean for k, one in report.summary.items()} == pytest.approx(WANT["ours"]["mean"])
    em = report.summary["EM"]
    assert em.low < em.mean < em.high
    assert [one["EM"] for one in report.items[:-1]] == WANT["ours"]["per_item"]["EM"]
    assert [name for name, _ in report.failures] == ["record 8"]
    assert report.to_dict()["summary"]["EM"] == dataclasses.asdict(em)
    one = evaluate("metrics", None, rows[:1], names=("EM",)).summary
    assert (list(one), one["EM"].mean, one["EM"].low) == (["EM"], 1.0, None)
    assert evaluate("metrics", None, [{"q_id": "bad"}]).summary["F1"].mean is None
    with pytest.raises(InputError, match="found no records, expected at least one"):
        evaluate("metrics", None, [])
    with pytest.raises(InputError, match="names has 'X', expected some of M, EM"):
        evaluate("metrics", None, rows, names=("X",))
    with pytest.raises(InputError, match="found an object, expected a list of records"):
        evaluate("metrics", None, rows[0])
