"""Random decoders in float32 on this device and on the CPU of this machine.

What only some families have (experts, ALiBi, soft caps, norms of queries and keys, int8), and
layers as wide as Qwen2.5-0.5B's, whose products are large enough for an accelerator's own ways.
"""

import numpy as np

from jaxscore.engine.engine import Engine
from jaxscore.plan.requests import TokenSequence
from tests.engine.on_eight_devices import CONFIGS, model_on, parameters, scored
from tools.device_check import qwen, random_model
from tools.device_check.checks import Options

WIDE = "Qwen2.5-0.5B, 2 layers"
FEW = ("alibi", "int8 experts", "caps")  # for `small`


def run(options: Options) -> bool:
    """Write the numbers of this process's device; `compare_devices` has the verdict."""
    assert options.out is not None
    np.savez(options.out, **numbers(small=options.small))
    return True


def numbers(*, small: bool) -> dict[str, np.ndarray]:
    """Log-probability, entropy and self-certainty of every token, [3, tokens], by decoder."""
    out = {}
    for name in FEW if small else CONFIGS:
        config = CONFIGS[name]
        scores, _ = scored(model_on(config, parameters(config), None))
        out[name] = np.concatenate([np.stack(one[:3]) for one in scores], axis=1)
    config = qwen.decoder_config("Qwen2.5-0.5B", small=small, num_hidden_layers=2)
    scores = Engine(random_model.from_host(config, "float32")).score_sequences(
        _texts(config.vocab_size)
    )
    out[WIDE] = np.concatenate([np.stack(one[:3]) for one in scores], axis=1)
    return out


def _texts(vocab_size: int) -> list[TokenSequence]:
    draw = np.random.default_rng(5)
    shared = draw.integers(0, vocab_size, 100)
    ids = [
        np.concatenate([shared[: int(draw.integers(0, 100))], draw.integers(0, vocab_size, 90)])
        for _ in range(8)
    ]
    return [TokenSequence(one.astype(np.int32), 40) for one in ids]
