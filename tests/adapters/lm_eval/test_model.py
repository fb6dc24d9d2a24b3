"""The class as lm-evaluation-harness uses it: arguments, facts, what is refused."""

import json
import logging

import numpy as np
import pytest
from lm_eval.api.registry import get_model

import jaxscore.adapters.lm_eval
from jaxscore import Scorer
from jaxscore.adapters.lm_eval import JaxscoreLM
from jaxscore.errors import InputError
from tests.adapters.lm_eval.evaluated import evaluated, request, responses
from tests.adapters.lm_eval.folders import args, case, changed
from tests.adapters.lm_eval.tasks import DOCUMENTS, OF_EACH_KIND

pytestmark = pytest.mark.filterwarnings("ignore")


def test_it_is_registered_beside_the_others():
    assert get_model("jaxscore") is JaxscoreLM
    assert get_model("hf").__name__ == "HFLM"
    assert JaxscoreLM.__module__ == jaxscore.adapters.lm_eval.__name__


def test_instances_names_and_scorers_give_the_same(found):
    scorer = Scorer.from_pretrained(str(case("tiny-llama3")), dtype="float32")
    by_name = evaluated("jaxscore", args(), *OF_EACH_KIND)
    by_text = evaluated("jaxscore", ",".join(f"{k}={v}" for k, v in args().items()), *OF_EACH_KIND)
    by_scorer = evaluated(JaxscoreLM(scorer), None, *OF_EACH_KIND)
    for name in OF_EACH_KIND:
        want = responses(found, name)
        assert responses(by_name, name) == responses(by_text, name) == want
        if name == "choices":  # without a folder the length is the model's own
            assert responses(by_scorer, name) == want


def test_a_length_that_the_model_does_not_have(model):
    with pytest.raises(InputError, match="max_length is 99999, and the model takes 1024 positions"):
        JaxscoreLM(**args(max_length=99999))
    with pytest.raises(InputError, match="max_length is 99999, and the model takes 1024 positions"):
        JaxscoreLM(model.scorer, max_length="99999")


def test_details_take_no_address():
    with pytest.raises(InputError, match="found an address of scheme gs://"):
        JaxscoreLM(**args(details="gs://bucket/details.jsonl"))


def test_equal_choices_have_equal_bits(found):
    for sample in found["samples"]["choices"]:
        answers = sample["doc"]["a"]
        totals = [total for [(total, _)] in sample["resps"]]
        if answers[0] == answers[3]:
            assert totals[0] == totals[3]
    assert any(one["a"][0] == one["a"][3] for one in DOCUMENTS)


def test_facts_in_the_results(found):
    config = found["config"]
    assert config["model_num_parameters"] > 1000
    assert (config["model_dtype"], config["model_revision"]) == ("float32", "main")
    assert len(config["model_sha"]) == 64
    ours = config["jaxscore"]
    assert ours["tokens_given"] > 2 * ours["tokens_computed"] > 0
    assert ours["max_length"] == found["max_length"]
    json.dumps(config)


def test_a_line_says_what_a_call_took(model, caplog):
    with caplog.at_level(logging.INFO, "lm_eval.jaxscore"):
        logging.getLogger("lm_eval").propagate = True
        evaluated(model, None, "letters")
    [line] = [one.getMessage() for one in caplog.records if one.name == "lm_eval.jaxscore"]
    assert line.startswith("32 log-likelihoods in ")
    assert "times fewer" in line


def test_reproducible_numbers_do_not_depend_on_the_other_requests():
    one = JaxscoreLM(**args(reproducible=True))
    alone, whole = evaluated(one, None, "choices", limit=1), evaluated(one, None, "choices")
    assert responses(alone, "choices") == responses(whole, "choices")[:4]


def test_thinking(tmp_path):
    lm = JaxscoreLM(**args(enable_thinking=True, think_end_token="x"))
    with pytest.raises(InputError, match="enable_thinking: a log-likelihood"):
        evaluated(lm, None, "choices")
    assert lm._args.chat_template_args == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"num_beams": 4}, "generation argument num_beams=4 is not computed"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size=2 is not computed"),
        ({"do_sample": True}, "temperature=0.0: expected a number above 0 where do_sample"),
        ({"max_gen_toks": 1200}, "texts, document 0.*asks for 1200 new tokens, and max_length is"),
        ({"max_length": 1}, "max_length=1 leaves no token"),
    ],
)
def test_texts_that_are_refused(kwargs, why, model):
    with pytest.raises(InputError, match=why):
        evaluated(model, None, "texts", gen_kwargs=kwargs)


def test_a_checkpoint_that_asks_for_what_is_not_computed(tmp_path):
    folder = changed(
        tmp_path / "other", case("tiny-gpt2"), generation_config={"no_repeat_ngram_size": 3}
    )
    with pytest.raises(InputError, match=r"generation_config.json asks for no_repeat_ngram_size=3"):
        evaluated("jaxscore", args(pretrained=str(folder)), "texts")


@pytest.mark.parametrize("method", ["loglikelihood", "loglikelihood_rolling", "generate_until"])
def test_half_a_surrogate_pair_is_refused_by_name(method, model):
    asked = [request(text, {"until": []}) for text in ("ok", "a\ud800")]
    if method != "generate_until":
        asked = [type("I", (), {**vars(one), "args": (one.args[0], "x")}) for one in asked]
    with pytest.raises(InputError, match=r"task, document 0, choice 0 .*half a surrogate pair"):
        getattr(model, method)(asked, disable_tqdm=True)


@pytest.mark.slow
def test_samples_differ_and_come_again(model):
    """Each repeat draws for itself, and a second run draws the same."""
    kwargs = {"do_sample": True, "temperature": 1.0}
    runs = [evaluated(model, None, "texts", gen_kwargs=kwargs) for _ in range(2)]
    assert responses(runs[0], "texts") == responses(runs[1], "texts")
    requests = [request("The cat", {**kwargs, "until": []})] * 6
    texts = model.generate_until(requests, disable_tqdm=True)
    assert len(set(texts)) > 1
    assert texts == model.generate_until(requests, disable_tqdm=True)


def test_numbers_that_are_not_finite(model, monkeypatch):
    real = model.scorer.engine.run

    def broken(windows, n_expected=None):
        for scores in real(windows, n_expected):
            yield [one._replace(logprob=np.full_like(one.logprob, np.nan)) for one in scores]

    monkeypatch.setattr(model.scorer.engine, "run", broken)
    with pytest.raises(InputError, match=r"choices, document \d, choice \d .*not finite"):
        evaluated(model, None, "choices")


def test_token_ids(model):
    text = ("The cat", " sat")
    [wanted] = model.loglikelihood(
        [type("Instance", (), {"args": text, "request_type": "loglikelihood"})], disable_tqdm=True
    )
    [asked] = model._encoder.pairs([text], str)
    request = (text, asked.context.tolist(), asked.continuation.tolist())
    assert model._loglikelihood_tokens([request], disable_tqdm=True) == [wanted]
    assert model.tok_decode(model.tok_encode("The cat")) == "The cat"
