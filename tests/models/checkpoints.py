"""Random tiny checkpoints as torch's classes save them, and torch's answers on ragged text.

Random weights at std 0.02 give flat distributions that hide most mistakes, so matrices are drawn
wider, and norms and biases, which start at one and zero, are moved away from there.
"""

import warnings
from pathlib import Path

import numpy as np
import torch
import transformers

from jaxscore import Scorer
from jaxscore.forest import TokenSequence
from jaxscore.models.load import load
from jaxscore.models.model import Model
from jaxscore.platform import use_compilation_cache
from jaxscore.scorer import SequenceScores

torch.set_num_threads(1)  # models this small lose more to the threads than they win
VOCABULARY = 211  # a prime: no block or shard divides it
POSITIONS = 48  # a row of 64 is longer than the model

BASE = {
    "gpt2": {
        "vocab_size": VOCABULARY,
        "n_positions": POSITIONS,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
    },
    "llama": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": POSITIONS,
    },
}
BASE["qwen2"] = BASE["llama"]
CLASSES = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
}


def torch_model(kind: str, **config) -> torch.nn.Module:
    """A random float32 model of the family, `config` over its base."""
    make_config, make_model = CLASSES[kind]
    torch.manual_seed(7)
    options = {**BASE[kind], "bos_token_id": None, "eos_token_id": None, **config}
    model = make_model(make_config(**options, attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim > 1:
                value.normal_(std=0.25)
            else:
                value.normal_(mean=0.0 if name.endswith("bias") else 1.0, std=0.3)
    return model


def saved(folder: Path, kind: str, **config) -> torch.nn.Module:
    """`torch_model`, also written to `folder`."""
    model = torch_model(kind, **config)
    model.save_pretrained(folder)
    return model


def ragged() -> list[TokenSequence]:
    """Paths that branch at several depths, strangers, a repetition, and the extreme ids."""
    draw = np.random.default_rng(3)
    trunk = draw.integers(0, VOCABULARY, 40)
    paths = [trunk]
    for shared, own in ((10, 3), (25, 23), (39, 2), (1, 12)):
        paths.append(np.concatenate([trunk[:shared], draw.integers(0, VOCABULARY, own)]))
    paths += [trunk, np.array([VOCABULARY - 1, 0, VOCABULARY - 1]), draw.integers(0, 9, 48)]
    return [TokenSequence(path.astype(np.int32), 0) for path in paths]


@torch.no_grad()
def torch_scores(model: torch.nn.Module, sequences: list[TokenSequence]) -> list[SequenceScores]:
    """Every token of every sequence, one at a time, from torch's whole softmax."""
    out = []
    for sequence in sequences:
        ids = torch.from_numpy(sequence.ids.astype(np.int64))
        logp = torch.log_softmax(model(ids[None]).logits[0, :-1].float(), -1)
        values = (
            logp.gather(1, ids[1:, None])[:, 0],
            -(logp.exp() * logp).sum(-1),
            -logp.mean(-1) - np.log(logp.shape[-1]),
            logp.argmax(-1) == ids[1:],
        )
        out.append(SequenceScores(*(value.numpy() for value in values)))
    return out


def scorer(model: Model) -> Scorer:
    """One row of 64 a batch, so one program; token ids need no encoder."""
    use_compilation_cache()
    return Scorer(model, None, batch_tokens=64)


def loaded(folder: Path, *, dtype: str = "float32", implementation: str = "native") -> Model:
    with warnings.catch_warnings():
        # Flax's own modules, where transformers' classes are built on them.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="flax")
        return load(folder, dtype=dtype, implementation=implementation)


def distance(got: list[SequenceScores], want: list[SequenceScores]) -> float:
    """Largest difference in nats of any number of any token."""
    pairs = [
        (a[column], b[column])
        for a, b in zip(got, want, strict=True)
        for column in range(3)  # logprob, entropy, self-certainty
    ]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float(np.abs(a - b).max(initial=0.0)) for a, b in pairs)


def assert_agree(got: list[SequenceScores], want: list[SequenceScores], atol: float = 1e-4) -> None:
    """Every number of every token within `atol` nats, and the same tokens greedy."""
    for one, other in zip(got, want, strict=True):
        for column in ("logprob", "entropy", "self_certainty"):
            np.testing.assert_allclose(
                getattr(one, column), getattr(other, column), atol=atol, rtol=0, err_msg=column
            )
        assert one.greedy.tolist() == other.greedy.tolist()
