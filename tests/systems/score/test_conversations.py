"""Conversations: the contents of chosen messages, with values of PyTorch, and files as people's."""

import csv
import functools
import json
import re
import shlex

import numpy as np
import pytest
import torch
import transformers

from jaxscore import InputError, Scoring, evaluate
from jaxscore.cli.main import main
from jaxscore.model_pair import DivergenceScorer
from jaxscore.shell.conversations import LACKS_REASONING, NO_TOKEN
from jaxscore.text import chat_template
from jaxscore.text.turns import encode_turns, render_turns
from tests.chat_templates import CASE, CHINESE, PUBLISHED, QWEN3, TALKS
from tests.conftest import CASES, ROOT

pytestmark = pytest.mark.numeric

MODEL = str(CASES / "models/tiny-qwen2")


@pytest.fixture
def templated(scorers, monkeypatch):
    """`templated(model, template, **variables)`: a case's scorer with another chat template."""

    def get(model, template=None, **variables):
        scorer = scorers(model)
        tokenizer = scorer.encoder.tokenizer
        template = template or tokenizer.chat_template
        monkeypatch.setattr(tokenizer, "chat_template", template)
        if variables:
            chat_template.set_variables(tokenizer, variables)
        return scorer

    return get


def items_of(*talks):
    return [{"messages": talk} for talk in talks]


@pytest.mark.parametrize(
    "row", CASE["expected"], ids=lambda row: "-".join(map(str, list(row.values())[:3]))
)
def test_every_number_agrees_with_torch(templated, row):
    template = CASE["templates"].get(row["template"])  # None: the model's own
    scorer = templated(row["model"], template, **row.get("kwargs", {}))
    items = items_of(TALKS[row["conversation"]])
    if (index := row.get("refused_at_message")) is not None:
        [record] = evaluate("score", scorer, items).items
        assert f"rewrites earlier turns at messages[{index}]" in record["error"]
        return
    for name, (indices, total, n_scored) in row["runs"].items():
        roles, *ends = name.split()
        [record] = evaluate(
            "score", scorer, items, score_roles=roles, score_turn_end=bool(ends)
        ).items
        assert record["n_scored"] == record["n_tokens"] == n_scored
        assert record["sum_logprob"] == pytest.approx(total, abs=1e-4 * n_scored)
        assert [each["index"] for each in record["scored_messages"]] == indices
        end = 0
        for each in record["scored_messages"]:
            want = row["messages"][each["index"]]
            logprob = want["logprob"] + (want["turn_end_logprob"] if ends else [])
            assert [each["start"], each["end"]] == [end, end + len(logprob)]
            end = each["end"]
            span = slice(each["start"], each["end"])
            np.testing.assert_allclose(record["logprob"][span], logprob, atol=1e-4)
            entropy = record["entropy"][span][: len(want["entropy"])]
            np.testing.assert_allclose(entropy, want["entropy"], atol=1e-4)
            assert each["n_scored"] == len(logprob)
            assert each["sum_logprob"] == pytest.approx(sum(logprob), abs=1e-3)
            assert each["role"] == want["role"]
        assert end == n_scored


@functools.cache
def loaded(name):
    folder = CASES / "models" / name
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def by_torch(tokenizer, messages, model="tiny-qwen2"):
    """ln p of each token of each message; other characters of the same number mark contents."""
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    ids = torch.tensor([encoded["input_ids"]])
    with torch.no_grad():
        logprob = torch.log_softmax(loaded(model)(ids).logits[0].double(), -1)
    rows = []
    for k, message in enumerate(messages):
        veiled = [*messages]
        veiled[k] = {**message, "content": "\ue000" * len(message["content"])}
        mask = tokenizer.apply_chat_template(veiled, tokenize=False)
        assert len(mask) == len(text)
        rows.append(
            [
                float(logprob[place - 1, token]) if place else np.nan
                for place, (token, (a, b)) in enumerate(
                    zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
                )
                if mask[a + len(text[a:b]) - len(text[a:b].lstrip() or text[a:b])] == "\ue000"
            ]
        )
    return rows


KINDS = {**PUBLISHED, "qwen3": QWEN3, **CASE["templates"]}
KINDS = {name: KINDS[name] for name in KINDS if name not in ("parts", "llama-marks", "colon")}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_template_agrees_with_torch(templated, name):
    scorer = templated("tiny-qwen2", KINDS[name])
    talks = [TALKS["one"], [{**m, "content": m["content"].strip()} for m in CHINESE]]
    if name != "gemma":
        talks.append(TALKS["plain"])
    if name == "qwen3":  # it rewrites longer ones
        talks = talks[:1]
    records = evaluate("score", scorer, items_of(*talks), score_roles="all").items
    for talk, record in zip(talks, records, strict=True):
        want = by_torch(scorer.encoder.tokenizer, talk)
        for each, logprob in zip(record["scored_messages"], want, strict=True):
            ours = record["logprob"][each["start"] : each["end"]]
            np.testing.assert_allclose(np.array(ours, float), logprob, atol=1e-4)


def test_two_models_compare_the_same_tokens(scorers):
    items = items_of(TALKS["plain"], CHINESE)
    ours = evaluate("score", scorers("tiny-qwen2"), items, score_turn_end=True).items
    with DivergenceScorer.from_pretrained(
        MODEL, MODEL, dtype="float32", reference_dtype="bfloat16"
    ) as pair:
        report = evaluate("divergence", pair, items, score_turn_end=True)
        bad = evaluate("divergence", pair, items_of(CHINESE[:1], CHINESE)).items
    for record, scored in zip(report.items, ours, strict=True):
        assert record["scored_messages"] == [
            each | {"sum_logprob": pytest.approx(each["sum_logprob"], abs=1e-4)}
            for each in scored["scored_messages"]
        ]
        np.testing.assert_allclose(record["logprob"], scored["logprob"], atol=1e-5)
        assert len(record["kl"]) == len(record["tokens"]) == scored["n_tokens"]
        assert max(record["kl"]) > 0
    assert ["error" in record for record in bad] == [True, False]


def test_measures_and_words_are_those_of_the_scored_tokens(scorers):
    settings = {"measures": ["rank", "top_k", "min_k"], "unit": "word", "top_k": 2}
    talk = TALKS["plain"]
    report = evaluate("score", scorers("tiny-qwen2"), items_of(talk), **settings)
    [record] = report.items
    assert record["words"] == "Merrow. In Tellany, by the sea.".split()  # none of two messages
    bits = -np.array(record["logprob"]) / np.log(2)
    assert sum(record["word_surprisal"]) == pytest.approx(bits.sum(), rel=1e-5)
    greedy = [
        row[0] == token for row, token in zip(record["top_id"], record["token_ids"], strict=True)
    ]
    assert greedy == record["greedy"] == [rank == 1 for rank in record["rank"]]
    assert record["min_k"] == pytest.approx(np.mean(sorted(record["logprob"])[:2]), rel=1e-5)


def test_conversations_and_texts_share_a_file_and_their_beginning(scorers):
    scorer = scorers("tiny-qwen2")
    talk = TALKS["plain"]
    answers = [[*talk[:4], {"role": "assistant", "content": f"In {name}."}] for name in "ABC"]
    items = [*items_of(*answers), {"context": "The cat", "continuation": " sat"}]
    before = scorer.engine.statistics.facts()["counts"]
    report = evaluate("score", scorer, items, score_roles="last")
    counts = {k: v - before[k] for k, v in scorer.engine.statistics.facts()["counts"].items()}
    alone = [evaluate("score", scorer, [item], score_roles="last").items[0] for item in items]
    for record, want in zip(report.items, alone, strict=True):
        assert record["sum_logprob"] == pytest.approx(want["sum_logprob"], abs=1e-4)
    assert "scored_messages" not in report.items[3]
    assert counts["tokens_unique"] < counts["tokens_given"] / 2
    assert report.settings["score_roles"] == "last"


def test_items_that_cannot_be_scored_fail_alone(templated):
    answer, question = CHINESE[1], CHINESE[0]
    talks = [
        [question],
        [question, {"role": "assistant", "content": " "}],
        [question, answer],
        [question, {"role": "assistant", "content": "a" * 2000}],
        [question, {"role": "bot", "content": "a"}, answer],
    ]
    scorer = templated("tiny-qwen2")
    errors = [r.get("error", "") for r in evaluate("score", scorer, items_of(*talks)).items]
    assert (
        "none of its messages has the role assistant: it has user; --score-roles all" in errors[0]
    )
    assert errors[1:3] == ["", ""]  # a space is a token
    assert "positions" in errors[3]
    assert "shorten" in errors[3]
    assert errors[4] == ""  # ChatML writes any role
    talks[1][1]["content"] = ""
    strict = CASE["templates"]["chatml-plain"].replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if m.role == 'bot' %}{{ raise_exception('a bot') }}{% endif %}",
    )
    scorer = templated("tiny-qwen2", strict)
    errors = [r.get("error", "") for r in evaluate("score", scorer, items_of(*talks)).items]
    assert errors[1] == NO_TOKEN
    assert "refuses messages of user, bot, assistant (a bot)" in errors[4]
    scorer = templated("tiny-qwen2", PUBLISHED["llama-2"])
    report = evaluate("score", scorer, items_of(CHINESE), score_roles="all", score_turn_end=True)
    assert "ends messages[0] (user)" in report.items[0]["error"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"against": ""}, "--against"),
        ({"against_field": "other"}, "--against-field"),
        ({"system_prompt": "Be brief."}, "--system"),
        ({"fewshot": [{"continuation": "b"}]}, "--fewshot"),
    ],
)
def test_settings_of_contexts_are_refused(scorers, settings, words):
    items = [{"continuation": "a"}, *items_of(CHINESE)]
    with pytest.raises(InputError, match=rf"item 1: it has messages.*{words}"):
        evaluate("score", scorers("tiny-qwen2"), items, **settings)


BAD = {
    "[]": "messages is empty, expected at least one message",
    '["hi"]': "messages[0] is a string, expected",
    '[{"content": "a"}]': "messages[0]: role is missing",
    '[{"role": "user", "content": 1}]': "messages[0]: content is a whole number",
    '[{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [1]}]': (
        "messages[1] has tool_calls, which is not passed to the chat template; leave it out"
    ),
    '[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]': (
        "messages[0] has a part of type image_url, and only text has a probability; leave it out"
    ),
    '[{"from": "tool", "value": "a"}]': "messages[0] is from 'tool', expected one of human, user",
}


@pytest.mark.parametrize("messages", BAD)
def test_bad_messages_are_named_with_their_line(tmp_path, monkeypatch, capsys, messages):
    monkeypatch.chdir(tmp_path)
    good = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    (tmp_path / "in.jsonl").write_text(f'{good}\n{{"messages": {messages}}}\n')
    command = ["score", "--model", "demo", "--input", "in.jsonl", "--output", "out.jsonl"]
    assert main(command) == 2
    assert f"in.jsonl:2: {BAD[messages]}" in capsys.readouterr().err


def test_reasoning_that_is_left_out_is_counted(templated):
    plain, items = CASE["templates"]["chatml-plain"], items_of(TALKS["reasons"], CHINESE)
    without = plain.replace(
        "{{ m['content'] }}", "{{ m['content'].split('</think>')[-1].strip() }}"
    )
    report = evaluate("score", templated("tiny-qwen2", without), items)
    assert LACKS_REASONING.format(n=1) in report.remarks
    assert "".join(report.items[0]["tokens"]) == "ThreeĠdays.Three."
    assert evaluate("score", templated("tiny-qwen2", plain), items).remarks == []


def test_fields_that_would_change_the_text_are_refused(scorers):
    items = [{"messages": CHINESE, "tools": []}, {"messages": CHINESE, "tools": [{"name": "f"}]}]
    records = evaluate("score", scorers("tiny-qwen2"), items).items
    assert "error" not in records[0]
    assert records[1]["error"] == "it has messages and tools, which are not applied; leave them out"
    records = evaluate("score", scorers("tiny-qwen2"), [{"continuation": "a", "tools": [1]}]).items
    assert records[0]["tools"] == [1]


def test_share_gpt_is_read_by_its_column(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = [("system", "Be brief."), ("human", "Is Osk by the sea?"), ("gpt", "No.")]
    talk = {"conversations": [{"from": role, "value": text} for role, text in said]}
    both = {"messages": TALKS["one"], "continuation": "No."}
    (tmp_path / "in.jsonl").write_text(json.dumps(talk) + "\n")
    (tmp_path / "both.jsonl").write_text(json.dumps(both) + "\n")
    command = ["score", "--model", MODEL, "--output", "out.jsonl", "--input"]
    assert main([*command, "in.jsonl"]) == 2
    assert "add --column messages=conversations" in capsys.readouterr().err
    assert main([*command, "both.jsonl"]) == 2
    assert "it has messages and continuation; leave one of them out" in capsys.readouterr().err
    assert main([*command, "in.jsonl", "--column", "messages=conversations"]) == 0
    record = json.loads((tmp_path / "out.jsonl").read_text())
    assert "".join(record["tokens"]) == "No."


def test_tables_shards_and_a_second_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    talks = [TALKS["plain"], CHINESE, TALKS["one"]]
    with open("in.csv", "w", encoding="utf-8-sig", newline="") as file:  # as Excel writes it
        rows = csv.writer(file)
        rows.writerow(["id", "group", "messages", "continuation"])
        for k, talk in enumerate(talks):
            rows.writerow([f"t{k}", "zh" if talk is CHINESE else "en", json.dumps(talk), ""])
        rows.writerow(["plain", "en", "", "The cat sat."])
    run = ["score", "--model", MODEL, "--quiet", "--reproducible", "--input"]
    assert main([*run, "in.csv", "--output", "out.csv"]) == 0
    with open("out.csv", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["group"] for row in table] == ["en", "zh", "en", "en"]
    messages = json.loads(table[0]["scored_messages"])
    assert [each["index"] for each in messages] == [2, 4]
    assert table[3]["scored_messages"] == ""
    lines = [json.dumps({"id": f"t{k}", "messages": talk}) for k, talk in enumerate(talks)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").write_text("\n".join(lines[:2]))
    (tmp_path / "data/b.jsonl").write_text(lines[2])
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    assert main([*run, "all.jsonl", "--output", "all.out.jsonl"]) == 0
    assert main([*run, "data", "--output", "shards/"]) == 0
    assert main(["merge", "shards/", "--output", "merged.jsonl"]) == 0
    whole = (tmp_path / "all.out.jsonl").read_bytes()
    assert (tmp_path / "merged.jsonl").read_bytes() == whole
    sentence = "Of a conversation the contents of all messages of the assistant are scored"
    for name in ("all.out.jsonl", "merged.jsonl"):
        assert sentence in (tmp_path / f"{name}.report.md").read_text("utf-8")
        settings = json.loads((tmp_path / f"{name}.report.json").read_text("utf-8"))["settings"]
        assert settings["score_roles"] == "assistant"
        assert len(settings["chat_template_sha256"]) == 64
    assert main(["compare", "all.out.jsonl", "merged.jsonl", "--output", "same.json"]) == 0
    (tmp_path / "all.out.jsonl").unlink()
    capsys.readouterr()
    assert (
        main([*run[:3], "--reproducible", "--input", "all.jsonl", "--output", "all.out.jsonl"]) == 0
    )
    assert "3 of 3 texts come from it" in capsys.readouterr().out
    assert (tmp_path / "all.out.jsonl").read_bytes() == whole


def test_the_example_of_the_page(tmp_path, monkeypatch):
    page = (ROOT / "jaxscore/systems/README.md").read_text(encoding="utf-8")
    section = page.partition("## Conversations: `--score-roles`")[2]
    line, command = re.search(r"```sh\n(.*) > chats.jsonl\n(.*)\n```", section).groups()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chats.jsonl").write_text(shlex.split(line)[1], encoding="utf-8")
    assert main(shlex.split(command)[3:]) == 0
    record = json.loads((tmp_path / "chats.out.jsonl").read_text("utf-8"))
    [message] = record["scored_messages"]
    assert (message["index"], message["role"]) == (1, "assistant")
    assert message["sum_logprob"] == pytest.approx(record["sum_logprob"])
    assert record["tokens"][-1].startswith("<|")


def test_an_arrow_table_has_the_messages_of_each_row():
    pyarrow = pytest.importorskip("pyarrow")
    scoring = Scoring(MODEL, score_roles="all", summary_only=True)
    table = pyarrow.table({"messages": [TALKS["one"], TALKS["plain"]], "n": [1, 2]})
    out = scoring(table)
    messages = json.loads(out["scored_messages"][1].as_py())
    assert [each["role"] for each in messages] == [each["role"] for each in TALKS["plain"]]
    assert out["error"].null_count == 2


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-llama3"])
@pytest.mark.parametrize(
    "settings", [{"stride": 7}, {"window_bos": "first"}, {"score_from": "half"}]
)
def test_windows_score_the_same_tokens_after_what_each_window_reads(scorers, name, settings):
    """As for the whole text in windows, whose scores do not depend on the roles."""
    scorer = scorers(name)
    settings = {"max_length": 16, **settings}
    talks = [TALKS["plain"], CHINESE, TALKS["one"]]
    report = evaluate("score", scorer, items_of(*talks), score_turn_end=True, **settings)
    texts = [scorer.encoder.tokenizer.apply_chat_template(talk, tokenize=False) for talk in talks]
    wholes = evaluate("score", scorer, texts, **settings).items
    for talk, record, whole in zip(talks, report.items, wholes, strict=True):
        answers = [k for k, message in enumerate(talk) if message["role"] == "assistant"]
        text, turns = render_turns(scorer.encoder.tokenizer, talk, answers)
        _, tokens = encode_turns(scorer.encoder, text, turns, with_ends=True)
        positions = np.concatenate([each.positions for each in tokens])
        want = np.array(whole["logprob"], float)[positions]
        np.testing.assert_allclose(np.array(record["logprob"], float), want, atol=1e-5)
        assert record["n_scored"] == np.isfinite(want).sum()
        for each in record["scored_messages"]:
            values = want[each["start"] : each["end"]]
            assert each["n_scored"] == np.isfinite(values).sum()


def test_perplexity_is_over_the_same_tokens_and_the_bytes_of_the_contents(scorers):
    scorer = scorers("tiny-llama3")
    items = [*items_of(TALKS["plain"], CHINESE), {"text": "The cat sat."}]
    for settings in ({}, {"score_roles": "all", "max_length": 16, "stride": 5}):
        ours = evaluate("perplexity", scorer, items, **settings)
        windows = {**settings, "window_bos": "first"} if settings else {}
        scored = evaluate("score", scorer, items[:2], **windows).items
        for record, want, talk in zip(ours.items, scored, [TALKS["plain"], CHINESE], strict=False):
            assert record["sum_logprob"] == want["sum_logprob"]  # to the last digit
            assert record["n_scored"] == want["n_scored"]
            assert record["scored_messages"] == want["scored_messages"]
            contents = [
                message["content"].strip()
                for message in talk
                if settings or message["role"] == "assistant"
            ]
            assert record["n_bytes"] == len("".join(contents).encode())
            assert record["n_words"] == sum(len(text.split()) for text in contents)
            assert record["begin"] == contents[0]
        assert ours.items[2]["n_bytes"] == len("The cat sat.")
        assert "scored_messages" not in ours.items[2]
    bad = evaluate("perplexity", scorer, items_of(CHINESE[:1], CHINESE))
    assert [record.get("error", "")[:12] for record in bad.items] == ["none of its ", ""]
