"""Random decoders in float32 on this device and on the CPU of this machine.

They have what only some families have (experts, a latent, ALiBi, soft caps, sinks, recurrent
layers, int8), and layers as wide as Qwen2.5-0.5B's, whose products are large enough for an
accelerator's own ways.
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.engine.engine import Engine
from jaxscore.plan.requests import TokenSequence
from tools.device_check import random_model, shapes
from tools.device_check.checks import FAIL, Options, compare_devices, guarded, record

FILE = "cpu.npz"  # numbers of the CPU
LLAMALIKE = {
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-2,  # norms of values near zero amplify rounding
    "vocab_size": 211,
}
MIXTURE = {
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}
RAW: dict[str, dict[str, Any]] = {
    "qwen3_moe": LLAMALIKE | MIXTURE | {"head_dim": 8, "decoder_sparse_step": 1},
    "qwen3_5_text": LLAMALIKE
    | {
        "full_attention_interval": 2,
        "head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 8,
    },
    "gpt_oss": LLAMALIKE
    | {
        "head_dim": 8,
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "sliding_window": 16,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 10000.0,
    },
    "gemma2": LLAMALIKE
    | {
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "head_dim": 8,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 8,
        "sliding_window": 16,
    },
    "bloom": {
        "hidden_size": 32,
        "layer_norm_epsilon": 1e-2,
        "n_head": 4,
        "n_layer": 2,
        "vocab_size": 211,
    },
    "deepseek_v2": LLAMALIKE
    | MIXTURE
    | {
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": False,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 8,
    },
    "olmo2": LLAMALIKE,
    "gpt2": {
        "layer_norm_epsilon": 1e-2,
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 512,
        "vocab_size": 211,
    },
}
SMALL = ("qwen3_5_text",)
WIDE = "Qwen2.5-0.5B, 2 layers"


def run(options: Options) -> None:
    """Compare the numbers of this device with those of a second process on the CPU."""
    command = [sys.executable, "-m", "tools.device_check.child", "families-cpu"]
    command += ["--device", "cpu", "--folder", str(options.folder)]
    command += ["--seconds", f"{options.ends - time.monotonic():.0f}"]
    command += ["--small"] if options.small else []
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,
        subprocess.Popen(command, stdout=log, env=environment) as process,
    ):
        got = numbers(options)
        code = process.wait()
        log.seek(0)
        print(log.read(), end="", flush=True)  # its records: failures, and what it had no time for
    if code:
        record(FAIL, f"the process on the CPU ended with exit code {code}")
    if (options.folder / FILE).exists():
        with np.load(options.folder / FILE) as expected:
            compare_devices(expected, got)


def on_cpu(options: Options) -> None:
    """Write the numbers of this process's device to a file."""
    np.savez(options.folder / FILE, **numbers(options))


def numbers(options: Options) -> dict[str, np.ndarray]:
    """Return log-probability, entropy and self-certainty of every token, [3, tokens], by name."""
    out: dict[str, np.ndarray] = {}

    def score(name: str, config: DecoderConfig, scale: float) -> None:
        engine = Engine(random_model.from_host(config, "float32", scale=scale), batch_tokens=512)
        scores = engine.score_sequences(texts(config.vocab_size))
        out[name] = np.concatenate([np.stack(columns[:3]) for columns in scores], axis=1)

    backend = jax.default_backend()
    for name, config, scale in decoders(options.small):
        text = f"random decoder on {backend}, {name}"
        if options.has_time(text):
            guarded(text, score, name, config, scale)
    return out


def decoders(small: bool) -> Iterator[tuple[str, DecoderConfig, float]]:
    """Yield the name, config and scale of the weights of each decoder."""
    config = shapes.decoder_config("Qwen2.5-0.5B", small=small, num_hidden_layers=2)
    yield WIDE, config, random_model.SCALE_OF_WEIGHTS
    for name in SMALL if small else RAW:
        yield name, shapes.translate(name, RAW[name] | {"model_type": name}), 0.2
    config = shapes.translate("qwen3_moe", RAW["qwen3_moe"] | {"model_type": "qwen3_moe"})
    yield "qwen3_moe, int8", dataclasses.replace(config, quantized="float32"), 0.2


def texts(vocab_size: int) -> list[TokenSequence]:
    """Return random texts, most of which share a prefix."""
    draw = np.random.default_rng(5)
    shared = draw.integers(0, vocab_size, 100)
    out = []
    for _ in range(8):
        prefix = shared[: int(draw.integers(0, 100))]
        ids = np.concatenate([prefix, draw.integers(0, vocab_size, 90)])
        out.append(TokenSequence(ids.astype(np.int32), 40))
    return out
