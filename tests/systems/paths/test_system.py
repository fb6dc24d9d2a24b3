"""Path Evaluation against hand-written numbers: what is asked, averaged and reported."""

import json
import math

import numpy as np
import pytest

from jaxscore import InputError, evaluate
from jaxscore.io.json_output import to_json_value
from jaxscore.shell.items import read_file
from jaxscore.shell.prompts import PLAIN
from jaxscore.systems.paths import (
    COLUMNS,
    SYSTEM,
    Settings,
    averages,
    examples_of,
    name_of,
    path_record,
    probability,
    prompt_pairs,
    read_system_prompts,
    requests_of,
    summarise,
)
from jaxscore.types.results import ScoredRequest, failed


def item(id, *paths, question="?"):
    return {"id": id, "question": question, "paths": [*paths]}


ITEM = item("q1", ["Ada", "born in", "London"], [], ["Oslo"], question="Where was Ada born?")


def requests(items, systems):
    settings = Settings(system_prompts=systems)
    pairs = prompt_pairs(PLAIN, examples_of(settings), settings)
    return [
        request
        for given in items
        for path in given["paths"]
        if path
        for request in requests_of(pairs, given["question"], path, settings)
    ]


def evaluated(items, systems, scored):
    """Records of items from the scores of all answers."""
    left = iter(scored)
    return [
        {
            **given,
            "path_evaluations": [
                path_record(path, [next(left) for _ in 2 * systems], systems)
                for path in given["paths"]
                if path
            ],
        }
        for given in items
    ]


def write(tmp_path, text, name="in.jsonl"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def answer(*probabilities):
    """A result whose tokens have these probabilities."""
    values = np.log(np.array(probabilities, np.float64)).astype(np.float32)
    n = len(values)
    ids = np.arange(n, dtype=np.int32)
    return ScoredRequest("", ids, ["x"] * n, values, values, values, np.zeros(n, bool))


def test_the_prompts_to_the_letter():
    baseline, retrieved = (one.context for one in requests([ITEM], ["Be brief."])[:2])
    assert baseline == "Be brief.\nQuestion: Where was Ada born? Answer:"
    assert retrieved == (
        "Be brief.\nSupport Path: Ada -> born in -> London\nQuestion: Where was Ada born? Answer:"
    )


def test_each_path_is_asked_without_and_with_itself_under_each_prompt():
    asked = requests([ITEM], ["A", "B"])
    assert [(r.context.split("\n")[0], "Support Path" in r.context) for r in asked] == [
        ("A", False), ("A", True), ("B", False), ("B", True),
    ] * 2  # fmt: skip
    assert [r.continuation for r in asked] == ["London"] * 4 + ["Oslo"] * 4


def test_system_prompts_of_a_file(tmp_path):
    file = write(tmp_path, "\ufeffFrom file.\r\n\r\n   \nTwo \n")
    assert read_system_prompts(file) == ["From file.", "Two"]
    with pytest.raises(InputError, match=r"blank\.txt: no system prompt in it, expected one a"):
        read_system_prompts(write(tmp_path, "\n \n", "blank.txt"))


def test_items_of_a_file(tmp_path):
    path = write(
        tmp_path,
        '{"question": "A?", "paths": [["a", "b"], []], "path_evaluations": 1}\n\n'
        '{"id": 7, "question": "B?", "paths": []}\nbroken\n',
    )
    items = read_file(SYSTEM, path, Settings(), limit=2)  # what is beyond the limit is not read
    assert [(entry.id, entry.item.question) for entry in items.entries()] == [(1, "A?"), (7, "B?")]
    assert [item.paths for item in items] == [(["a", "b"], []), ()]
    with pytest.raises(InputError, match=r"in\.jsonl:4: not JSON"):
        read_file(SYSTEM, path, Settings(), limit=3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"paths": []}', "no field \"question\", expected a string; there are 'paths'"),
        ('{"question": "?"}', 'no field "paths", expected a list'),
        ('{"question": "?", "paths": {}}', 'field "paths" is an object, expected a list'),
        ('{"question": "?", "paths": ["a"]}', 'field "paths", entry 1: expected a list of strings'),
        ('{"question": "?", "paths": [["a"], [1]]}', "entry 2: expected a list of strings, found"),
        ('{"id": [], "question": "?", "paths": []}', 'field "id" is a list'),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    path = write(tmp_path, line)
    with pytest.raises(InputError) as problem:
        read_file(SYSTEM, path, Settings())
    assert str(problem.value).startswith(f"{path}:1")
    assert message in str(problem.value)


def test_probability_is_the_geometric_mean():
    assert probability(answer(0.25)) == pytest.approx(0.25)
    assert probability(answer(0.5, 0.125)) == pytest.approx(0.25)


def test_several_system_prompts_are_averaged():
    given = item("q", ["a", "b"])
    scores = [answer(0.1), answer(0.4), answer(0.3), answer(0.2)]
    [result] = evaluated([given], ["A", "B"], scores)
    [one] = result["path_evaluations"]
    assert list(one) == [
        "path", "answer", "baseline_prob", "retrieved_prob", "absolute_improvement",
        "relative_improvement", "prompt_results",
    ]  # fmt: skip
    assert (one["path"], one["answer"]) == (["a", "b"], "b")
    assert one["baseline_prob"] == pytest.approx(0.2)
    assert one["retrieved_prob"] == pytest.approx(0.3)
    assert one["absolute_improvement"] == pytest.approx(0.1)
    assert one["relative_improvement"] == pytest.approx(0.5)
    assert one["prompt_results"] == [
        {"system_prompt": "A", "baseline_prob": pytest.approx(0.1),
         "retrieved_prob": pytest.approx(0.4)},
        {"system_prompt": "B", "baseline_prob": pytest.approx(0.3),
         "retrieved_prob": pytest.approx(0.2)},
    ]  # fmt: skip


def test_an_infinite_relative_improvement_is_outside_the_mean():
    items = [item("q", ["a"], ["b"], ["c"])]
    # exp(-2000) is 0 as a float64, with which nothing can be compared.
    nothing = answer(1.0)
    nothing.logprob[:] = -2000
    scores = [answer(0.1), answer(0.2), nothing, answer(0.5), nothing, nothing]
    results = evaluated(items, ["S"], scores)
    relative = [e["relative_improvement"] for e in results[0]["path_evaluations"]]
    assert relative == [pytest.approx(1.0), math.inf, math.inf]
    written = json.dumps(to_json_value(results), allow_nan=False)
    assert written.count('"relative_improvement": "Infinity"') == 2

    means, _ = summarise(results, 100, 0)
    want = {
        "baseline": (3, 0.1 / 3), "retrieved": (3, 0.7 / 3), "absolute": (3, 0.6 / 3),
        "relative": (1, 1.0),
    }  # fmt: skip
    assert list(means) == list(want) == list(COLUMNS)
    for name, (n, mean) in want.items():
        found = means[name]
        assert (found.n, found.mean) == (n, pytest.approx(mean))
        assert (found.low, found.high) == (None, None)  # one question tells nothing of others
    assert averages(means)[-1] == (
        "Average relative improvement: 1 (over 1 path with a baseline above 0)"
    )


def test_gain_by_length():
    items = [item("q", ["a", "b"], ["c"]), item("r", ["d", "e"], [], ["f"] * 12)]
    pairs = [(0.1, 0.3), (0.5, 0.25), (0.1, 0.5), (0.2, 0.2)]
    results = evaluated(items, ["S"], [answer(p) for pair in pairs for p in pair])
    _, gains = summarise(results, 100, 0)
    assert list(gains) == [1, 2, 12]
    assert [(one.n, one.mean) for one in gains.values()] == [
        (1, pytest.approx(-0.25)), (2, pytest.approx(0.3)), (1, pytest.approx(0.0)),
    ]  # fmt: skip


def test_a_failed_path_has_nulls_and_is_listed():
    items = [item("q", ["a", "b"], ["c"])]
    scores = [
        answer(0.1), answer(0.2), answer(0.1), failed("", "too long"),  # the second prompt's
        answer(0.1), answer(0.4), answer(0.1), answer(0.4),
    ]  # fmt: skip
    results = evaluated(items, ["A", "B"], scores)
    bad, good = results[0]["path_evaluations"]
    assert bad == {
        "path": ["a", "b"], "answer": "b", "baseline_prob": None, "retrieved_prob": None,
        "absolute_improvement": None, "relative_improvement": None, "prompt_results": [],
        "error": "too long",
    }  # fmt: skip
    assert "error" not in good
    means, _ = summarise(results, 100, 0)
    baseline = means["baseline"]
    assert (baseline.n, baseline.mean) == (1, pytest.approx(0.1))


def test_a_failed_path_is_named_on_one_short_line():
    name = name_of("q\x1b[31m", ["\u202ea\nb", "c" * 200_000])
    assert name.startswith(r"q\x1b[31m: \u202ea\nb -> ccc")
    assert name.endswith("c…")
    assert name.isprintable()
    assert len(name) < 150


def test_nothing_scored_has_no_means():
    means, by_length = summarise([{"path_evaluations": []}], 100, 0)
    assert by_length == {}
    assert {(one.n, one.mean, one.low) for one in means.values()} == {(0, None, None)}
    assert averages(means) == ["No path was scored"]


@pytest.mark.parametrize("boundary", sorted(Settings.boundaries))
def test_an_empty_answer_fails_alone(scorers, boundary):
    items = [item("q", ["Ada", ""], ["Ada", "born in", "London"], question="Where?")]
    report = evaluate("paths", scorers("tiny-qwen2"), items, boundary=boundary)
    bad, good = report.items[0]["path_evaluations"]
    assert bad["error"] == "the answer has 0 tokens, so its probability is undefined"
    assert report.failures == [("q: Ada -> ", bad["error"])]
    assert 0 < good["baseline_prob"] < 1
    assert 0 < good["retrieved_prob"] < 1
    assert good["absolute_improvement"] == good["retrieved_prob"] - good["baseline_prob"]


ITEMS = [
    ITEM,
    item("q2", ["Ada", ""], ["Ada", "likes", "Turing", "wrote", "it"], question="Who?"),
    item("q3", ["Red", "or", "blue"], question="Which?"),
    item("q4"),
]


def test_records_of_json_say_what_the_run_says(scorers):
    report = evaluate("paths", scorers("tiny-qwen2"), ITEMS, n_bootstrap=20, audit_noise=4)
    records = json.loads(json.dumps(report.items))
    assert SYSTEM.summarize(records, report.chosen) == report.found
    assert report.summary["absolute"].n == 4
    assert [one["entities"] for one in report.to_dict()["by_length"]] == [1, 3, 5]
    marks = [path.get("within_noise") for one in records for path in one["path_evaluations"]]
    assert [mark is None for mark in marks] == [False, False, True, False, False]


def test_two_runs_together_are_one(scorers):
    scorer = scorers("tiny-qwen2", reproducible=True)
    whole = evaluate("paths", scorer, ITEMS)
    parts = [evaluate("paths", scorer, half) for half in (ITEMS[:2], ITEMS[2:])]
    together = [*parts[0].items, *parts[1].items]
    assert together == whole.items
    assert SYSTEM.summarize(together, whole.chosen) == whole.found


def test_the_page_lists_the_least_gain_first_with_tokens(scorers):
    report = evaluate("paths", scorers("tiny-qwen2"), ITEMS, system_prompts=["A", "B"])
    page = report.document.items
    gains = [float(text) for text in page.columns[4].values[:4]]
    assert gains == sorted(gains)
    assert page.n == 5
    assert page.strips.first.tolist() == [0, 4, 8, 12, 16, 16]
    assert page.strips.titles[:2] == [
        "without the path, system prompt 1",
        "with the path, system prompt 1",
    ]


def test_an_example_without_a_path_is_refused(scorers):
    with pytest.raises(InputError, match="few-shot example 1: no path that is not empty"):
        evaluate("paths", scorers("tiny-qwen2"), ITEMS, fewshot=[item("x", [])])


def test_items_without_a_path_are_refused(scorers):
    with pytest.raises(InputError, match="found no path in 1 item, expected at least one"):
        evaluate("paths", scorers("tiny-qwen2"), [item("x", [])])
