"""Scoring, labels and generation through `/completions`: the numbers of the local scorer."""

import dataclasses
import json
import math

import numpy as np
import pytest

from jaxscore import evaluate
from jaxscore.endpoints.completions import BOUNDARIES, CompletionsEndpoint
from jaxscore.errors import InputError
from jaxscore.shell.audits import NO_SHARING
from jaxscore.types.requests import GenerationRequest, LabelRequest, Request, TextLabelRequest
from tests.conftest import CASES, MODELS
from tests.endpoints.conftest import QUICK, always
from tests.endpoints.model_server import STYLES, ModelServer
from tests.endpoints.server import Answer


def endpoint(server, model="m"):
    return CompletionsEndpoint(model, server.url, limits=QUICK)


def questions():
    """Each answer of ChronoLogic's questions, whose context ends in a blank."""
    lines = (CASES / "chronologic/questions.jsonl").read_text(encoding="utf-8").splitlines()
    for n, item in enumerate(map(json.loads, lines)):
        context = f"{item['metadata_frame']}\nQUESTION: {item['main_question']}\nANSWER: "
        for k, answer in enumerate(item["answer_strings"]):
            yield Request(f"{n}.{k}", context, answer)


ODD = [
    Request("no context", "", "The cat sat."),
    Request("one token alone", "", "a"),
    Request("empty", "The cat", ""),
    Request("empty both", "", ""),
    Request("blank", "The cat", " "),
    Request("accents", "Où est-ce ? ", "À São Tomé — là-bas."),
    Request("right to left", "سؤال: ", "مرحبا بالعالم"),
    Request("bytes", "Which animal? ", "a \N{CAT FACE}\N{CAT FACE} and ein Kätzchen"),
    Request("bytes before", "Which \N{CAT FACE}? ", "the \N{DOG FACE}."),
    Request("marks", "Cafe\u0301 ", "cre\u0300me"),
    Request("CRLF", "one\r\ntwo\r\n", "three\r\nfour"),
    Request("within a word", "unfor", "gettable"),
    Request("special token", "<|endoftext|> a ", "b</s> c"),
]


def compare(got, want):
    assert [one.id for one in got] == [one.id for one in want]
    n = 0
    for one, local in zip(got, want, strict=True):
        assert one.error is None
        assert one.n_tokens == local.n_tokens, one.id
        assert one.n_scored == local.n_scored
        np.testing.assert_array_equal(one.scored, local.scored)
        np.testing.assert_allclose(one.logprob, local.logprob, atol=1e-4)
        np.testing.assert_array_equal(one.greedy, local.greedy)
        assert len(one.tokens) == one.n_tokens
        assert (one.token_ids == -1).all()
        assert np.isnan(one.entropy).all()
        assert np.isnan(one.self_certainty).all()
        n += one.n_scored
    return n


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_are_those_of_the_local_scorer(serve, scorers, name, boundary):
    requests = [*questions(), *ODD]
    scorer = scorers(name)
    got = endpoint(serve(ModelServer(scorer))).score(requests, boundary=boundary)
    assert compare(got, scorer.score(requests, boundary=boundary)) > 100


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("style", STYLES)
def test_servers_that_differ(serve, scorers, style, least, counts):
    """In how they name tokens, whether they refuse to generate none, and in what they count."""
    requests = [*list(questions())[:4], *ODD]
    scorer = scorers("tiny-llama3")
    server = serve(ModelServer(scorer, style, least=least, counts=counts))
    compare(endpoint(server).score(requests), scorer.score(requests))
    asked = [seen.body["max_tokens"] for seen in server.seen]
    assert asked == [0] * len(asked) if not least else [0] + [1] * (len(asked) - 1)


def test_what_is_asked(serve, scorers):
    server = serve(ModelServer(scorers("tiny-gpt2")))
    one, two = Request(1, "The cat", " sat"), Request(2, "The cat", " ran")
    endpoint(server, "org/model").score([one, two, one], boundary="skip_context")
    assert server.seen[0].path == "/v1/completions"
    assert server.seen[0].body == {
        "model": "org/model", "prompt": "The cat sat", "echo": True, "logprobs": 1,
        "temperature": 0, "max_tokens": 0,
    }  # fmt: skip
    # Whole texts and contexts once each.
    prompts = sorted(seen.body["prompt"] for seen in server.seen)
    assert prompts == ["The cat", "The cat ran", "The cat sat"]


def test_nothing_to_score_asks_nothing(serve):
    server = serve(always(Answer(b"", 500)))
    [one] = endpoint(server).score([Request(1, "a", "")])
    assert (one.error, one.n_tokens, one.sum_logprob) == (None, 0, None)
    assert endpoint(server).score([]) == []
    assert server.seen == []


@pytest.mark.parametrize("boundary", ["separate", "reencoded", "last_query", "nonesuch"])
def test_a_boundary_that_needs_the_tokenizer(boundary):
    with pytest.raises(InputError, match=f"boundary {boundary} needs.*joint, exact, skip_context"):
        CompletionsEndpoint("m").score([], boundary=boundary)


def test_truncation_is_refused():
    with pytest.raises(InputError, match="cannot drop tokens"):
        CompletionsEndpoint("m").score([], truncate="left")


def listed(tokens=("a", " b"), values=(None, -1.0), **more):
    return {"tokens": list(tokens), "token_logprobs": list(values), **more}


def answer(logprobs, **more):
    return Answer({"choices": [{"text": "", "logprobs": logprobs}], **more})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (answer(None), 'the answer has no "logprobs"'),
        (answer([]), 'the answer has an unusable "logprobs"'),
        (Answer({}), 'the answer has no "choices"'),
        (Answer({"choices": []}), 'nothing in "choices"'),
        (Answer({"choices": ["x"]}), 'nothing in "choices"'),
        (Answer({"error": {"message": "sick"}}), '"choices"; the server\'s error: sick'),
        (Answer({"error": "sick"}), '"choices"; the server\'s error: sick'),
        (Answer(b"no JSON"), "the answer is not JSON ('no JSON')"),
        (answer({"tokens": ["a", " b"]}), 'logprobs has no "token_logprobs"'),
        (answer({"token_logprobs": [None, -1.0]}), 'logprobs has no "tokens"'),
        (answer(listed(tokens=["a", 3])), "something other than strings"),
        (answer(listed(values=[None])), "2 tokens and 1 log-probabilities"),
        (answer(listed(tokens=["a", " b", " c"], values=[None, -1, -1])), "not those of the text"),
        (answer(listed(tokens=[" b"], values=[-1.0])), "not those of the text; the server must"),
        (answer(listed(tokens=[], values=[])), "not those of the text"),
        (answer(listed(values=[None, None])), "no log-probability for token 2, but None"),
        (answer(listed(values=[None, "-1"])), "no log-probability for token 2, but '-1'"),
        (answer(listed(values=[None, True])), "no log-probability for token 2, but True"),
        (answer(listed(values=[None, math.nan])), "no log-probability for token 2, but nan"),
        (answer(listed(values=[None, -math.inf])), "no log-probability for token 2, but -inf"),
        (answer(listed(values=[None, 10**4000])), "no log-probability for token 2, but 1000"),
        (answer(listed(values=[None, -(10**4000)])), "no log-probability for token 2, but -1000"),
        (answer(listed(values=[None, 10**400])), "no log-probability for token 2, but 1000"),
        (answer(listed(values=[None, -1e39])), "no log-probability for token 2, but -1e+39"),
        (answer(listed(values=[None, 5])), "for token 2, but 5; expected a finite number, at mo"),
        (answer(listed(values=[None, 1.1e-4])), "no log-probability for token 2, but 0.00011"),
        (answer(listed(values=[5.0, -1.0])), "no log-probability for token 1, but 5.0"),
        (answer(listed(["a", *[""] * 99, " b"], [None, *[0] * 100])), "101 tokens for 3 bytes"),
        (Answer(b'{"choices": [], "choices": [1]}'), "the field 'choices' twice"),
        (Answer({"error": {"message": "too long"}}, 400), "HTTP 400, too long"),
        (Answer(b"", 401), "HTTP 401"),
        (Answer(b"", 500), "HTTP 500 (6 attempts)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("boundary", ["joint", "skip_context"])
def test_an_answer_that_is_no_use_fails_its_item(serve, bad, message, boundary):
    def behave(path, body, attempt):
        text = body["prompt"]
        if text == "a b":
            return bad
        return answer(listed(list(text), [None, *[-0.5] * (len(text) - 1)]))

    requests = [Request(1, "x", "yz"), Request(2, "a", " b"), Request(3, "x", "w")]
    got = endpoint(serve(behave)).score(requests, boundary=boundary)
    assert [one.error is None for one in got] == [True, False, True]
    assert message in got[1].error
    assert [one.n_tokens for one in got] == [2, 0, 1]
    assert got[0].sum_logprob == -1.0


def test_a_context_that_fails_alone_fails_what_needs_it(serve):
    def behave(path, body, attempt):
        text = body["prompt"]
        fine = answer(listed(list(text), [None, *[-0.5] * (len(text) - 1)]))
        return Answer(b"", 400) if text == "ab" else fine

    requests = [Request(1, "ab", "c"), Request(2, "b", "c")]
    one, two = endpoint(serve(behave)).score(requests, boundary="skip_context")
    assert one.error.startswith("its context alone: ")
    assert (two.error, two.n_tokens) == (None, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"text_offset": None},
        {"text_offset": "0 1"},
        {"text_offset": [0, "1"]},
        {"text_offset": [0, True]},
        {"top_logprobs": None},
        {"top_logprobs": [None]},
        {"top_logprobs": [None, ["x"]]},
        {"top_logprobs": [None, {"x": "y"}]},
        {"top_logprobs": {}},
    ],
)
def test_what_is_missing_and_not_needed(serve, fields):
    server = serve(always(answer(listed(**fields), usage="none")))
    [one] = endpoint(server).score([Request(1, "a", " b")])
    assert one.error is None
    assert one.logprob.tolist() == [-1.0]
    assert one.greedy.tolist() == [None]


def test_a_rounding_error_above_zero_is_zero(serve):
    """A float32 log-sum-exp may be below its largest term by as much."""
    shown = listed(values=[None, 9e-5], top_logprobs=[None, {" b": 9e-5, " c": 8e-5}])
    [one] = endpoint(serve(always(answer(shown)))).score([Request(1, "a", " b")])
    assert one.logprob.tolist() == [0.0]
    assert one.greedy.tolist() == [True]


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf, 0.5, True, 10**4000, "x"])
def test_a_rival_without_a_log_probability_says_nothing(serve, strange):
    shown = listed(top_logprobs=[None, {" c": strange}])
    [one] = endpoint(serve(always(answer(shown)))).score([Request(1, "a", " b")])
    assert (one.error, one.logprob.tolist(), one.greedy.tolist()) == (None, [-1.0], [None])


def test_greedy_is_what_no_listed_token_beats(serve):
    top = [None, {" b": -1.0, " c": -2.0}, {" c": -0.4, " d": -0.5}]
    shown = listed(["a", " b", " d"], [None, -1.0, -0.5], top_logprobs=top)
    [one] = endpoint(serve(always(answer(shown)))).score([Request(1, "", "a b d")])
    assert one.greedy.tolist() == [False, True, False]
    assert np.isnan(one.logprob[0])
    assert one.n_scored == 2


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_stream_gives_what_all_together_give(serve, scorers, window):
    server = serve(ModelServer(scorers("tiny-gpt2")))
    requests = [*list(questions())[:3], *ODD[:2]]
    read = []

    def given():
        for request in requests:
            read.append(request)
            yield request

    found = endpoint(server).stream(given(), window=window)
    first = next(found)
    assert len(read) == window
    got = [first, *found]
    for one, other in zip(got, endpoint(server).score(requests), strict=True):
        assert one == other


def test_failures_in_a_row_are_counted_through_a_stream(serve):
    server = serve(always(Answer({"error": "down"}, 500)))
    limits = dataclasses.replace(QUICK, retries=0, give_up_after=3)
    client = CompletionsEndpoint("m", server.url, limits=limits)
    got = list(client.stream([Request(k, "a", " b") for k in range(20)], window=2))
    assert all("HTTP 500" in one.error or "not sent" in one.error for one in got)
    n_after_three = len(server.seen)
    assert n_after_three < 6
    client.score([Request(1, "c", " d")])  # another run counts from 0
    assert len(server.seen) == n_after_three + 1


def test_a_server_that_generates_all_the_same(serve):
    """Some read 0 as the default: what they generate is not the text's."""
    tokens = ["a", " b", " c", " d", " e"]
    shown = listed(tokens, [None, -1.0, -2.0, -2.0, -2.0])
    server = serve(always(answer(shown, usage={"prompt_tokens": 2, "completion_tokens": 3})))
    [one] = endpoint(server).score([Request(1, "a", " b")])
    assert one.logprob.tolist() == [-1.0]


def test_a_count_that_is_wrong_is_not_believed(serve):
    for count in (1, 7, -1, 0, "2", None):
        server = serve(always(answer(listed(), usage={"prompt_tokens": count})))
        [one] = endpoint(server).score([Request(1, "a", " b")])
        assert one.logprob.tolist() == [-1.0]


def test_bytes_that_nobody_can_tell_apart_are_an_error(serve):
    shown = listed(["a", *["\ufffd"] * 4, "b"], [None, *[-1.0] * 5])
    requests = [Request(1, "a日", "本b"), Request(2, "a", "日本b"), Request(3, "a日本", "b")]
    one, two, three = endpoint(serve(always(answer(shown)))).score(requests)
    assert "does not report the characters of the bytes" in one.error
    assert "skip_context" in one.error
    assert (two.n_tokens, three.n_tokens) == (5, 1)


LABELS = (" Oslo", " the", "a")


@pytest.mark.parametrize("name", MODELS)
def test_labels_are_those_of_the_local_scorer(serve, scorers, name):
    """Of those that are listed; a label here is the text of the token that it is there."""
    scorer = scorers(name)
    prompt = "Which one? Answer:"
    every = np.arange(len(scorer.encoder.tokenizer))
    [all_scores] = scorer.label([LabelRequest(0, prompt, tuple(every.tolist()))])
    order = np.argsort(-all_scores.logprob)
    ids = order[[0, 7, 3]]
    decode = scorer.encoder.tokenizer.decode
    labels = tuple(decode([int(k)]) for k in ids)
    server = serve(ModelServer(scorer))
    [got] = endpoint(server).label([TextLabelRequest("q", prompt, labels)])
    [want] = scorer.label([LabelRequest("q", prompt, tuple(ids.tolist()))])
    assert (got.id, got.error, got.missing, got.missing_at_most) == ("q", None, (), 0.0)
    np.testing.assert_allclose(got.logprob, want.logprob, atol=1e-4)
    np.testing.assert_allclose(got.probability, want.probability, atol=1e-4)
    assert server.seen[0].body == {
        "model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 20,
    }  # fmt: skip

    unlikely = decode([int(order[200])])
    [got] = endpoint(server).label([TextLabelRequest("q", prompt, (*labels, unlikely))])
    assert got.missing == (unlikely,)
    assert np.isnan([got.logprob[3], got.probability[3]]).all()
    np.testing.assert_allclose(got.probability[:3], want.probability, atol=1e-4)
    assert math.exp(all_scores.logprob[order[200]]) <= got.missing_at_most
    assert got.missing_at_most == pytest.approx(math.exp(all_scores.logprob[order[19]]), rel=1e-3)


def labelled(top):
    return Answer({"choices": [{"text": "A", "logprobs": {"top_logprobs": top}}]})


def test_a_server_that_lists_five_at_most(serve):
    def behave(path, body, attempt):
        if body["logprobs"] > 5:
            return Answer({"error": {"message": "logprobs is at most 5"}}, 400)
        return labelled([{" A": -1.0, " B": -2.0}])

    server = serve(behave)
    requests = [TextLabelRequest(k, "?", (" B", " A", "A")) for k in range(3)]
    for got in endpoint(server).label(requests):
        assert got.missing == ("A",)
        np.testing.assert_array_equal(got.logprob, [-2.0, -1.0, np.nan])
        share = 1 / (1 + math.exp(-1))
        np.testing.assert_allclose(got.probability, [1 - share, share, np.nan])
        assert got.missing_at_most == pytest.approx(math.exp(-2))
    assert [seen.body["logprobs"] for seen in server.seen][:2] == [20, 5]


@pytest.mark.parametrize("bad", [0.5, 10**4000, math.nan, -math.inf, None, "x"])
def test_a_label_without_a_log_probability_fails_its_item(serve, bad):
    server = serve(
        lambda path, body, attempt: labelled([{" A": bad if body["prompt"] == "b" else -1.0}])
    )
    requests = [TextLabelRequest(k, prompt, (" A",)) for k, prompt in enumerate("abc")]
    got = endpoint(server).label(requests)
    assert [one.error is None for one in got] == [True, False, True]
    assert "no log-probability" in got[1].error


def test_no_label_is_listed(serve):
    [got] = endpoint(serve(always(labelled([{"x": -0.1}])))).label(
        [TextLabelRequest(1, "?", ("A",))]
    )
    assert np.isnan([*got.logprob, *got.probability]).all()
    assert (got.missing, got.error) == (("A",), None)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (labelled(None), 'logprobs has no "top_logprobs"'),
        (labelled([]), "lists no next tokens"),
        (labelled([{}]), "lists no next tokens"),
        (labelled([None]), "lists no next tokens"),
        (labelled([{"A": None}]), "no log-probability, but None"),
        (Answer({"choices": [{"logprobs": None}]}), 'no "logprobs"'),
        (Answer(b"", 503), "HTTP 503 (6 attempts)"),
    ],
)
def test_labels_of_one_request_fail(serve, bad, message):
    server = serve(lambda path, body, _: bad if body["prompt"] == "bad" else labelled([{"A": -1}]))
    requests = [TextLabelRequest(prompt, prompt, ("A",)) for prompt in ("one", "bad", "two")]
    one, failed, two = endpoint(server).label(requests)
    assert message in failed.error
    assert (len(failed.logprob), len(failed.probability)) == (0, 0)
    assert one.probability.tolist() == two.probability.tolist() == [1.0]


def written(text, finish="stop", **more):
    return Answer({"choices": [{"text": text, "finish_reason": finish, **more}]})


def test_generation(serve):
    def behave(path, body, attempt):
        return {
            "to the end": written(" Oslo."),
            "to the limit": written(" Oslo and", "length"),
            "to a stop": written(" Oslo", stop_reason="\n"),
            "with the stop": written(" Oslo\nQ: who?"),
            "nothing": written("", "length"),
            "null": written(None),
            "no choice": Answer({}),
            "busy": Answer(b"", 500),
        }[body["prompt"]]

    names = ["to the end", "to the limit", "to a stop", "with the stop", "nothing"]
    bad = {"null": 'no "text"', "no choice": 'no "choices"', "busy": "HTTP 500"}
    server = serve(behave)
    requests = [GenerationRequest(name, name, 5, stop=("\n", "###")) for name in [*names, *bad]]
    got = endpoint(server).generate(requests)
    assert [one.id for one in got] == [*names, *bad]
    assert [(one.text, one.finish, one.error) for one in got[:5]] == [
        (" Oslo.", "eos", None), (" Oslo and", "length", None), (" Oslo", "stop", None),
        (" Oslo", "stop", None), ("", "length", None),
    ]  # fmt: skip
    for one in got[5:]:
        assert (one.text, one.finish) == ("", None)
        assert bad[one.id] in one.error
    assert all(one.token_ids.shape == (0,) for one in got)


def test_what_generation_asks(serve):
    server = serve(always(written("x")))
    endpoint(server, "org/model").generate(
        [GenerationRequest(1, "Hi", 7), GenerationRequest(2, "Ho", 3, 0.5, 0.9, ("\n",), 11)]
    )
    assert [seen.body for seen in sorted(server.seen, key=lambda seen: seen.body["prompt"])] == [
        {
            "model": "org/model", "prompt": "Hi", "max_tokens": 7, "temperature": 0.0,
            "top_p": 1.0, "seed": 0,
        },
        {
            "model": "org/model", "prompt": "Ho", "max_tokens": 3, "temperature": 0.5,
            "top_p": 0.9, "seed": 11, "stop": ["\n"],
        },
    ]  # fmt: skip


def test_what_servers_do_not_share_is_refused_by_name(serve):
    asked = {
        "a prompt of token ids": {"prompt": [1, 2]},
        "top_k": {"top_k": 5},
        "repetition_penalty": {"repetition_penalty": 1.1},
        "eos_ids": {"eos_ids": (2,)},
    }
    plain, server = GenerationRequest("plain", "Hi", 7), serve(always(written("x")))
    others = [dataclasses.replace(plain, id=name, **change) for name, change in asked.items()]
    *refused, good = endpoint(server).generate([*others, plain])
    for one in refused:
        assert f"{one.id} requires a local model" in one.error
    assert (good.text, len(server.seen)) == ("x", 1)


@pytest.mark.parametrize("call", ["score", "label", "generate"])
def test_a_wrong_address_is_told_at_once(serve, call):
    request = {
        "score": Request(1, "a", "b"),
        "label": TextLabelRequest(1, "a", ("b",)),
        "generate": GenerationRequest(1, "a", 1),
    }[call]
    server = serve(always(Answer({"error": {"message": "The model `m` does not exist."}}, 404)))
    with pytest.raises(InputError, match=r"HTTP 404, The model `m` does not exist\.; give the URL"):
        getattr(endpoint(server), call)([request] * 9)
    assert len(server.seen) == 1


def test_choices_through_a_server(serve, scorers):
    """They are those of the local scorer; a missing space is counted, and not tried."""
    scorer = scorers("tiny-llama3")
    server = endpoint(serve(ModelServer(scorer)))
    items = [{"context": "Where is Oslo?\nAnswer:", "options": ["Norway", " Spain"], "gold": 0}]
    settings = {"fewshot": [{**items[0], "context": "Where is Bergen?\nAnswer:"}]}
    for more in ({}, {"options_as": "letters"}, {"answer_separator": " "}):
        report = evaluate("choose", server, items, **settings, **more)
        local = evaluate("choose", scorer, items, **settings, **more)
        for name in ("sum_logprob", "pmi", "gold_bpb"):
            assert report.items[0][name] == pytest.approx(local.items[0][name], abs=1e-3)
        assert (NO_SHARING in report.remarks) is (not more)
        counted = "1 of 2 requests have no space between context and continuation"
        assert any(remark.startswith(counted) for remark in report.remarks) is (not more)
