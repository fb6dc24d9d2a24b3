"""The class as lm-evaluation-harness uses it: arguments, facts, what is refused."""

import json
import logging
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from lm_eval.api.registry import get_model

import jaxscore.adapters.lm_eval
from jaxscore import Scorer
from jaxscore.adapters.lm_eval import JaxscoreLM
from jaxscore.errors import InputError
from jaxscore.text.tokenizer_files import load_tokenizer
from jaxscore.types.requests import GenerationRequest
from tests.adapters.lm_eval.evaluated import evaluated, request, responses
from tests.adapters.lm_eval.folders import args, case, changed
from tests.adapters.lm_eval.tasks import DOCUMENTS, OF_EACH_KIND
from tests.conftest import CASES
from tests.server.conftest import Served

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
    with pytest.raises(InputError, match="max_length is 99999, and the model has 1024 positions"):
        JaxscoreLM(**args(max_length=99999))
    with pytest.raises(InputError, match="max_length is 99999, and the model has 1024 positions"):
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
    with pytest.raises(InputError, match="enable_thinking: the log-likelihood"):
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
    with pytest.raises(InputError, match=r"task, document 0, choice 0 .*a lone surrogate"):
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


POSITIONS = 64


def writes(script, tokenizer, n_prompt):
    """A model that continues any prompt of `n_prompt` tokens by these ids."""
    head = np.zeros((len(tokenizer), POSITIONS), np.float32)
    head[script, n_prompt - 1 + np.arange(len(script))] = 9
    return Scorer.from_function(
        lambda params, ids: jnp.broadcast_to(
            jnp.eye(POSITIONS)[: ids.shape[1]], (*ids.shape, POSITIONS)
        ),
        lambda params: params,
        head,
        tokenizer,
        vocab_size=len(tokenizer),
        max_positions=POSITIONS,
    )


def generated_and_served(scorer, prompt, n_new, stop):
    """Text and reason of its end: of the generator, of the server, and of the server's stream."""
    request = GenerationRequest("a", prompt, n_new, eos_ids=(), stop=stop)
    [generated] = scorer.generator().generate([request])
    body = {"prompt": prompt, "max_tokens": n_new, "temperature": 0, "stop": [*stop]}
    served = Served(scorer)
    try:
        [choice] = served.ask("/v1/completions", body).json()["choices"]
        lines = served.ask("/v1/completions", body | {"stream": True}).text.splitlines()
    finally:
        served.close()
    parts = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    streamed = "".join(part["text"] for part in parts), parts[-1]["finish_reason"]
    return [
        (generated.text, generated.finish),
        (choice["text"], choice["finish_reason"]),
        streamed,
    ]


@pytest.mark.parametrize(
    ("script", "stop", "expected"),
    [
        (" The cat<|im_start|> a", ("cat<|im",), (" The ", "stop")),
        (" The cat<|im_start|> a", ("im_start",), (" The cat", "stop")),
        (" The cat<|im_start|> a", ("cat a",), (" The cat a", "length")),
        ("<|im_start|>", ("<|im_start|>",), ("", "stop")),
    ],
)
def test_a_stop_string_in_special_tokens_ends_every_text_alike(script, stop, expected):
    tokenizer = load_tokenizer(case("tiny-qwen2"))
    ids = tokenizer.backend_tokenizer.encode(script).ids
    scorer = writes(ids, tokenizer, len(tokenizer("The cat")["input_ids"]))
    assert generated_and_served(scorer, "The cat", len(ids), stop) == [expected] * 3


@pytest.mark.parametrize("stop", [(), ("b .",), (" it",)])
@pytest.mark.parametrize("kind", ["byte_level", "metaspace", "unigram"])
def test_one_text_of_tokens_in_generator_server_and_adapter(kind, stop, tmp_path):
    """Whatever tokenizer_config.json says of spaces before punctuation."""
    shutil.copy(CASES / "tokenizers" / kind / "tokenizer.json", tmp_path)
    source = CASES / "tokenizers" / kind / "saved_by_4/tokenizer_config.json"
    settings = json.loads(source.read_text("utf-8")) | {"clean_up_tokenization_spaces": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    prompt, text = "the cat", " a , b . it 's a"
    # As in hf, SentencePiece's space before a text's first word is left out in the adapter.
    first = "" if kind == "byte_level" else " "
    backend = tokenizer.backend_tokenizer
    script = backend.encode(text.removeprefix(first), add_special_tokens=False).ids
    n_prompt = len(backend.encode(prompt).ids)
    scorer = writes(script, tokenizer, n_prompt)
    end = min([text.index(one) for one in stop], default=len(text))
    expected = (text[:end], "stop" if stop else "length")
    assert generated_and_served(scorer, prompt, len(script), stop) == [expected] * 3
    model = JaxscoreLM(scorer)
    kwargs = {"until": [*stop], "max_gen_toks": len(script)}
    asked = [request(prompt, kwargs)]
    assert model.generate_until(asked, disable_tqdm=True) == [text[:end].removeprefix(first)]
    assert model.tok_decode(script) == text.removeprefix(first)
