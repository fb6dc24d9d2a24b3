"""`/v1/chat/completions`: fields, texts and numbers, against the template and the scorer."""

import asyncio
import contextlib
import dataclasses
import json
import threading

import numpy as np
import pytest

from jaxscore import Scorer
from jaxscore.plan.requests import TokenSequence
from jaxscore.server import service
from jaxscore.text import chat_template
from tests.server.conftest import Served, refused

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it Oslo?"}]
BASE = {"messages": MESSAGES, "max_tokens": 2, "temperature": 0}

TAKEN = {
    "model": [None, "tiny"],
    "messages": [
        [{"role": "user", "content": "a"}],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            }
        ],
        [{"role": "user", "content": "a", "name": "me", "tool_calls": None}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "user", "content": []}],
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "tool_calls": [], "annotations": []},
            {"role": "user", "content": "c", "annotations": None},
        ],
        [
            {"role": "assistant", "content": "b", "annotations": [{"type": "url_citation"}]},
            {"role": "user", "content": "c"},
        ],
    ],
    "max_tokens": [None, 1],
    "logprobs": [None, True, False],
    "n": [2],
    "tools": [None, []],
    "tool_choice": ["none", "auto"],
    "response_format": [{"type": "text"}],
}
REFUSED = {
    "messages": [
        None, [], {}, "a", [7], [{}], [{"role": "user"}], [{"role": 7, "content": "a"}],
        [{"role": "user", "content": 7}], [{"role": "user", "content": ["a"]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "assistant", "content": "a", "tool_calls": [{}]}],
        [{"role": "assistant", "content": "a", "reasoning_content": "b"}],
        [{"role": "user", "content": "a", "name": 7}],
    ],
    "max_tokens": [0, -1, 1.0, True],
    "max_completion_tokens": [3, 0],  # beside max_tokens, or too few
    "logprobs": [1, "true"],
    "top_logprobs": [3, 21, -1],  # without logprobs
    "tools": [[{"type": "function"}]],
    "temperature": ["0"],
    "prompt": ["a"],
    "echo": [True],
}  # fmt: skip


def cases(table):
    pairs = [(field, value) for field, values in table.items() for value in values]
    return pytest.mark.parametrize(("field", "value"), pairs, ids=lambda one: str(one)[:20])


def chat(served, **body):
    answer = served.ask(PATH, {**BASE, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@cases(TAKEN)
def test_taken(served, field, value):
    stop = "e"  # a text without a limit would fill the model's positions
    assert chat(served, **{field: value, "stop": stop})["object"] == "chat.completion"


def test_an_answer_is_taken_back_into_the_history_and_changes_no_prompt(served):
    answer = chat(served, stop="e")["choices"][0]["message"]
    user = {"role": "user", "content": "Why?"}
    plain = chat(served, messages=[*MESSAGES, answer, user], return_token_ids=True, stop="e")
    nothing = dict.fromkeys(("refusal", "audio", "function_call", "reasoning_content"))
    more = answer | {"tool_calls": [], "annotations": []} | nothing
    full = chat(served, messages=[*MESSAGES, more, user], return_token_ids=True, stop="e")
    assert full["prompt_token_ids"] == plain["prompt_token_ids"]


@pytest.mark.parametrize("logprobs", [False, True])
def test_token_ids_of_a_chat_are_where_vllm_has_them(served, logprobs):
    body = {"n": 2, "temperature": 1, "seed": 3, "max_tokens": 12, "logprobs": logprobs}
    plain = chat(served, **body)
    answer = chat(served, **body, return_token_ids=True)
    tokenizer = served.service.encoder.tokenizer
    text = chat_template.render(tokenizer, MESSAGES)
    [(expected, _)] = served.scorer.encoder.prompts([text])
    assert answer["prompt_token_ids"] == expected.tolist()
    ids = {choice["index"]: choice.pop("token_ids") for choice in answer["choices"]}
    assert answer["choices"] == plain["choices"]
    for choice in plain["choices"]:
        content = served.service.token_bytes.join(
            [id for id in ids[choice["index"]] if id not in served.service.eos_ids]
        )
        assert content == choice["message"]["content"]
    streamed, prompts = {0: [], 1: []}, []
    text = served.ask(PATH, {**BASE, **body, "return_token_ids": True, "stream": True}).text
    for part in text.split("\n\n"):
        if part.startswith("data: {"):
            event = json.loads(part[6:])
            prompts += [event["prompt_token_ids"]] if "prompt_token_ids" in event else []
            [choice] = event["choices"]
            streamed[choice["index"]] += choice["token_ids"]
    assert prompts == [expected.tolist()]
    assert streamed == ids


@cases(REFUSED)
def test_refused(served, field, value):
    answer = served.ask(PATH, {**BASE, field: value})
    error = refused(answer, 400, type="invalid_request_error")
    wrong = "max_tokens" if (field, value) == ("max_completion_tokens", 3) else field
    assert error["param"] == wrong


def test_an_image_is_refused_by_name(served):
    content = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    answer = served.ask(PATH, {"messages": [{"role": "user", "content": content}]})
    assert "image_url" in refused(answer, 400, param="messages")["message"]


@pytest.mark.lines
def test_the_prompt_is_the_templates_with_one_bos(served):
    encoder = served.scorer.encoder
    text = chat_template.render(encoder.tokenizer, MESSAGES)
    [ids] = encoder.prompt_ids([text])
    assert ids.tolist().count(encoder.tokenizer.bos_token_id) == 1
    answer = chat(served, max_tokens=9)
    assert answer["usage"]["prompt_tokens"] == len(ids)
    [written] = served.scorer.generate([text], max_new_tokens=9)
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": written.text}
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None


def test_a_template_without_a_bos_gets_none(served, monkeypatch):
    encoder = served.scorer.encoder
    assert encoder.prefix
    template = encoder.tokenizer.get_chat_template()
    n_tokens = chat(served)["usage"]["prompt_tokens"]
    monkeypatch.setattr(encoder.tokenizer, "chat_template", template.replace("bos_token", "''"))
    assert chat(served)["usage"]["prompt_tokens"] == n_tokens - 1


PARTS = (
    "{% for m in messages %}<{{ m.role }}{{ ' ' + m.name if m.name }}>"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("message", "prompt"),
    [
        ({"content": "Where?"}, "<user>Where?"),
        ({"content": "Who?", "name": "Ada"}, "<user Ada>Who?"),
        ({"content": [{"type": "text", "text": t} for t in ("Wh", "o?")]}, "<user>Who?"),
    ],
)
def test_a_template_that_expects_parts_writes_all_text(served, monkeypatch, message, prompt):
    encoder = served.scorer.encoder
    monkeypatch.setattr(encoder.tokenizer, "chat_template", PARTS)
    [ids] = encoder.prompt_ids([prompt], special_tokens=False)
    answer = chat(served, messages=[{"role": "user", **message}])
    assert answer["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[-1].content }}", "the template takes no system message"),
        ("{{ messages[0].content }}", "leaves out the text of message 2 of 2 (user)"),
    ],
)
def test_a_template_that_leaves_out_text_is_refused(served, monkeypatch, template, message):
    monkeypatch.setattr(served.scorer.encoder.tokenizer, "chat_template", template)
    error = refused(served.ask(PATH, BASE), 400, param="messages")
    assert error["message"].startswith(("the template", "its chat template"))  # without a folder
    assert message in error["message"]


def test_variables_of_the_template(served, monkeypatch):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ 'yes' if thinking else 'no' }}"
    monkeypatch.setattr(served.scorer.encoder.tokenizer, "chat_template", template)
    counts = {}
    for value, text in ((None, "no"), (False, "no"), (True, "yes")):
        variables = {} if value is None else {"chat_template_kwargs": {"thinking": value}}
        counts[value] = chat(served, **variables)["usage"]["prompt_tokens"]
        ids = served.scorer.encoder.prompt_ids([f"Be brief.Is it Oslo?{text}"])[0]
        assert counts[value] == len(ids) - len(served.scorer.encoder.prefix)
    for variables in ({"thinkin": 1}, {"messages": []}, {"chat_template": "x"}, {"tools": []}, [1]):
        body = {**BASE, "chat_template_kwargs": variables}
        message = refused(served.ask(PATH, body), 400, param="chat_template_kwargs")["message"]
        assert "does not use a variable" in message or "expected an object" in message


def test_numbers_are_the_scorers(served):
    [choice] = chat(served, max_tokens=5, logprobs=True, top_logprobs=3, seed=1, temperature=1)[
        "choices"
    ]
    content = choice["logprobs"]["content"]
    assert len(content) == 5
    raw = b"".join(bytes(one["bytes"]) for one in content)
    assert raw.decode("utf-8", "replace") == choice["message"]["content"]
    token_bytes = served.service.token_bytes
    by_bytes = {token_bytes.raw(id): id for id in range(1200)}
    encoder = served.scorer.encoder
    [before] = encoder.prompt_ids([chat_template.render(encoder.tokenizer, MESSAGES)])
    ids = np.array([*before, *(by_bytes[bytes(one["bytes"])] for one in content)], np.int32)
    [scores] = served.scorer.engine.score_sequences([TokenSequence(ids, len(before))], top=5)
    np.testing.assert_allclose([one["logprob"] for one in content], scores.logprob, atol=1e-5)
    for one, top_id, top in zip(content, scores.top_id, scores.top_logprob, strict=True):
        assert [by_bytes[bytes(x["bytes"])] for x in one["top_logprobs"]] == top_id[:3].tolist()
        np.testing.assert_allclose([x["logprob"] for x in one["top_logprobs"]], top[:3], atol=1e-5)


def test_a_chat_without_a_limit_ends_where_rotary_frequencies_change(scorer):
    """As LongRoPE's do at the original length; a limit beyond it is refused."""
    [ids] = scorer.encoder.prompt_ids([chat_template.render(scorer.encoder.tokenizer, MESSAGES)])
    model = dataclasses.replace(scorer.model, longer=(len(ids) + 2, scorer.model.functions))
    longrope = Scorer(model, scorer.encoder, batch_tokens=1024)
    with contextlib.closing(Served(longrope)) as served:
        body = {"messages": MESSAGES, "temperature": 0}
        answer = served.ask(PATH, body | {"max_tokens": 4})
        message = refused(answer, 400, param="messages")["message"]
        assert "at most 3 new tokens" in message
        answer = served.ask(PATH, body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert answer.json()["choices"][0]["finish_reason"] == "length"


def test_without_top_logprobs_the_lists_are_empty(served):
    [choice] = chat(served, logprobs=True)["choices"]
    assert [one["top_logprobs"] for one in choice["logprobs"]["content"]] == [[], []]


@pytest.mark.parametrize("logprobs", [False, True])
def test_parts_add_up(served, logprobs):
    body = {"max_tokens": 40, "n": 2, "seed": 5, "temperature": 0.7, "logprobs": logprobs}
    whole = chat(served, **body)
    streamed = {**BASE, **body, "stream": True, "stream_options": {"include_usage": True}}
    text = served.ask(PATH, streamed).text
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    *parts, last = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    for k, expected in enumerate(whole["choices"]):
        some = [one for part in parts for one in part["choices"] if one["index"] == k]
        assert some[0]["delta"] == {"role": "assistant", "content": ""}
        joined = "".join(one["delta"].get("content", "") for one in some)
        assert joined == expected["message"]["content"]
        assert [one["finish_reason"] for one in some if one["finish_reason"]] == ["length"]
        assert some[-1]["delta"] == {}


def test_a_template_that_refuses(served, monkeypatch):
    refusal = "{{ raise_exception('no system role, please') }}"
    monkeypatch.setattr(served.scorer.encoder.tokenizer, "chat_template", refusal)
    error = refused(served.ask(PATH, BASE), 400, param="messages")
    assert "no system role, please" in error["message"]


def test_a_tokenizer_without_a_template(served, monkeypatch):
    monkeypatch.setattr(served.scorer.encoder.tokenizer, "chat_template", None)
    error = refused(served.ask(PATH, BASE), 400, param="messages")
    assert "lacks a chat template" in error["message"]


def test_too_long(served):
    long = [{"role": "user", "content": "Oslo is " * 400}]
    error = refused(
        served.ask(PATH, {**BASE, "messages": long}), 400, code="context_length_exceeded"
    )
    assert "1024" in error["message"]
    longest = served.service.longest_token
    huge = [{"role": "user", "content": "a" * (1024 * longest + 1)}]
    many = [{"role": "user", "content": ""}] * 1024 * longest  # the template makes it long
    for some in (huge, many):
        refused(
            served.ask(PATH, {**BASE, "messages": some}),
            400,
            param="messages",
            code="context_length_exceeded",
        )


def test_conversations_that_render_for_long_do_not_stop_other_paths(start, monkeypatch):
    served, go_on, real = start(), threading.Event(), chat_template.render
    monkeypatch.setattr(chat_template, "render", lambda *given: go_on.wait(60) and real(*given))
    text = "a " * service.LONG  # a thread tokenizes it

    async def both():
        async with served.client() as client:
            chats = [asyncio.ensure_future(client.post(PATH, json=BASE)) for _ in range(40)]
            await asyncio.sleep(0.1)
            try:
                async with asyncio.timeout(5):
                    other = await client.post("/tokenize", json={"prompt": text})
            finally:
                go_on.set()
            return other.status_code, [one.status_code for one in await asyncio.gather(*chats)]

    assert asyncio.run(both()) == (200, [200] * 40)
