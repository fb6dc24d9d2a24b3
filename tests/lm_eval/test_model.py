"""The class as lm-evaluation-harness uses it: caches, details, noise, facts, journal."""

import json
import logging
import math

import numpy as np
import pytest
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import get_model

import jaxscore.lm_eval
from jaxscore import Scorer
from jaxscore.errors import InputError
from jaxscore.lm_eval import JaxscoreLM
from tests.lm_eval.evaluated import evaluated, responses
from tests.lm_eval.folders import case, changed
from tests.lm_eval.tasks import DOCUMENTS

pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = ("choices", "rolling", "texts")


@pytest.fixture(scope="module")
def model():
    return JaxscoreLM(str(case("tiny-llama3")), dtype="float32")


@pytest.fixture(scope="module")
def found(model):
    return evaluated(model, None, *NAMES)


def args(name="tiny-llama3", **more):
    return {"pretrained": str(case(name)), "dtype": "float32", **more}


def test_it_is_registered_beside_the_others():
    assert get_model("jaxscore") is JaxscoreLM
    assert get_model("hf").__name__ == "HFLM"
    assert JaxscoreLM.__module__ == jaxscore.lm_eval.__name__


def test_instances_names_and_scorers_give_the_same(found):
    scorer = Scorer.from_pretrained(str(case("tiny-llama3")), dtype="float32")
    by_name = evaluated("jaxscore", args(), *NAMES)
    by_text = evaluated("jaxscore", ",".join(f"{k}={v}" for k, v in args().items()), *NAMES)
    by_scorer = evaluated(JaxscoreLM(scorer), None, *NAMES)
    for name in NAMES:
        want = responses(found, name)
        assert responses(by_name, name) == responses(by_text, name) == want
        if name == "choices":  # without a folder the length is the model's own
            assert responses(by_scorer, name) == want


def test_a_length_that_the_model_does_not_have(model):
    with pytest.raises(InputError, match="max_length is 99999, and the model takes 1024 positions"):
        JaxscoreLM(**args(max_length=99999))
    with pytest.raises(InputError, match="max_length is 99999, and the model takes 1024 positions"):
        JaxscoreLM(model.scorer, max_length="99999")


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


def test_details(tmp_path, found):
    path = tmp_path / "details.jsonl"
    again = evaluated("jaxscore", args(details=str(path)), *NAMES)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    by_key = {(one["task"], one["doc_id"], one["choice"]): one for one in lines}
    assert len(by_key) == len(lines) == len(DOCUMENTS) * (4 + 1 + 1)
    for sample in again["samples"]["choices"]:
        for choice, [(total, greedy)] in enumerate(sample["resps"]):
            line = by_key["choices", sample["doc_id"], choice]
            n = len(line["token_ids"])
            assert {len(line[k]) for k in ("tokens", "logprob", "entropy", "self_certainty")} == {n}
            assert math.fsum(line["logprob"]) == pytest.approx(total, abs=1e-5)
            assert all(line["greedy"]) == greedy
            assert line["request_type"] == "loglikelihood"
    for sample in again["samples"]["rolling"]:
        line = by_key["rolling", sample["doc_id"], 0]
        assert math.fsum(line["logprob"]) == pytest.approx(sample["resps"][0][0], abs=1e-4)
    for sample in again["samples"]["texts"]:
        assert len(by_key["texts", sample["doc_id"], 0]["token_ids"]) > 0
    with pytest.raises(InputError, match=r"details=.*: cannot be written \(No such file"):
        JaxscoreLM(**args(details=str(tmp_path / "none" / "details.jsonl")))


def test_details_of_a_text_that_is_longer_than_max_length(tmp_path):
    """The prompt is cut, and the numbers are those of what the text was written after."""
    path = tmp_path / "details.jsonl"
    lm = JaxscoreLM(**args(max_length=40, details=str(path)))
    kwargs = {"max_length": 90, "max_gen_toks": 9, "until": []}
    lm.generate_until([_request("the cat sat " * 30, kwargs)], disable_tqdm=True)
    [line] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(line["token_ids"]) > 40
    assert "truncated" not in line


def test_a_cache_belongs_to_its_model(tmp_path, found):
    path = str(tmp_path / "cache")
    for _ in range(2):
        again = evaluated("jaxscore", args(), *NAMES, use_cache=path)
        for name in NAMES:
            assert responses(again, name) == responses(found, name)
    with pytest.raises(InputError, match=r"--use_cache: .* another model \(model '\w+' is now"):
        evaluated("jaxscore", args("tiny-gpt2"), "choices", use_cache=path)
    with pytest.raises(InputError, match="max_length 1024 is now 99"):
        evaluated("jaxscore", args(max_length=99), "choices", use_cache=path)


def test_a_cache_of_somebody_else(tmp_path, model):
    path = str(tmp_path / "cache.db")
    cache = CachingLM(type("Other", (), {"set_cache_hook": lambda self, hook: None})(), path)
    cache.dbdict["x"] = (1.0, True)
    cache.dbdict.commit()
    with pytest.raises(InputError, match="--use_cache: the file has answers of another kind"):
        CachingLM(model, path)


def test_answers_are_cached_as_windows_end(model, monkeypatch):
    """What an interrupted run has computed is kept."""
    kept = []
    monkeypatch.setattr(model, "cache_hook", type("Hook", (), {})())
    model.cache_hook.add_partial = lambda *one: kept.append(one)
    monkeypatch.setattr(jaxscore.lm_eval, "answers", lambda *rest: _two_then_stop(*rest))
    with pytest.raises(KeyboardInterrupt):
        evaluated(model, None, "choices")
    assert len(kept) == 2
    assert {name for name, _, _ in kept} == {"loglikelihood"}


def _two_then_stop(scorer, asked, max_length, named):
    from jaxscore.lm_eval.scoring import answers

    yield next(answers(scorer, asked[:2], max_length, named))
    raise KeyboardInterrupt


def test_details_of_before_stay_until_there_are_others(tmp_path):
    """A second run whose answers are all in --use_cache writes no line, and loses none."""
    settings = {"use_cache": str(tmp_path / "cache")}
    path = tmp_path / "details.jsonl"
    evaluated("jaxscore", args(details=str(path)), "choices", **settings)
    before = path.read_bytes()
    assert before.count(b"\n") == 4 * len(DOCUMENTS)
    evaluated("jaxscore", args(details=str(path)), "choices", **settings)
    assert path.read_bytes() == before
    evaluated("jaxscore", args(details=str(path)), "choices", limit=1)
    assert path.read_bytes().count(b"\n") == 4


def test_close_lets_others_have_the_journal(tmp_path):
    own = args(journal=str(tmp_path / "journal"), details=str(tmp_path / "details.jsonl"))
    first, second = JaxscoreLM(**own), JaxscoreLM(**own)
    evaluated(first, None, "choices", limit=1)
    with pytest.raises(InputError, match="another run holds it"):
        evaluated(second, None, "choices", limit=1)
    first.close()
    evaluated(second, None, "choices", limit=1)
    second.close()
    second.close()


def test_close_leaves_a_scorer_that_was_given(model, monkeypatch):
    monkeypatch.setattr(model.scorer, "close", lambda: pytest.fail("closed"))
    JaxscoreLM(model.scorer).close()


def test_a_journal_gives_the_same_again(tmp_path, found):
    path = tmp_path / "journal"
    first = evaluated("jaxscore", args(journal=str(path)), *NAMES)
    lm = JaxscoreLM(**args(journal=str(path)))
    second = evaluated(lm, None, *NAMES)
    for name in NAMES:
        assert responses(second, name) == responses(first, name) == responses(found, name)
    counts = lm.scorer.facts()["counts"]
    assert counts["texts_from_journal"] == counts["texts"]
    lm.scorer.close()


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
    request = _request("ok", {"until": []}), _request("a\ud800", {"until": []})
    if method != "generate_until":
        request = [type("I", (), {**vars(one), "args": (one.args[0], "x")}) for one in request]
    with pytest.raises(InputError, match=r"task, document 0, choice 0 .*half a surrogate pair"):
        getattr(model, method)(request, disable_tqdm=True)


def test_samples_differ_and_come_again(model):
    """Each repeat draws for itself, and a second run draws the same."""
    kwargs = {"do_sample": True, "temperature": 1.0}
    runs = [evaluated(model, None, "texts", gen_kwargs=kwargs) for _ in range(2)]
    assert responses(runs[0], "texts") == responses(runs[1], "texts")
    requests = [_request("The cat", {**kwargs, "until": []})] * 6
    texts = model.generate_until(requests, disable_tqdm=True)
    assert len(set(texts)) > 1
    assert texts == model.generate_until(requests, disable_tqdm=True)


def _request(context, kwargs):
    from lm_eval.api.instance import Instance

    return Instance("generate_until", {}, (context, kwargs), 0, ("task", 0, 1))


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
