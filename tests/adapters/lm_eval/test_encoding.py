"""Token ids are those of lm-evaluation-harness' `hf` model, text by text."""

import itertools
import json
import shutil

import pytest
import transformers
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer

from jaxscore.adapters import model
from jaxscore.adapters.arguments import Arguments
from jaxscore.adapters.lm_eval.encoding import Encoder
from jaxscore.errors import InputError
from jaxscore.text import bounded_tokenizer
from jaxscore.text.bounded_tokenizer import BoundedTokenizer
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.adapters.lm_eval.folders import case
from tests.conftest import CASES, MODELS
from tests.text.test_bounded_tokenizer import PANICS, panicking_backend

pytestmark = [pytest.mark.lines, pytest.mark.filterwarnings("ignore")]

CONTEXTS = [
    "",
    "a",
    "The cat",
    "The cat ",
    "The cat \n\t",
    "Ab\u3000",
    " x",
    "don'",
    "naïve é",
    "1 2",
]
CONTINUATIONS = [" sat", "t", "\n", "  two  ", "é", " Ünï 日本", "cat. The end\n\n", "'t"]
PAIRS = list(itertools.product(CONTEXTS, CONTINUATIONS))


def named(place):
    return f"request {place}"


@pytest.fixture(scope="module")
def theirs():
    """`theirs(model, **arguments)`: their class around a model that it does not ask."""
    models = {}

    def get(name, **arguments):
        if name not in models:
            models[name] = transformers.AutoModelForCausalLM.from_pretrained(case(name))
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            case(name),
            **{k: v for k, v in arguments.items() if k == "add_bos_token"},
        )
        return HFLM(models[name], tokenizer=tokenizer, **arguments)

    return get


@pytest.mark.parametrize("bos", [None, True, False])
@pytest.mark.parametrize("name", MODELS)
def test_pairs_and_texts(name, bos, theirs, monkeypatch):
    arguments = {} if bos is None else {"add_bos_token": bos}
    hf = theirs(name, **arguments)
    ours = Encoder(hf.tokenizer, bos, hf.prefix_token_id)
    asked = {}
    monkeypatch.setattr(
        hf, "_loglikelihood_tokens", lambda requests, **_: asked.update(enumerate(requests))
    )
    prefix = hf.tokenizer.decode(hf.prefix_token_id)
    pairs = [*PAIRS, (prefix + "The cat", " sat"), (prefix, "x"), ("", prefix + "cat")]
    instances = [type("Instance", (), {"args": pair}) for pair in pairs]
    hf.loglikelihood(instances, disable_tqdm=True)
    for place, one in enumerate(ours.pairs(pairs, named)):
        _, context, continuation = asked[place]
        assert (one.context.tolist(), one.continuation.tolist()) == (context, continuation)
    texts = [a + b for a, b in pairs]
    assert ours.encode(texts) == [hf.tok_encode(text) for text in texts]
    assert ours.encode(texts, False) == [
        hf.tok_encode(text, add_special_tokens=False) for text in texts
    ]
    for text, ids in zip(texts, ours.prompts(texts), strict=True):
        assert ids == hf.tok_batch_encode([text])[0][0].tolist()


def test_a_call_of_the_tokenizer_that_cuts_changes_nothing():
    own = transformers.AutoTokenizer.from_pretrained(case("tiny-gpt2"))
    encoder = Encoder(own, None, 0)
    before = encoder.encode(["The cat ran after the other cat"])
    assert len(own("The cat ran", truncation=True, max_length=2)["input_ids"]) == 2
    assert encoder.encode(["The cat ran after the other cat"]) == before


def test_equal_contexts_share_their_ids(scorers):
    encoder = Encoder(scorers("tiny-gpt2").encoder.tokenizer, None, 0)
    one, two, other = encoder.pairs([("a b", " c"), ("a b ", "d"), ("a", " c")], named)
    assert one.context is two.context
    assert other.context is not one.context


@pytest.mark.parametrize(
    ("pair", "prefix", "why"),
    [
        (("", ""), 0, "request 0: neither its context nor its continuation has a token"),
        (("", "x"), None, "request 0: the context is empty, and the tokenizer has neither"),
        (("a\ud800", "b"), 0, "request 0: a text contains a lone surrogate"),
    ],
)
def test_requests_that_hf_ends_on(pair, prefix, why, scorers):
    encoder = Encoder(scorers("tiny-gpt2").encoder.tokenizer, None, prefix)
    with pytest.raises(InputError, match=why):
        encoder.pairs([pair], named)


def test_a_text_that_the_tokenizer_cannot_read_is_named():
    tokenizer = load_tokenizer(CASES / "models/tiny-gpt2")
    encoder = Encoder(tokenizer, None, 0)
    encoder._bounded = BoundedTokenizer(panicking_backend())
    with pytest.raises(InputError, match=r"the text that begins 'a{40}b': .* \(Onig: Regex"):
        encoder.pairs([("The cat", " sat"), ("", PANICS)], named)


@pytest.mark.parametrize("special", [None, True, False])
@pytest.mark.parametrize("name", MODELS)
def test_long_texts_in_pieces_have_the_same_ids_with_special_tokens(monkeypatch, name, special):
    encoder = Encoder(load_tokenizer(CASES / "models" / name), None, 0)
    text = "The cat sat down. It ran, and ran. " * 4
    want = encoder.encode([text, "a"], special)
    monkeypatch.setattr(bounded_tokenizer, "PIECE", 9)
    assert encoder.encode([text, "a"], special) == want


SENTENCES = ["The cat, and the cat .", " two  blanks", "naïve é 東京\n\n1 2 don't", "a"]


@pytest.mark.parametrize("bos", [None, True, False])
@pytest.mark.parametrize("kind", ["byte_level", "metaspace", "unigram"])
@pytest.mark.parametrize("name", ["LlamaTokenizerFast", "GPT2TokenizerFast", "Qwen2TokenizerFast"])
def test_add_bos_token_leaves_the_other_ids_to_tokenizer_json(kind, name, bos, tmp_path):
    """Classes of transformers 5 build another tokenizer from the vocabulary, and drop blanks."""
    shutil.copytree(CASES / "tokenizers" / kind / "saved_by_4", tmp_path, dirs_exist_ok=True)
    shutil.copy(CASES / "tokenizers" / kind / "tokenizer.json", tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text("utf-8")) | {"tokenizer_class": name}
    path.write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    truth = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, add_bos=bos)
    encoder = Encoder(tokenizer, bos, tokenizer.bos_token_id)
    for text in SENTENCES:
        bare = truth.encode(text, add_special_tokens=False).ids
        [ids], [alone] = encoder.encode([text]), encoder.encode([text], False)
        assert alone == bare
        assert ids[len(ids) - len(bare) :] == bare
        if bos is not None:
            assert len(ids) == len(bare) + bos


@pytest.mark.parametrize("bos", [True, False])
def test_the_argument_add_bos_token_reaches_the_tokenizer(bos, caplog):
    loaded = model.load_model(Arguments(str(case("tiny-gpt2")), add_bos_token=bos))
    encoder = Encoder(loaded.tokenizer, bos, 0)
    assert encoder.encode(["a"]) == [[*[0] * bos, *encoder.encode(["a"], False)[0]]]
    assert not caplog.records
    loaded = model.load_model(Arguments(str(case("tiny-qwen2")), add_bos_token=bos))
    told = "add_bos_token: ignored, since the tokenizer lacks a BOS"
    assert [record.message for record in caplog.records] == [told] * bos


def test_a_bad_escape_in_a_pattern_is_refused_with_the_folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(r'{"pre_tokenizer": {"Regex": "\p{L}"}}')
    with pytest.raises(InputError, match="no usable tokenizer") as caught:
        load_tokenizer(tmp_path, add_bos=True)
    assert str(tmp_path) in str(caught.value)
