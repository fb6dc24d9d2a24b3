"""Prompts of `sample`: what they are read from, their seeds, and the text that a model reads."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.errors import InputError
from jaxscore.systems import sample
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES, MODELS
from tests.systems.checked import checked_items

TOKENIZERS = sorted(path.name for path in (CASES / "tokenizers").iterdir() if path.is_dir())
SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who ran?"}]


def prompts(source, **options):
    items, settings = checked_items("sample", source, n=1, **options)
    return [sample.SYSTEM.prompt(entry, settings) for entry in items.entries()]


def load(tmp_path, *lines, **options):
    text = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    (tmp_path / "in.jsonl").write_text("".join(f"{one}\n" for one in text), encoding="utf-8")
    return prompts(tmp_path / "in.jsonl", **options)


def fields(prompt):
    """The item's fields in the record."""
    return {k: v for k, v in sample.SYSTEM.record_of(prompt, {}).items() if k != "output"}


def test_prompts_of_a_file(tmp_path):
    first, second, third = load(
        tmp_path, {"id": "a", "prompt": "Who?", "answer": 7}, "", {"messages": SAID}, {"prompt": ""}
    )
    assert first.name == f"{tmp_path / 'in.jsonl'}:1 (id a)"
    assert (first.text, sample.history(first.text)) == ("Who?", ["Who?"])
    assert fields(first) == {"id": "a", "prompt": "Who?", "answer": 7}
    assert (second.text, sample.history(second.text)) == (SAID, ["Who ran?"])
    assert fields(second) == {"id": 3, "messages": SAID}  # the line of the file
    assert (third.text, fields(third)["id"], third.error) == ("", 4, None)
    [only] = load(tmp_path, {"prompt": "a"}, {"prompt": "b"}, limit=1)
    assert only.text == "a"


def test_prompts_of_a_table(tmp_path):
    """A list of messages is JSON text there, and a bad row fails alone."""
    path, said = tmp_path / "in.csv", json.dumps(SAID).replace('"', '""')
    path.write_text(f'id,said,answer\na,"{said}",7\nb,Who ran?,8\n', encoding="utf-8")
    first, second = prompts(path, columns={"messages": "said"})
    assert (first.text, fields(first)["answer"], first.error) == (SAID, "7", None)
    assert second.name == f"{path}:3 (id b)"
    assert second.error.startswith('field "messages" is ')
    path.write_text("prompt,question\nx,Who?\n", encoding="utf-8")
    [one] = prompts(path, columns={"prompt": "question"})
    assert (one.text, fields(one)) == ("Who?", {"id": 2, "prompt": "Who?"})


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"question": "Who?"}, 'expected either a string "prompt" or a list "messages"; there are'),
        ({"prompt": "a", "messages": SAID}, 'or a list "messages"; both'),
        ({"prompt": 3}, 'field "prompt" is a whole number, expected a string'),
        ({"prompt": None}, 'field "prompt" is null, expected a string'),
        ({"messages": []}, 'field "messages" is empty, expected a list of messages'),
        ({"messages": "Who?"}, 'field "messages" is a string, expected a list of messages'),
        ({"messages": ["Who?"]}, 'field "messages", message 1: found a string, expected an object'),
        ({"messages": [*SAID, {"role": "user"}]}, 'message 3: "content" is missing, expected a s'),
        ({"messages": [{"role": 1, "content": ""}]}, '"role" is a whole number, expected a string'),
        ({"messages": [{**SAID[1], "tool_calls": [{}]}]}, "message 1 has tool_calls, which is not"),
        ({"messages": [{**SAID[1], "reasoning_content": "b"}]}, "message 1 has reasoning_content"),
        ({"prompt": "a", "output": ["b"]}, 'field "output" has the name of a result'),
        ({"prompt": "a", "error": "x"}, 'field "error" has the name of a result; rename'),
    ],
)
def test_a_prompt_that_cannot_be_used_fails_alone(tmp_path, bad, why):
    first, second = load(tmp_path, {"prompt": "a"}, bad)
    assert first.error is None
    assert why in second.error
    with pytest.raises(InputError, match=r"no item can be used; .*in.jsonl:1: "):
        load(tmp_path, bad)


def test_half_a_surrogate_pair_given_in_python():
    half = "\ud800"
    for bad in ({"prompt": half}, {"messages": [{"role": "user", "content": half}]}):
        _, failed = prompts([{"prompt": "a"}, bad])
        assert "contains a lone surrogate (invalid Unicode)" in failed.error
    with pytest.raises(InputError, match="item 2 is a string, expected an object"):
        prompts([{"prompt": "a"}, "b"])


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (("[1]",), "in.jsonl:1: found a JSON array, expected JSONL"),
        (('{"prompt": "a"}', "no"), "in.jsonl:2: not JSON at column 1"),
        (('{"prompt": "\\ud800"}',), "in.jsonl:1: a string contains a lone surrogate"),
        (('{"prompt": ' + "[" * 200 + "]" * 200 + "}",), "in.jsonl:1: not usable JSON (nested"),
        (("",), "in.jsonl: the file is empty"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, lines, part):
    with pytest.raises(InputError) as caught:
        load(tmp_path, *lines)
    assert part in str(caught.value)


def seeds(given, seed=0):
    return list(sample.SYSTEM.seeds(prompts(given), sample.Settings(n=1, seed=seed)))


ASKED = st.fixed_dictionaries(
    {"prompt": st.sampled_from("abc")}, optional={"id": st.integers(0, 3)}
)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(ASKED, min_size=1, max_size=6), st.lists(ASKED, max_size=3))
def test_prompts_that_are_added_leave_the_seeds_of_the_others(before, added):
    assert seeds([*before, *added])[: len(before)] == seeds(before)
    new = [one for one in added if one not in before]
    assert seeds([*new, *before])[len(new) :] == seeds(before)


def test_seeds_are_of_the_seed_the_prompt_and_its_own_name():
    a = {"prompt": "a"}
    given = [a, a, {"prompt": "b"}, {**a, "id": 1}, {**a, "id": "1"}, {**a, "question_id": 1}]
    given.append({"messages": [{"role": "user", "content": "a"}]})
    found = [*seeds(given), *seeds(given, 1)]
    assert len({*found}) == len(found)  # the same prompt twice has two samples
    assert all(0 <= one < 2**32 for one in found)
    assert seeds([{**a, "answer": "x"}]) == seeds([a])  # other fields have no part in them


@pytest.mark.parametrize("name", MODELS)
def test_the_text_that_a_model_reads(scorers, name):
    """Its ids without special tokens are those of a plain prompt with them."""
    encoder = scorers(name).encoder
    plain, said = "Who ran?", SAID
    text = sample.model_input(encoder, plain, chat=False, system=None)
    [(ids, _)] = encoder.prompts([text], special_tokens=False)
    assert ids.tolist() == encoder.prompt_ids(["Who ran?"])[0].tolist()
    assert encoder.prompt_ids([text])[0].tolist() == ids.tolist()
    reported = {"chat": True, "system": None}
    render = encoder.tokenizer.apply_chat_template
    for one, messages in ((plain, SAID[1:]), (said, SAID)):
        text = sample.model_input(encoder, one, **reported)
        assert text == render(messages, tokenize=False, add_generation_prompt=True)
    system = sample.model_input(encoder, plain, chat=True, system="Be brief.")
    assert system == sample.model_input(encoder, said, **reported)


@pytest.mark.parametrize("saved", ["saved_by_4", "saved_by_5"])
@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", ["Who ran?", " Who", "", "  two  blanks", "\n", "يا 北"])
def test_the_text_that_a_model_reads_of_each_kind_of_tokenizer(tmp_path, name, saved, text):
    folder = CASES / "tokenizers" / name
    for path in [folder / "tokenizer.json", *(folder / saved).iterdir()]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    encoder = TextEncoder(load_tokenizer(tmp_path))
    read = sample.model_input(encoder, text, chat=False, system=None)
    [(alone, _)] = encoder.prompts([read], special_tokens=False)
    assert alone.tolist() == encoder.prompt_ids([read])[0].tolist()
    assert alone.tolist() == encoder.prompt_ids([text])[0].tolist()


def test_a_prompt_beyond_the_positions_is_refused_before_it_is_encoded(scorers, monkeypatch):
    encoder = scorers("tiny-llama3").encoder
    assert encoder.prefix
    assert encoder.bounded._limit  # read of the backend once
    prompt = "Who ran? " * 200_000
    monkeypatch.setattr(encoder.bounded, "backend", None)
    with pytest.raises(InputError, match="1800000 characters, more than the model's 64 positions"):
        sample.model_input(encoder, prompt, chat=False, system=None, max_positions=64)
    monkeypatch.setattr(encoder, "prefix", [])  # nothing to write out, so nothing is encoded
    text = sample.model_input(encoder, prompt, chat=False, system=None)
    assert text == prompt


def test_what_no_text_can_be_made_of(scorers, monkeypatch):
    encoder = scorers("tiny-qwen2").encoder
    plain, said = "Who ran?", SAID
    with pytest.raises(InputError, match="give --apply-chat-template, or a string"):
        sample.model_input(encoder, said, chat=False, system=None)
    with pytest.raises(InputError, match="two system messages, the item's and --system"):
        sample.model_input(encoder, said, chat=True, system="x")
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    monkeypatch.setattr(encoder.tokenizer, "chat_template", template)
    assert sample.model_input(encoder, plain, chat=True, system=None) == "Who ran?"
    for prompt, system in ((said, None), (plain, "x is no name")):
        with pytest.raises(InputError, match="the template takes no system message: leave the"):
            sample.model_input(encoder, prompt, chat=True, system=system)
    monkeypatch.setattr(encoder.tokenizer, "chat_template", None)
    with pytest.raises(InputError, match="its tokenizer lacks a chat template"):
        sample.model_input(encoder, plain, chat=True, system=None)
