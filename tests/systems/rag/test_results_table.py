"""The table of all experiments."""

import json

import pytest

from jaxscore.errors import InputError
from jaxscore.systems.rag import results_table
from jaxscore.systems.rag.results_table import COUNTS
from tests.systems.rag.test_experiment_config import FULL


def experiment(tmp_path, name, metrics, config=None, **others):
    place = tmp_path / name
    place.mkdir()
    text = metrics if isinstance(metrics, str) else json.dumps(metrics)
    (place / "eval_dev_metrics.json").write_text(text, encoding="utf-8")
    if config is not None:
        (place / "config.yaml").write_text(config, encoding="utf-8")
    for file, value in others.items():
        (place / f"eval_dev_{file}.json").write_text(json.dumps(value), encoding="utf-8")


def test_all_that_the_files_say(tmp_path):
    experiment(
        tmp_path, "b", {"M": 0.5, "LLMeval_x": 0.25}, FULL,
        ranking_metrics={"P_1": 0.75, "recall_5": 1.0}, reranking_metrics={"P_1": 1.0},
        generation_time={"Generation time": "00:01:02.345"},
    )  # fmt: skip
    experiment(tmp_path, "a", {"M": 1.0, "EM": None})
    experiment(tmp_path, "tmp_c", {"M": 0.0})
    rows, failures = results_table.load(tmp_path, "dev")
    assert failures == []
    table = results_table.table(rows, "all", "Generator")
    assert table[0] == {
        "exp_folder": "b", "query_dataset": "KILTNQ",
        "doc_dataset": "modules.processors.kilt.KILT100w", "Generator": "meta/llama",
        "Retriever": "naver/splade-v3", "Reranker": "naver/deberta", "r_top": 50, "rr_top": 20,
        "gen_time": "00:01:02.345", "M": 0.5, "P_1": 0.75, "recall_5": 1.0,
        "rerank_P_1": 1.0, "LLMeval_x": 0.25,
    }  # fmt: skip
    assert [row["exp_folder"] for row in table] == ["b", "a"]  # without a generator last
    assert list(table[0])[:9] == list(results_table.SETTINGS)
    assert [row["M"] for row in results_table.table(rows, "all", "exp_folder")] == [1.0, 0.5]
    assert [row["M"] for row in results_table.table(rows, "all", "M")] == [0.5, 1.0]


def test_the_published_tables(tmp_path):
    metrics = {"M": 0.5, "EM": 0.1, "F1": 0.2, "Precision": 0.3, "Recall": 0.4, "Rouge-1": 0.6}
    experiment(tmp_path, "b", metrics | {"Rouge-2": 0.7, "Rouge-L": 0.8, "LLMeval": 0.9}, FULL)
    experiment(tmp_path, "a", metrics)
    rows, _ = results_table.load(tmp_path, "dev")
    simple = results_table.table(rows, "simple", "Generator")
    assert list(simple[0].items()) == [
        ("exp_folder", "b"), ("query_dataset", "KILTNQ"), ("Generator", "llama"),
        ("Retriever", "splade-v3"), ("Reranker", "deberta"), ("M", 0.5), ("EM", 0.1), ("R", 0.4),
        ("Rg-L", 0.8), ("LLMeval", 0.9),
    ]  # fmt: skip
    assert simple[1]["Generator"] == "none"
    assert list(results_table.table(rows, "tiny", "M")[0]) == [
        *list(simple[0])[:5], "M", "LLMeval",
    ]  # fmt: skip
    full = results_table.table(rows, "full", "Generator")[0]
    assert " ".join(full) == (  # without P_1, gen_time and BEM, which no folder has
        "exp_folder Retriever Reranker Generator query_dataset r_top rr_top "
        "M EM F1 P R Rg-1 Rg-2 Rg-L LLMeval"
    )
    assert (full["Generator"], full["P"], full["Rg-2"]) == ("meta/llama", 0.3, 0.7)


def test_what_cannot_be_read_is_named_and_the_others_stay(tmp_path):
    experiment(tmp_path, "a", "{", FULL)
    experiment(tmp_path, "b", {"M": 1.0}, "a: [")
    experiment(tmp_path, "c", {"M": {"x": 1}, "exp_folder": "taken", "\ud83d": "\ud83d"})
    rows, failures = results_table.load(tmp_path, "dev")
    assert [(row["exp_folder"], row.get("M")) for row in rows] == [
        ("a", None), ("b", 1.0), ("c", None),
    ]  # fmt: skip
    assert rows[0]["Generator"] == "meta/llama"
    assert rows[2]["?"] == "?"
    assert [name.rsplit("/", 1)[1] for name, _ in failures] == ["a", "b", "c"]
    assert "metric 'M' is not a number" in failures[2][1]


def test_a_list_of_values_is_their_mean(tmp_path):
    experiment(tmp_path, "a", {"M": [1.0, 0.0, 1, 1.0], "EM": [], "F1": [1e308, 1e308]})
    rows, failures = results_table.load(tmp_path, "dev")
    assert rows[0]["M"] == 0.75
    assert [why.split(" is")[0] for _, why in failures] == ["metric 'EM'", "metric 'F1'"]


def test_no_such_column(tmp_path):
    experiment(tmp_path, "a", {"M": 1.0})
    rows, _ = results_table.load(tmp_path, "dev")
    with pytest.raises(InputError, match=r"--sort F1: no such column; there are .*, M$"):
        results_table.table(rows, "all", "F1")


def test_text_and_numbers_in_one_column(tmp_path):
    for name, value in (("a", "Infinity"), ("b", 2.0), ("c", None), ("d", 1)):
        experiment(tmp_path, name, {"M": value})
    rows, _ = results_table.load(tmp_path, "dev")
    found = [row["exp_folder"] for row in results_table.table(rows, "all", "M")]
    assert found == ["a", "d", "b", "c"]


def judged(folder, metric, kind, *known):
    """A judge's report, with these of its records known."""
    rows = [{"index": k, "q_id": k, "known": one} for k, one in enumerate(known)]
    value = {"metric": metric, "kind": kind, "settings": {}, "records": rows}
    (folder / f"eval_dev_judge_{metric}.json").write_text(json.dumps(value), encoding="utf-8")


def counts(rows):
    return [tuple(row[name] for name in COUNTS) for row in rows]


def test_how_many_records_a_folder_has(tmp_path):
    good = {"q_id": 1, "response": "a", "label": ["a"]}
    for name in ("bare", "judged", "records", "report"):
        metrics = {"x": 0.5, "y": 0.5} if name in ("judged", "report") else {}
        experiment(tmp_path, name, {"M": 0.5, **metrics})
    (tmp_path / "records/eval_dev_out.json").write_text(json.dumps([good, {}]), encoding="utf-8")
    (tmp_path / "judged/eval_dev_out.json").write_text(
        json.dumps([good, good, good, good, {}]), encoding="utf-8"
    )
    judged(tmp_path / "judged", "x", "text", True, None, False, True)
    judged(tmp_path / "judged", "y", "logits", True, None, True, None)
    judged(tmp_path / "report", "x", "logits", True, None)
    rows, failures = results_table.load(tmp_path, "dev")
    assert failures == []
    assert counts(rows) == [(None, None, None), (5, 3, 1), (2, 1, None), (2, 1, None)]
    assert list(results_table.table(rows, "tiny", "M")[0])[-3:] == list(COUNTS)
    rows = [row for row in rows if row["exp_folder"] == "bare"]
    assert list(results_table.table(rows, "all", "M")[0]) == ["exp_folder", "M"]


def test_judges_whose_metric_is_not_shown_are_not_counted(tmp_path):
    """No column of theirs is there to which the counts would belong."""
    good = {"q_id": 1, "response": "a", "label": ["a"]}
    empty = {"j_win": 0.0, "j_tie": 0.0, "j_lose": 0.0}
    experiment(tmp_path, "a", {"M": 0.5, "LLMeval": 1.0, "x": 0.5, "z": None, **empty})
    (tmp_path / "a/eval_dev_out.json").write_text(json.dumps([good] * 4), encoding="utf-8")
    judged(tmp_path / "a", "LLMeval", "logits", True, None, True, True)
    judged(tmp_path / "a", "x", "text", True, True, True, False)
    judged(tmp_path / "a", "z", "text", False, False, None, None)
    judged(tmp_path / "a", "j", "pairwise", False, False, False, False)
    for form, want in (("all", (4, 1, 1)), ("tiny", (4, 1, None)), ("full", (4, 1, None))):
        rows, _ = results_table.load(tmp_path, "dev", form)
        assert counts(rows) == [want]
    metrics = tmp_path / "a/eval_dev_metrics.json"
    metrics.write_text(json.dumps({"M": 0.5, **empty, "j_win": 100.0}), encoding="utf-8")
    rows, _ = results_table.load(tmp_path, "dev")
    assert counts(rows) == [(4, 0, 4)]
    assert {"j_win", "n_unread"} <= {*results_table.table(rows, "all", "M")[0]}
    metrics.write_text(json.dumps({"M": 0.5, **empty}), encoding="utf-8")
    rows, _ = results_table.load(tmp_path, "dev")
    assert list(results_table.table(rows, "all", "M")[0]) == [
        "exp_folder", "n_records", "n_failed", "M",
    ]  # fmt: skip


def test_a_mean_over_nothing_is_blank(tmp_path):
    """As published scripts and earlier reports have it: 0 for what no answer says."""
    rates = {"j_VS_t_win": 0.0, "j_VS_t_tie": 0, "j_VS_t_lose": 0.0}
    experiment(tmp_path, "a", {**rates, "x": 0.0, "y": 0.0, "z_win": 0.0})
    judged(tmp_path / "a", "x", "text", False, False)
    judged(tmp_path / "a", "y", "text", False, True)
    experiment(tmp_path, "b", {**rates, "j_VS_t_lose": 100.0})
    (one, other), _ = results_table.load(tmp_path, "dev")
    assert [one[name] for name in (*rates, "x", "y", "z_win")] == [None] * 4 + [0.0, 0.0]
    assert [other[name] for name in rates] == [0.0, 0, 100.0]


def test_equal_rows_are_ordered_by_folder_whatever_the_format(tmp_path):
    for name, model in (("c", "x/a"), ("b", "a/z"), ("a", "x/a"), ("d", None)):
        config = None if model is None else f"generator: {{init_args: {{model_name: {model}}}}}"
        experiment(tmp_path, name, {"M": 0.5}, config)
    rows, _ = results_table.load(tmp_path, "dev")
    for form in results_table.FORMATS:
        for order in (rows, rows[::-1]):
            found = results_table.table(order, form, "Generator")
            assert [row["exp_folder"] for row in found] == ["b", "a", "c", "d"]
