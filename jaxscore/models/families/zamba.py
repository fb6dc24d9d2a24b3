"""zamba and zamba2: Mamba in all layers, and shared blocks of attention and MLP before some.

The layers of zamba are Mamba-1 with heads, and its one block has neither rotary embeddings nor
adapters.
"""

import dataclasses
import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Recurrent, SharedBlocks, StateSpace
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama
from jaxscore.models.families.family import Source, Table, layer_norms, linear, norm

MAMBA, HYBRID = "linear_attention", "hybrid"
LAYER, IN_HYBRID = "layers.{i}.", "layers.{i}.mamba_decoder."
BLOCK, ADAPTER = "layers.{i}.shared_transformer.", "layers.{owner}.shared_transformer."


def _zamba2(config: Any) -> DecoderConfig:
    # Released files have these attributes; transformers' class reads none of them.
    fields.require(
        config,
        ffn_hidden_size=config.intermediate_size,
        use_conv_bias=True,
        use_shared_mlp_adapter=True,
    )
    if config.use_long_context and (rope_type := config.rope_parameters["rope_type"]) != "default":
        raise InputError(f"rope_type is {rope_type!r}, which is not handled with use_long_context")
    inner, n_heads = int(config.mamba_expand * config.hidden_size), config.n_mamba_heads
    if n_heads < 1 or inner % n_heads:
        raise InputError(f"mamba_expand * hidden_size {inner} is not a multiple of {n_heads} heads")
    bias, n_keys = config.add_bias_linear, config.num_key_value_heads
    if config.use_shared_attention_adapter and n_keys != config.num_attention_heads:
        raise InputError(
            f"use_shared_attention_adapter takes as many num_key_value_heads, {n_keys}, as "
            f"num_attention_heads, {config.num_attention_heads}"
        )
    mixer = hybrid.state_space(
        n_heads,
        inner // n_heads,
        config.mamba_ngroups,
        [config.time_step_min, math.inf],
        state_width=config.mamba_d_state,
        taps=config.mamba_d_conv,
        conv_bias=True,
        bias=bias,
        out_bias=bias,
        activation="silu",
        norm_eps=1e-5,
    )
    return _with_blocks(
        config,
        mixer,
        config.num_mem_blocks,
        qkv_rank=config.adapter_rank if config.use_shared_attention_adapter else 0,
        mlp_rank=config.adapter_rank,
        mlp_bias=bias,
        **({} if config.use_mem_rope else {"rotary": (), "rotary_of": ()}),
    )


def _zamba(config: Any) -> DecoderConfig:
    inner, n_heads = config.mamba_expand * config.hidden_size, config.n_mamba_heads
    if n_heads < 1 or inner % n_heads:
        raise InputError(f"mamba_expand * hidden_size {inner} is not a multiple of {n_heads} heads")
    mixer = hybrid.selective_scan(
        inner,
        config.mamba_dt_rank,
        fields.activation(config, "hidden_mamba_act"),
        n_heads=n_heads,
        state_width=config.mamba_d_state,
        taps=config.mamba_d_conv,
        conv_bias=config.mamba_conv_bias,
        bias=config.mamba_proj_bias,
    )
    return _with_blocks(config, mixer, 1, rotary=(), rotary_of=())


def _with_blocks(config: Any, mixer: Any, count: int, **overrides: Any) -> DecoderConfig:
    """Return a decoder with a recurrence in each layer, and shared blocks before it in some.

    The layers with blocks have type HYBRID; `count` blocks take turns.
    """
    # Without tied embeddings, transformers' classes do not share blocks either.
    fields.require(config, tie_word_embeddings=True)
    layers = hybrid.layers_of_type(config, HYBRID, MAMBA)
    width = fields.head_width(config)
    if not layers:
        raise InputError(f"layers_block_type has no {HYBRID!r}, which PyTorch's class needs")
    if count < 1:
        raise InputError(f"num_mem_blocks is {count}, expected at least 1")
    return llama.llama_config(
        config,
        score_scale=(width / 2) ** -0.5,
        recurrent=Recurrent(tuple(range(config.num_hidden_layers)), mixer),
        mlp_layers=(),
        shared_blocks=SharedBlocks(layers, min(count, len(layers))),
        **overrides,
    )


def _sources(config: DecoderConfig) -> Table:
    recurrent, blocks = config.recurrent, config.shared_blocks
    assert recurrent is not None
    assert blocks is not None
    mixer_table = layer_norms({"attention_norm": "input_layernorm"})
    if isinstance(recurrent.mixer, StateSpace):
        mixer_table |= hybrid.state_space_sources(config, LAYER + "mamba.")
    else:
        mixer_table |= hybrid.selective_scan_sources(config, LAYER + "mamba.")
    for path, source in mixer_table.items():
        hybrid_name = source.name.replace(LAYER, IN_HYBRID)
        mixer_table[path] = dataclasses.replace(source, elsewhere=(blocks.layers, hybrid_name))
    table = {("embed", "token"): Source("embed_tokens.weight")} | mixer_table
    table |= norm(("final_norm",), "final_layernorm", False)
    block = _block_sources(config) | _adapter_sources(config)
    first = blocks.layers[: blocks.n_blocks]
    owners = tuple(first[n % blocks.n_blocks] for n in range(len(blocks.layers)))
    for path, source in block.items():
        if path[0] == "blocks":
            block[path] = dataclasses.replace(source, layers=first)
        else:
            block[path] = dataclasses.replace(source, owners=owners)
    into = linear(("block_uses", "into"), LAYER + "linear", False, layers=blocks.layers)
    return table | block | into


def _block_sources(config: DecoderConfig) -> Table:
    """Return the sources of the blocks, which are stored in the first layer that uses each."""
    table = norm(("blocks", "attention_norm"), BLOCK + "input_layernorm", False)
    table |= norm(("blocks", "mlp_norm"), BLOCK + "pre_ff_layernorm", False)
    for param, hf_name in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}.items():
        table |= linear(("blocks", "attention", param), f"{BLOCK}self_attn.{hf_name}", False)
    feed_forward, at = BLOCK + "feed_forward.", ("blocks", "mlp")
    table |= linear((*at, "down"), feed_forward + "down_proj", config.mlp.bias)
    for name, rows in zip(("gate", "up"), hybrid.parts(1, 1, 1), strict=True):
        if config.mlp.rank:
            fused = feed_forward + "gate_up_proj"
            table |= linear((*at, name), fused, config.mlp.bias, part=rows)
        else:
            table |= linear((*at, name), f"{feed_forward}{name}_proj", False)
    return table


def _adapter_sources(config: DecoderConfig) -> Table:
    """Return the sources of the adapters, which each layer with a block has in addition to it."""
    table: Table = {}
    if config.mlp.rank:
        low = f"{ADAPTER}feed_forward.gate_up_proj_adapter_list.{{i}}."
        table |= linear(("block_uses", "mlp", "low_in"), low + "0", False)
        for name, rows in zip(("gate", "up"), hybrid.parts(1, 1, 1), strict=True):
            table |= linear(("block_uses", "mlp", f"{name}_low"), low + "1", False, part=rows)
    for name in "qkv" if config.attention.qkv_rank else "":
        at, low = ("block_uses", "attention"), f"{ADAPTER}self_attn.linear_{name}_adapter_list"
        table |= linear((*at, f"{name}_low_in"), f"{low}.{{i}}.0", False)
        table |= linear((*at, f"{name}_low"), f"{low}.{{i}}.1", False)
    return table


FAMILIES = {
    "zamba": llama.family(
        _zamba,
        "attn_layer_offset attn_layer_period attention_hidden_size attention_head_dim",
        "hidden_mamba_act layers_block_type mamba_conv_bias mamba_d_conv mamba_d_state",
        "mamba_dt_rank mamba_expand mamba_proj_bias n_mamba_heads num_logits_to_keep",
        "time_step_floor time_step_max time_step_min use_associative_scan use_mamba_kernels",
        sources=_sources,
        lacks="rope_parameters",
        renamed={".shared_transf.": ".shared_transformer."},
    ),
    "zamba2": llama.family(
        _zamba2,
        "adapter_rank add_bias_linear chunk_size layers_block_type mamba_d_conv mamba_d_state "
        "mamba_expand mamba_ngroups n_mamba_heads num_logits_to_keep num_mem_blocks "
        "time_step_floor time_step_max time_step_min use_conv_bias use_long_context "
        "use_mamba_kernels use_mem_eff_path use_mem_rope use_shared_attention_adapter",
        "attention_hidden_size attention_head_dim hybrid_layer_ids kv_channels mamba_headdim "
        "num_query_groups ffn_hidden_size use_shared_mlp_adapter",
        sources=_sources,
    ),
}
