"""What a run keeps: details, `--use_cache`, journals."""

import json
import math

import pytest
from lm_eval.api.model import CachingLM

import jaxscore.adapters.lm_eval
from jaxscore.adapters.lm_eval import JaxscoreLM
from jaxscore.errors import InputError
from tests.adapters.lm_eval.evaluated import evaluated, request, responses
from tests.adapters.lm_eval.folders import args
from tests.adapters.lm_eval.tasks import DOCUMENTS, OF_EACH_KIND

pytestmark = pytest.mark.filterwarnings("ignore")


def test_details(tmp_path, found):
    path = tmp_path / "details.jsonl"
    again = evaluated("jaxscore", args(details=str(path)), *OF_EACH_KIND)
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
    lm.generate_until([request("the cat sat " * 30, kwargs)], disable_tqdm=True)
    [line] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(line["token_ids"]) > 40
    assert "truncated" not in line


def test_a_cache_belongs_to_its_model(tmp_path, found):
    path = str(tmp_path / "cache")
    for _ in range(2):
        again = evaluated("jaxscore", args(), *OF_EACH_KIND, use_cache=path)
        for name in OF_EACH_KIND:
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
    monkeypatch.setattr(
        jaxscore.adapters.lm_eval, "answer_questions", lambda *rest: _two_then_stop(*rest)
    )
    with pytest.raises(KeyboardInterrupt):
        evaluated(model, None, "choices")
    assert len(kept) == 2
    assert {name for name, _, _ in kept} == {"loglikelihood"}


def _two_then_stop(scorer, asked, max_length, named):
    from jaxscore.adapters.model import answer_questions

    yield next(answer_questions(scorer, asked[:2], max_length, named))
    raise KeyboardInterrupt


@pytest.mark.slow
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
    first = evaluated("jaxscore", args(journal=str(path)), *OF_EACH_KIND)
    lm = JaxscoreLM(**args(journal=str(path)))
    second = evaluated(lm, None, *OF_EACH_KIND)
    for name in OF_EACH_KIND:
        assert responses(second, name) == responses(first, name) == responses(found, name)
    counts = lm.scorer.facts()["counts"]
    assert counts["texts_from_journal"] == counts["texts"]
    lm.scorer.close()
