"""`sample`: prompts in, samples out, on into the commands that read them; runs that go on."""

import dataclasses
import json
import shlex
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer

from jaxscore.cli import model_flags
from jaxscore.engine import generation as generator_module
from jaxscore.engine.generation import prefill, slots
from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.io import interrupts
from jaxscore.io.manifest import file_digest
from jaxscore.plan import decode_slots
from jaxscore.systems import sample
from jaxscore.types.results import Generated
from tests.cli.conftest import QWEN, strict, with_input, with_text_prompts
from tests.conftest import ROOT

QWEN_TOKENIZER = Tokenizer.from_file(f"{QWEN}/tokenizer.json")
ASKED = [{"id": k, "prompt": f"How many days did {name} travel?", "answer": "3"}
         for k, name in enumerate(("Arlen", "Sana", "مرحبا"))]  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """All requests for text; a sample says its seed."""
    seen = []

    class Fake:
        side_by_side = 32

        def __init__(self, scorer):
            self.scorer = scorer

        def stream(self, requests):
            for place, one in enumerate(with_text_prompts(self.scorer, requests)):
                seen.append(one)
                error = "too long" if "fails" in one.prompt else None
                finish = ("eos", "stop", "length")[one.seed % 3]
                ids = np.zeros(2, np.int32)
                text = f'{{"answer": "{one.seed}"}}'
                self.scorer.statistics.tokens_written += len(ids)
                yield place, Generated(one.id, text, ids, None if error else finish, error)

    monkeypatch.setattr(generator_module, "Generator", Fake)
    return seen


def flags(folder, *more, n=4):
    return (
        "sample", "--input", folder / "in.jsonl", "--output", folder / "out.json", "-n", n,
        "--model", QWEN, "--dtype", "float32", "--journal", "off", *more,
    )  # fmt: skip


def result(folder, name="out.json"):
    return strict((folder / name).read_text(encoding="utf-8"))


def test_what_is_asked_for_and_what_is_written(run, place, asked):
    folder = place(*ASKED)
    words = ("--top-p", 0.9, "--top-k", 5, "--max-new-tokens", 9, "--stop", "\n", "###")
    code, out, err = run(*flags(folder, *words, "--quiet"))
    assert (code, err) == (0, "")
    assert [(one.prompt, one.temperature, one.top_p, one.top_k) for one in asked] == [
        (item["prompt"], 0.7, 0.9, 5) for item in ASKED for _ in range(4)
    ]
    assert {(one.max_new_tokens, one.stop) for one in asked} == {(9, ("\n", "###"))}
    seeds = [one.seed for one in asked]
    assert len({*seeds}) == 12
    ends = [("eos", "stop", "length")[seed % 3] for seed in seeds]
    lines = out.splitlines()
    assert lines[0].startswith("done     3 prompts, 0 failed in ")
    assert lines[2] == (
        "result   3 of 3 prompts have 4 samples each; of 12 samples "
        f"{ends.count('eos')} ended by themselves, {ends.count('stop')} at a stop string, "
        f"{ends.count('length')} were cut by length"
    )
    assert lines[3:] == [
        f"files    {folder / 'out.json'}",
        f"         {folder / 'out.json'}.run.json",
    ]
    for k, (record, item) in enumerate(zip(result(folder), ASKED, strict=True)):
        own = slice(4 * k, 4 * k + 4)
        assert record == {
            **item,
            "chat_history": [item["prompt"]],
            "model_input": item["prompt"],
            "output": [f'{{"answer": "{seed}"}}' for seed in seeds[own]],
            "finish": ends[own],
            "prompt_token_ids": QWEN_TOKENIZER.encode(item["prompt"]).ids,
            "token_ids": [[0, 0]] * 4,
            "generator": QWEN,
            "configs": {
                "temperature": 0.7, "top_p": 0.9, "top_k": 5, "max_tokens": 9,
                "stop": ["\n", "###"], "seed": 0, "dtype": "float32",
            },
        }  # fmt: skip
    manifest = result(folder, "out.json.run.json")
    assert manifest["facts"]["counts"] == {"n_tokens_written": 24}


def test_a_table(run, place, asked):
    folder = place()
    (folder / "in.csv").write_text("question,answer\nWho?,7\n", encoding="utf-8")
    words = flags(folder, "--column", "prompt=question", "--quiet")
    assert run(*with_input(words, folder / "in.csv"))[0] == 0
    assert [one.prompt for one in asked] == ["Who?"] * 4
    [record] = result(folder)
    assert {"id": 2, "prompt": "Who?", "answer": "7"}.items() <= record.items()


def test_the_chat_template_and_a_system_message(run, place, asked):
    folder = place(ASKED[0], {"messages": [{"role": "user", "content": "Who?"}]})
    words = ("--apply-chat-template", "--system", "Be brief.")
    assert run(*flags(folder, *words)).code == 0
    head = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    tail = "<|im_end|>\n<|im_start|>assistant\n"
    texts = [f"{head}{said}{tail}" for said in (ASKED[0]["prompt"], "Who?")]
    assert [one.prompt for one in asked[::4]] == texts
    first, second = result(folder)
    assert [first["model_input"], second["model_input"]] == texts
    assert (first["chat_history"], second["chat_history"]) == ([ASKED[0]["prompt"]], ["Who?"])
    assert second["id"] == 2
    assert first["configs"]["system"] == "Be brief."
    assert first["configs"]["apply_chat_template"] is True


def test_a_template_that_expects_parts_gets_each_prompt(run, place, asked, tmp_path):
    model = shutil.copytree(QWEN, tmp_path / "model")
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}{% for part in m['content'] %}{% if part['type'] == 'text' %}"
        "[{{ part['text'] }}]{% endif %}{% endfor %}{% endfor %}"
    )
    folder = place(*ASKED)
    command = flags(folder, "--apply-chat-template", n=1)
    assert run(*command, "--model", model).code == 0
    prompts = [f"[{item['prompt']}]" for item in ASKED]
    assert [request.prompt for request in asked] == prompts
    assert [record["model_input"] for record in result(folder)] == prompts


def test_prompts_that_a_template_leaves_out_fail_by_name(run, place, asked, tmp_path):
    model = shutil.copytree(QWEN, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    said = [{"role": role, "content": "Who?"} for role in ("user", "assistant", "user")]
    folder = place(ASKED[0], {"messages": said})
    code, _, err = run(*flags(folder, "--apply-chat-template", n=1), "--model", model)
    assert code == 1
    assert "in.jsonl:2: " in err
    assert "leaves out the text of message 2 of 3 (assistant); leave that message out" in err
    assert len(asked) == 1


def test_more_samples_and_other_prompts_leave_the_earlier_ones(run, place, asked):
    """The samples that a file has are not asked for again."""
    folder = place(*ASKED[:2])
    assert run(*flags(folder, n=2)).code == 0
    before = result(folder)
    assert run(*flags(folder, n=5)).code == 0
    for one, earlier in zip(result(folder), before, strict=True):
        assert one["output"][:2] == earlier["output"]
        assert len({*one["output"]}) == 5
    whole = result(folder)
    (folder / "out.json").unlink()
    place(ASKED[2], *ASKED[:2])
    assert run(*flags(folder, n=3)).code == 0
    for one, earlier in zip(result(folder)[1:], whole, strict=True):
        assert one["output"] == earlier["output"][:3]
    (folder / "out.json").unlink()
    assert run(*flags(folder, "--seed", 1, n=3)).code == 0
    assert result(folder)[1]["output"] != whole[0]["output"][:3]
    code, out, err = run(*flags(folder, "--seed", 1, n=2))
    assert (code, out) == (2, "")
    assert "in.jsonl:1 (id 2) has 3 samples, this run asks for 2; give another --output" in err


def test_a_run_goes_on_where_another_ended(run, place, asked, monkeypatch):
    folder = place(*ASKED)
    assert run(*flags(folder)).code == 0
    whole, text = result(folder), (folder / "out.json").read_bytes()
    (folder / "out.json").write_text(json.dumps(whole[:1]), encoding="utf-8")
    code, _, err = run(*flags(folder))
    assert code == 0
    assert f"continuing {folder / 'out.json'}, which holds 1 item" in err
    assert len(asked) == 12 + 8
    assert (folder / "out.json").read_bytes() == text

    monkeypatch.setattr(model_flags, "load_scorer", None)
    place({**ASKED[0], "answer": "4"}, *ASKED[1:])  # another gold answer: the samples stay
    code, out, _ = run(*flags(folder))
    assert code == 0
    assert out.startswith(f"nothing was left to do in {folder / 'out.json'}\n")
    assert result(folder) == [{**whole[0], "answer": "4"}, *whole[1:]]
    manifest = result(folder, "out.json.run.json")
    assert manifest["input_sha256"] == file_digest(folder / "in.jsonl")
    for words, part in (
        (("--temperature", 0.8), "temperature 0.7, this run has temperature 0.8"),
        (("--stop", "x"), "stop None, this run has stop ['x']"),
        (("--seed", 3), "seed 0, this run has seed 3"),
        (("--apply-chat-template",), "apply_chat_template None, this run has apply_chat"),
    ):
        code, out, err = run(*flags(folder, *words))
        assert (code, out) == (2, "")
        assert part in err
    place({**ASKED[0], "prompt": "Why?"}, {**ASKED[1], "id": "x"}, ASKED[2])
    with pytest.raises(TypeError):  # the model would be loaded
        run(*flags(folder))
    place({"prompt": "Why?"})
    code, _, err = run(*flags(folder))
    assert (code, "holds 3 items and the input 1" in err) == (2, True)


def test_the_manifest_counts_unusable_prompts_that_were_added_to_a_finished_run(
    run, place, asked, monkeypatch
):
    folder = place(*ASKED)
    assert run(*flags(folder)).code == 0
    before = result(folder, "out.json.run.json")
    monkeypatch.setattr(model_flags, "load_scorer", None)
    code, out, _ = run(*flags(folder, "--journal", "auto"))
    assert (code, "run.json" in out) == (0, False)  # the file is the same, and so is its manifest
    assert result(folder, "out.json.run.json") == before
    place(*ASKED, {"id": "bad", "prompt": 7})
    code, out, _ = run(*flags(folder))
    assert (code, len(result(folder))) == (1, 4)
    assert out.startswith(f"nothing was left to do in {folder / 'out.json'}\n")
    assert f"{folder / 'out.json'}.run.json" in out
    after = result(folder, "out.json.run.json")
    assert after["outputs"]["out.json"]["records"] == 4
    assert {**after, "outputs": 0, "about": 0} == {
        **before,
        "outputs": 0,
        "about": 0,
        "failed": 1,
        "input_sha256": file_digest(folder / "in.jsonl"),
    }


def test_samples_of_two_precisions_are_not_mixed(run, place, asked):
    folder = place(*ASKED)
    assert run(*flags(folder, "--dtype", "bfloat16")).code == 0
    for dtype in ("float32", "auto"):  # refused at once, or when it is known
        code, out, err = run(*flags(folder, "--dtype", dtype, n=5))
        assert (code, out) == (2, "")
        assert "was computed with dtype bfloat16, this run has dtype float32" in err


def test_prompts_that_fail(run, place, asked):
    folder = place(ASKED[0], {"id": "bad", "prompt": 7}, {"id": 5, "prompt": "fails"},
                   {"id": 6, "messages": [{"role": "user", "content": "a"}]})  # fmt: skip
    for n_asked in (8, 12):  # what could not be written is tried again, the other is not
        code, out, err = run(*flags(folder, "--quiet"))
        assert code == 1
        assert "result   1 of 4 prompts have 4 samples each" in out
        path = folder / "in.jsonl"
        assert err == (
            f'failed: {path}:2 (id bad): field "prompt" is a whole number, expected a string\n'
            f"failed: {path}:3 (id 5): too long\n"
            f'failed: {path}:4 (id 6): field "messages" needs a chat template; '
            'give --apply-chat-template, or a string "prompt"\n'
            "3 failed, the others are kept\n"
        )
        records = result(folder)
        assert [len(one["output"]) for one in records] == [4, 0, 0, 0]
        assert records[2] == {"id": 5, "prompt": "fails", "output": [], "error": "too long"}
        assert len(asked) == n_asked


def test_a_prompt_that_fails_later_keeps_the_samples_that_it_has(run, place, asked, monkeypatch):
    folder = place(*ASKED)
    assert run(*flags(folder, n=2)).code == 0
    before = result(folder)
    made, fake = generator_module.Generator.stream, generator_module.Generator

    def failing(self, requests):
        for place, one in made(self, requests):
            is_late = "(id 1), sample 4" in one.id
            yield place, dataclasses.replace(one, error="gone", finish=None) if is_late else one

    monkeypatch.setattr(fake, "stream", failing)
    code, _, err = run(*flags(folder, "--quiet"))
    assert (code, "(id 1): sample 4: gone" in err) == (1, True)
    found = result(folder)[1]
    assert (len(found["output"]), found["error"]) == (3, "sample 4: gone")
    assert found["output"][:2] == before[1]["output"]
    monkeypatch.setattr(fake, "stream", made)
    assert run(*flags(folder)).code == 0
    whole = result(folder)
    assert whole[1]["output"][:3] == found["output"]
    (folder / "out.json").unlink()
    assert run(*flags(folder)).code == 0
    assert result(folder) == whole


def test_a_finished_prompt_that_the_model_cannot_read_keeps_its_samples(
    run, place, asked, monkeypatch
):
    """A journal has finished prompts planned with the others."""
    folder = place(*ASKED[:2])
    assert run(*flags(folder)).code == 0
    before = result(folder)
    place(*ASKED)

    def model_input(encoder, prompt, **_):
        if prompt == ASKED[0]["prompt"]:
            raise InputError("unreadable")
        return prompt

    monkeypatch.setattr(sample, "model_input", model_input)
    assert run(*flags(folder, "--journal", "auto")).code == 0
    assert result(folder)[:2] == before


def test_no_samples_at_all_leave_no_file(run, place, asked):
    folder = place({"prompt": "fails"}, {"prompt": 1})
    code, out, err = run(*flags(folder))
    assert (code, out) == (2, "")
    path = folder / "in.jsonl"
    assert f"{path}: no item can be used; {path}:1: too long" in err
    assert [one.name for one in folder.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--temperature", "-1"), "temperature is -1.0, expected 0 or more"),
        (("--temperature", "nan"), "expected a finite number"),
        (("--temperature", "0"), "temperature is 0 and n is 4: greedy samples of a prompt are all"),
        (("--top-p", "0"), "above 0 up to 1"),
        (("--top-k", "-1"), "-1, expected a whole number of at least 0"),
        (("--truncate", "left"), "asks something else; shorten it"),
        (("-n", "0"), "0, expected a whole number of at least 1"),
        (("--max-new-tokens", "0"), "0, expected a whole number of at least 1"),
        (("--system", "Be brief."), "give --apply-chat-template too"),
        (("--output", "out.parquet"), "the output is JSON; give a name ending in .json"),
        (("--output", "in.jsonl.run.json"), "names that end in .run.json are those of manifests"),
    ],
)
def test_usage_that_cannot_work(run, place, monkeypatch, words, part):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    folder = place(*ASKED)
    ran = run(*flags(folder, *words))
    assert ran.code == 2
    assert part in ran.err
    assert [one.name for one in folder.iterdir()] == ["in.jsonl"]


def test_settings_in_python():
    for given, part in (
        ({}, "setting n is None, expected a whole number"),
        ({"n": 1, "stop": "x"}, "setting stop is a string, expected a list of strings"),
        ({"n": 1, "stop": [1]}, r"setting stop is \[1\], expected a list of strings"),
        ({"n": 1, "system_prompt": 3, "apply_chat_template": True}, "setting system_prompt is 3"),
        ({"n": 1, "apply_chat_template": "yes"}, "setting apply_chat_template is 'yes'"),
        ({"n": 1}, "a source that is NoneType, but sample needs a Scorer"),
    ):
        with pytest.raises(InputError, match=part):
            evaluate("sample", None, ASKED, **given)


@pytest.mark.parametrize("n_written", [4, 7, 11])
def test_an_interrupt_leaves_the_output_as_it_was(run, place, asked, monkeypatch, n_written):
    """The journal has what was finished."""
    folder = place(*ASKED)
    genuine = generator_module.Generator.stream

    def interrupted(self, requests):
        for place, one in genuine(self, requests):
            yield place, one
            if len(asked) == n_written:
                raise KeyboardInterrupt

    monkeypatch.setattr(generator_module.Generator, "stream", interrupted)
    code, out, err = run(*flags(folder))
    assert (code, out) == (130, "")
    assert "interrupted; unfinished files are left as they were" in err
    assert [one.name for one in folder.iterdir()] == ["in.jsonl"]
    monkeypatch.setattr(generator_module.Generator, "stream", genuine)
    assert run(*flags(folder)).code == 0
    assert len(asked) == n_written + 12


def test_samples_that_are_planned_together_follow_the_rows(run, place, asked, monkeypatch):
    """Of whole prompts."""
    monkeypatch.setattr(generator_module.Generator, "side_by_side", 1)
    genuine, together = generator_module.Generator.stream, []

    def counted(self, requests):
        together.append(len(requests))
        return genuine(self, requests)

    monkeypatch.setattr(generator_module.Generator, "stream", counted)
    assert run(*flags(place(*ASKED), n=7)).code == 0
    assert together == [14, 7]


@pytest.mark.slow
def test_tokens_of_the_journal_are_not_written_in_this_run(run, place):
    words = flags(place(*ASKED[:2]), "--max-new-tokens", 4, n=2)
    words = [one for one in words if one not in ("--journal", "off")]

    def counts():
        return result(place(*ASKED[:2]), "out.json.run.json")["facts"]["counts"]

    first, first_counts = run(*words), counts()
    whole = result(place(*ASKED[:2]))
    (place(*ASKED[:2]) / "out.json").unlink()
    again = run(*words)
    assert (first.code, again.code) == (0, 0)
    assert (first_counts, counts()) == ({"n_tokens_written": 16}, {"n_tokens_written": 0})
    assert result(place(*ASKED[:2])) == whole


@pytest.mark.slow
@pytest.mark.parametrize("n_blocks", [1, 3, 6])
def test_an_output_that_ends_within_what_is_planned_together(run, place, monkeypatch, n_blocks):
    """Goes on with the bytes of a run that was not interrupted, by the journal."""
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 4))
    monkeypatch.setattr(slots, "STEPS", 4)
    folder = place(*ASKED, {"prompt": "Who?"}, {"prompt": "and then " * 9})
    words = flags(folder, "--max-new-tokens", 16, "--temperature", 2, "--dtype", "bfloat16", n=3)
    words = [one for one in words if one not in ("--journal", "off")]
    assert run(*words, "--journal", folder / "whole").code == 0
    whole = (folder / "out.json").read_bytes()
    (folder / "out.json").unlink()
    block, seen = slots.SlotTable._decode_block, []

    def counted(self, everything):
        seen.append(everything)
        return block(self, everything)

    with monkeypatch.context() as patched:
        patched.setattr(slots.SlotTable, "_decode_block", counted)
        patched.setattr(interrupts, "interrupt_requested", lambda: len(seen) >= n_blocks)
        assert run(*words, "--journal", folder / "cut").code == 130
    assert not (folder / "out.json").exists() or len(result(folder)) < 5
    assert run(*words, "--journal", folder / "cut").code == 0
    assert (folder / "out.json").read_bytes() == whole


def test_samples_of_a_prompt_share_its_computation(scorers, monkeypatch):
    forests = []

    def watched(sequences):
        forests.append(genuine(sequences))
        return forests[-1]

    genuine = prefill.build_forest
    monkeypatch.setattr(prefill, "build_forest", watched)
    scorer = scorers("tiny-qwen2")
    text = "How many days did Arlen travel?"
    found = evaluate("sample", scorer, [{"prompt": text}], n=8, max_new_tokens=4)
    [one] = found.items
    assert len({*one["output"]}) > 1
    [forest] = forests
    n_tokens = len(scorer.encoder.prompt_ids([text])[0])
    # The prompt's last token is fed with the first step.
    assert (forest.n_nodes, forest.n_input_tokens) == (n_tokens - 1, 8 * n_tokens)
    assert found.summary["n_samples"] == found.summary["n_ended_by_length"] == 8
    assert [row["sample"] for row in found.declared.rows(one)] == [*range(1, 9)]


@pytest.mark.slow
def test_a_sample_depends_on_nothing_beside_it(scorers):
    """A prompt alone, among others, and with more samples; each text is what its ids say."""
    scorer = scorers("tiny-llama3", reproducible=True)
    given = {"max_new_tokens": 6, "temperature": 1.0}
    among = evaluate("sample", scorer, ASKED, n=2, **given).items
    alone = [evaluate("sample", scorer, [one], n=3, **given).items[0] for one in ASKED]
    assert [one["output"] for one in among] == [one["output"][:2] for one in alone]
    for one in among:
        assert one["model_input"] == f"<|begin_of_text|>{one['prompt']}"
    again = evaluate("sample", scorer, ASKED[:1], n=2, **given, seed=1).items
    assert again[0]["output"] != among[0]["output"]


@pytest.mark.slow
def test_on_into_the_commands_that_read_samples(run, place, tmp_path):
    """With a real model, from prompts to a vote."""
    folder = place(*ASKED[:2], {"id": "long", "prompt": "and then " * 3000})
    words = flags(folder, "--max-new-tokens", 4, "--temperature", 2, "--quiet", n=3)
    code, _, err = run(*words)
    assert code == 1
    assert f"failed: {folder / 'in.jsonl'}:3 (id long): its prompt has " in err
    samples = folder / "out.json"
    assert run("self-certainty", "--input", samples, "--journal", "off", "--quiet").code == 1
    scored = result(folder, "out-confidence-list.json")
    assert [len(one.get("confidence_list", [])) for one in scored] == [3, 3, 0]
    assert scored[0]["confidence_settings"]["model"] == QWEN
    voted = run(
        "vote", "--input", folder / "out-confidence-list.json", "--output", tmp_path / "v.json"
    )
    assert voted.code == 1
    assert [one["answer"] for one in result(folder, "v.json")[:2]] == ["3", "3"]
    words = ("usc-generate", "--input", samples, "--model", QWEN, "-n", 3, "--max-new-tokens", 2)
    assert run(*words, "--journal", "off", "--quiet").code == 1
    asked = result(folder, "out-consistency-3.json")[0]["chat_history"][0]
    assert f"responses to the question: {ASKED[0]['prompt']}\nResponse 0: " in asked


@pytest.mark.slow
def test_the_commands_of_the_page(run, tmp_path, monkeypatch):
    """From prompts to a finding, on the embedded model: most answers of a vote are right."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "jaxscore/systems/README.md").read_text(encoding="utf-8")
    block = page.partition("### `sample`")[2].partition("```sh\n")[2].partition("```")[0]
    for line in block.strip().splitlines():
        words = shlex.split(line.replace("jaxscore/demo", str(ROOT / "jaxscore/demo")))
        ran = run(*words[3:], "--quiet")
        assert (ran.code, ran.err) == (0, "")
    quality = result(tmp_path, "scored_report.json")["quality"]
    assert (quality["n_items"], quality["n_responses"]) == (12, 96)
    assert quality["confidences"]["mean log-probability"]["auroc"]["value"] > 0.8
    [report] = tmp_path.glob("scored-*_report.json")
    accuracy = strict(report.read_text(encoding="utf-8"))["summary"]["accuracy"]
    assert accuracy["Borda vote"]["mean"] > accuracy["first sample"]["mean"]
    texts = [(item["model_input"], text) for item in result(tmp_path, "samples.json")
             for text in item["output"]]  # fmt: skip
    assert all(text.startswith("<|begin_of_text|><|start_header_id|>user") for text, _ in texts)
    assert not any("<|" in text for _, text in texts)
