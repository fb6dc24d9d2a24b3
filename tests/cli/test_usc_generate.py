"""`usc-generate`: prompts through the chat template, replies into the file, and on to the next."""

import json

import numpy as np
import pytest

from jaxscore.cli import model_flags
from jaxscore.engine import generation as generator_module
from jaxscore.systems.usc_generate import UscGenerate
from jaxscore.types.results import Generated
from tests.cli.conftest import QWEN, strict, with_text_prompts

ITEMS = [
    {"id": k, "chat_history": [f"How many days did {name} travel?"], "output": ["3", "4", "3"]}
    for k, name in enumerate(("Arlen", "Sana", "مرحبا"))
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in.json").write_text(json.dumps(ITEMS), encoding="utf-8")
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """All requests for text; the reply says how many there were before."""
    seen = []

    class Fake:
        side_by_side = 32

        def __init__(self, scorer):
            self.scorer = scorer

        def stream(self, requests):
            for place, one in enumerate(with_text_prompts(self.scorer, requests)):
                error = "too long" if "fails" in one.prompt else None
                text = f"The most consistent response is Response {len(seen)}"
                self.scorer.statistics.tokens_written += 5
                seen.append(one)
                yield place, Generated(one.id, text, np.zeros(5, np.int32), "eos", error)

    monkeypatch.setattr(generator_module, "Generator", Fake)
    return seen


def flags(folder, *more):
    return (
        "usc-generate", "--input-file", folder / "in.json", "--model", QWEN, "-n", 2,
        "--dtype", "float32", "--journal", "off", *more,
    )  # fmt: skip


def result(folder, name="in-consistency-2.json"):
    return strict((folder / name).read_text(encoding="utf-8"))


def test_prompts_and_replies(run, folder, asked):
    code, out, err = run(*flags(folder, "--max_new_tokens", 9, "--quiet"))
    assert (code, err) == (0, "")
    path = folder / "in-consistency-2.json"
    lines = out.splitlines()
    assert lines[0].startswith("done     3 items, 0 failed in ")
    assert lines[2] == "result   3 of 3 items have a reply"
    assert lines[3:] == [f"files    {path}", f"         {path}.run.json"]
    records = result(folder)
    for k, (record, request) in enumerate(zip(records, asked, strict=True)):
        assert record["output"] == [f"The most consistent response is Response {k}"]
        assert record["responses"] == ["3", "4"]
        assert record["model_input"] == request.prompt
        [prompt] = record["chat_history"]
        assert request.prompt == (f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n")
        assert record["generator"] == QWEN
        assert record["configs"] == {
            "temperature": 0.0, "top_p": 1.0, "max_tokens": 9, "dtype": "float32",
        }  # fmt: skip
        assert (request.max_new_tokens, request.temperature) == (9, 0.0)

    code, out, _ = run("usc-select", "--input-file", path)
    assert code == 0
    assert [one["output"] for one in result(folder, "in-consistency-2-usc.json")] == [
        ["3"], ["4"], ["3"],
    ]  # fmt: skip


def test_a_real_model_writes(run, folder):
    code, out, err = run(*flags(folder, "--max-new-tokens", 3, "--batch-tokens", 1024))
    assert code == 0
    assert "3 of 3 items have a reply" in out
    counts = result(folder, "in-consistency-2.json.run.json")["facts"]["counts"]
    assert counts == {"n_ended_at_the_limit": 3, "n_tokens_written": 9}
    assert "3 replies were cut at the limit" in err
    for record in result(folder):
        [reply] = record["output"]
        assert reply == reply.strip() != ""
        assert "error" not in record


def test_a_run_goes_on_where_another_ended(run, folder, asked, monkeypatch):
    assert run(*flags(folder)).code == 0
    whole, path = result(folder), folder / "in-consistency-2.json"
    path.write_text(json.dumps(whole[:1]), encoding="utf-8")
    code, out, err = run(*flags(folder))
    assert code == 0
    assert f"continuing {path}, which holds 1 item" in err
    assert [one.id for one in asked[3:]] == ["item 2 (id 1)", "item 3 (id 2)"]
    assert result(folder)[0] == whole[0]

    monkeypatch.setattr(model_flags, "load_scorer", None)
    code, out, _ = run(*flags(folder))
    assert code == 0
    assert out.startswith(f"nothing was left to do in {path}\n")
    code, _, err = run(*flags(folder, "--temperature", 0.7))
    assert code == 2
    assert "was computed with temperature 0.0, this run has temperature 0.7" in err


def test_replies_of_two_precisions_are_not_mixed(run, folder, asked):
    assert run(*flags(folder, "--dtype", "bfloat16")).code == 0
    path = folder / "in-consistency-2.json"
    for n, dtype in ((3, "float32"), (1, "float32"), (1, "auto")):  # refused at once, or when known
        text = json.dumps(result(folder)[:n])
        path.write_text(text, encoding="utf-8")
        code, out, err = run(*flags(folder, "--dtype", dtype))
        assert (code, out) == (2, "")
        assert f"{path}: item 1 (id 0) was computed with dtype bfloat16, this run has dtype" in err
        assert path.read_text(encoding="utf-8") == text
    assert len(asked) == 3
    published = result(folder)[0]
    del published["configs"]["dtype"]  # one that does not say
    path.write_text(json.dumps([published]), encoding="utf-8")
    assert run(*flags(folder)).code == 0
    assert result(folder)[0] == published


def test_items_that_fail(run, folder, asked):
    items = [ITEMS[0], {"id": "bad", "output": ["3"]}, ITEMS[1] | {"chat_history": ["fails"]}]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    for _ in range(2):  # what failed for want of room is tried again
        code, out, err = run(*flags(folder, "--quiet"))
        assert code == 1
        assert "result   1 of 3 items have a reply" in out
        assert err == (
            'failed: item 2 (id bad): no question: expected "chat_history", a list that begins '
            "with a string, or a string \"model_input\" or \"input\"; there are 'id', 'output'\n"
            "failed: item 3 (id 1): too long\n2 failed, the others are kept\n"
        )
        assert [one["output"] for one in result(folder)][1:] == [[], []]
    assert [one.id for one in asked] == ["item 1 (id 0)", "item 3 (id 1)", "item 3 (id 1)"]


def test_an_interrupt_leaves_no_file(run, folder, asked, monkeypatch):
    """The journal has what was finished."""
    genuine = generator_module.Generator.stream

    def interrupted(self, requests):
        for place, one in genuine(self, requests):
            yield place, one
            if len(asked) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(generator_module.Generator, "stream", interrupted)
    code, out, err = run(*flags(folder))
    assert (code, out) == (130, "")
    assert "interrupted; unfinished files are left as they were" in err
    assert [one.name for one in folder.iterdir()] == ["in.json"]
    monkeypatch.setattr(generator_module.Generator, "stream", genuine)
    assert run(*flags(folder)).code == 0
    assert len(asked) == 2 + 3


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--temperature", "-1"), "expected 0 or more"),
        (("--temperature", "nan"), "expected a finite number"),
        (("--temperature", "inf"), "expected a finite number"),
        (("--top-p", "0"), "above 0 up to 1"),
        (("--truncate", "left"), "show fewer of them with -n"),
        (("-n", "0"), "0, expected a whole number of at least 1"),
        (("--max-new-tokens", "0"), "0, expected a whole number of at least 1"),
    ],
)
def test_usage_that_cannot_work(run, folder, monkeypatch, words, part):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    ran = run(*flags(folder, *words))
    assert ran.code == 2
    assert part in ran.err
    assert [one.name for one in folder.iterdir()] == ["in.json"]


def test_unusable_input(run, folder, monkeypatch):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    for text, part in (
        ("[]", "in.json: found no items"),
        ('{"a": 1}\n{"b": 2}', "in.json:2: found more than one JSON value (JSONL?)"),
        ('[{"output": ["a"]}]', "no item can be used; item 1: no question"),
    ):
        (folder / "in.json").write_text(text, encoding="utf-8")
        ran = run(*flags(folder))
        assert ran.code == 2
        assert part in ran.err


def test_the_settings_of_the_samples_are_not_those_of_the_replies(run, folder, asked):
    items = [ITEMS[0], {"id": "bad", "configs": {"dtype": "bfloat16"}}, ITEMS[1]]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    for _ in range(2):
        assert run(*flags(folder)).code == 1
    assert len(asked) == 2


def test_a_continued_run_asks_for_the_same_items_together(run, folder, monkeypatch):
    """Though those that failed before are asked for once more, which would move the others."""
    monkeypatch.setattr(UscGenerate, "texts_per_slot", 1)
    items = [ITEMS[k % 3] | {"chat_history": [f"How many {k}?"]} for k in range(7)]
    items[0]["chat_history"] = ["fails"]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    together = []

    class Fake:
        side_by_side = 2

        def __init__(self, scorer):
            self.scorer = scorer

        def stream(self, requests):
            together.append([one.id.split()[1] for one in requests])
            for place, one in enumerate(with_text_prompts(self.scorer, requests)):
                error = "fails" in one.prompt or None
                yield place, Generated(one.id, "x", np.zeros(1, np.int32), "eos", error)

    monkeypatch.setattr(generator_module, "Generator", Fake)
    assert run(*flags(folder)).code == 1
    whole = result(folder)
    assert together == [["1", "2"], ["3", "4"], ["5", "6"], ["7"]]
    (folder / "in-consistency-2.json").write_text(json.dumps(whole[:4]), encoding="utf-8")
    together.clear()
    assert run(*flags(folder)).code == 1
    assert together == [["1"], ["5", "6"], ["7"]]
    assert result(folder) == whole


def test_no_reply_at_all_leaves_no_file(run, folder, asked):
    items = [ITEMS[0] | {"chat_history": ["fails"]}, {"id": "bad"}]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    code, out, err = run(*flags(folder))
    assert (code, out) == (2, "")
    assert f"{folder / 'in.json'}: no item can be used; item 1 (id 0): too long" in err
    assert [one.name for one in folder.iterdir()] == ["in.json"]


def test_top_p_without_temperature_is_told(run, folder, asked):
    reported = "top_p 0.5: of no effect, since temperature 0 is greedy"
    assert reported in run(*flags(folder, "--top-p", 0.5)).err
    (folder / "in-consistency-2.json").unlink()
    assert reported not in run(*flags(folder, "--top-p", 0.5, "--temperature", 1)).err


def test_the_spellings_that_all_commands_have(run, folder, asked):
    words = ("usc-generate", "--input", folder / "in.json", "--output", folder / "out.json")
    words = (*words, "--model", QWEN, "--best-N", 2, "--limit", 2, "--journal", "off")
    assert run(*words).code == 0
    assert len(asked) == len(result(folder, "out.json")) == 2


def test_the_published_data_set_names_file_and_n(run, folder, asked, monkeypatch):
    monkeypatch.chdir(folder)
    words = ("--model", QWEN, "--dtype", "float32", "--journal", "off", "--quiet")
    assert run("usc-generate", "-d", "usc-2-in.json", *words).code == 0
    [first, *_] = strict((folder / "in-consistency-2.json").read_text("utf-8"))
    assert first["responses"] == ["3", "4"]
    assert run("usc-generate", "-d", "usc-2-in.json", "-n", 2, *words).code == 0
    assert "published" not in (folder / "in-consistency-2.json.run.json").read_text("utf-8")
    code, _, err = run("usc-generate", "-d", "gsm", *words)
    assert (code, "-d/--data-name: gsm: expected usc-N-FILE" in err) == (2, True)
    code, _, err = run("usc-generate", *words)
    assert (code, "required: --input" in err) == (2, True)


@pytest.mark.parametrize(
    ("other", "found"),
    [(("-n", 3), "-n 3 --input in.json"), (("--input", "G.json"), "-n 2 --input G.json")],
    ids=["-n", "--input"],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_published_data_set_beside_another_value_is_refused(run, folder, other, found, order):
    words = [word for pair in (("-d", "usc-2-in.json"), other)[::order] for word in pair]
    code, _, err = run("usc-generate", *words, "--model", QWEN, "--quiet")
    assert code == 2
    assert f"-d means -n 2 --input in.json, and {found} is given; give -d alone" in err


def test_session_ids_of_merged_shards_are_unique(run, tmp_path, asked):
    (tmp_path / "in").mkdir()
    items = [{"chat_history": item["chat_history"], "output": item["output"]} for item in ITEMS]
    for name, part in (("a", items[:2]), ("b", items[2:])):
        (tmp_path / f"in/{name}.json").write_text(json.dumps(part), encoding="utf-8")
    words = ("usc-generate", "--input", tmp_path / "in", "--model", QWEN, "-n", 2, "--quiet")
    assert run(*words, "--output", f"{tmp_path}/out/").code == 0
    assert run("merge", tmp_path / "out", "--output", tmp_path / "m.json").code == 0
    names = [record["session_id"] for record in result(tmp_path, "m.json")]
    assert names == ["a.json:1", "a.json:2", "b.json:1"]
