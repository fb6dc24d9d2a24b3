"""What the keyword arguments of `generate_until` ask for."""

import math

import pytest

from jaxscore.adapters.lm_eval.generation import read_settings
from jaxscore.errors import InputError
from jaxscore.models.weights.generation_config import GenerationDefaults

DEFAULTS = GenerationDefaults(top_k=7, top_p=0.9, repetition_penalty=1.5)
SAMPLES = {"do_sample": True, "temperature": 0.5}


def settings(**kwargs):
    return read_settings(kwargs, "</s>", 256, DEFAULTS)


def test_the_checkpoints_values_stand_where_a_request_has_none():
    greedy = settings()
    assert (greedy.temperature, greedy.top_k, greedy.top_p) == (0.0, 0, 1.0)
    assert (greedy.repetition_penalty, greedy.max_new, greedy.length) == (1.5, 256, None)
    drawn = settings(**SAMPLES)
    assert (drawn.temperature, drawn.top_k, drawn.top_p) == (0.5, 7, 0.9)
    own = settings(**SAMPLES, top_k=3, top_p=0.4, repetition_penalty=1.0, max_new_tokens=9)
    assert (own.top_k, own.top_p, own.repetition_penalty, own.max_new) == (3, 0.4, 1.0, 9)


def test_do_sample_follows_the_temperature_where_it_is_absent():
    assert settings(temperature=0.7).temperature == 0.7
    assert settings(temperature="0.7").temperature == 0.7
    assert settings(temperature=0.7, do_sample=False).temperature == 0.0
    assert settings(temperature=0.7, do_sample=1).temperature == 0.7


def test_stop_strings():
    assert settings(until="a").stop == ("a", "</s>")
    assert settings(until=["", "a"]).stop == ("a", "</s>")
    assert settings(until=[""]).max_new == 1


def test_what_greedy_text_does_not_read_may_have_any_value():
    assert settings(top_k=-1, top_p=0, temperature=0).top_k == 0


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"max_gen_toks": 0}, "max_gen_toks=0: expected a whole number from 1"),
        ({"max_gen_toks": math.inf}, "cannot convert float infinity"),
        ({"max_gen_toks": "many"}, "invalid literal"),
        ({"max_length": "long"}, "max_length='long': expected a whole number from 1"),
        ({"max_length": 90.5}, "max_length=90.5: expected a whole number"),
        ({"repetition_penalty": "x"}, "repetition_penalty='x': expected a number above 0"),
        ({"repetition_penalty": math.nan}, "repetition_penalty=nan: expected a number above 0"),
        ({"do_sample": "no"}, "do_sample='no': expected true or false"),
        ({"do_sample": True, "temperature": math.inf}, "temperature=inf: expected a number"),
        ({**SAMPLES, "top_k": 2.5}, "top_k=2.5: expected a whole number from 0"),
        ({**SAMPLES, "top_k": -1}, "top_k=-1: expected a whole number from 0"),
        ({**SAMPLES, "top_p": "x"}, "top_p='x': expected a number above 0, up to 1"),
        ({**SAMPLES, "top_p": 1.5}, "top_p=1.5: expected a number above 0, up to 1"),
        ({"until": [None]}, "until is .*expected texts"),
        ({"num_beams": 2}, "num_beams=2 is not computed"),
    ],
    ids=str,
)
def test_what_is_refused(kwargs, why):
    with pytest.raises(InputError, match=f"generation argument.*{why}"):
        settings(**kwargs)
