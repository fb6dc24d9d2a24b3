"""What stands before a continuation, against text put together by hand and by transformers."""

import copy
import dataclasses
import functools

import pytest

from jaxscore.errors import InputError
from jaxscore.shell.prompts import PLAIN, Example, Prompting, PromptSettings
from jaxscore.text import chat_template
from jaxscore.types.requests import Request
from tests.conftest import MODELS

pytestmark = pytest.mark.lines

EXAMPLES = (Example("Q: 1+1\nA:", " 2", "a"), Example("Q: 1+2\nA: ", "3", "b"))
LLAMA_2 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "[INST] {{ m['content'] }} [/INST]{% elif m['role'] == 'assistant' %} {{ m['content'] }} </s>"
    "{% else %}{{ raise_exception('no system') }}{% endif %}{% endfor %}"
)


def test_without_anything_a_prompt_stays_as_it_is():
    for text in ("", "a ", "\nb\n"):
        assert PLAIN.context_of(text, text) == text
        assert PLAIN.continuation_of(text) == text
    assert PLAIN.policies({"joint": "joint"}) == {"joint": "joint"}


def test_plain_text_to_the_letter():
    whole = Prompting(system="Be brief.", examples=EXAMPLES, opening="START\n")
    assert whole.context_of("Q: 5\nA:") == (
        "Be brief.\n\nSTART\nQ: 1+1\nA: 2\n\nQ: 1+2\nA: 3\n\nQ: 5\nA:"
    )
    # An item that is an example does not see it, and the opening stays first.
    assert whole.context_of("Q: 5\nA:", "a") == ("Be brief.\n\nSTART\nQ: 1+2\nA: 3\n\nQ: 5\nA:")
    assert whole.continuation_of(" 7") == " 7"
    assert whole.n_left_out(["a", "x", "a", None]) == 2
    lines = dataclasses.replace(whole, examples=(), system_end="\n")
    assert lines.context_of("Q") == "Be brief.\nSTART\nQ"


@pytest.mark.parametrize("name", MODELS)
def test_a_conversation_is_what_transformers_makes(scorers, name):
    tokenizer = scorers(name).encoder.tokenizer
    one = Prompting(tokenizer, "Be brief.", EXAMPLES, opening="START\n")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "START\nQ: 1+1\nA:"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Q: 1+2\nA:"},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "Q: 5\nA:"},
    ]
    want = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert one.context_of("Q: 5\nA: ") == want
    bare = dataclasses.replace(one, system="", examples=())
    want = tokenizer.apply_chat_template(
        [{"role": "user", "content": "START\nQ"}], tokenize=False, add_generation_prompt=True
    )
    assert bare.context_of("Q\n") == want
    assert (one.continuation_of("  Oslo "), one.continuation_of("  ")) == ("Oslo ", "  ")
    assert one.continuation_of("\n  x") == "\n  x"


@pytest.mark.parametrize("name", MODELS)
def test_the_continuation_is_the_start_of_the_assistants_turn(scorers, name):
    """Context, continuation and the end of a turn are the template's own conversation."""
    scorer = scorers(name)
    tokenizer = scorer.encoder.tokenizer
    one = PromptSettings(apply_chat_template=True).prompting(scorer, [])
    text = one.context_of("Where?") + one.continuation_of(" Oslo")
    turns = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Oslo"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False).startswith(text)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_no_bos_is_added_and_only_the_continuation_is_scored(scorers, name, system):
    scorer = scorers(name)
    tokenizer = scorer.encoder.tokenizer
    settings = PromptSettings(apply_chat_template=True, system_prompt=system)
    one = settings.prompting(scorer, EXAMPLES)
    context, continuation = one.context_of("Q: 5\nA:"), one.continuation_of(" 7 8")
    policy = one.policies({"joint": "joint", "other": "separate"})
    assert policy == {"joint": "exact", "other": "separate"}
    assert not one.special_tokens
    encode = functools.partial(scorer.encoder.encode, special_tokens=one.special_tokens)
    [(sequence,)] = encode([Request(0, context, continuation)], policy["joint"])
    # The line end of the header is not scored; under `joint` it would be.
    assert tokenizer.decode(sequence.ids[sequence.start :]) == "7 8"
    [(blank,)] = encode([Request(0, context, continuation)], "joint")
    assert blank.start < sequence.start
    # The ids are those that transformers makes of the whole text.
    whole = tokenizer(context + continuation, add_special_tokens=False)["input_ids"]
    assert sequence.ids.tolist() == whole


def test_a_template_that_writes_a_blank_before_an_answer(scorers, monkeypatch):
    scorer = scorers("tiny-llama3")
    tokenizer = copy.copy(scorer.encoder.tokenizer)
    tokenizer.chat_template = LLAMA_2
    monkeypatch.setattr(scorer.encoder, "tokenizer", tokenizer)
    one = PromptSettings(apply_chat_template=True).prompting(scorer, EXAMPLES[:1])
    assert one.answer_start == " "
    bos = tokenizer.bos_token
    assert one.context_of("Q ") == f"{bos}[INST] Q: 1+1\nA: [/INST] 2 </s>[INST] Q [/INST]"
    assert one.continuation_of("Oslo") == one.continuation_of(" Oslo") == " Oslo"
    with pytest.raises(InputError, match="takes no system message"):
        PromptSettings(apply_chat_template=True, system_prompt="x").prompting(scorer, [])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"apply_chat_template": 1.5},
            "apply_chat_template is 1.5, expected True or False",
        ),
        ({"system_prompt": 3}, "setting system_prompt is 3, expected a text"),
        (
            {"system_prompt": "\ud83d"},
            "setting system_prompt is a text that contains a lone",
        ),
        ({"fewshot": "abc"}, "setting fewshot is a string, expected a list of examples"),
        ({"fewshot": {"a": 1}}, "setting fewshot is of type dict, expected a list of examples"),
        ({"fewshot": None}, "setting fewshot is None, expected a list of examples"),
        ({"num_fewshot": 1}, "num_fewshot is 1, and fewshot holds 0 examples; give more"),
        ({"num_fewshot": 3, "fewshot": [1, 2]}, "num_fewshot is 3, and fewshot holds 2 examples"),
        ({"num_fewshot": -1}, "setting num_fewshot is -1, expected a whole number of at least 0"),
        ({"num_fewshot": True}, "setting num_fewshot is True, expected a whole number"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(InputError) as caught:
        PromptSettings(**settings)
    assert message in str(caught.value)


def drawn(n, seed, of=20):
    return PromptSettings(fewshot=range(of), num_fewshot=n, seed=seed).drawn()


def test_examples_are_drawn_by_the_seed():
    assert drawn(5, 0) == drawn(5, 0) != drawn(5, 1)
    for seed in range(5):
        every = drawn(20, seed)
        assert sorted(every) == list(range(20))
        assert [drawn(n, seed) for n in range(21)] == [every[:n] for n in range(21)]
    assert PromptSettings(fewshot=range(3)).drawn() == [0, 1, 2]
    first = [drawn(1, seed, 4)[0] for seed in range(400)]
    assert all(60 < first.count(k) < 140 for k in range(4))


def test_an_example_that_is_not_drawn_is_read_too():
    def read(one, position, where):
        if one == 7:
            raise InputError(f"{where}: {position}")
        return one

    with pytest.raises(InputError, match="few-shot example 8: 8"):
        PromptSettings(fewshot=range(9), num_fewshot=0).with_examples(read)


def test_an_example_that_is_no_text(scorers):
    with pytest.raises(
        InputError, match="few-shot example 2 of those that were drawn contains a lone"
    ):
        PromptSettings().prompting(None, [EXAMPLES[0], Example("a\ud83d", "b", "c")])


def test_facts_say_what_was_asked_for(scorers):
    scorer = scorers("tiny-qwen2")
    plain = PromptSettings()
    assert plain.facts(plain.prompting(scorer, []), 0) == {}
    given = PromptSettings(
        apply_chat_template=True, system_prompt="S", fewshot=range(3), num_fewshot=2, seed=4
    )
    found = given.facts(given.prompting(scorer, EXAMPLES), 1)
    assert found == {
        "apply_chat_template": True,
        "chat_template_sha256": chat_template.digest(scorer.encoder.tokenizer),
        "system_prompt": "S",
        "num_fewshot": 2,
        "fewshot_drawn": [k + 1 for k in drawn(2, 4, 3)],
        "fewshot_left_out": 1,
    }
    assert given.record() == {"truncate": None, "seed": 4}
