"""Systems after a system prompt, examples and a template: the scores of texts written by hand."""

import copy
import json
import re
from math import log

import numpy as np
import pytest

from jaxscore import InputError, evaluate
from jaxscore.io.json_output import to_json_value
from jaxscore.shell.items import with_examples
from jaxscore.systems import chronologic
from jaxscore.systems.paths import DEFAULT_SYSTEM_PROMPT
from jaxscore.text.chat_template import IN_REASONING
from tests.conftest import CASES

pytestmark = pytest.mark.numeric

ITEMS = [
    {"id": "a", "context": "The cat", "continuation": " sat", "tag": 1},
    {"id": "b", "context": "The dog", "continuation": " ran"},
    {"id": "c", "continuation": "The end"},
]
SHOTS = [
    {"context": "The cow", "continuation": " ate"},
    {"context": "The dog", "continuation": " ran away"},
]
QUESTIONS = [
    {"metadata_frame": "It is 1901.", "main_question": "Who reigns?",
     "answer_strings": ["Edward", "George"], "answer_types": ["ground_truth", "manual"],
     "answer_probabilities": [1.0, 0.0]},
    {"main_question": "Where?", "answer_strings": ["there", "here"],
     "answer_types": ["manual", "ground_truth"], "answer_probabilities": [0.0, 1.0]},
]  # fmt: skip
PATHS = [
    {"id": "q1", "question": "Where was Ada born?", "paths": [["Ada", "born in", "Oslo"]]},
    {"id": "q2", "question": "Who ran?", "paths": [[], ["the cat", "ran"]]},
]
CHOICES = [
    {"context": "Where is Oslo?\nAnswer:", "options": [" Norway", " Spain"], "gold": 0},
    {"context": "Where is Rome?\nAnswer:", "options": [" Norway", " Italy"], "gold": 1},
]
SUITE = {
    "prompt": "Rules.",
    "pretext": "True?",
    "context": [{"text": "It rains.", "expected": 1}, {"text": "It snows.", "expected": 0}],
    "queries": ["True", "False"],
}
ONE_LEFT_OUT = (
    "fewshot: items that are one of the examples, and are scored after the others alone: 1"
)


@pytest.fixture(params=["tiny-llama3", "tiny-qwen2"])
def scorer(request, scorers):
    return scorers(request.param)


def chat(scorer, *turns, system=None):
    """A conversation that ends where the assistant's turn begins."""
    messages = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    messages += [{"role": roles[k % 2], "content": one} for k, one in enumerate(turns)]
    tokenizer = scorer.encoder.tokenizer
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def sums(scorer, pairs, boundary):
    return [one.sum_logprob for one in scorer.score(pairs, boundary=boundary)]


def means(scorer, pairs, boundary):
    return [one.mean_logprob for one in scorer.score(pairs, boundary=boundary)]


def close(values):
    return pytest.approx(values, abs=1e-4)


@pytest.mark.slow_after(1)
def test_score_in_plain_text(scorer):
    report = evaluate("score", scorer, ITEMS, system_prompt="Animals.", fewshot=SHOTS)
    one = ("Animals.\n\nThe cow ate\n\nThe dog ran away\n\nThe cat", " sat")
    two = ("Animals.\n\nThe cow ate\n\nThe dog", " ran")  # it is the second example
    a, b, c = report.items
    assert [a["sum_logprob"], b["sum_logprob"]] == close(sums(scorer, [one, two], "joint"))
    assert (a["id"], a["tag"], a["n_tokens"] > 0) == ("a", 1, True)
    # Without a context the empty line before it would be scored.
    assert "its context is blank" in c["error"]
    assert [failure.name for failure in report.failures] == ["c"]
    assert report.remarks == [ONE_LEFT_OUT]
    apart = evaluate("score", scorer, ITEMS, fewshot=SHOTS, boundary="separate")
    last = ("The cow ate\n\nThe dog ran away\n\n", "The end")
    assert apart.items[2]["sum_logprob"] == close(sums(scorer, [last], "separate")[0])


@pytest.mark.slow_after(1)
def test_score_in_a_conversation(scorer):
    report = evaluate(
        "score", scorer, ITEMS, apply_chat_template=True, system_prompt="Animals.", fewshot=SHOTS
    )
    system = {"system": "Animals."}
    pairs = [
        (chat(scorer, "The cow", "ate", "The dog", "ran away", "The cat", **system), "sat"),
        (chat(scorer, "The cow", "ate", "The dog", **system), "ran"),
        (chat(scorer, "The cow", "ate", "The dog", "ran away", "", **system), "The end"),
    ]
    got = [one["sum_logprob"] for one in report.items]
    assert got == close(sums(scorer, pairs, "exact"))
    assert report.failures == []
    for one, (_, text) in zip(report.items, pairs, strict=True):
        ids = scorer.encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert one["token_ids"] == ids


@pytest.mark.slow_after(1)
def test_which_texts_without_context_see_an_example(scorer):
    """Without contexts it is the continuation that tells them apart."""
    items = [{"continuation": "The cat"}, {"continuation": "The dog"}]
    settings = {"apply_chat_template": True, "fewshot": items[:1]}
    report = evaluate("score", scorer, items, **settings)
    pairs = [(chat(scorer, ""), "The cat"), (chat(scorer, "", "The cat", ""), "The dog")]
    assert [one["sum_logprob"] for one in report.items] == close(sums(scorer, pairs, "exact"))
    assert ONE_LEFT_OUT in report.remarks


@pytest.mark.slow_after(1)
def test_the_default_changes_nothing(scorer):
    for system, items in (("score", ITEMS), ("paths", PATHS), ("probsem", SUITE)):
        one = evaluate(system, scorer, items)
        other = evaluate(system, scorer, items, num_fewshot=0, system_prompt=None)
        assert to_json_value(one.items) == to_json_value(other.items)
        for report in (one, other):
            assert not {"fewshot_drawn", "apply_chat_template"} & report.settings.keys()
            assert "num_fewshot" not in report.settings


@pytest.mark.slow_after(1, of_each="chatted")
@pytest.mark.parametrize("chatted", [False, True])
def test_paths(scorer, chatted):
    shots = [{"question": "Who sat?", "paths": [[], ["the cow", "sat"]]}, PATHS[1]]
    report = evaluate("paths", scorer, PATHS, fewshot=shots, apply_chat_template=chatted)
    sat = ("Question: Who sat? Answer:", "Support Path: the cow -> sat\nQuestion: Who sat? Answer:")
    ran = ("Question: Who ran? Answer:", "Support Path: the cat -> ran\nQuestion: Who ran? Answer:")
    ada = (
        "Question: Where was Ada born? Answer:",
        "Support Path: Ada -> born in -> Oslo\nQuestion: Where was Ada born? Answer:",
    )
    pairs = []
    for k in (0, 1):  # without paths, with paths
        if chatted:
            system = {"system": DEFAULT_SYSTEM_PROMPT}
            pairs.append((chat(scorer, sat[k], "sat", ran[k], "ran", ada[k], **system), "Oslo"))
            pairs.append((chat(scorer, sat[k], "sat", ran[k], **system), "ran"))
        else:
            start = f"{DEFAULT_SYSTEM_PROMPT}\n{sat[k]}sat\n\n"
            pairs.append((f"{start}{ran[k]}ran\n\n{ada[k]}", "Oslo"))
            pairs.append((f"{start}{ran[k]}", "ran"))
    want = means(scorer, pairs, "separate")
    got = [one["path_evaluations"][0] for one in report.items]
    assert [log(one["baseline_prob"]) for one in got] == close(want[:2])
    assert [log(one["retrieved_prob"]) for one in got] == close(want[2:])
    assert ONE_LEFT_OUT in report.remarks


@pytest.mark.slow_after(1)
def test_paths_with_several_system_prompts_or_one(scorer):
    one = evaluate("paths", scorer, PATHS, system_prompt="A", apply_chat_template=True)
    other = evaluate(
        "paths", scorer, PATHS, system_prompts=["A", "B", ""], apply_chat_template=True
    )
    assert one.settings["system_prompts"] == ["A"]
    for a, b in zip(one.items, other.items, strict=True):
        [first], three = (x["path_evaluations"][0]["prompt_results"] for x in (a, b))
        assert first["baseline_prob"] == pytest.approx(three[0]["baseline_prob"], rel=1e-4)
        assert len({result["baseline_prob"] for result in three}) == 3
    with pytest.raises(InputError, match="system_prompt and system_prompts: both say"):
        evaluate("paths", scorer, PATHS, system_prompt="A", system_prompts=["B"])


@pytest.mark.slow_after(1, of_each="chatted")
@pytest.mark.parametrize("chatted", [False, True])
def test_chronologic(scorer, chatted):
    shots = [QUESTIONS[1], {**QUESTIONS[0], "main_question": "Who was it?"}]
    settings = {"mode": "full", "fewshot": shots, "system_prompt": "S", "num_fewshot": 2}
    report = evaluate("chronologic", scorer, QUESTIONS, apply_chat_template=chatted, **settings)
    where = ("QUESTION: Where?\nANSWER: ", "here")
    who = ("It is 1901.\nQUESTION: Who was it?\nANSWER: ", "Edward")
    shown = [[where, who][k - 1] for k in report.settings["fewshot_drawn"]]
    first = "It is 1901.\nQUESTION: Who reigns?\nANSWER: "
    if chatted:
        turns = [text.rstrip() for pair in shown for text in pair]
        contexts = [chat(scorer, *turns, first.rstrip(), system="S")]
        contexts.append(chat(scorer, who[0].rstrip(), who[1], where[0].rstrip(), system="S"))
    else:
        contexts = ["S\n\n" + "".join(f"{a}{b}\n\n" for a, b in shown) + first]
        contexts.append(f"S\n\n{who[0]}{who[1]}\n\n{where[0]}")
    pairs = [
        (context, answer)
        for context, question in zip(contexts, QUESTIONS, strict=True)
        for answer in question["answer_strings"]
    ]
    got = [score for one in report.items for score in one["scores"]]
    assert got == close(means(scorer, pairs, "exact" if chatted else "joint"))
    assert ONE_LEFT_OUT in report.remarks


def quiz_prompts(scorer, chatted):
    """QUESTIONS with letters, after the second of them as an example."""
    ask = "Respond only with the letter of the correct answer:"
    where = f"QUESTION: Where?\nA) there\nB) here\n{ask}"
    who = f"It is 1901.\nQUESTION: Who reigns?\nA) Edward\nB) George\n{ask}"
    if chatted:
        return [chat(scorer, where, "B", who), chat(scorer, where)]
    return [f"{where} B\n\n{who}", where]


@pytest.mark.slow
@pytest.mark.parametrize("chatted", [False, True])
def test_chronologic_with_letters(scorers, chatted):
    scorer = scorers("tiny-qwen2")
    settings = {"mode": "mcq", "shuffle": False, "include_negation": True, "fewshot": QUESTIONS[1:]}
    report = evaluate("chronologic", scorer, QUESTIONS, apply_chat_template=chatted, **settings)
    want = quiz_prompts(scorer, chatted)
    assert [one["prompt"] for one in report.items] == want
    [written] = scorer.generate(want[:1], max_new_tokens=10)
    assert report.items[0]["response"] == written.text


@pytest.mark.slow_after(1, of_each="chatted")
@pytest.mark.parametrize("chatted", [False, True])
def test_probsem(scorer, chatted):
    shots = [{"text": "It hails.", "expected": 0}, {"text": "It snows.", "expected": 0}]
    report = evaluate("probsem", scorer, SUITE, fewshot=shots, apply_chat_template=chatted)
    if chatted:
        hails = ("Rules.\nTrue?\nIt hails.", "True")
        contexts = [
            chat(scorer, *hails, "True?\nIt snows.", "True", "True?\nIt rains."),
            chat(scorer, *hails, "True?\nIt snows."),
        ]
    else:
        start = "Rules.\nTrue?\nIt hails.\nTrue\n\n"
        contexts = [f"{start}True?\nIt snows.\nTrue\n\nTrue?\nIt rains.\n"]
        contexts.append(f"{start}True?\nIt snows.\n")
    pairs = [(context, query) for context in contexts for query in SUITE["queries"]]
    got = [logp for one in report.items for logp in one["logp"]]
    assert got == close(sums(scorer, pairs, "exact"))
    assert ONE_LEFT_OUT in report.remarks


@pytest.mark.parametrize(
    ("system", "items", "shot", "message"),
    [
        ("score", ITEMS, {"context": "x"}, 'few-shot example 1: no field "continuation"'),
        ("score", ITEMS, 7, "few-shot example 1: found a whole number, expected an object"),
        ("paths", PATHS, {"question": "?", "paths": [[]]}, "few-shot example 1: no path that is"),
        ("paths", PATHS, {"paths": []}, 'few-shot example 1: no field "question"'),
        ("chronologic", QUESTIONS, {"main_question": "?"}, "few-shot example 1: no field"),
        ("chronologic", QUESTIONS, {**QUESTIONS[0], "answer_probabilities": [0.5, 0.5]},
         "few-shot example 1: no answer has probability 1, so none can be shown"),
        ("probsem", SUITE, {"text": "a", "expected": -1}, "expected is -1, so no query can be"),
        ("probsem", SUITE, {"text": "a", "expected": 2}, "expected is 2, and the queries are 0 to"),
    ],
)  # fmt: skip
def test_examples_that_cannot_be_shown(scorers, system, items, shot, message):
    with pytest.raises(InputError, match=re.escape(message)):
        evaluate(system, scorers("tiny-qwen2"), items, fewshot=[shot])


def test_a_question_without_a_quiz_is_refused_as_an_example_without_a_model():
    shot = {**QUESTIONS[0], "answer_types": None}
    settings = chronologic.Settings(mode="mcq", fewshot=[shot])
    with pytest.raises(InputError, match="few-shot example 1: no field"):
        with_examples(chronologic.SYSTEM, settings)


ASKED = [{"role": "user", "content": "Who ran?"}]
JUDGED = json.loads((CASES / "judge/ours/eval_dev_out.json").read_text(encoding="utf-8"))[:2]
CONVERSATIONS = {
    "score": ("score", ITEMS[:2], {"apply_chat_template": True, "system_prompt": "S"}),
    "choose": ("choose", CHOICES, {"apply_chat_template": True, "system_prompt": "S"}),
    "paths": ("paths", PATHS, {"apply_chat_template": True, "system_prompt": "S"}),
    "chronologic": ("chronologic", QUESTIONS, {"apply_chat_template": True, "mode": "full"}),
    "chronologic by letters": (
        "chronologic", QUESTIONS, {"apply_chat_template": True, "mode": "mcq", "shuffle": False},
    ),
    "probsem": ("probsem", SUITE, {"apply_chat_template": True}),
    "judge": ("judge", JUDGED, {}),
    "judge by whole labels": ("judge", JUDGED, {"label_score": "sequence"}),
    "sample": (
        "sample", [{"id": 1, "prompt": "Who sat?"}, {"id": 2, "messages": ASKED}],
        {"apply_chat_template": True, "n": 2, "max_new_tokens": 3, "system_prompt": "S"},
    ),
    "usc-generate": (
        "usc-generate", [{"input": "Who?", "output": ["me", "you"]}],
        {"n": 2, "max_new_tokens": 3},
    ),
    "preferences": (
        "preferences",
        [{"prompt": ASKED, "chosen": [{"role": "assistant", "content": "The cat."}],
          "rejected": [{"role": "assistant", "content": "A dog."}]}],
        {},
    ),
}  # fmt: skip
HEADER = "{% for m in messages %}<{{ m['role'] }}>\n"
STRINGS = HEADER + "{{ m['content'] }}{% endfor %}<assistant>\n"
PARTS = (
    HEADER + "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}<assistant>\n"
)


@pytest.fixture
def scorer_with(scorers, monkeypatch):
    """Returns a function: a chat template -> the scorer of a tokenizer that puts a BOS first."""
    scorer = scorers("tiny-llama3")
    assert scorer.encoder.prefix

    def use(template):
        tokenizer = copy.copy(scorer.encoder.tokenizer)
        tokenizer.chat_template = template
        monkeypatch.setattr(scorer.encoder, "tokenizer", tokenizer)
        return scorer

    return use


@pytest.fixture
def texts_read(monkeypatch):
    """All token ids that models score or continue, decoded."""
    from jaxscore.engine.engine import Engine
    from jaxscore.engine.generation import Generator

    read = []
    run, states = Engine.run, Generator._states

    def run_read(self, items, *args, **kwargs):
        windows = kwargs.get("windows", lambda groups: groups)

        def noted(groups):
            for group in windows(groups):
                read.extend(sequence.ids for sequence in group)
                yield group

        return run(self, items, *args, **{**kwargs, "windows": noted})

    def states_read(self, requests):
        made = states(self, requests)
        read.extend(state.request.ids for state in made)
        return made

    monkeypatch.setattr(Engine, "run", run_read)
    monkeypatch.setattr(Generator, "_states", states_read)
    return read


def numbers(report):
    """The items of a report, without the name of the template."""
    return json.dumps(to_json_value(report.items), sort_keys=True)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_template_that_expects_parts_gives_the_numbers_of_one_that_expects_strings(
    scorer_with, name
):
    system, items, settings = CONVERSATIONS[name]
    first = evaluate(system, scorer_with(STRINGS), items, **settings)
    second = evaluate(system, scorer_with(PARTS), items, **settings)
    assert second.failures == first.failures == []
    assert numbers(second) == numbers(first)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_template_that_leaves_out_the_question_is_refused_by_each_system(scorer_with, name):
    system, items, settings = CONVERSATIONS[name]
    scorer = scorer_with("<assistant>")
    match = "its chat template leaves out the text of message"
    if system == "preferences":  # whose report has an error for each item
        [(_, why)] = evaluate(system, scorer, items).failures
        assert match in why
        return
    with pytest.raises(InputError, match=match):
        evaluate(system, scorer, items, **settings)


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("n_bos", [0, 1])
def test_a_conversation_has_the_bos_of_its_template_alone(scorer_with, texts_read, name, n_bos):
    """As transformers encodes a rendered template: with add_special_tokens=False."""
    system, items, settings = CONVERSATIONS[name]
    scorer = scorer_with("{{ bos_token }}" * n_bos + STRINGS)
    evaluate(system, scorer, items, **settings)
    assert texts_read
    bos = scorer.encoder.tokenizer.bos_token_id
    assert {np.count_nonzero(ids == bos) for ids in texts_read} == {n_bos}


FREE = ("score", "sample", "usc-generate", "preferences")  # their texts may be reasoning
ANSWERED = [name for name in CONVERSATIONS if name not in FREE]


@pytest.mark.parametrize("name", ANSWERED)
def test_an_answer_is_not_scored_in_an_open_reasoning_block(scorer_with, name):
    """With a variable that closes the block it is refused; otherwise it is said first."""
    system, items, settings = CONVERSATIONS[name]
    variable = "{% if enable_thinking is not defined %}<think>\n{% endif %}"
    with pytest.raises(InputError, match="--chat-template-arg enable_thinking=false"):
        evaluate(system, scorer_with(STRINGS + variable), items, **settings)
    report = evaluate(system, scorer_with(STRINGS + "<think>\n"), items, **settings)
    assert report.findings[0] == IN_REASONING
    assert IN_REASONING in report.markdown().splitlines()[2]
    assert evaluate(system, scorer_with(STRINGS), items, **settings).findings == []


@pytest.mark.parametrize("name", ["score", "sample"])
def test_texts_of_reasoning_are_scored_and_drawn(scorer_with, name):
    system, items, settings = CONVERSATIONS[name]
    report = evaluate(system, scorer_with(STRINGS + "<think>\n"), items, **settings)
    assert (report.failures, report.findings) == ([], [])
