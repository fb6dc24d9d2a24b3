"""Pages for tests, and what is read out of them without a browser."""

import base64
import dataclasses
import gzip
import json
import re
import struct
import zlib
from typing import Any

import lxml.html
import numpy as np

from jaxscore.report.document import Column, Document, Field, Items, Row, Rows, Source
from jaxscore.report.html.frame import render
from jaxscore.report.html.strips import Strips, TokenText, tokens
from jaxscore.report.sections import three
from jaxscore.systems.score.report import WorstRequests, report
from tools.benchmarks.pages import record, source

TYPES = {"u1": "<u1", "u2": "<u2", "u4": "<u4"}


def tree(page: str) -> Any:
    """The parsed page."""
    return lxml.html.document_fromstring(page.encode("utf-8"))


def rounded(text: str) -> str:
    """A text of the Markdown with its numbers as cards show them."""
    number = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
    return re.sub(number, lambda found: three(float(found.group())), text)


def block(page: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a page's data, as the format describes them."""
    raw = gzip.decompress(base64.b64decode(tree(page).get_element_by_id("data").text))
    [size] = struct.unpack("<I", raw[:4])
    header = json.loads(raw[4 : 4 + size])
    arrays = {}
    for name, (kind, place, n) in header["arrays"].items():
        at = 4 + size + place
        if kind == "i2":  # the low bytes, then the high ones
            low, high = (np.frombuffer(raw, np.uint8, n, at + k * n).astype(int) for k in (0, 1))
            arrays[name] = ((low | high << 8) + 2**15) % 2**16 - 2**15
        else:
            arrays[name] = np.frombuffer(raw, TYPES[kind], n, at).astype(int)
    return header, arrays


def values(header: dict[str, Any], arrays: dict[str, np.ndarray], k: int) -> list[str]:
    """The texts of a column."""
    column = header["columns"][k]
    if column["kind"] == "number":
        return column["values"].split("\n") if header["n"] else []
    if "array" in column:
        return [column["values"][place] for place in arrays[column["array"]]]
    return column["values"]


def text(names: list[str], logprob: list[float], **more: Any) -> TokenText:
    """Tokens with made-up numbers; each name has an id of its own."""
    n = len(names)
    given = {
        "token_ids": np.array([zlib.crc32(repr(name).encode()) >> 1 for name in names], np.int32),
        "tokens": names,
        "logprob": np.array(logprob, np.float32),
        "entropy": np.linspace(0, 3, n, dtype=np.float32),
        "self_certainty": np.linspace(5, 9, n, dtype=np.float32),
        "greedy": np.array([p > -0.5 for p in logprob]),
    }
    return TokenText(**given | more)


def strips(texts: list[TokenText], titles: list[str] | None = None, context: str = "") -> Strips:
    """One strip for each item."""
    names: dict[int, str] = {}
    return Strips(
        first=np.arange(len(texts) + 1),
        titles=titles or [""] * len(texts),
        contexts=[context] * len(texts),
        tokens=tokens(texts, names),
        names=names,
        vocabulary=100,
    )


def page_of(words: list[str], **more: Any) -> Document:
    """A page that shows each word everywhere where a text of users or models may stand."""
    n = len(words)
    items = Items(
        units="things",
        order="worst first",
        n_all=n,
        columns=[
            Column("Name", "text", words),
            Column("Size", "number", [f"{k}.50" for k in range(n)]),
            Column("Kind", "category", words),
            Column("Right?", "flag", ["yes" if k % 2 else "no" for k in range(n)]),
            Column("Token", "token", words),
        ],
        fields=[Field("Field", words)],
        tables=[
            Rows("Rows", ["Word", "p"], "right", [[Row([w, "0.5"], 0.5, True)] for w in words])
        ],
        strips=strips([text([w or "x", " y"], [-3.0, -0.1]) for w in words], list(words), "before"),
        within_noise=[k % 3 == 0 for k in range(n)],
    )
    given = {
        "system": "test",
        "title": words[0] if words else "none",
        "verdict": words[0] if words else "none",
        "cards": [],
        "charts": [],
        "items": items,
        "sections": [],
    }
    return Document(**given | more)


def changed(page: Document, **items: Any) -> Document:
    """The page with other fields of its items."""
    assert page.items is not None
    return dataclasses.replace(page, items=dataclasses.replace(page.items, **items))


def with_column(page: Document, k: int, values: list[str]) -> Document:
    """The page with other values of one column."""
    assert page.items is not None
    columns = list(page.items.columns)
    columns[k] = dataclasses.replace(columns[k], values=values)
    return changed(page, columns=columns)


def score_source(items: WorstRequests, n_failed: int = 0) -> Source:
    """What the page of `score` is made of."""
    return source(items, [{"name": f"bad {k}", "error": "too long"} for k in range(n_failed)])


def score_html(n: int, length: int, seed: int = 0) -> str:
    """A page of n requests of so many tokens."""
    rng = np.random.default_rng(seed)
    items = WorstRequests()
    for k in range(n):
        items.add(record(k, length, rng), f"Question number {k}: what comes next?")
    return render(report(score_source(items)))
