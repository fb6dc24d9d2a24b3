"""Requests made to do harm, drawn by a seed: any value in any field of any path."""

import json
import random

PATHS = {
    "/v1/completions": {"prompt": "Oslo is", "max_tokens": 1, "temperature": 0, "logprobs": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/v1/score": {"query": "Oslo", "items": [" is"], "label_token_ids": [5, 6]},
    "/jaxscore/score": {"requests": [{"context": "Oslo", "continuation": " is"}]},
    "/jaxscore/label": {"requests": [{"prompt": "Is it?", "labels": ["A", "B"]}]},
    "/tokenize": {"prompt": "Oslo"},
    "/detokenize": {"tokens": [5, 6]},
}
FIELDS = (
    "prompt max_tokens temperature top_p n stop seed echo stream logprobs model suffix user "
    "stream_options messages top_logprobs requests boundary truncate special_tokens tokens "
    "add_special_tokens logit_bias best_of id context continuation labels context_ids "
    "continuation_ids role content __proto__ query items label_token_ids apply_softmax "
    "prompt_logprobs rank top_k texts"
).split()
VALUES = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**64 - 1, 0.5, -0.0, 1e308, 5e-324, "", " ",
    "a", "\x00", "\ud7ff", "\ufffd", "\u202e", "𝄞" * 50, "<|begin_of_text|>", "{{ 7 * 7 }}",
    "../..", [], [[]], {}, [None], [0], [[0]], [1207], [1208], ["a", 1], {"a": 1},
    {"include_usage": True},
    [[5] * 1100], "word " * 3000, [{"role": "user", "content": "\x00"}], [{"type": "text"}],
]  # fmt: skip
RAW = [
    b"", b"{", b"}", b"null", b"[]", b"\xff\xfe", b"{}{}", b'{"a":}', b"NaN", b"1e999",
    b'{"prompt":' * 2000, b"[" * 5000, b'{"prompt": "\\ud800"}', b"\x00" * 100,
    b'{"max_tokens":' + b"9" * 5000 + b"}", b'{"requests": [{"continuation": "a"}]',
]  # fmt: skip
TYPES = ["application/json"] * 8 + ["text/plain", "application/x-ndjson", "", "application/json;"]


def hostile_request(seed):
    """(path, bytes of the body, headers)."""
    draw = random.Random(seed)
    path = draw.choice(list(PATHS))
    headers = {"Content-Type": draw.choice(TYPES)}
    if draw.random() < 0.2:
        return path, draw.choice(RAW), headers
    body = json.loads(json.dumps(PATHS[path]))
    for _ in range(draw.randint(1, 3)):
        place = body
        if path.startswith("/jaxscore") and draw.random() < 0.6:
            items = body.get("requests")
            place = items[0] if isinstance(items, list) and items else body
        if not isinstance(place, dict):
            place = body
        name = draw.choice([*place, draw.choice(FIELDS)])
        place[name] = _value(draw)
    if "max_tokens" in body and isinstance(body["max_tokens"], int) and body["max_tokens"] > 7:
        body["max_tokens"] = 10**9  # refused; what is long and legal is no harm
    if isinstance(body.get("n"), int) and body["n"] > 1:
        body["n"] = 2
    raw = json.dumps(body).encode()
    if draw.random() < 0.1:
        cut = draw.randrange(len(raw))
        raw = raw[:cut] + bytes([draw.randrange(256)]) + raw[cut + 1 :]
    return path, raw, headers


def _value(draw):
    value = draw.choice(VALUES)
    for _ in range(draw.choice([0, 0, 0, 1, 3, 200])):
        value = [value] if draw.random() < 0.7 else {"a": value}
    return value
