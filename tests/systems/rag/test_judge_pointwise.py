"""Verdicts from labels, from whole labels and from text, against formulas written out."""

import json
import math

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.plan.requests import TokenSequence
from jaxscore.systems.rag import experiment_folder, judge_pointwise
from jaxscore.systems.rag.evaluator_file import Prompt, Question, Template, find, load
from jaxscore.systems.rag.judge_model import Judge
from jaxscore.systems.rag.judge_pointwise import UNKNOWN
from jaxscore.systems.rag.records import Record
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import ScoringSettings
from jaxscore.types.results import Generated, LabelScores, failed
from tests.conftest import CASES

NOTHING = Template(())
SEPARATE = {"boundary": "separate", "policies": {"separate": "separate"}}
MULTI = Question(
    Prompt(NOTHING, NOTHING, None, None), {"Correct": 1.0, "Partially correct": 0.5, "Wrong": 0.0}
)


def record(k: int = 0, response: str = "r") -> Record:
    return Record(k, f"q{k}", response, ["a", "it's"], "who", None)


def written(*texts: str) -> list[Generated]:
    return [Generated(k, text, np.zeros(0, np.int32), "eos") for k, text in enumerate(texts)]


def texts(*answers: str) -> list[judge_pointwise.Verdict]:
    records = [record(k) for k in range(len(answers))]
    return judge_pointwise.by_texts(MULTI, records, written(*answers))


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Correct", 1.0),
        (" Partially correct.", 0.5),  # its "correct" is no "Correct"
        ("I say: Wrong\n", 0.0),
        ("correct", UNKNOWN),
        ("", UNKNOWN),
        ("Correct, not Wrong", UNKNOWN),
        ("Correct Correct", 1.0),
        ("Incorrect", UNKNOWN),
        ("InCorrect", 1.0),  # it occurs, which is the published rule
    ],
)
def test_the_one_label_in_a_text(text, score):
    [verdict] = texts(text)
    assert (verdict.score, verdict.known, verdict.text) == (score, score != UNKNOWN, text)


def test_what_names_no_label_or_several_is_outside_the_mean():
    summary = judge_pointwise.summarise(
        MULTI, texts("Correct", "?", "Wrong", "Correct Wrong", "Correct")
    )
    assert summary.mean == pytest.approx(2 / 3)
    assert (summary.n_known, summary.n_none, summary.n_several, summary.n_failed) == (3, 1, 1, 0)
    assert {name: (one.worth, one.n) for name, one in summary.labels.items()} == {
        "Correct": (1.0, 2),
        "Partially correct": (0.5, 0),
        "Wrong": (0.0, 1),
    }
    assert summary.outside is None
    assert all(one.probability is None for one in summary.labels.values())


def test_a_mean_over_nothing():
    """Nothing, and not 0, whether the judge was asked or not."""
    assert judge_pointwise.summarise(MULTI, texts("?", "")).mean is None
    assert judge_pointwise.summarise(MULTI, []).mean is None
    error = Generated(0, "", np.zeros(0, np.int32), None, error="gone")
    [verdict] = judge_pointwise.by_texts(MULTI, [record()], [error])
    assert (verdict.score, verdict.known, verdict.error) == (None, False, "gone")
    summary = judge_pointwise.summarise(MULTI, [verdict])
    assert (summary.mean, summary.n_failed, summary.n_none) == (None, 1, 0)


def label_scores(logprob: list[float]) -> LabelScores:
    weights = np.exp(logprob)
    return LabelScores(0, np.array(logprob), weights / weights.sum(), 1 - float(weights.sum()))


def test_labels_are_weighed_by_their_probability():
    scores = [label_scores([-1.0, -2.0, -3.0]), label_scores([-9.0, -0.1, -9.0])]
    one, other = judge_pointwise.by_labels(MULTI, [record(0), record(1)], scores)
    e = [math.exp(-k) for k in (1, 2, 3)]
    assert one.score == pytest.approx((e[0] + 0.5 * e[1]) / sum(e), abs=1e-15)
    assert one.probability == pytest.approx(
        {"Correct": e[0] / sum(e), "Partially correct": e[1] / sum(e), "Wrong": e[2] / sum(e)}
    )
    assert one.outside == pytest.approx(1 - sum(e))
    summary = judge_pointwise.summarise(MULTI, [one, other])
    assert summary.mean == pytest.approx((one.score + other.score) / 2)
    assert summary.outside == pytest.approx((one.outside + other.outside) / 2)
    assert [(one.n) for one in summary.labels.values()] == [1, 1, 0]
    assert sum(one.probability for one in summary.labels.values()) == pytest.approx(1)


def test_what_could_not_be_scored_keeps_the_others():
    bad = LabelScores(0, np.zeros(0), np.zeros(0), 0.0, "too long")
    one, other = judge_pointwise.by_labels(
        MULTI, [record(0), record(1)], [bad, label_scores([-1.0, -1.0, -1.0])]
    )
    assert (one.score, one.probability, one.error) == (None, {}, "too long")
    assert other.score == pytest.approx(0.5)
    summary = judge_pointwise.summarise(MULTI, [one, other])
    assert (summary.n_known, summary.n_failed, summary.mean) == (1, 1, pytest.approx(0.5))
    whole = judge_pointwise.by_sequences(MULTI, [record()], [failed("0", "too long")] * 3)
    assert (whole[0].score, whole[0].error) == (None, "too long")


def test_the_prompt_holds_the_references_as_python_prints_them():
    question = load(find("default_qa")).pointwise
    [messages] = judge_pointwise.conversations(question, [record(0, "{question}")], system=True)
    assert messages[1]["content"].endswith(
        "Question: who. \nGolden answer: ['a', \"it's\"] \n Generated answer: {question}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-qwen2"])
@pytest.mark.parametrize("name", ["default_qa", "default_multi_qa"])
def test_the_cases(scorers, model, name):
    """Logit and text mode, both folders."""
    every = json.loads((CASES / f"expected/{model}/judge.json").read_text(encoding="utf-8"))
    evaluator = load(find(name))
    question, local = evaluator.pointwise, Judge(scorers(model))
    run = ScoringRun(local.lm, ScoringSettings(), **SEPARATE)
    for side in ("ours", "theirs"):
        want = every[f"{name} {side}"]
        records = experiment_folder.load(CASES / "judge" / side, "dev", question=True).records
        verdicts = local.weigh(evaluator, records, local.label_ids(evaluator), run)
        assert {one.record.q_id: one.score for one in verdicts} == pytest.approx(
            want["scores"], abs=1e-5
        )
        assert judge_pointwise.summarise(question, verdicts).mean == pytest.approx(
            want["mean"], abs=1e-5
        )
        for one in verdicts:
            assert sum(one.probability.values()) == pytest.approx(1)
            assert 0 < one.outside < 1
        asked = judge_pointwise.conversations(question, records, system=local.system)
        verdicts = judge_pointwise.by_texts(
            question, records, local.write(asked, evaluator.max_new_tokens)
        )
        assert {one.record.q_id: one.score for one in verdicts} == want["text_scores"]
        # The published script writes 0 for a mean over nothing.
        known = [score for score in want["text_scores"].values() if score != UNKNOWN]
        mean = judge_pointwise.summarise(question, verdicts).mean
        assert mean == (want["text_mean"] if known else None)


def test_whole_labels_are_the_chain_of_their_tokens(scorers):
    """Against the next-token distributions, one token at a time."""
    scorer = scorers("tiny-gpt2")
    local = Judge(scorer)
    run = ScoringRun(scorer, ScoringSettings(), **SEPARATE)
    evaluator = load(find("default_multi_qa"))
    [verdict] = local.weigh(evaluator, [record()], None, run)
    [prompt] = local.prompts(
        judge_pointwise.conversations(evaluator.pointwise, [record()], system=local.system)
    )
    [context] = scorer.encoder.prompt_ids([prompt])
    sums = []
    for label in evaluator.pointwise.options:
        ids = scorer.encoder.tokenizer.encode(label, add_special_tokens=False)
        assert len(ids) > 1
        text, total = list(context), 0.0
        for id in ids:
            [scores] = scorer.score_sequences(
                [TokenSequence(np.array([*text, id], np.int32), len(text))]
            )
            total += float(scores.logprob[-1])
            text.append(id)
        sums.append(total)
    weights = np.exp(np.array(sums) - max(sums))
    assert list(verdict.probability.values()) == pytest.approx(weights / weights.sum(), abs=1e-5)
    assert verdict.score == pytest.approx((weights @ [1, 0.5, 0]) / weights.sum(), abs=1e-5)
    assert verdict.outside == pytest.approx(1 - np.exp(sums).sum(), abs=1e-6)


def test_labels_that_share_their_first_token_are_named(scorers, tmp_path):
    text = find("default_qa").read_text(encoding="utf-8")
    path = tmp_path / "own.yaml"
    path.write_text(text.replace("'No'", "'Yesterday'"), encoding="utf-8")
    scorer = scorers("tiny-gpt2")
    first = [scorer.encoder.tokenizer.encode(label)[0] for label in ("Yes", "Yesterday")]
    assert first[0] == first[1]  # else the case is none
    with pytest.raises(InputError) as caught:
        Judge(scorer).label_ids(load(path))
    for part in ("own.yaml", "'Yes'", "'Yesterday'", "--label-score sequence"):
        assert part in str(caught.value)
