"""Completions: texts, log-probabilities and offsets, against the scorer and by hand."""

import itertools
import json

import numpy as np
import pytest

from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.server import ApiError, invalid_field
from jaxscore.server import choices as choices_module
from jaxscore.server.choices import join_logprobs, last_logprobs, top_logprobs
from jaxscore.server.completions import chat_logprobs, completion_logprobs
from jaxscore.types.requests import GenerationRequest, Request
from tests.server.conftest import refused

PATH = "/v1/completions"
TEXTS = ["Oslo is in Norway", "Oslo is", "naïve €😀 café", "Oslo is in Norway"]
ECHO = {"max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}


def complete(served, **body):
    answer = served.ask(PATH, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_prompts_have_the_scorers_numbers(served):
    choices = complete(served, prompt=TEXTS, **ECHO)["choices"]
    assert [one["index"] for one in choices] == [0, 1, 2, 3]
    expected = served.scorer.score([Request(k, "", text) for k, text in enumerate(TEXTS)])
    for choice, text, one in zip(choices, TEXTS, expected, strict=True):
        listed = choice["logprobs"]
        assert choice["text"] == text
        assert listed["token_logprobs"][0] is None
        assert listed["top_logprobs"][0] is None
        found = listed["token_logprobs"][1:]  # the BOS has none
        np.testing.assert_allclose(found, one.logprob, atol=1e-5)
        greedy = [
            own == max(top.values())
            for own, top in zip(found, listed["top_logprobs"][1:], strict=True)
        ]
        assert greedy == one.greedy.tolist()
        assert choice["finish_reason"] == "length"


def test_texts_and_ids_are_one(served):
    """Ids are used as they are: with the BOS they are the text, without it another one."""
    [(ids, _)] = served.scorer.encoder.prompts(["Oslo is in Norway"])
    by_text = complete(served, prompt="Oslo is in Norway", **ECHO)["choices"][0]
    by_ids = complete(served, prompt=ids.tolist(), **ECHO)["choices"][0]
    assert by_ids == by_text
    bare = complete(served, prompt=ids[1:].tolist(), **ECHO)["choices"][0]
    alone = complete(served, prompt="Oslo is in Norway", add_special_tokens=False, **ECHO)
    assert alone["choices"][0] == bare
    assert bare["logprobs"]["tokens"] == by_text["logprobs"]["tokens"][1:]
    assert bare["logprobs"]["token_logprobs"][1] != by_text["logprobs"]["token_logprobs"][2]


def test_tokens_and_offsets(served):
    listed = complete(served, prompt="naïve €😀", **ECHO)["choices"][0]["logprobs"]
    bos = served.scorer.encoder.tokenizer.bos_token
    assert listed["tokens"][0] == bos
    assert listed["text_offset"][:2] == [0, 0]
    assert "\ufffd" in listed["tokens"]  # parts of the euro sign
    assert sorted(listed["text_offset"]) == listed["text_offset"]
    text = "naïve €😀"
    ends = [*listed["text_offset"][1:], len(text)]
    for token, start, end in zip(listed["tokens"], listed["text_offset"], ends, strict=True):
        assert token == bos or "\ufffd" in token or text[start:end] == token


@pytest.mark.parametrize("as_ids", [False, True])
def test_most_probable_tokens(served, as_ids):
    """All of 20 against the whole distribution, and k or k + 1 of them in each place."""
    ids = served.scorer.encoder.prompt_ids(["Oslo is"])[0]
    every = np.arange(served.scorer.model.vocab_size)
    sequences = [TokenSequence(ids[:n], n, every) for n in range(1, len(ids))]
    rows = [one.logprob for one in served.scorer.score_sequences(sequences)]
    body = {**ECHO, "logprobs": 20, "return_tokens_as_token_ids": as_ids}
    listed = complete(served, prompt=ids.tolist(), **body)["choices"][0]["logprobs"]
    name = served.service.token_bytes.text
    for place, row in enumerate(rows, start=1):
        order = np.argsort(-row, kind="stable")[:20].tolist()
        own = int(ids[place])
        expected = {}
        for id in [*order, own]:
            expected.setdefault(f"token_id:{id}" if as_ids else name(id), row[id])
        found = listed["top_logprobs"][place]
        assert list(found) == list(expected)
        np.testing.assert_allclose([*found.values()], [*expected.values()], atol=1e-5)
        if as_ids:
            assert len(found) == 20 + (own not in order)
            assert found[f"token_id:{own}"] == listed["token_logprobs"][place]
    if as_ids:
        assert listed["tokens"] == [f"token_id:{id}" for id in ids]


def test_without_most_probable_tokens_there_is_the_token_itself(served):
    listed = complete(served, prompt="Oslo is", **{**ECHO, "logprobs": 0})["choices"][0]["logprobs"]
    for token, own, top in list(
        zip(listed["tokens"], listed["token_logprobs"], listed["top_logprobs"], strict=True)
    )[1:]:
        assert top == {token: own}


@pytest.mark.parametrize("top", [0, 3])
@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_prompt_logprobs_as_vllm_gives_them(served, top, max_tokens):
    """The token itself first, then the most probable ones, each with its rank."""
    ids = served.scorer.encoder.prompt_ids(["Oslo is"])[0]
    body = {"prompt": ids.tolist(), "max_tokens": max_tokens, "temperature": 0}
    [choice] = complete(served, **body, prompt_logprobs=top)["choices"]
    assert choice["logprobs"] is None
    assert choice["text"] == complete(served, **body)["choices"][0]["text"]
    first, *listed = choice["prompt_logprobs"]
    assert first is None
    assert len(listed) == len(ids) - 1
    every = np.arange(served.scorer.model.vocab_size)
    for place, found in enumerate(listed, start=1):
        sequence = TokenSequence(ids[:place], place, every)
        [row] = [one.logprob for one in served.scorer.score_sequences([sequence])]
        own, order = int(ids[place]), np.argsort(-row, kind="stable")[:top].tolist()
        assert list(found) == [str(own), *(str(id) for id in order if id != own)]
        for name, entry in found.items():
            assert entry["logprob"] == pytest.approx(row[int(name)], abs=1e-5)
            assert entry["rank"] == 1 + (row > row[int(name)]).sum()
            assert entry["decoded_token"] == served.service.token_bytes.text(int(name))


def test_prompt_logprobs_beside_logprobs(served):
    """Each of the two has its own number of most probable tokens."""
    body = {"prompt": TEXTS[:2], "max_tokens": 3, "temperature": 0}
    for echo in (False, True):
        alone = complete(served, **body, logprobs=2, echo=echo)["choices"]
        both = complete(served, **body, logprobs=2, echo=echo, prompt_logprobs=0)["choices"]
        for ours, theirs in zip(both, alone, strict=True):
            assert [len(row) for row in ours["prompt_logprobs"][1:]] == [1] * (
                len(ours["prompt_logprobs"]) - 1
            )
            assert ours["logprobs"]["tokens"] == theirs["logprobs"]["tokens"]
            assert [list(row or ()) for row in ours["logprobs"]["top_logprobs"]] == [
                list(row or ()) for row in theirs["logprobs"]["top_logprobs"]
            ]


def test_prompt_logprobs_are_refused_in_a_stream(served):
    body = {"prompt": "Oslo", "stream": True, "prompt_logprobs": 0}
    refused(served.ask(PATH, body), 400, param="prompt_logprobs")


def lm_eval(choices, ctxlens):
    """What lm-eval 0.4.13 reads (models/openai_completions.py, parse_logprobs)."""
    out = []
    for choice, ctxlen in zip(sorted(choices, key=lambda one: one["index"]), ctxlens, strict=True):
        own = choice["logprobs"]["token_logprobs"][ctxlen:-1]
        tops = choice["logprobs"]["top_logprobs"][ctxlen:-1]
        greedy = all(one == max(top.values()) for one, top in zip(own, tops, strict=True))
        out.append((sum(own), greedy))
    return out


def test_lm_evals_arithmetic(served):
    """The last entry is thrown away: exactly one token is generated, an end of text too."""
    pairs = [("Oslo is in", " Norway"), ("Oslo", " is"), ("The cat", " sat down")]
    scored = served.scorer.score([Request(k, *pair) for k, pair in enumerate(pairs)])
    prompts = served.scorer.encoder.prompt_ids([a + b for a, b in pairs])
    # the greedy continuation of a prompt, so that some answer is one
    [written] = served.scorer.generate(["Oslo is in"], max_new_tokens=3)
    [context] = served.scorer.encoder.prompt_ids(["Oslo is in"])
    prompts.append(np.concatenate([context, written.token_ids]))
    body = {"model": "tiny", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234}
    answer = complete(served, prompt=[one.tolist() for one in prompts], echo=True, **body)
    for choice, ids in zip(answer["choices"], prompts, strict=True):
        assert len(choice["logprobs"]["token_logprobs"]) == len(ids) + 1
    ctxlens = [len(ids) - one.n_tokens for ids, one in zip(prompts[:3], scored, strict=True)]
    [*found, greedy] = lm_eval(answer["choices"], [*ctxlens, len(context)])
    for (total, is_greedy), one in zip(found, scored, strict=True):
        assert total == pytest.approx(one.sum_logprob, abs=1e-5)
        assert is_greedy == one.greedy.all()
    assert greedy[1]
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_a_prompt_of_one_token(served, max_tokens):
    """Nothing stands before it, so it has no number; what comes after it has one."""
    body = {**ECHO, "max_tokens": max_tokens}
    listed = complete(served, prompt=[[7]], **body)["choices"][0]["logprobs"]
    assert listed["token_logprobs"][0] is None
    assert all(one < 0 for one in listed["token_logprobs"][1:])
    assert {len(column) for column in listed.values()} == {1 + max_tokens}


def test_one_greedy_token_is_the_generators(served):
    fast = complete(served, prompt=TEXTS, max_tokens=1, temperature=0)["choices"]
    slow = served.scorer.generate(TEXTS, max_new_tokens=1)
    assert [one["text"] for one in fast] == [one.text for one in slow]


def test_texts_are_the_generators(served):
    choices = complete(served, prompt=TEXTS[:2], max_tokens=12, temperature=0)["choices"]
    slow = served.scorer.generate(TEXTS[:2], max_new_tokens=12)
    assert [one["text"] for one in choices] == [one.text for one in slow]
    assert [one["logprobs"] for one in choices] == [None, None]


def test_numbers_of_a_generated_text_are_the_scorers(served):
    answer = complete(
        served, prompt="Oslo is", max_tokens=6, logprobs=2, temperature=0.8, seed=5, n=2
    )
    prompt = served.scorer.encoder.prompt_ids(["Oslo is"])[0]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    texts = []
    for choice, seed in zip(answer["choices"], (5, None), strict=True):
        listed = choice["logprobs"]
        assert "".join(listed["tokens"]) == choice["text"]
        assert listed["text_offset"][0] == 0
        ids = [
            served.scorer.encoder.tokenizer.get_vocab()[t]
            for t in map(_byte_level, listed["tokens"])
        ]
        [scores] = served.scorer.score_sequences(
            [TokenSequence(np.concatenate([prompt, ids]).astype(np.int32), len(prompt))]
        )
        np.testing.assert_allclose(listed["token_logprobs"], scores.logprob, atol=1e-5)
        if seed is not None:
            asked = GenerationRequest(0, "Oslo is", 6, 0.8, seed=seed)
            [alone] = served.scorer.generate([asked])
            assert alone.text == choice["text"]
        texts.append(choice["text"])
    assert texts[0] != texts[1]


def _byte_level(text):
    return text.replace(" ", "Ġ").replace("\n", "Ċ")


def test_echo_and_generation(served):
    both = complete(served, prompt="Oslo is", max_tokens=4, logprobs=1, temperature=0, echo=True)
    alone = complete(served, prompt="Oslo is", max_tokens=4, logprobs=1, temperature=0)
    [both], [alone] = both["choices"], alone["choices"]
    assert both["text"] == "Oslo is" + alone["text"]
    listed, own = both["logprobs"], alone["logprobs"]
    np.testing.assert_allclose(listed["token_logprobs"][5:], own["token_logprobs"], atol=1e-5)
    assert listed["tokens"][5:] == own["tokens"]
    assert listed["text_offset"][5:] == [7 + start for start in own["text_offset"]]


def ending(served, monkeypatch, ids, eos=None, finish="length"):
    """Lets the generator write these ids."""

    def choice_of(service, request, index, text, real=choices_module.choice_of):
        values = {"token_ids": np.array(ids, np.int32), "eos_id": eos, "finish": finish}
        values["text"] = service.token_bytes.text_before(ids, request.fields.stop)
        return real(service, request, index, type("Text", (), {"error": None, **values}))

    monkeypatch.setattr(choices_module, "choice_of", choice_of)


def test_an_end_of_text_is_listed_and_is_no_text(served, monkeypatch):
    [(ids, _)] = served.scorer.encoder.prompts([" in Norway"], special_tokens=False)
    ending(served, monkeypatch, ids, eos=4, finish="eos")
    answer = complete(served, prompt="Oslo is", max_tokens=9, logprobs=1)
    [choice] = answer["choices"]
    assert choice["text"] == " in Norway"
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["tokens"][-1] == "<|eot_id|>"
    assert choice["logprobs"]["text_offset"][-1] == len(" in Norway")
    assert answer["usage"]["completion_tokens"] == len(ids) + 1


def test_a_text_ends_before_a_stop_string(served, monkeypatch):
    [(ids, _)] = served.scorer.encoder.prompts([" in Norway"], special_tokens=False)
    ending(served, monkeypatch, ids, finish="stop")
    body = {"prompt": "Oslo is", "max_tokens": 9, "logprobs": 1, "stop": ["orw", "zzz"]}
    [choice] = complete(served, **body)["choices"]
    assert choice["text"] == " in N"
    assert choice["finish_reason"] == "stop"
    assert "".join(choice["logprobs"]["tokens"]) == " in Norway"
    assert max(choice["logprobs"]["text_offset"]) <= len(" in N")


def test_a_stop_string_of_the_generator_itself(served):
    body = {"prompt": "Oslo is", "max_tokens": 12, "temperature": 0}
    [whole] = complete(served, **body)["choices"]
    stop = whole["text"][5:7]
    [choice] = complete(served, **body, stop=stop, logprobs=0)["choices"]
    assert choice["text"] == whole["text"][: whole["text"].index(stop)]
    assert choice["finish_reason"] == "stop"
    assert "".join(choice["logprobs"]["tokens"]).startswith(choice["text"])


def test_the_most_probable_token_may_end_the_text(served, monkeypatch):
    """As lm-eval needs it: it is listed, and it is no part of the text."""
    [one] = complete(served, prompt="Oslo is", max_tokens=1, temperature=0, logprobs=1)["choices"]
    [(ids, _)] = served.scorer.encoder.prompts([one["text"]], special_tokens=False)
    monkeypatch.setattr(served.service, "eos_ids", (int(ids[0]),))
    [ended] = complete(served, prompt="Oslo is", max_tokens=1, temperature=0, logprobs=1)["choices"]
    assert (ended["text"], ended["finish_reason"]) == ("", "stop")
    assert ended["logprobs"]["token_logprobs"] == one["logprobs"]["token_logprobs"]
    assert ended["logprobs"]["tokens"] == one["logprobs"]["tokens"]


def test_numbers_that_are_not_finite(served, monkeypatch):
    real = served.scorer.engine.run

    def run(*args, **options):
        for window in real(*args, **options):
            yield [one._replace(logprob=np.full_like(one.logprob, np.nan)) for one in window]

    monkeypatch.setattr(served.scorer.engine, "run", run)
    answer = served.ask(PATH, {"prompt": "Oslo is", **ECHO})
    error = refused(answer, 500, code="numbers_not_finite", type="server_error")
    assert "prompt 0" in error["message"]


def events(answer):
    assert answer.headers["content-type"] == "text/event-stream"
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.slow_after(1, of_each="max_tokens")
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("max_tokens", [0, 1, 40])
def test_parts_add_up_to_the_answer(served, echo, logprobs, max_tokens):
    body = {"prompt": TEXTS[:2], "max_tokens": max_tokens, "n": 2, "seed": 3, "echo": echo}
    body |= {"logprobs": logprobs, "temperature": 0 if max_tokens == 1 else 0.9}
    whole = complete(served, **body)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    *parts, last = events(served.ask(PATH, body))
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    of_choice = {k: [] for k in range(4)}
    for part in parts:
        assert part.keys() == {"id", "object", "created", "model", "choices", "usage"}
        assert part["usage"] is None
        [choice] = part["choices"]
        of_choice[choice["index"]].append(choice)
    for k, some in of_choice.items():
        assert [one["finish_reason"] is None for one in some] == [True] * (len(some) - 1) + [False]
        joined = dict(some[-1], text="".join(one["text"] for one in some))
        expected = whole["choices"][k]
        numbers = joined.pop("logprobs"), dict(expected).pop("logprobs")
        assert joined == {name: value for name, value in expected.items() if name != "logprobs"}
        if logprobs is None:
            assert numbers == (None, None)
        else:
            ours, theirs = ([x for x in one["token_logprobs"] if x] for one in numbers)
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
    if max_tokens == 40 and logprobs is None:  # as it is written
        assert all(len(some) > 1 for some in of_choice.values())


def test_an_error_before_the_first_part_has_a_status(served, monkeypatch):
    refused(served.ask(PATH, {"prompt": [], "stream": True}), 400, param="prompt")

    async def parts(*args):
        raise invalid_field("prompt", "planned")
        yield

    monkeypatch.setattr(choices_module, "stream_texts", parts)
    body = {"prompt": "a", "max_tokens": 3, "stream": True}
    refused(served.ask(PATH, body), 400, param="prompt", message="planned")


def test_an_error_between_parts_is_the_last_part(served, monkeypatch):
    async def parts(*args):
        yield 0, "a", [5], None
        raise RuntimeError("planned")

    monkeypatch.setattr(choices_module, "stream_texts", parts)
    answer = served.ask(PATH, {"prompt": "Oslo", "max_tokens": 9, "stream": True})
    first, error = events(answer)
    assert first["choices"][0]["text"] == "a"
    assert error["error"]["type"] == "server_error"


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("echo", [False, True])
def test_token_ids_are_those_of_prompts_and_texts_as_in_vllm(served, logprobs, echo):
    body = {"prompt": TEXTS[:2], "max_tokens": 12, "n": 2, "seed": 3, "echo": echo}
    body |= {"logprobs": logprobs}
    plain = complete(served, **body)["choices"]
    choices = complete(served, **body, return_token_ids=True)["choices"]
    prompts = [ids.tolist() for ids, _ in served.scorer.encoder.prompts(TEXTS[:2])]
    named = complete(
        served, **{**body, "logprobs": 0, "return_tokens_as_token_ids": True, "echo": False}
    )["choices"]
    for k, choice in enumerate(choices):
        assert choice.pop("prompt_token_ids") == prompts[k // 2]
        ids = choice.pop("token_ids")  # generated alone, with echo too
        assert [f"token_id:{id}" for id in ids] == named[k]["logprobs"]["tokens"]
    assert choices == plain
    streamed = {k: ([], []) for k in range(4)}
    answer = served.ask(PATH, {**body, "return_token_ids": True, "stream": True})
    for event in events(answer):
        [part] = event["choices"]
        prompt_ids, ids = streamed[part["index"]]
        prompt_ids.extend([part["prompt_token_ids"]] if "prompt_token_ids" in part else [])
        ids.extend(part["token_ids"])
    for k, (prompt_ids, ids) in streamed.items():
        assert prompt_ids == [prompts[k // 2]]
        assert [f"token_id:{id}" for id in ids] == named[k]["logprobs"]["tokens"]


@pytest.mark.parametrize("value", [1, "true", []])
def test_token_ids_are_asked_for_by_true_or_false(served, value):
    refused(served.ask(PATH, {"prompt": "a", "return_token_ids": value}), 400)
    assert "token_ids" not in str(complete(served, prompt="a", return_token_ids=None))


def test_answers_have_what_openai_has(served):
    first, second = (complete(served, prompt="Oslo", max_tokens=0) for _ in range(2))
    assert first.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert first["id"].startswith("cmpl-")
    assert first["id"] != second["id"]
    assert (first["object"], first["model"]) == ("text_completion", "tiny")
    assert complete(served, prompt="Oslo", max_tokens=0, model="alias")["model"] == "alias"
    assert list(itertools.chain(*(one.keys() for one in first["choices"]))) == [
        "index", "text", "logprobs", "finish_reason",
    ]  # fmt: skip


class Letters:
    """Tokens 0 to 9; those from 7 read alike."""

    def raw(self, id):
        return b"\xe2" if id >= 7 else b"abcdefg"[id : id + 1]

    def text(self, id):
        return self.raw(id).decode("utf-8", "replace")


def scores(logprob, top_id, top_logprob):
    nothing = np.zeros(len(logprob), np.float32)
    found = [np.array(one, np.float32) for one in (logprob, top_logprob)]
    return SequenceScores(
        found[0], nothing, nothing, nothing > 0, np.array(top_id, np.int32), found[1]
    )


SCORES = scores(
    [-0.5, -3.0, -1.25],
    [[1, 2, 3], [7, 8, 0], [9, 4, 7]],
    [[-0.5, -1.5, -2.5], [-0.75, -1.0, -2.0], [-0.25, -1.25, -2.0]],
)


def test_the_token_is_among_the_most_probable_or_comes_last():
    found = last_logprobs([5, 1, 9, 4], SCORES, 2, "it")
    listed = completion_logprobs(Letters(), 5, found, [0, 0, 1, 2], as_ids=False)
    assert listed == {
        "tokens": ["f", "b", "\ufffd", "e"],
        "token_logprobs": [None, -0.5, -3.0, -1.25],
        "top_logprobs": [
            None,
            {"b": -0.5, "c": -1.5},
            {"\ufffd": -0.75},  # of 7, 8 and 9, which read alike, the most probable one
            {"\ufffd": -0.25, "e": -1.25},
        ],
        "text_offset": [0, 0, 1, 2],
    }


def test_by_ids_nothing_is_alike():
    found = last_logprobs([5, 1, 9, 4], SCORES, 2, "it")
    listed = completion_logprobs(Letters(), None, found, [0, 1, 2], as_ids=True)
    assert listed["tokens"] == ["token_id:1", "token_id:9", "token_id:4"]
    assert listed["top_logprobs"][1] == {
        "token_id:7": -0.75,
        "token_id:8": -1.0,
        "token_id:9": -3.0,
    }


def test_without_most_probable_tokens():
    found = last_logprobs([5, 1, 9, 4], SCORES, 0, "it")
    listed = completion_logprobs(Letters(), 5, found, [0, 0, 1, 2], as_ids=False)
    assert listed["top_logprobs"] == [None, {"b": -0.5}, {"\ufffd": -3.0}, {"e": -1.25}]


def test_a_chats_list_keeps_what_reads_alike():
    found = last_logprobs([5, 1, 9, 4], SCORES, 3, "it")
    content = chat_logprobs(Letters(), found)
    assert [one["token"] for one in content] == ["b", "\ufffd", "e"]
    assert content[1]["bytes"] == [0xE2]
    assert content[1]["logprob"] == -3.0
    assert [one["logprob"] for one in content[1]["top_logprobs"]] == [-0.75, -1.0, -2.0]
    assert [one["token"] for one in content[1]["top_logprobs"]] == ["\ufffd", "\ufffd", "a"]


def test_the_most_probable_token_after_a_text():
    after = scores([-9.0], [[3, 1]], [[-0.5, -2.0]])  # of the choice that was asked about
    found = top_logprobs(after, 2, "it")
    assert (found.ids.tolist(), found.logprob.tolist()) == ([3], [-0.5])
    both = join_logprobs(last_logprobs([5, 1, 9, 4], SCORES, 2, "it"), found)
    assert both.ids.tolist() == [1, 9, 4, 3]
    assert both.top_ids[-1].tolist() == [3, 1]


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("where", ["logprob", "top_logprob"])
def test_numbers_that_json_does_not_have(value, where):
    broken = getattr(SCORES, where).copy()
    broken.flat[-1] = value
    with pytest.raises(ApiError) as caught:
        last_logprobs([5, 1, 9, 4], SCORES._replace(**{where: broken}), 3, "prompt 7")
    assert (caught.value.status, caught.value.code) == (500, "numbers_not_finite")
    assert "prompt 7" in caught.value.message
