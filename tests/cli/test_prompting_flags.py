"""Chat template, system prompt and examples on the command line: files, records, refusals."""

import hashlib
import json

import pytest

from jaxscore.shell.prompts import OWN_EXAMPLES
from jaxscore.text import chat_template
from tests.cli.conftest import QWEN, strict

LINES = (
    {"id": "a", "context": "The cat", "continuation": " sat"},
    {"id": "b", "context": "The dog", "continuation": " ran"},
)
SHOTS = ('{"context": "The cow", "continuation": " ate"}\n\n'
         '{"context": "The dog", "continuation": " ran"}\n')  # fmt: skip
QUESTION = {
    "main_question": "Where?", "answer_strings": ["there", "here"],
    "answer_types": ["ground_truth", "manual"], "answer_probabilities": [1.0, 0.0],
}  # fmt: skip
PATHS = {"question": "Who ran?", "paths": [["the cat", "ran"]]}
SUITE = {"context": [{"text": "It rains.", "expected": 0}], "queries": ["True", "False"]}


@pytest.fixture
def local(scorers, monkeypatch):
    """No model is loaded for a command."""
    from jaxscore.cli import model_flags

    monkeypatch.setattr(model_flags, "load_scorer", lambda *_, **__: scorers("tiny-qwen2"))


def words(folder, *more, model=QWEN):
    return (
        "score", "--model", model, "--input", folder / "in.jsonl", "--output",
        folder / "out.jsonl", "--quiet", *more,
    )  # fmt: skip


def manifest(folder, name="out.jsonl"):
    return strict((folder / f"{name}.run.json").read_text(encoding="utf-8"))


def sums(folder):
    lines = (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
    return [strict(line)["sum_logprob"] for line in lines]


def test_score(run, place, scorers, local):
    folder = place(*LINES)
    (folder / "shots.jsonl").write_text(SHOTS, encoding="utf-8")
    (folder / "system.txt").write_text("\ufeffBe brief.\r\n\n", encoding="utf-8")
    flags = ("--fewshot", folder / "shots.jsonl", "--num-fewshot", 2, "--seed", 3)
    code, _, err = run(*words(folder, *flags, "--system-file", folder / "system.txt"))
    assert (code, err) == (0, "")
    found = manifest(folder)
    about = found["about"]
    assert found["made"]["files"]["fewshot"] == hashlib.sha256(SHOTS.encode()).hexdigest()
    assert about["fewshot"] == str(folder / "shots.jsonl")
    assert about["system_prompt"] == "Be brief."
    assert sorted(about["fewshot_drawn"]) == [1, 2]
    assert found["facts"]["warnings"][OWN_EXAMPLES] == 1
    assert (found["flags"]["seed"], found["flags"]["num_fewshot"]) == (3, 2)
    shown = [("The cow ate", "The dog ran")[k - 1] for k in about["fewshot_drawn"]]
    start = "Be brief.\n\n" + "\n\n".join([*shown, ""])
    pairs = [(f"{start}The cat", " sat"), ("Be brief.\n\nThe cow ate\n\nThe dog", " ran")]
    want = scorers("tiny-qwen2").score(pairs)
    assert sums(folder) == pytest.approx([one.sum_logprob for one in want], abs=1e-4)


def test_newlines_of_other_systems_give_the_same_system_prompt(run, place, local):
    folder = place(*LINES)
    totals = []
    for newline in ("\n", "\r\n", "\r"):
        text = newline.join(["Be brief.", "", "Be kind.", ""])
        (folder / "system.txt").write_bytes(text.encode())
        assert run(*words(folder, "--system-file", folder / "system.txt")).code == 0
        assert manifest(folder)["about"]["system_prompt"] == "Be brief.\n\nBe kind."
        totals.append(sums(folder))
    assert totals[1:] == totals[:1] * 2


def test_a_conversation_and_what_the_manifest_says_of_it(run, place, scorers, local):
    folder = place(*LINES)
    assert run(*words(folder, "--apply_chat_template", "--system", "S.")).code == 0
    tokenizer = scorers("tiny-qwen2").encoder.tokenizer
    prompting = {
        "apply_chat_template": True,
        "chat_template_sha256": chat_template.digest(tokenizer),
        "system_prompt": "S.",
    }
    assert prompting.items() <= manifest(folder)["about"].items()
    first = sums(folder)
    assert run(*words(folder, "--apply-chat-template")).code == 0
    assert sums(folder) != first
    assert run(*words(folder)).code == 0
    assert not prompting.keys() & manifest(folder)["about"].keys()


def test_an_item_that_is_an_example_is_told(run, place, local):
    folder = place(*LINES)
    (folder / "shots.jsonl").write_text(SHOTS, encoding="utf-8")
    flags = [one for one in words(folder, "--fewshot", folder / "shots.jsonl") if one != "--quiet"]
    code, _, err = run(*flags)
    assert code == 0
    assert "scored after the others alone: 1" in err


@pytest.mark.parametrize("command", ["paths", "chronologic", "probsem"])
def test_other_commands(run, place, local, command):
    """What each is given reaches its report; its numbers are tested with the systems."""
    folder = place({"paths": PATHS, "chronologic": QUESTION}.get(command, ""))
    shots = {
        "probsem": {"text": "It hails.", "expected": 1},
        "chronologic": {**QUESTION, "main_question": "What?"},
        "paths": {**PATHS, "question": "Who sat?"},
    }
    text = json.dumps(shots[command])
    (folder / "shots.jsonl").write_text(text, encoding="utf-8")
    (folder / "p.txt").write_text("Rules.", encoding="utf-8")
    (folder / "p_t.json").write_text(json.dumps(SUITE), encoding="utf-8")
    flags = {
        "paths": ("--input", folder / "in.jsonl", "--output", folder / "out.json"),
        "chronologic": ("--input", folder / "in.jsonl", "--full-eval"),
        "probsem": ("--prompt", "p", "--test", "t", "--input", folder, "--output", folder),
    }
    more = ("--fewshot", folder / "shots.jsonl", "--system", "S.", "--apply-chat-template")
    assert run(command, "--model", QWEN, *flags[command], *more, "--quiet").code == 0
    names = {"paths": "out_report.json", "chronologic": "eval_results_*.json"}
    [path] = folder.glob(names.get(command, "*_results.json"))
    settings = strict(path.read_text(encoding="utf-8"))["settings"]
    assert settings["fewshot_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert (settings["apply_chat_template"], settings["system_prompt"]) == (True, "S.")
    assert (settings["num_fewshot"], settings["fewshot_left_out"]) == (1, 0)
    [page] = folder.glob("*report*.md")
    assert "| chat_template_sha256 |" in page.read_text(encoding="utf-8")
    [made] = folder.glob("*.run.json")
    assert strict(made.read_text(encoding="utf-8"))["about"]["num_fewshot"] == 1
    if command == "probsem":
        digests = [hashlib.sha256(str(x).encode()).hexdigest()[:8]
                   for x in ("S.", folder / "shots.jsonl")]  # fmt: skip
        ending = f"_chat_system-{digests[0]}_fewshot-{digests[1]}_results.json"
        assert path.name.endswith(ending)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--num-fewshot", 1), "num_fewshot is 1, and fewshot holds 0 examples; give more"),
        (("--num-fewshot", -1), "-1, expected a whole number of at least 0"),
        (("--num-fewshot", "x"), "'x', expected a whole number"),
        (("--system", "a", "--system-file", "b"), "both give the system prompt; give one of them"),
        (("--system-file", "missing.txt"), "missing.txt: No such file or directory"),
        (("--fewshot", "missing.jsonl"), "missing.jsonl: No such file or directory"),
        (("--fewshot", "SHOTS", "--num-fewshot", 3), "num_fewshot is 3, and fewshot holds 2 ex"),
        (("--fewshot", "BROKEN"), "broken.jsonl:2: not JSON at column 1"),
        (("--fewshot", "FIELD"), 'field.jsonl:2: no field "continuation"'),
        (("--fewshot", "EMPTY"), "empty.jsonl: the file is empty"),
        (("--system-file", "EMPTY"), "empty.jsonl: the file is empty, expected a system prompt"),
        (("--fewshot", "HALF"), "half.jsonl:1: a string contains a lone surrogate"),
        (("--fewshot", "OUT"), "out.jsonl is an input of this run; give another name"),
        (("--apply-chat-template", "--api-base", "http://localhost:9/v1"),
         "apply_chat_template: the template is part of a tokenizer, and an endpoint shows none"),
    ],
)  # fmt: skip
def test_what_is_refused_before_a_model_is_loaded(run, place, monkeypatch, more, message):
    from jaxscore.cli import model_flags

    monkeypatch.setattr(model_flags, "load_scorer", None)
    folder = place(*LINES)
    good = SHOTS.splitlines()[0]
    files = {
        "SHOTS": SHOTS,
        "BROKEN": f"{good}\nx\n",
        "FIELD": f'{good}\n{{"context": "x"}}\n',
        "EMPTY": "\n \n",
        "HALF": '{"continuation": "\\ud83d"}\n',
    }
    for name, text in files.items():
        (folder / f"{name.lower()}.jsonl").write_text(text, encoding="utf-8")
    names = [*files, "OUT"]
    given = [folder / f"{one.lower()}.jsonl" if one in names else one for one in more]
    code, out, err = run(*words(folder, *given))
    assert (code, out) == (2, "")
    assert message in err
    assert not (folder / "out.jsonl").exists()
    assert not list(folder.glob("*.run.json"))


@pytest.mark.parametrize(
    ("template", "more", "message"),
    [
        (None, (), "lacks a chat template, which turns a conversation into a prompt; use a chat"),
        ("{{ raise_exception('no system') if messages[0].role == 'system' }}"
         "{% for m in messages %}{{ m.content }}{% endfor %}", ("--system", "S."),
         "the template takes no system message: leave the system prompt out"),
    ],
)  # fmt: skip
def test_templates_that_cannot_be_applied(
    run, place, scorers, monkeypatch, template, more, message
):
    import copy

    from jaxscore.cli import model_flags

    scorer = scorers("tiny-qwen2")
    tokenizer = copy.copy(scorer.encoder.tokenizer)
    tokenizer.chat_template = template
    monkeypatch.setattr(scorer.encoder, "tokenizer", tokenizer)
    monkeypatch.setattr(model_flags, "load_scorer", lambda *_, **__: scorer)
    folder = place(*LINES)
    code, out, err = run(*words(folder, "--apply-chat-template", *more))
    assert (code, out) == (2, "")
    assert message in err
    assert [one.name for one in folder.iterdir()] == ["in.jsonl"]


def test_paths_takes_one_way_to_give_system_prompts(run, place, local):
    folder = place(PATHS)
    flags = ("--input", folder / "in.jsonl", "--output", folder / "out.json", "--system", "a")
    code, _, err = run("paths", "--model", QWEN, *flags, "--system-prompts", "b")
    assert code == 2
    assert "system_prompt and system_prompts: both say which text stands first" in err


def test_a_variable_of_a_template_that_writes_no_prompt_is_remarked(run, place):
    folder = place(*LINES)
    loud = [word for word in words(folder, "--chat-template-arg", "system=1") if word != "--quiet"]
    remark = "--chat-template-arg: no effect on prompts that are not conversations"
    assert remark in run(*loud).err
    assert remark not in run(*loud, "--apply-chat-template").err
