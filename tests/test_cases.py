"""Expected values that were computed with PyTorch, on three checkpoints."""

import json

import numpy as np
import pytest

from jaxscore import Request, evaluate
from jaxscore.io.json_input import read_jsonl
from jaxscore.systems.paths import read_system_prompts
from tests.conftest import CASES, MODELS
from tests.releases import flax_classes

pytestmark = [pytest.mark.numeric, pytest.mark.lines]


def expected(model, name):
    return json.loads((CASES / "expected" / model / f"{name}.json").read_text(encoding="utf-8"))


def variants():
    flax = pytest.param("tiny-gpt2", "transformers", marks=flax_classes)
    return [*((name, "native") for name in MODELS), flax]


@pytest.mark.parametrize(("name", "implementation"), variants())
def test_every_token_agrees_with_pytorch(scorers, name, implementation):
    want = [item for item in expected(name, "tokens") if item.get("logprob")]
    assert len(want) >= 4
    scored = scorers(name, implementation=implementation).score(
        Request(k, "", item["text"]) for k, item in enumerate(want)
    )
    for got, item in zip(scored, want, strict=True):
        n = len(item["logprob"])
        assert got.token_ids[-n:].tolist() == item["ids"][1:]
        for column in ("logprob", "entropy", "self_certainty"):
            np.testing.assert_allclose(getattr(got, column)[-n:], item[column], atol=1e-4, rtol=0)
        is_greedy = np.array(item["greedy"]) == item["ids"][1:]
        assert got.greedy[-n:].tolist() == is_greedy.tolist()


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(("name", "implementation"), variants())
@pytest.mark.parametrize("boundary", ["separate", "upstream"])
def test_paths_agree_with_the_published_script(scorers, name, implementation, boundary):
    results = evaluate(
        "paths",
        scorers(name, implementation=implementation),
        [item for _, item in read_jsonl(CASES / "paths/input.jsonl")],
        system_prompts=read_system_prompts(CASES / "paths/system_prompts.txt"),
        boundary=boundary,
    ).items
    want = expected(name, "paths")
    assert [r["id"] for r in results] == [w["id"] for w in want]
    for result, item in zip(results, want, strict=True):
        pairs = zip(result["path_evaluations"], item["path_evaluations"], strict=True)
        for got, path in pairs:
            assert got["path"] == path["path"]
            source = path["reencoded"] if boundary == "upstream" else path
            for column in ("baseline_prob", "retrieved_prob"):
                assert got[column] == pytest.approx(source[column], rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("policy", "column"), [("joint", "joint"), ("skip_context", "upstream")])
def test_chronologic_boundaries(scorers, name, policy, column):
    lines = (CASES / "chronologic/questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    for question, want in zip(questions, expected(name, "chronologic")["questions"], strict=True):
        context = f"{question['metadata_frame']}\nQUESTION: {question['main_question']}\nANSWER: "
        scored = scorers(name).score(
            [Request(k, context, text) for k, text in enumerate(question["answer_strings"])],
            boundary=policy,
        )
        assert [s.n_tokens for s in scored] == want[f"n_{column}"]
        means = [s.mean_logprob if s.n_scored else 0.0 for s in scored]
        assert means == pytest.approx(want[column], abs=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("suite", ["A", "B", "C"])
@pytest.mark.parametrize(("policy", "column"), [("exact", "exact"), ("last_query", "upstream")])
def test_probsem_boundaries(scorers, name, suite, policy, column):
    prompt = (CASES / "probsem/towns.txt").read_text(encoding="utf-8")
    test = json.loads((CASES / f"probsem/towns_{suite}.json").read_text(encoding="utf-8"))
    want = expected(name, "probsem")[f"{suite} normalize=True temperature=1.0"][column]
    for context, values in zip(test["context"], want, strict=True):
        parts = (prompt, test.get("pretext"), context["text"], test.get("posttext"))
        before = "\n".join(part for part in parts if part) + "\n"
        scored = scorers(name).score(
            [Request(k, before, query) for k, query in enumerate(test["queries"])],
            boundary=policy,
        )
        got = [s.mean_logprob for s in scored]
        assert got == pytest.approx(values["logp"], abs=1e-4)
