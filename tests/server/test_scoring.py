"""`/jaxscore/score` and `/jaxscore/label`: their lines are those of the commands."""

import json
import threading
import time

import numpy as np
import orjson
import pytest

from jaxscore import evaluate
from jaxscore.io.json_output import json_line
from jaxscore.server import request_models, scoring
from jaxscore.server.service import LONG
from jaxscore.systems.score import read_object, record_of
from jaxscore.types.requests import LabelRequest, Request
from tests.server.conftest import refused

SCORE, LABEL = "/jaxscore/score", "/jaxscore/label"
ITEMS = [
    {"id": "a", "context": "Oslo is in", "continuation": " Norway", "note": {"kept": [1, None]}},
    {"context": "Oslo is in", "continuation": " Sweden"},
    {"id": 7, "continuation": "The cat sat"},
]
NDJSON = {"Content-Type": "application/x-ndjson"}


def lines(items):
    return b"".join(json.dumps(one).encode() + b"\n" for one in items)


def expected(scorer, items, **options):
    """What `jaxscore score` writes for these lines."""
    summary_only = options.pop("summary_only", False)
    entries = [read_object(item, k, "it") for k, item in enumerate(items, start=1)]
    requests = [Request(each.id, each.item.context, each.item.continuation) for each in entries]
    records = (
        {"id": scored.id, **record_of(scored, summary_only=summary_only), **entry.extra}
        for entry, scored in zip(entries, scorer.score(requests, **options), strict=True)
    )
    return [json.loads(json_line(one)) for one in records]


def close(found, wanted):
    """Equal names in one order, and equal values up to rounding."""
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        if name in ("logprob", "entropy", "self_certainty") or name.startswith(("sum_", "mean_")):
            ours, theirs = (np.array(one[name], float) for one in (found, wanted))
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        elif name == "perplexity":
            assert found[name] == pytest.approx(value, rel=1e-4)
        else:
            assert found[name] == value


OPTIONS = [
    {},
    {"boundary": "separate"},
    {"special_tokens": False},
    {"summary_only": True},
    {"truncate": "left"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_results_are_the_commands_lines(served, options):
    answer = served.ask(SCORE, {"requests": ITEMS, **options})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body.keys() == {"model", "results", "usage"}
    for found, wanted in zip(
        body["results"], expected(served.scorer, ITEMS, **options), strict=True
    ):
        close(found, wanted)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_request_in_each_line(served, options):
    query = {name: str(value).lower() for name, value in options.items()}
    answer = served.ask(SCORE, content=lines(ITEMS) + b"\n", headers=NDJSON, params=query)
    assert answer.headers["content-type"] == NDJSON["Content-Type"]
    found = [json.loads(line) for line in answer.text.splitlines()]
    for one, wanted in zip(found, expected(served.scorer, ITEMS, **options), strict=True):
        close(one, wanted)


def test_lines_are_asked_for_by_accept(served):
    answer = served.ask(SCORE, {"requests": ITEMS}, headers={"Accept": NDJSON["Content-Type"]})
    found = [json.loads(line)["id"] for line in answer.text.splitlines()]
    assert found == ["a", 2, 7]


def test_many_lines_keep_their_order(served, monkeypatch):
    monkeypatch.setattr(scoring, "BATCH_LINES", 3)
    items = [{"id": k, "continuation": f"Oslo {k % 7}"} for k in range(20)]
    answer = served.ask(SCORE, content=lines(items), headers=NDJSON)
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert [one["id"] for one in found] == [*range(20)]
    for one, wanted in zip(found, expected(served.scorer, items), strict=True):
        close(one, wanted)


def test_lines_wait_for_room_once_some_are_answered(start, monkeypatch):
    """A stream that has begun has no status to refuse the rest of its lines by."""
    served = start(max_queue_tokens=1)
    monkeypatch.setattr(scoring, "BATCH_LINES", 2)
    items = [{"id": k, "continuation": f"Oslo {k}"} for k in range(7)]
    answer = served.ask(SCORE, content=lines(items), headers=NDJSON)
    found = [json.loads(line) for line in answer.text.splitlines()]
    for one, wanted in zip(found, expected(served.scorer, items), strict=True):
        close(one, wanted)


def test_ids_instead_of_texts(served):
    encoded = served.scorer.encoder.encode([Request(0, "Oslo is in", " Norway")])
    [[sequence]] = encoded
    ids = sequence.ids.tolist()
    item = {"id": "a", "context_ids": ids[: sequence.start], "note": 1}
    item["continuation_ids"] = ids[sequence.start :]
    [found] = served.ask(SCORE, {"requests": [item]}).json()["results"]
    [wanted] = expected(
        served.scorer, [{"id": "a", "context": "Oslo is in", "continuation": " Norway", "note": 1}]
    )
    close(found, wanted)


TALK = [
    {"role": "user", "content": "Where is Oslo?"},
    {"role": "assistant", "content": "Oslo is in Norway."},
]


def test_conversations_are_scored_as_by_the_command(served):
    item = {"id": "a", "messages": TALK, "note": 1}
    for options in ({}, {"score_roles": "all", "score_turn_end": True}):
        body = {"requests": [item, ITEMS[0], {"messages": TALK[:1]}], **options}
        first, second, third = served.ask(SCORE, body).json()["results"]
        [wanted] = evaluate("score", served.scorer, [item], **options).items
        close(first, wanted)
        assert "scored_messages" not in second
        assert third["id"] == 3
        assert ("error" in third) is not bool(options)
    bad = {"requests": [item], "chat_template_kwargs": {"no_such": 1}}
    [found] = served.ask(SCORE, bad).json()["results"]
    assert "does not use a variable 'no_such'" in found["error"]
    assert str(served.scorer.encoder.tokenizer.name_or_path) not in found["error"]


BAD = [
    {},
    7,
    None,
    "text",
    {"continuation": 7},
    {"id": [], "continuation": "a"},
    {"continuation": "a", "logprob": 1},
    {"context_ids": [5]},
    {"context_ids": [5], "continuation_ids": [9999]},
    {"context_ids": [5], "continuation_ids": [-1]},
    {"context_ids": [5], "continuation_ids": [2**63]},
    {"context_ids": "a", "continuation_ids": [5]},
    {"context_ids": [5], "continuation_ids": [5], "context": "a"},
    {"continuation": "Oslo " * 2000},
    {"continuation": "a", "note": json.loads("[" * 200 + "]" * 200)},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda one: str(one)[:30])
def test_an_item_that_cannot_be_scored_fails_alone(served, bad):
    items = [ITEMS[0], bad, ITEMS[2]]
    answer = served.ask(SCORE, {"requests": items})
    assert answer.status_code == 200
    first, error, last = answer.json()["results"]
    assert error["error"]
    assert error["id"] == 2
    [one, other] = expected(served.scorer, [ITEMS[0], ITEMS[2]])
    close(first, one)
    close(last, other)


@pytest.mark.parametrize("truncate", [None, "left"])
def test_a_text_of_far_too_many_characters_is_not_tokenized(served, monkeypatch, truncate):
    """Tokenizing 30 MB takes half a minute and 6 GB."""
    most = served.service.max_characters(truncates=truncate is not None)
    assert most == 2**20 if truncate else most < 2**20
    asked = []
    real = served.scorer.encoder.encode

    def encode(requests, *args, **options):
        asked.extend(requests)
        return real(requests, *args, **options)

    monkeypatch.setattr(served.scorer.encoder, "encode", encode)
    items = [{"id": "a", "context": "a" * most, "continuation": "a", "note": 1}, ITEMS[0]]
    body = {"requests": items, **({"truncate": truncate} if truncate else {})}
    long, good = served.ask(SCORE, body).json()["results"]
    assert long.keys() == {"id", "error", "note"}
    assert f"{most + 1} characters" in long["error"]
    assert "error" not in good
    assert max(len(one.context) for one in asked) < 100


@pytest.mark.parametrize("field", ["prompt", "labels"])
def test_a_label_request_of_far_too_many_characters(served, field):
    item = {"prompt": "Is it?", "labels": ["A", "B"]}
    text = "a" * (served.service.max_characters() + 1)
    item[field] = text if field == "prompt" else ["A", text]
    [found] = served.ask(LABEL, {"requests": [item]}).json()["results"]
    assert "characters" in found["error"]


def test_what_is_shared_is_computed_once(served):
    items = [{"context": "Oslo is in " * 20, "continuation": f" {k}"} for k in range(10)]
    answer = served.ask(SCORE, {"requests": items}).json()
    given, computed = (answer["usage"][name] for name in ("tokens_given", "tokens_computed"))
    [ids] = served.scorer.encoder.prompt_ids(["Oslo is in " * 20])
    assert given > 10 * len(ids)
    assert len(ids) <= computed < len(ids) + 40


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests", None), ("requests", []), ("requests", {}), ("boundary", "exact"),
        ("boundary", 1), ("truncate", "right"), ("special_tokens", 1), ("summary_only", "true"),
        ("model", 7), ("unknown", 1),
    ],
)  # fmt: skip
def test_fields_that_are_refused(served, field, value):
    refused(served.ask(SCORE, {"requests": ITEMS, field: value}), 400, param=field)


@pytest.mark.parametrize("query", ["boundary=exact", "special_tokens=1", "requests=1", "x=1"])
def test_a_query_that_is_refused(served, query):
    field = query.partition("=")[0]
    answer = served.ask(f"{SCORE}?{query}", content=lines(ITEMS), headers=NDJSON)
    refused(answer, 400, param=field)


def test_settings_in_the_query_of_an_object_are_not_ignored(served):
    """They would change the numbers."""
    answer = served.ask(f"{SCORE}?boundary=separate", {"requests": ITEMS})
    refused(answer, 400, param="boundary")


def test_lines_that_are_none(served):
    refused(served.ask(SCORE, content=b"\n \n", headers=NDJSON), 400)
    error = refused(served.ask(SCORE, content=b'{"a": 1}\n{"a"', headers=NDJSON), 400)
    assert "line 2" in error["message"]


def test_thirty_million_blank_lines_are_refused_at_once(served):
    started = time.monotonic()
    error = refused(served.ask(SCORE, content=b"\n" * 30_000_000, headers=NDJSON), 400)
    assert time.monotonic() - started < 3
    assert "line 1001 ends more than 1000 empty lines in a row" in error["message"]


def test_blank_lines_between_requests_are_skipped(served):
    raw = (b"\n" * 1000).join([b"", *lines(ITEMS).splitlines(), b""])
    answer = served.ask(SCORE, content=raw, headers=NDJSON)
    assert [json.loads(line)["id"] for line in answer.text.splitlines()] == ["a", 2, 7]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (SCORE, b'{"continuation": "a"}\n' * 3000),
        (SCORE, b'{"requests": [{"continuation": "a"}]%b}' % (b" " * LONG)),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": 0%b}' % (b" " * LONG)),
        ("/tokenize", b'{"prompt": "a"%b}' % (b" " * LONG)),
        ("/detokenize", b'{"tokens": [1]%b}' % (b" " * LONG)),
    ],
)
def test_a_large_body_is_parsed_beside_the_event_loop(served, monkeypatch, path, body):
    threads = set()
    real = orjson.loads

    def loads(*given):
        threads.add(threading.current_thread())
        return real(*given)

    monkeypatch.setattr(request_models.orjson, "loads", loads)
    headers = NDJSON if body.endswith(b"\n") else {"Content-Type": "application/json"}
    assert served.ask(path, content=body, headers=headers).status_code == 200
    assert threads
    assert threading.current_thread() not in threads  # which runs the loop of this test


def test_a_line_that_is_none_after_good_ones(served, monkeypatch):
    """The status 200 is sent before that line is read, so the error is the last line."""
    monkeypatch.setattr(scoring, "BATCH_LINES", 1)
    raw = lines(ITEMS) + b"nonsense\n"
    answer = served.ask(SCORE, content=raw, headers=NDJSON)
    *_, last = answer.text.splitlines()
    assert answer.status_code == 200
    assert "line 4" in json.loads(last)["error"]["message"]


def test_labels(served):
    items = [
        {"id": "a", "prompt": "Is Oslo in Norway? Answer:", "labels": ["Yes", "No"]},
        {"prompt": "Is it?", "labels": ["A", "B", "C"]},
    ]
    found = served.ask(LABEL, {"requests": items}).json()["results"]
    encoder = served.scorer.encoder
    asked = [
        LabelRequest(k, one["prompt"], encoder.first_ids(one["labels"]))
        for k, one in enumerate(items)
    ]
    for item, one, wanted in zip(items, found, served.scorer.label(asked), strict=True):
        assert list(one) == ["id", "labels", "logprob", "probability", "outside"]
        assert one["labels"] == item["labels"]
        for name in ("logprob", "probability", "outside"):
            np.testing.assert_allclose(one[name], getattr(wanted, name), atol=1e-5)
    assert [one["id"] for one in found] == ["a", 2]


@pytest.mark.parametrize(
    "bad",
    [
        {},
        7,
        {"prompt": "a"},
        {"prompt": 7, "labels": ["A"]},
        {"prompt": "a", "labels": []},
        {"prompt": "a", "labels": "A"},
        {"prompt": "a", "labels": ["A", 1]},
        {"prompt": "a", "labels": ["A", "A"]},
        {"prompt": "a", "labels": [""]},
        {"prompt": "a", "labels": ["A"], "more": 1},
        {"prompt": "Oslo " * 2000, "labels": ["A"]},
    ],
    ids=lambda one: str(one)[:30],
)
def test_a_label_request_that_cannot_be_used_fails_alone(served, bad):
    good = {"prompt": "Is it?", "labels": ["A", "B"]}
    first, second = served.ask(LABEL, {"requests": [bad, good]}).json()["results"]
    assert first.keys() == {"id", "error"}
    assert len(second["logprob"]) == 2


def test_labels_in_lines(served):
    item = {"prompt": "Is it?", "labels": ["A", "B"]}
    answer = served.ask(LABEL, content=lines([item] * 3), headers=NDJSON)
    assert [json.loads(line)["id"] for line in answer.text.splitlines()] == [1, 2, 3]
