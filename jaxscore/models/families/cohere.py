"""cohere and cohere2: one layer norm without bias a layer, attention and MLP side by side."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table
from jaxscore.models.families.qwen import qk_norms


def _coherelike(config: Any, **own: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config,
        norm="layer",
        norm_eps=config.layer_norm_eps,
        parallel="shared",
        interleaved=True,
        logit_scale=config.logit_scale,
        **llamalike.biases(config),
        **own,
    )


def _cohere(config: Any) -> DecoderConfig:
    return _coherelike(config, qk_norm="heads" if config.use_qk_norm else "")


def _cohere2(config: Any) -> DecoderConfig:
    """Layers with a window are told positions, the others are not."""
    # As Command R7B has them; PyTorch's class reads none of them.
    parts.refuse(
        config,
        layer_switch=config.sliding_window_pattern,
        order_of_interleaved_layers="local_attn_first",
        position_embedding_type="rope_gptj",
        rotary_pct=1.0,
        use_embedding_sharing=config.tie_word_embeddings,
        use_gated_activation=True,
        use_parallel_block=True,
        use_parallel_embedding=False,
    )
    windows = parts.windows_of_types(config)
    return _coherelike(config, windows=windows, **parts.turning_in(config, map(bool, windows)))


def _sources(config: DecoderConfig) -> Table:
    return {**llamalike.sources(config), **(qk_norms(config) if config.qk_norm else {})}


def _family(translate: Any, *reads: str) -> Family:
    own = parts.reads("layer_norm_eps attention_bias logit_scale", *reads)
    names = (llamalike.READS - {"rms_norm_eps"}) | own
    return Family(names, translate, _sources, buffers=(parts.INV_FREQ,))


COHERE = _family(_cohere, "use_qk_norm model_max_length")
COHERE2 = _family(
    _cohere2,
    "head_dim layer_types sliding_window sliding_window_pattern cache_implementation "
    "layer_switch order_of_interleaved_layers position_embedding_type rotary_pct "
    "use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding",
)
