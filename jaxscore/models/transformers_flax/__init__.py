"""Guards for transformers' Flax classes: installation checks, and configs that they compute
correctly.

The classes fail silently (they never read `rope_theta` and `rope_scaling`, and do not mask sliding
windows), so a class is used only with attribute values that a test has compared with PyTorch's
class; anything else is refused by name.
"""

import dataclasses
import importlib.metadata
from collections.abc import Callable, Set
from importlib.util import find_spec
from typing import Any

from jaxscore.errors import InputError, install_extra
from jaxscore.models.config.check import check_attributes, check_sizes, check_types


def require_flax_classes(feature: str) -> None:
    """Require a transformers with Flax classes; 4.57 is the last line that has them.

    Args:
        feature: the feature that needs one, for the error message.

    Raises:
        InputError: it has none; the message names the extra to install.
    """
    if find_spec("transformers.modeling_flax_utils") is None:
        version = importlib.metadata.version("transformers")
        raise InputError(
            f"{feature} runs on a Flax class of transformers, and transformers {version} has none; "
            f"{install_extra('flax-classes')}, which takes transformers 4.57, the last line that "
            "has them"
        )


def transformers_config(raw: dict[str, Any], where: str) -> Any:
    """Return transformers' config object for a raw `config.json`, with defaults filled in.

    Raises:
        InputError: a model type or values that transformers refuses.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    model_type = raw["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise InputError(f"{where}: unknown model_type {model_type!r}")
    check_sizes(raw, where)
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # it would print refused values
    try:
        return CONFIG_MAPPING[model_type](**{k: v for k, v in raw.items() if k != "model_type"})
    except Exception as problem:  # each config class validates in its own way
        raise InputError(f"{where}: transformers refuses it: {problem}") from None
    finally:
        logging.set_verbosity(verbosity)


def check_class_attributes(raw: dict[str, Any], config: Any, reads: Set[str], where: str) -> None:
    """Check that every attribute is read, inert, or at the default of its class.

    Raises:
        InputError: other attributes, or a value of the wrong type.
    """
    defaults = type(config)().to_dict()
    aliases = getattr(config, "attribute_map", {})
    values = {aliases.get(name, name): value for name, value in raw.items()}
    check_attributes(values, defaults, reads, where, raw["model_type"], remedy="")
    filled = {name: getattr(config, name) for name in reads & set(defaults)}
    check_types(filled, defaults, where)


ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
TANH_GELU = {"gelu_new", "gelu_pytorch_tanh"}  # two names of one function


@dataclasses.dataclass(frozen=True)
class Guard:
    """Configs for which a Flax class computes correct results.

    Attributes:
        reads: attributes that the class reads correctly.
        only: attribute -> values for which the class is correct.
        embedding: path of the token embedding [V, D] in the class's parameters.
        positions: the length of the longest input, or the attribute that contains it.
        idle: attributes without effect: for training, or in published configs and read by neither
            this class nor PyTorch's.
        check: function of the config that returns a complaint about values that depend on others,
            or None.
        buffers: patterns of the names, without prefix, of tensors that are not learned.
        takes_positions: if True, the class takes position ids; otherwise it derives them from its
            mask.
    """

    reads: frozenset[str]
    only: dict[str, tuple[Any, ...]]
    embedding: tuple[str, ...]
    positions: str | int
    idle: frozenset[str] = frozenset()
    check: Callable[[Any], str | None] = lambda config: None
    buffers: tuple[str, ...] = ()
    takes_positions: bool = True


def guarded(raw: dict[str, Any], where: str) -> Any:
    """Return transformers' config object if its Flax class computes this config correctly.

    Raises:
        InputError: an attribute or model type that it does not compute correctly, or a
            transformers without Flax classes.
    """
    model_type = raw["model_type"]
    if model_type not in GUARDS:
        raise InputError(
            f"{where}: no transformers Flax class is trusted for model_type {model_type!r}; "
            f"trusted are {', '.join(sorted(GUARDS))}"
        )
    require_flax_classes(f"{where}: --model-impl transformers")
    guard = GUARDS[model_type]
    config = transformers_config(raw, where)
    for name, values in guard.only.items():
        value = getattr(config, name, values[0])  # not every config object has all of them
        if value not in values:
            raise InputError(
                f"{where}: {name} is {value!r}; transformers' Flax class for {model_type} is "
                f"correct only with {' or '.join(map(repr, values))}; use --model-impl native"
            )
    check_class_attributes(raw, config, guard.reads | guard.idle | set(guard.only), where)
    try:
        complaint = guard.check(config)
    except (ArithmeticError, TypeError) as problem:
        complaint = f"sizes do not form a valid model ({problem})"
    if complaint:
        raise InputError(f"{where}: {complaint}; use --model-impl native")
    # Some configs request tuples instead of named outputs.
    config.return_dict, config.torchscript = True, False
    return config


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _angles(config: Any, head_width: int) -> str | None:
    """Return a complaint if there are fewer positions than twice the head width.

    The classes truncate the columns of their table of sines and cosines to the number of positions.
    """
    if config.max_position_embeddings < 2 * head_width:
        return (
            f"max_position_embeddings is {config.max_position_embeddings}; the Flax class "
            f"truncates its table of angles below twice the head width, {2 * head_width}"
        )
    return None


def _llama(config: Any) -> str | None:
    head_width = config.hidden_size // config.num_attention_heads
    if config.head_dim != head_width:
        return (
            f"head_dim is {config.head_dim}; the Flax class takes hidden_size / "
            f"num_attention_heads = {head_width}"
        )
    return _angles(config, head_width)


def _gpt_neo(config: Any) -> str | None:
    # A config may also have `attention_layers`, which then takes precedence.
    layer_types = config.attention_layers
    if len(layer_types) != config.num_layers or not set(layer_types) <= {"global", "local"}:
        return (
            f"attention_layers is {layer_types!r}; expected 'global' or 'local' for each of "
            f"{config.num_layers} layers"
        )
    if config.window_size < 1:
        return f"window_size is {config.window_size}; expected at least 1"
    return None


def _gptj(config: Any) -> str | None:
    head_width = config.n_embd // config.n_head
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= head_width:
        return (
            f"rotary_dim is {config.rotary_dim}; expected an even number up to the head width, "
            f"n_embd / n_head = {head_width}"
        )
    return None


def _bloom(config: Any) -> str | None:
    if config.n_head < 1 or config.n_head & (config.n_head - 1):
        return (
            f"n_head is {config.n_head}; the Flax class computes ALiBi slopes only for a power "
            "of two"
        )
    return None


def _xglm(config: Any) -> str | None:
    if config.d_model % 2:
        return f"d_model is {config.d_model}; the Flax class makes only positions of even width"
    return None


def _gemma(config: Any) -> str | None:
    # Since 4.57 PyTorch's class reads `hidden_act`, the Flax class `hidden_activation`.
    flax = config.hidden_activation or "gelu_pytorch_tanh"
    if flax != config.hidden_act and not {flax, config.hidden_act} <= TANH_GELU:
        return (
            f"hidden_act is {config.hidden_act!r}, which PyTorch's class reads, and "
            f"hidden_activation is {config.hidden_activation!r}, so the Flax class uses "
            f"{flax!r}; set both to the same value in config.json (Gemma was trained with "
            "'gelu_pytorch_tanh')"
        )
    return _angles(config, config.head_dim)


GUARDS: dict[str, Guard] = {
    "gpt2": Guard(
        reads=_names(
            "vocab_size n_positions n_embd n_layer n_head n_inner layer_norm_epsilon "
            "tie_word_embeddings"
        ),
        only={
            "activation_function": ACTIVATIONS,
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        embedding=("transformer", "wte", "embedding"),
        positions="n_positions",
        buffers=(r"h\.\d+\.attn\.(bias|masked_bias)",),
    ),
    "gpt_neo": Guard(
        reads=_names(
            "vocab_size max_position_embeddings hidden_size num_layers num_heads "
            "intermediate_size layer_norm_epsilon attention_types attention_layers window_size "
            "tie_word_embeddings"
        ),
        only={"activation_function": ACTIVATIONS},
        embedding=("transformer", "wte", "embedding"),
        positions="max_position_embeddings",
        idle=_names("embed_dropout resid_dropout"),
        check=_gpt_neo,
        buffers=(r"h\.\d+\.attn\.attention\.(bias|masked_bias)",),
    ),
    "gptj": Guard(
        reads=_names(
            "vocab_size n_positions n_embd n_layer n_head n_inner rotary_dim layer_norm_epsilon"
        ),
        only={
            "activation_function": ACTIVATIONS,
            "tie_word_embeddings": (False,),  # if tied, the class omits the bias of its head
        },
        embedding=("transformer", "wte", "embedding"),
        positions="n_positions",
        idle=_names("rotary scale_attn_weights"),
        check=_gptj,
        buffers=(r"h\.\d+\.attn\.(bias|masked_bias)",),
    ),
    "opt": Guard(
        reads=_names(
            "vocab_size max_position_embeddings hidden_size word_embed_proj_dim ffn_dim "
            "num_hidden_layers num_attention_heads do_layer_norm_before "
            "_remove_final_layer_norm tie_word_embeddings"
        ),
        only={
            "activation_function": ACTIVATIONS,
            "enable_bias": (True,),
            "layer_norm_elementwise_affine": (True,),
        },
        embedding=("model", "decoder", "embed_tokens", "embedding"),
        positions="max_position_embeddings",
        idle=_names("activation_dropout dropout init_std layerdrop output_projection"),
    ),
    "bloom": Guard(
        reads=_names(
            "vocab_size n_embed hidden_size n_layer n_head layer_norm_epsilon "
            "apply_residual_connection_post_layernorm tie_word_embeddings"
        ),
        only={
            "slow_but_exact": (False,)
        },  # if True, PyTorch's class drops biases, this one does not
        embedding=("transformer", "word_embeddings", "embedding"),
        positions=131_072,  # ALiBi is unlimited; the limit of our decoder
        idle=_names(
            "hidden_dropout attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion "
            "offset_alibi seq_length skip_bias_add skip_bias_add_qkv unk_token_id"
        ),
        check=_bloom,
        takes_positions=False,
    ),
    "xglm": Guard(
        reads=_names(
            "vocab_size max_position_embeddings d_model ffn_dim num_layers attention_heads "
            "scale_embedding tie_word_embeddings"
        ),
        only={
            "activation_function": ACTIVATIONS,
            "add_cross_attention": (False,),
            # PyTorch's class zeroes the row of this number in the table of positions, whose
            # first two are not read; the Flax class always zeroes row 1.
            "pad_token_id": (1, 0),
        },
        embedding=("model", "embed_tokens", "embedding"),
        positions="max_position_embeddings",
        idle=_names("activation_dropout dropout init_std layerdrop"),
        check=_xglm,
        buffers=(r"embed_positions\.weights",),
    ),
    "llama": Guard(
        reads=_names(
            "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
            "num_key_value_heads max_position_embeddings rms_norm_eps head_dim "
            "tie_word_embeddings"
        ),
        only={
            "hidden_act": ACTIVATIONS,
            "rope_theta": (10000.0,),
            "rope_scaling": (None,),
            "mlp_bias": (False,),
            "attention_bias": (False,),
        },
        embedding=("model", "embed_tokens", "embedding"),
        positions="max_position_embeddings",
        check=_llama,
        buffers=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    ),
    "gemma": Guard(
        reads=_names(
            "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
            "num_key_value_heads head_dim max_position_embeddings rms_norm_eps attention_bias "
            "hidden_activation tie_word_embeddings"
        ),
        only={"hidden_act": ACTIVATIONS, "rope_theta": (10000.0,), "rope_scaling": (None,)},
        embedding=("model", "embed_tokens", "embedding"),
        positions="max_position_embeddings",
        check=_gemma,
        buffers=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
    ),
}
