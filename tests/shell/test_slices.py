"""Slices: which value an item has, and the means over the items of each value."""

import math
import random

import numpy as np
import pytest

from jaxscore import InputError
from jaxscore.analysis.bootstrap import Estimate, proportion, ratio
from jaxscore.analysis.text_measures import perplexity
from jaxscore.shell.slices import NONE, check_fields, slices_of, value_of
from jaxscore.systems import choose, declaration, score
from jaxscore.systems import perplexity as documents

SCORE = score.SYSTEM


def record(**fields):
    numbers = {"sum_logprob": -4.0, "mean_logprob": -2.0, "n_scored": 2, "n_tokens": 3}
    return {"id": 1, **numbers, "mean_entropy": 1.0, "mean_self_certainty": None, **fields}


def text(topic, mean, n):
    return record(topic=topic, mean_logprob=mean, sum_logprob=mean * n, n_scored=n, n_tokens=n)


def slices(records, *by, system=SCORE, **settings):
    return slices_of(system, system.settings(by=by, n_bootstrap=200, **settings), records)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("sea", "sea"), ("海", "海"), (" sea ", " sea "), (1912, "1912"), (0.5, "0.5"),
        (1.0, "1.0"), (True, "true"), (False, "false"), (0, "0"), ("1912", "1912"), (None, NONE),
        ("", NONE), (" \u3000\t", NONE), (2**70, str(2**70)), ("(none)", NONE),
    ],
)  # fmt: skip
def test_a_value_is_its_text_or_as_json_writes_it(value, expected):
    assert value_of({"topic": value}, "topic") == expected


def test_an_item_without_the_field_has_no_value():
    assert value_of({}, "topic") == NONE


def test_means_weigh_each_item_by_its_tokens_and_values_count_once_in_the_macro_mean():
    records = [text("a", -1.0, 1), text("b", -3.0, 4), text("a", -2.0, 3), text(None, -5.0, 2)]
    [(field, each)] = slices(records, "topic").items()
    assert field == "topic"
    assert list(each["values"]) == ["a", "b", NONE]  # most items first
    a = each["values"]["a"]
    assert (a["n_items"], a["n_scored"], a["n_tokens"]) == (2, 4, 4)
    assert a["mean_logprob"] == ratio([-1.0, -6.0], [1, 3], 200, 0)
    assert a["text_mean_logprob"].mean == -1.5
    assert a["sum_logprob"].mean == -3.5
    assert a["perplexity"].mean == pytest.approx(math.exp(1.75))
    low, high = a["mean_logprob"].low, a["mean_logprob"].high
    assert (a["perplexity"].low, a["perplexity"].high) == (perplexity(high), perplexity(low))
    assert each["values"]["b"]["mean_logprob"] == Estimate(1, -3.0, None, None)
    assert each["all"]["mean_logprob"].mean == pytest.approx(-29 / 10)
    assert each["macro"]["mean_logprob"] == pytest.approx((-1.75 - 3 - 5) / 3)
    perplexities = [value["perplexity"].mean for value in each["values"].values()]
    assert each["macro"]["perplexity"] == pytest.approx(np.mean(perplexities))
    assert each["n_without"] == 1
    assert "mean_self_certainty" not in a  # no item has it


def test_each_field_has_its_own_table_over_all_items():
    rng = random.Random(0)
    records = [
        record(a=rng.choice("xyz"), b=rng.randrange(3), mean_logprob=-rng.random(), n_scored=k + 1)
        for k in range(40)
    ]
    tables = slices(records, "a", "b", "a")
    assert list(tables) == ["a", "b"]
    for table in tables.values():
        assert sum(value["n_items"] for value in table["values"].values()) == 40
        assert table["all"] == tables["a"]["all"]
        sums = [v["mean_logprob"].mean * v["n_scored"] for v in table["values"].values()]
        assert sum(sums) == pytest.approx(
            table["all"]["mean_logprob"].mean * table["all"]["n_scored"]
        )


def test_items_that_failed_and_texts_without_a_score_are_in_no_mean():
    nothing = dict.fromkeys(("sum_logprob", "mean_logprob", "mean_entropy"))
    records = [
        text("a", -1.0, 2),
        {"id": 2, "topic": "a", "error": "too long"},
        record(topic="a", **nothing, n_scored=0, n_tokens=1),
        record(topic="b", **nothing, n_scored=0, n_tokens=1),
    ]
    table = slices(records, "topic")["topic"]
    a, b = table["values"]["a"], table["values"]["b"]
    assert (a["n_items"], a["n_tokens"], a["mean_logprob"].mean) == (2, 3, -1.0)
    assert b["mean_logprob"] == Estimate(0, None, None, None)
    assert table["macro"]["mean_logprob"] == -1.0
    empty = slices([{"id": 1, "topic": "a", "error": "x"}], "topic")["topic"]
    assert (empty["values"], empty["macro"], empty["all"]["n_items"]) == ({}, {}, 0)


def test_an_infinite_number_stays_infinite_without_an_interval():
    records = [text("a", "-Infinity", 2), text("a", -1.0, 2)]
    records[0]["sum_logprob"] = "-Infinity"
    a = slices(records, "topic")["topic"]["values"]["a"]
    assert a["mean_logprob"] == Estimate(2, -math.inf, None, None)
    assert a["perplexity"].mean == math.inf


def test_a_field_of_the_user_with_the_name_of_an_omitted_result_is_no_result():
    records = [{**text("a", -1.0, 2), "min_k": 7.0, "sum_gain": "x", "ifd": "b"}]
    table = slices(records, "ifd")["ifd"]
    assert list(table["values"]) == ["b"]
    assert not {"min_k", "mean_gain", "ifd"} & table["all"].keys()
    with_measure = slices(records, "topic", measures=("min_k",))["topic"]
    assert with_measure["all"]["min_k"].mean == 7.0


def test_shares_have_the_interval_of_wilson():
    records = [
        {"id": k, "topic": "a", "acc": k > 1, "acc_pmi": None, "chance": 0.25} for k in range(5)
    ]
    records.append({"id": 9, "topic": "a", "context": "no gold"})
    a = slices(records, "topic", system=choose.SYSTEM)["topic"]["values"]["a"]
    assert a == {
        "n_items": 6,
        "acc": proportion([False, False, True, True, True]),
        "chance": Estimate(5, 0.25, None, None),
    }


def test_documents_without_spaces_have_no_bits_per_word():
    numbers = {"mean_logprob": -1.0, "n_tokens": 9, "n_scored": 9, "bits_per_byte": 2.0}
    chinese = {"begin": "猫坐在垫子上。" * 9, "n_bytes": 189, "n_words": 1, "bits_per_word": 300.0}
    english = {"begin": "A cat sat.", "n_bytes": 10, "n_words": 3, "bits_per_word": 6.0}
    records = [
        {"id": 1, "lang": "zh", **numbers, **chinese},
        {"id": 2, "lang": "en", **numbers, **english},
    ]
    values = slices(records, "lang", system=documents.SYSTEM)["lang"]["values"]
    assert values["zh"]["bits_per_word"].mean is None
    assert values["en"]["bits_per_word"].mean == 6.0
    assert list(values["en"])[5] == "bits_per_byte"  # after the counts


def test_numbers_do_not_depend_on_the_order_of_other_values():
    rng = random.Random(1)
    records = [text(rng.choice("abc"), -rng.random(), k % 5 + 1) for k in range(60)]
    together = slices(records, "topic")["topic"]["values"]
    for name, numbers in together.items():
        alone = [each for each in records if each["topic"] == name]
        assert slices(alone, "topic")["topic"]["values"][name] == numbers


def test_without_fields_nothing_is_computed():
    assert slices_of(SCORE, SCORE.settings(), iter(())) == {}
    assert slices_of(declaration("paths"), declaration("paths").settings(), iter(())) == {}


def check(by, *items, **options):
    named = [(f"in.jsonl:{k}", each) for k, each in enumerate(items, start=1)]
    check_fields(SCORE, SCORE.settings(by=by), named, **options)


def test_a_field_that_some_items_have_is_accepted_and_so_is_a_result():
    check(["topic", "lang"], {"topic": "a"}, {"lang": None})
    check(["truncated", "id"], {})
    check(["topic"], {}, may_lack=True)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("topc", "--by topc: no item has this field; is it topic? expected one that the output "
         "repeats, found topic, lang"),
        ("xyz", "--by xyz: no item has this field; expected one that the output repeats, found "
         "topic, lang"),
        ("logprob", "no item has this field"),  # a list
        ("ifd", "no item has this field"),  # only with --against
        ("context", "no item has this field"),  # the output does not repeat it
    ],
)  # fmt: skip
def test_a_field_that_no_item_has_is_refused_with_the_likely_name(field, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        check([field], {"topic": "a", "lang": "b"})


@pytest.mark.parametrize(
    ("value", "noun"), [(["a"], "a list"), (("a",), "a list"), ({"a": 1}, "an object")]
)
def test_several_values_of_one_item_are_refused_by_its_name(value, noun):
    with pytest.raises(InputError, match=f"in.jsonl:2: --by tags: found {noun}, expected a text"):
        check(["tags"], {"tags": "a"}, {"tags": value})
