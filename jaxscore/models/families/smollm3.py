"""smollm3: llama in which some layers are not told positions."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts


def _translate(config: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config,
        windows=parts.windows_of_types(config),
        **parts.turning_in(config, parts.for_each_layer(config, "no_rope_layers")),
        **llamalike.biases(config),
    )


SMOLLM3 = llamalike.family(
    _translate,
    "attention_bias mlp_bias no_rope_layers no_rope_layer_interval layer_types sliding_window "
    "use_sliding_window max_window_layers",
)
