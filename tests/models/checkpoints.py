"""Random tiny checkpoints as torch's classes save them, and torch's answers on ragged text.

Random weights at std 0.02 give flat distributions that hide most mistakes, so matrices are drawn
wider, and norms and biases, which start at one and zero, are moved away from there.
"""

import contextlib
import copy
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from jaxscore import Scorer
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.models.load import load
from jaxscore.models.model import Model
from jaxscore.models.model_types import WITHOUT_4
from jaxscore.plan.requests import SequenceScores, TokenSequence
from tests.conftest import ROOT, with_devices
from tests.models.case_parts import POSITIONS, VOCABULARY
from tests.models.families import BASE

FIFTH = transformers.__version__.startswith("5.")
# transformers 5 sums experts in another order unless this is set.
EXPERTS = {"experts_implementation": "eager"} if FIFTH else {}
# Some class of 4.57 fails in setting values that are drawn again here.
NO_INIT = contextlib.nullcontext if FIFTH else transformers.modeling_utils.no_init_weights

MISSING = "transformers 4.57 does not have it"
NOT_BY_4 = dict.fromkeys(WITHOUT_4, MISSING) | {
    "bamba": "transformers 4.57 norms all groups together and ignores time_step_limit",
    "deepseek_v2": "transformers 4.57 forgets mscale_all_dim in the scale of its scores",
    "ernie4_5_moe": "transformers 4.57 has a router that fails in bfloat16",
    "falcon_h1": "transformers 4.57 ignores time_step_limit",
    **dict.fromkeys(
        ("falcon_mamba", "jamba", "mamba"),
        "transformers 4.57 has hidden_act in the gate too, where 5 has SiLU",
    ),
    "gemma3n_text": "transformers 4.57 fails at ids beyond vocab_size_per_layer_input",
    "gpt_bigcode": "transformers 4.57 compiles a function by torch.jit.script, which is deprecated",
    "gpt_oss": "transformers 4.57 reads neither swiglu_limit nor swiglu_alpha",
    "granitemoehybrid": "transformers 4.57 norms all groups together",
    "llama4_text": "transformers 4.57 takes no attention_bias from the file",
    "mamba2": "transformers 4.57 norms all groups together",
    "qwen3_next": "transformers 4.57 takes SiLU after convolutions, whatever hidden_act says",
    "recurrent_gemma": "transformers 4.57 has no window without a cache",
    "zamba": "transformers 4.57 takes old names of layer types alone",
    "zamba2": "transformers 4.57 takes old names of layer types alone, and saves no tiny model",
}

# How norms are stored
LESS_ONE = set(
    "gemma gemma2 gemma3_text minimax_m3_vl minimax_m3_vl_text nemotron qwen3_5 "
    "qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text recurrent_gemma vaultgemma".split()
)
OLD_ROTARY = set("rope_theta rope_scaling partial_rotary_factor rotary_pct".split())

torch.set_num_threads(1)  # models this small lose more to the threads than they win


def torch_model(kind: str, **options) -> torch.nn.Module:
    """`random_model`.

    Skips the test where the installed line does not have the family, or computes it wrongly.
    """
    if not FIFTH and kind in NOT_BY_4:
        pytest.skip(f"{kind}: {NOT_BY_4[kind]}")
    return random_model(kind, **options)


def random_model(
    kind: str, *, left_out: str = "", torch_seed: int = 7, **config
) -> torch.nn.Module:
    """A random float32 model of the family, `config` over its base less one attribute of that."""
    torch.manual_seed(torch_seed)
    no_tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    base = {name: value for name, value in BASE[kind].items() if name != left_out}
    made = AutoConfig.for_model(kind, **spelled(no_tokens | base | config))
    # Falcon adds ALiBi twice where it is asked for eager attention: in the mask and to the scores.
    way = "sdpa" if getattr(made, "alibi", False) else "eager"
    with NO_INIT():
        model = AutoModelForCausalLM.from_config(made, attn_implementation=way, **EXPERTS).eval()
    model.tie_weights()
    model.float()  # 4.57 makes the parameters of Apertus' activation in bfloat16
    return redrawn(model, kind)


def from_folder(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Torch's model of a checkpoint, as anybody loads it."""
    alibi = getattr(AutoConfig.from_pretrained(folder), "alibi", False)
    way = "sdpa" if alibi else "eager"  # see `torch_model`
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=way, **EXPERTS
    ).eval()


def redrawn(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    """The model of a family with other weights."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            # Cohere's norms of queries and keys have a scale for each head. Dbrx's module of
            # attention has "norm" in its own name.
            if value.ndim > 1 and "_norm" not in name.split(".")[-2]:
                value.normal_(std=0.25)
            else:
                # Those of a delta rule are stored as they are.
                less_one = kind in LESS_ONE and "linear_attn" not in name
                zero = name.endswith("bias") or less_one
                value.normal_(mean=0.0 if zero else 1.0, std=0.3)
        for name, value in model.named_buffers():
            if name.endswith("layer_scalar"):
                value.uniform_(0.5, 1.5)
            elif FIFTH and name.endswith(("e_score_correction_bias", "expert_bias")):
                value.normal_(std=0.2)  # 4.57 ranks experts of dropped groups by another rule
    return model


def spelled(config: dict[str, Any]) -> dict[str, Any]:
    """A config as tests/models/families.py has it, in the spelling of 4.57, for the installed line.

    transformers 5 reads most of that spelling itself; and either line writes into what it is given.
    """
    config = copy.deepcopy(config)
    if FIFTH and (config.get("rope_scaling") or {}).get("type") == "su":
        config["rope_scaling"]["type"] = "longrope"
    return config


def with_attributes(config: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """A config that the installed line has written, with attributes in the spelling of 4.57."""
    if set(attributes) & OLD_ROTARY and "rope_parameters" not in attributes:
        config = dict(config)
        rotary = config.pop("rope_parameters", {})
        config |= {"rope_theta": rotary["rope_theta"]} if "rope_theta" in rotary else {}
    return config | attributes


def saved(folder: Path, kind: str, **config) -> torch.nn.Module:
    """`torch_model`, also written to `folder`."""
    model = torch_model(kind, **config)
    model.save_pretrained(folder)
    return model


def ragged() -> list[TokenSequence]:
    """Paths that branch at several depths, strangers, a repetition, and the extreme ids.

    One of them is read up to the original length of the rotary scalings, 16 tokens.
    """
    draw = np.random.default_rng(3)
    prefix = draw.integers(0, VOCABULARY, 40)
    paths = [prefix]
    for shared, own in ((10, 3), (25, 23), (39, 2), (1, 12)):
        paths.append(np.concatenate([prefix[:shared], draw.integers(0, VOCABULARY, own)]))
    paths += [prefix, prefix[:17]]
    paths += [np.array([VOCABULARY - 1, 0, VOCABULARY - 1]), draw.integers(0, 9, POSITIONS)]
    return [TokenSequence(path.astype(np.int32), 0) for path in paths]


@torch.no_grad()
def torch_logits(model: torch.nn.Module, sequence: TokenSequence) -> torch.Tensor:
    """Logits at each token that is read, float [n_read, V].

    The last token of a text is only scored. Torch must not read it either: rotary frequencies may
    depend on the number of tokens.
    """
    ids = torch.from_numpy(sequence.input_ids.astype(np.int64))[None]
    if model.config.model_type == "recurrent_gemma" and ids.shape[1] == 1:
        # transformers takes a lone token for a step of decoding, whose empty state of the
        # convolution has hidden_size columns, not lru_width. The model is causal: a token that
        # follows changes no logits of the first.
        return model(torch.cat([ids, ids], dim=1)).logits[0, :1]
    return model(ids).logits[0]


def torch_scores(model: torch.nn.Module, sequences: list[TokenSequence]) -> list[SequenceScores]:
    """Every token of every sequence, one at a time, from torch's whole softmax."""
    out = []
    for sequence in sequences:
        targets = torch.from_numpy(sequence.ids[1:].astype(np.int64))
        logp = torch.log_softmax(torch_logits(model, sequence).float(), -1)
        values = (
            logp.gather(1, targets[:, None])[:, 0],
            -(logp.exp() * logp).sum(-1),
            -logp.mean(-1) - np.log(logp.shape[-1]),
            logp.argmax(-1) == targets,
        )
        out.append(SequenceScores(*(value.numpy() for value in values)))
    return out


def scorer(model: Model) -> Scorer:
    """One row of 64 a batch, so one program; token ids need no encoder."""
    return Scorer(model, None, batch_tokens=64)


def loaded(folder: Path, *, dtype: str = "float32", implementation: str = "native") -> Model:
    with warnings.catch_warnings():
        # Flax's own modules, where transformers' classes are built on them.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="flax")
        return load(folder, dtype=dtype, implementation=implementation)


def scores_on_devices(folder: Path, mesh: str, *quantize: str) -> list[SequenceScores]:
    """Scores of a checkpoint whose layers are split over devices."""
    shape = MeshShape.parse(mesh)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.models.on_devices", str(folder), mesh, *quantize],
        capture_output=True, text=True, cwd=ROOT, env=with_devices(shape.size), check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["shards"] == shape.model
    return [SequenceScores(*map(np.asarray, columns)) for columns in report["scores"]]


def distances(got: list[SequenceScores], want: list[SequenceScores]) -> np.ndarray:
    """Differences in nats of every number of every token."""
    pairs = [
        (a[column], b[column])
        for a, b in zip(got, want, strict=True)
        for column in range(3)  # logprob, entropy, self-certainty
    ]
    assert all(a.shape == b.shape for a, b in pairs)
    return np.concatenate([np.abs(a - b) for a, b in pairs])


def distance(got: list[SequenceScores], want: list[SequenceScores]) -> float:
    """The largest of `distances`."""
    return float(distances(got, want).max(initial=0.0))


def assert_agree(got: list[SequenceScores], want: list[SequenceScores], atol: float = 1e-4) -> None:
    """Every number of every token within `atol` nats, and the same tokens greedy."""
    for one, other in zip(got, want, strict=True):
        for column in ("logprob", "entropy", "self_certainty"):
            np.testing.assert_allclose(
                getattr(one, column), getattr(other, column), atol=atol, rtol=0, err_msg=column
            )
        assert one.greedy.tolist() == other.greedy.tolist()
