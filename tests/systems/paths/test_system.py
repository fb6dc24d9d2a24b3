"""Path Evaluation against hand-written numbers: what is asked, averaged and reported."""

import json
import math

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.io.json_output import to_json_value
from jaxscore.systems.entries import read_file, read_objects
from jaxscore.systems.paths import (
    BOUNDARIES,
    COLUMNS,
    SYSTEM,
    Prompts,
    Settings,
    averages,
    cases_of,
    path_record,
    probability,
    read_system_prompts,
    summarise,
)
from jaxscore.systems.prompt_settings import PLAIN
from jaxscore.types.results import ScoredRequest, failed


def item(id, *paths, question="?"):
    return {"id": id, "question": question, "paths": [*paths]}


ITEM = item("q1", ["Ada", "born in", "London"], [], ["Oslo"], question="Where was Ada born?")


def cases(*items):
    return cases_of(read_objects(SYSTEM, items))


def requests(items, systems):
    prompts = Prompts.of(PLAIN, Settings(system_prompts=systems))
    return [request for own in cases(*items) for case in own for request in prompts.requests(case)]


def evaluate(items, systems, scored):
    """Records of items from the scores of all answers."""
    left = iter(scored)
    records = []
    for given, own in zip(items, cases(*items), strict=True):
        paths = [path_record(case, [next(left) for _ in 2 * systems], systems) for case in own]
        records.append({**given, "path_evaluations": paths})
    return records


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
    assert asked[0].id == "q1: Ada -> born in -> London"


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
    found = read_file(SYSTEM, path, 2)  # what lies beyond the limit is not read
    assert [(entry.id, entry.value.question) for entry in found] == [(1, "A?"), (7, "B?")]
    assert [[case.path for case in own] for own in cases_of(found)] == [[["a", "b"]], []]
    with pytest.raises(InputError, match=r"in\.jsonl:4: not JSON"):
        read_file(SYSTEM, path, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"paths": []}', "no field \"question\", expected a string; there are 'paths'"),
        ('{"question": "?"}', 'no field "paths", expected a list'),
        ('{"question": "?", "paths": {}}', 'field "paths" is an object, expected a list'),
        ('{"question": "?", "paths": ["a"]}', 'field "paths", entry 1: expected a list of strings'),
        ('{"question": "?", "paths": [["a"], [1]]}', "entry 2: expected a list of strings, found"),
        ('{"id": null, "question": "?", "paths": []}', 'field "id" is null'),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    path = write(tmp_path, line)
    with pytest.raises(InputError) as problem:
        read_file(SYSTEM, path)
    assert str(problem.value).startswith(f"{path}:1: ")
    assert message in str(problem.value)


def test_probability_is_the_geometric_mean():
    assert probability(answer(0.25)) == pytest.approx(0.25)
    assert probability(answer(0.5, 0.125)) == pytest.approx(0.25)


def test_several_system_prompts_are_averaged():
    given = item("q", ["a", "b"])
    scores = [answer(0.1), answer(0.4), answer(0.3), answer(0.2)]
    [result] = evaluate([given], ["A", "B"], scores)
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
    results = evaluate(items, ["S"], scores)
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
        "Average relative improvement: 1 (over 1 paths with a baseline above 0)"
    )


def test_gain_by_length():
    items = [item("q", ["a", "b"], ["c"]), item("r", ["d", "e"], [], ["f"] * 12)]
    pairs = [(0.1, 0.3), (0.5, 0.25), (0.1, 0.5), (0.2, 0.2)]
    results = evaluate(items, ["S"], [answer(p) for pair in pairs for p in pair])
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
    results = evaluate(items, ["A", "B"], scores)
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
    items = [item("q\x1b[31m", ["\u202ea\nb", "c" * 200_000])]
    [[case]] = cases(*items)
    name = case.name
    assert name.startswith(r"q\x1b[31m: \u202ea\nb -> ccc")
    assert name.endswith("c…")
    assert name.isprintable()
    assert len(name) < 150


def test_nothing_scored_has_no_means():
    means, by_length = summarise([{"path_evaluations": []}], 100, 0)
    assert by_length == {}
    assert {(one.n, one.mean, one.low) for one in means.values()} == {(0, None, None)}
    assert averages(means) == ["No path was scored"]


@pytest.mark.parametrize("boundary", sorted(BOUNDARIES))
def test_an_empty_answer_fails_alone(scorers, boundary):
    items = [item("q", ["Ada", ""], ["Ada", "born in", "London"], question="Where?")]
    policy = BOUNDARIES[boundary]
    scored = scorers("tiny-qwen2").score(requests(items, ["S"]), boundary=policy)
    [result] = evaluate(items, ["S"], scored)
    bad, good = result["path_evaluations"]
    assert bad["error"] == "the answer has no tokens, so it has no probability"
    assert 0 < good["baseline_prob"] < 1
    assert 0 < good["retrieved_prob"] < 1
    assert good["absolute_improvement"] == good["retrieved_prob"] - good["baseline_prob"]
