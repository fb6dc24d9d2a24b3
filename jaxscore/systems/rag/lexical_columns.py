"""`metrics`: words that responses share with their references (the lexical part of BERGEN)."""

import math
from collections.abc import Mapping, Sequence

from jaxscore.analysis import lexical
from jaxscore.systems.rag.records import Record

METRICS = (
    "M",
    "EM",
    "F1",
    "Precision",
    "Recall",
    "Recall_char3gram",
    "Rouge-1",
    "Rouge-2",
    "Rouge-L",
)


def evaluate(records: Sequence[Record]) -> dict[str, dict[int, float]]:
    """For each of METRICS the value of each record, by the record's index."""
    values = {record.index: scores(record.response, record.label) for record in records}
    return {name: {index: one[name] for index, one in values.items()} for name in METRICS}


def scores(response: str, label: Sequence[str]) -> dict[str, float]:
    """Each of METRICS, from 0 to 1: the best of the references, each metric by itself."""
    words, rouge = lexical.word_overlap(response, label), lexical.rouge(response, label)
    return {
        "M": lexical.match(response, label),
        "EM": lexical.exact_match(response, label),
        "F1": words.f1,
        "Precision": words.precision,
        "Recall": words.recall,
        "Recall_char3gram": lexical.trigram_recall(response, label),
        "Rouge-1": rouge.one,
        "Rouge-2": rouge.two,
        "Rouge-L": rouge.longest,
    }


def summarise(values: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Means over the records; nothing where there are none."""
    return {name: math.fsum(one.values()) / len(one) for name, one in values.items() if one}
