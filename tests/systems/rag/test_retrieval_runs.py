"""Runs in trec format: which is taken, what k is, and what counts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.errors import InputError
from jaxscore.systems.rag import experiment_folder, retrieval_runs

NAME = "run.retrieve.top_2.kilt_nq.dev.some_retriever.trec"
RUN = "q1\tq0\td1\t1\t3.0\trun\nq1\tq0\td2\t2\t2.0\trun\nq2\tq0\td9\t1\t1.0\trun\n"


def output(tmp_path, *labels):
    """Records q1, q2, … with these ranking labels."""
    rows = [
        {"q_id": f"q{k}", "response": "x", "label": ["x"], "ranking_label": label}
        for k, label in enumerate(labels, start=1)
    ]
    (tmp_path / "eval_dev_out.json").write_text(json.dumps(rows), encoding="utf-8")
    return experiment_folder.load(tmp_path, "dev")


def write(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode("utf-8"))


def evaluate(tmp_path, *labels, stage="ranking"):
    run = retrieval_runs.find(tmp_path, "dev", stage)
    return retrieval_runs.evaluate(run, retrieval_runs.load(run.path), output(tmp_path, *labels))


def test_means_over_questions_with_labels(tmp_path):
    write(tmp_path, NAME, RUN)
    got = evaluate(tmp_path, [["d2"], ["d1", "d7"]], [["d1"], []], [["d3"]])
    # q1: d1 is first; of d1, d2 and d7 two are among the first two. q2: none. q3 has no run.
    assert got.numbers == pytest.approx({"P_1": 0.5, "recall_2": (2 / 3 + 0) / 2})
    assert (got.details["n_questions"], got.details["n_found"], got.failures) == (2, 2, [])


@pytest.mark.parametrize("label", [None, [], [[], []]])
def test_a_question_without_labels_does_not_count(tmp_path, label):
    write(tmp_path, NAME, RUN)
    got = evaluate(tmp_path, label, [["d9"]])
    assert got.numbers == {"P_1": 1.0, "recall_2": 1.0}
    assert (got.details["n_questions"], got.failures) == (1, [])
    got = evaluate(tmp_path, label, label)
    assert (got.numbers, got.details["n_questions"]) == ({}, 0)


def test_whether_there_are_labels(tmp_path):
    assert not retrieval_runs.has_labels(output(tmp_path, None, []))
    assert retrieval_runs.has_labels(output(tmp_path, None, [["d"]]))


def test_ids_may_be_numbers(tmp_path):
    write(tmp_path, NAME, RUN.replace("q2", "7").replace("d9", "12"))
    rows = [{"q_id": 7, "response": "", "label": ["x"], "ranking_label": [[12]]}]
    (tmp_path / "eval_dev_out.json").write_text(json.dumps(rows), encoding="utf-8")
    run = retrieval_runs.find(tmp_path, "dev", "ranking")
    got = retrieval_runs.evaluate(
        run, retrieval_runs.load(run.path), experiment_folder.load(tmp_path, "dev")
    )
    assert got.numbers == {"P_1": 1.0, "recall_2": 1.0}


@pytest.mark.parametrize("label", ["d1", ["d1"], [None], [["d1", None]], {"d1": 1}, [[True]]])
def test_bad_labels_are_named_and_the_others_count(tmp_path, label):
    write(tmp_path, NAME, RUN)
    got = evaluate(tmp_path, label, [["d9"]])
    [(name, why)] = got.failures
    assert "record 1 (q_id 'q1')" in name
    assert why.startswith('field "ranking_label": expected a list of lists of ids, found')
    assert got.details["n_questions"] == 1


def test_a_question_that_comes_twice(tmp_path):
    write(tmp_path, NAME, RUN)
    rows = [
        {"q_id": q_id, "response": "", "label": ["x"], "ranking_label": label}
        for q_id, label in [("q1", [["d1"]]), ("q2", [["d9"]]), ("q2", [["d9"]]), ("q1", [["d2"]])]
    ]
    (tmp_path / "eval_dev_out.json").write_text(json.dumps(rows), encoding="utf-8")
    run = retrieval_runs.find(tmp_path, "dev", "ranking")
    got = retrieval_runs.evaluate(
        run, retrieval_runs.load(run.path), experiment_folder.load(tmp_path, "dev")
    )
    assert got.details["n_questions"] == 1  # q2, once; what q1's labels are is not known
    [(name, why)] = got.failures
    assert "record 4 (q_id 'q1')" in name
    assert "other ranking labels" in why


def test_the_higher_score_of_a_document_that_comes_twice(tmp_path):
    lines = "q1 Q0 d1 1 5 r\nq1 Q0 d2 2 4 r\nq1 Q0 d1 3 1 r\nq1 Q0 d3 4 2 r\nq1 Q0 d3 5 9 r\n"
    write(tmp_path, NAME, lines)
    assert retrieval_runs.load(tmp_path / NAME).documents == {
        "q1": {"d1": 5.0, "d2": 4.0, "d3": 9.0}
    }


@pytest.mark.parametrize("change", ["bom", "crlf", "blanks", "blank lines"])
def test_ways_to_write_a_run(tmp_path, change):
    text = {
        "bom": "\ufeff" + RUN,
        "crlf": RUN.replace("\n", "\r\n"),
        "blanks": RUN.replace("\t", "  "),
        "blank lines": RUN.replace("\n", "\n\n"),
    }[change]
    write(tmp_path, NAME, text)
    assert retrieval_runs.load(tmp_path / NAME).documents == {
        "q1": {"d1": 3.0, "d2": 2.0},
        "q2": {"d9": 1.0},
    }


def test_ids_with_blanks_between_tabs(tmp_path):
    write(tmp_path, NAME, "a question\tq0\ta page\t1\t1\trun\n")
    assert retrieval_runs.load(tmp_path / NAME).documents == {"a question": {"a page": 1.0}}


@pytest.mark.parametrize(
    "line", ["q1\tq0\td3\t3\thigh\trun", "q1\tq0\td3\t3\tnan\trun", "q1\tq0\td3", "q1 {}", "q1"]
)
def test_a_bad_line_takes_its_question_out(tmp_path, line):
    write(tmp_path, NAME, RUN + line.replace(" ", "\t") + "\n")
    got = evaluate(tmp_path, [["d1"]], [["d9"]])
    assert got.details["n_questions"] == 1
    [(name, why)] = got.failures
    assert name == f"{tmp_path / NAME}:4"
    assert why.startswith("expected question, Q0, document, rank, score and run")


def test_the_run_by_ids_of_labels_comes_first_and_names_give_k(tmp_path):
    write(tmp_path, NAME, RUN)
    write(tmp_path, "run.retrieve.top_9.kilt_nq.test.some.trec", RUN)
    assert retrieval_runs.find(tmp_path, "dev", "ranking").path.name == NAME
    assert retrieval_runs.find(tmp_path, "test", "ranking").k == 9
    write(tmp_path, "eval_dev_ranking_run.trec", RUN)
    found = retrieval_runs.find(tmp_path, "dev", "ranking")
    assert (found.path.name, found.k) == ("eval_dev_ranking_run.trec", 2)
    assert found.names == ("P_1", "recall_2")
    assert found.metrics_path == tmp_path / "eval_dev_ranking_metrics.json"
    assert retrieval_runs.find(tmp_path, "dev", "reranking") is None


def test_the_config_says_what_k_is(tmp_path):
    write(tmp_path, NAME, RUN)
    write(tmp_path, "config.yaml", "generation_top_k: 5\nretrieve_top_k: 50\n")
    assert retrieval_runs.find(tmp_path, "dev", "ranking").k == 5


def test_a_reranked_run(tmp_path):
    name = "run.rerank.retriever.top_50.a.rerank.top_3.kilt_nq.kilt-100w.dev.b.trec"
    write(tmp_path, name, RUN)
    found = retrieval_runs.find(tmp_path, "dev", "reranking")
    assert (found.path.name, found.k) == (name, 3)
    assert found.metrics_path.name == "eval_dev_reranking_metrics.json"


def test_no_k_and_several_runs(tmp_path):
    write(tmp_path, "eval_dev_ranking_run.trec", RUN)
    with pytest.raises(InputError, match="the k of recall_k is unknown"):
        retrieval_runs.find(tmp_path, "dev", "ranking")
    (tmp_path / "eval_dev_ranking_run.trec").unlink()
    write(tmp_path, NAME, RUN)
    write(tmp_path, NAME.replace("top_2", "top_3"), RUN)
    with pytest.raises(InputError, match="2 runs of one stage"):
        retrieval_runs.find(tmp_path, "dev", "ranking")


def test_a_split_with_signs_of_a_pattern(tmp_path):
    write(tmp_path, "run.retrieve.top_2.q.dev.x.trec", RUN)
    assert retrieval_runs.find(tmp_path, "d*v", "ranking") is None
    assert retrieval_runs.find(tmp_path, "[d]ev", "ranking") is None


SCORES = st.dictionaries(
    st.sampled_from(["a", "B", "10", "9", "zz", "z", "é", "😀"]),
    st.sampled_from([0.0, -1.5, 1.0, 1.00000001, 2.0, 1e39, 2e39]),
    min_size=1,
)


def test_ties_go_to_the_higher_id():
    assert retrieval_runs.ranked({"a": 1.0, "z": 1.0, "Z": 1.0, "é": 1.0}) == ["é", "z", "a", "Z"]
    assert retrieval_runs.ranked({"9": 1.0, "10": 1.0}) == ["9", "10"]  # as text


def test_scores_are_single_precision():
    assert retrieval_runs.ranked({"a": 1.00000001, "z": 1.0}) == ["z", "a"]
    assert retrieval_runs.ranked({"a": 1.000001, "z": 1.0}) == ["a", "z"]
    assert retrieval_runs.ranked({"z": 1e39, "a": 2e39}) == ["z", "a"]  # both infinite


def test_precision_and_recall():
    found = ["a", "b", "c"]
    assert retrieval_runs.precision(found, {"a", "c"}, 1) == 1.0
    assert retrieval_runs.precision(found, {"a", "c"}, 4) == 0.5
    assert retrieval_runs.recall(found, {"a", "c", "x"}, 2) == pytest.approx(1 / 3)
    assert retrieval_runs.recall(found, {"a", "c", "x"}, 9) == pytest.approx(2 / 3)


@given(SCORES, st.sets(st.sampled_from(["a", "B", "9", "é"]), min_size=1), st.integers(1, 9))
def test_against_places_counted_one_by_one(scores, relevant, k):
    def before(one, other):
        limit = 3.4028235677973366e38  # from here a double rounds to infinity in single precision
        sizes = [2.0**200 if scores[x] >= limit else round(scores[x], 7) for x in (one, other)]
        return (sizes[0], one.encode()) > (sizes[1], other.encode())

    place = {x: sum(before(y, x) for y in scores if y != x) for x in scores}
    assert [place[x] for x in retrieval_runs.ranked(scores)] == list(range(len(scores)))
    top = [x for x in scores if place[x] < k]
    hits = len(relevant.intersection(top))
    assert retrieval_runs.precision(retrieval_runs.ranked(scores), relevant, k) == hits / k
    assert retrieval_runs.recall(retrieval_runs.ranked(scores), relevant, k) == hits / len(relevant)
