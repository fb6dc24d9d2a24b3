"""`model_args`: what is read, what decides nothing, and what is refused."""

from pathlib import Path

import pytest

from jaxscore.adapters.arguments import IDLE, READERS, ArgumentError, Arguments, read_arguments
from jaxscore.errors import InputError


def test_values_as_text_and_as_they_are():
    args, idle = read_arguments(
        {
            "pretrained": "gpt2", "dtype": "torch.bfloat16", "max_length": "512",
            "add_bos_token": "False", "reproducible": True, "device": "cuda:0", "revision": "main",
            "chat_template_args": '{"loud": true}', "enable_thinking": "true",
            "think_end_token": "17", "batch_size": "8", "logits_cache": False, "tokenizer": None,
            "details": Path("a", "b"),
        }
    )  # fmt: skip
    assert args == Arguments(
        "gpt2",
        dtype="bfloat16",
        max_length=512,
        add_bos_token=False,
        reproducible=True,
        chat_template_args={"loud": True, "enable_thinking": True},
        enable_thinking=True,
        think_end_token=17,
        details=str(Path("a", "b")),
    )
    assert idle == ["batch_size", "logits_cache"]


@pytest.mark.parametrize(
    ("written", "keys"), [("my_scale", ("my_scale",)), ("a+b", ("a", "b")), (["a"], ("a",))]
)
def test_accepted_keys_of_the_config(written, keys):
    assert read_arguments({"pretrained": "gpt2", "accept_config": written})[0].accept_config == keys


@pytest.mark.parametrize("written", ["", "a+", 3, [""]])
def test_accepted_keys_that_are_none(written):
    with pytest.raises(ArgumentError, match="keys of the config, such as KEY"):
        read_arguments({"pretrained": "gpt2", "accept_config": written})


def test_what_lm_eval_gives_by_itself_is_not_told():
    assert read_arguments({"pretrained": "gpt2", "batch_size": 1, "device": "cuda:0"})[1] == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "pretrained is missing"),
        ({"pretraned": "x"}, "pretraned is not an argument of jaxscore; is it pretrained"),
        ({"qqq": 1}, "qqq is not an argument of jaxscore; expected one of accept_config"),
        ({"dtype": "float16"}, "dtype is 'float16', expected bfloat16 or float32"),
        ({"dtype": "int4"}, "dtype is 'int4', expected one of auto, float32, bfloat16"),
        ({"pretrained": object()}, "pretrained is 'object', expected a folder, a hub id, demo or"),
        ({"tokenizer": object()}, "tokenizer is <object .*, expected a text"),
        ({"journal": True}, "journal is True, expected a text"),
        ({"details": ["a"]}, r"details is \['a'\], expected a text"),
        ({"implementation": "torch"}, "implementation is 'torch', expected one of auto, native"),
        ({"quantize": "int4"}, "quantize is 'int4', expected one of int8"),
        ({"batch_tokens": 1}, "batch_tokens is 1, expected at least 64"),
        ({"max_length": 0}, "max_length is 0, expected at least 1"),
        ({"max_length": "1e3"}, "max_length is '1e3', expected a whole number"),
        ({"max_length": True}, "max_length is True, expected a whole number"),
        ({"add_bos_token": "maybe"}, "add_bos_token is 'maybe', expected true or false"),
        ({"chat_template_args": "{"}, "chat_template_args is '{', expected a JSON object"),
        ({"chat_template_args": "[1]"}, r"chat_template_args is \[1\], expected an object"),
        ({"think_end_token": ""}, "think_end_token is '', expected the text or the id"),
        ({"enable_thinking": True}, "enable_thinking needs think_end_token"),
        ({"device": "mps"}, "device is 'mps', expected cpu, gpu, cuda or tpu"),
        ({"device": "cuda:1"}, "CUDA_VISIBLE_DEVICES"),
        ({"load_in_8bit": True}, "load_in_8bit=True: .*quantize=int8"),
        ({"parallelize": "True"}, "parallelize='True': .*mesh"),
        ({"backend": "seq2seq"}, "backend='seq2seq': .*causal"),
        ({"gguf_file": "a.gguf"}, "gguf_file='a.gguf': give the file itself as pretrained"),
        ({"softmax_dtype": "bfloat16"}, "the softmax is always float32"),
        ({"batch_size": "large"}, "batch_size='large': expected a whole number, auto or auto:N"),
    ],
)
def test_what_is_refused(given, why):
    rest = {} if not given else {"pretrained": "gpt2"} if "pretraned" not in given else {}
    with pytest.raises(ArgumentError, match=why) as found:
        read_arguments({**rest, **given})
    assert isinstance(found.value, InputError)
    assert isinstance(found.value, TypeError)


@pytest.mark.parametrize("name", IDLE)
def test_an_absent_value_of_an_idle_argument(name):
    assert read_arguments({"pretrained": "gpt2", name: None}) == (Arguments("gpt2"), [])


def test_every_argument_has_a_reader():
    assert set(READERS) == set(Arguments.__dataclass_fields__)


def test_a_scorer_takes_none_of_what_makes_one(scorers):
    scorer = scorers("tiny-gpt2")
    assert read_arguments({"pretrained": scorer, "batch_size": 1})[0].pretrained is scorer
    with pytest.raises(ArgumentError, match="dtype, peft cannot change a Scorer"):
        read_arguments({"pretrained": scorer, "dtype": "float32", "peft": "x"})
