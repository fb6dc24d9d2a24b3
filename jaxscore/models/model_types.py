"""Model types that load, loading options, and refused model types with reasons and alternatives.

A model type that is neither covered nor in `REFUSED` is refused as unknown.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from jaxscore.errors import InputError

SINCE = "0.1.0"  # version of jaxscore that first covers these model types
LINES = ("4.57", "5")  # release lines of transformers
# Families compared under transformers 5 only: 4.57 lacks a PyTorch class for these,
WITHOUT_4 = frozenset(
    "afmoe axk1 axk2 bailing_hybrid cohere2_moe cwm deepseek_v32 exaone exaone_moe flint "
    "gemma4_text gemma4_unified_text glm4_moe_lite glm_moe_dsa granite_swa granitemoe_swa hy_v3 "
    "hyperclovax internlm3 iquestcoder jais2 kimi_linear kolibri1 lara_mini lfm2_moe lfm3 mellum "
    "mimo_v2_flash minicpm3 minimax_m2 minimax_m3_vl_text ministral3 nanochat nemotron_h "
    "olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen4_exp_text sarvam_mla sarvam_moe solar_open "
    "youtu".split()
)
# or lacks a wrapper of a family that it has,
WRAPPERS_WITHOUT_4 = frozenset({"exaone4_5", "kimi_k25", "lighton_ocr", "moss_transcribe_diarize"})
# or has a class that computes something else, or fails
NOT_BY_4 = frozenset(
    "bamba deepseek_v2 ernie4_5_moe falcon_h1 falcon_mamba gemma3n_text gpt_bigcode gpt_oss "
    "granitemoehybrid jamba llama4_text mamba mamba2 qwen3_next recurrent_gemma zamba "
    "zamba2".split()
)

PAGE = "jaxscore/models/README.md"


class Covered(NamedTuple):
    """A model type that loads.

    Attributes:
        model_type: the model type in a `config.json`.
        implementations: the implementations that load it; `--model-impl auto` chooses the first.
        texts: families of the text models that a wrapper may contain.
        since: version of jaxscore that first covers it.
        lines: release lines of transformers whose PyTorch class it is compared with; for a
            wrapper, those of any of its text models.
    """

    model_type: str
    implementations: tuple[str, ...]
    texts: tuple[str, ...]
    since: str
    lines: tuple[str, ...]


def covered() -> Iterator[Covered]:
    """Yield every model type that loads, sorted by name."""
    from jaxscore.models.families import FAMILIES
    from jaxscore.models.transformers_flax import GUARDS
    from jaxscore.models.wrappers import FAMILY_OF, RENAMED, WRAPPERS

    texts_of = {
        model_type: tuple(
            family for text in wrapper.texts if (family := FAMILY_OF.get(text, text)) in FAMILIES
        )
        for model_type, wrapper in WRAPPERS.items()
    } | {model_type: (family,) for model_type, family in RENAMED.items()}
    for model_type in sorted(
        {*FAMILIES, *(model_type for model_type, texts in texts_of.items() if texts)}
    ):
        flax = ("transformers",) if model_type in GUARDS else ()
        texts = texts_of.get(model_type, ())
        by_5_only = (WITHOUT_4 | NOT_BY_4).issuperset(texts or (model_type,))
        by_5_only |= model_type in WRAPPERS_WITHOUT_4
        lines = LINES[1:] if by_5_only else LINES
        yield Covered(model_type, ("native", *flax), texts, SINCE, lines)


class Kind(NamedTuple):
    """A reason for refusing families.

    Attributes:
        name: a word or two, for lists.
        why: a clause with the model as its subject; `{layers}` is replaced by the family's layers.
        instead: advice on which program scores such a model.
    """

    name: str
    why: str
    instead: str


class Refused(NamedTuple):
    """A model type that is refused.

    Attributes:
        kind: the reason.
        layers: the layers that are not covered; empty if the reason concerns the whole model.
        text: model type of the text model, if this is a wrapper.
    """

    kind: Kind
    layers: str = ""
    text: str | None = None


_BY_TRANSFORMERS = (
    "score it with transformers, or with lm-evaluation-harness (`lm_eval --model hf`), one "
    f"sequence per row; see 'What is refused' in {PAGE}"
)
RECURRENT = Kind(
    "recurrent state",
    "has layers that carry a recurrent state ({layers}) and are not covered yet",
    _BY_TRANSFORMERS,
)
OTHER_LAYERS = Kind(
    "other layers", "has {layers}, which the decoder does not implement", _BY_TRANSFORMERS
)
NOT_COMPARED = Kind(
    "not compared",
    "has not been translated and compared with PyTorch yet",
    _BY_TRANSFORMERS,
)
ENCODER_DECODER = Kind(
    "encoder-decoder",
    "is an encoder-decoder, whose continuations are conditioned on another network's states",
    "score it with transformers or with minicons",
)
BOTH_SIDES = Kind(
    "masked",
    "predicts a token from both sides, so it does not define next-token probabilities",
    "score it with minicons, which computes pseudo-log-likelihoods",
)

CONVOLUTIONS = "short convolutions"
_LAYERS = {
    "glm5_next_text": "linear attention",
    "inkling2_loop_text": CONVOLUTIONS,
    "inkling2_text": CONVOLUTIONS,
    "inkling_text": CONVOLUTIONS,
    "rwkv": "WKV",
    "xlstm": "mLSTM",
    "zaya": "convolutions before attention",
}
# Wrapper -> model type of its text model, unless its `text_config` names another one
_WRAPPED = {
    "glm5_next": "glm5_next_text",
    "inkling2": "inkling2_text",
    "inkling2_loop": "inkling2_loop_text",
    "inkling_mm_model": "inkling_text",
}
INDEXER = "an indexer that chooses keys"
TWO_INPUTS = "attention to another network's states"
_OTHER_LAYERS = {
    "blt": "patches of bytes",
    "deepseek_v4": "streams with learned mixing, keys compressed over spans of tokens with an "
    "indexer, outputs rotated back by position, and experts chosen by token id",
    "diffllama": "differences of two attentions",
    "doge": "a learned mask of keys",
    "dory": "learned scales within its gates",
    "dots3_note_text": INDEXER,
    "gemma4_assistant": TWO_INPUTS,
    "gemma4_unified_assistant": TWO_INPUTS,
    "hrm_text": "layers that run several times",
    "hy_v4": INDEXER,
    "jetmoe": "mixtures of attention heads",
    "laguna": "softplus gates on the output of attention",
    "mllama": TWO_INPUTS,
    "moshi": "several codebooks of sound",
    "paligemma": "bidirectional attention to prompts, for text alone only in transformers 4.57",
    "reformer": "attention within hashed buckets",
    "xlnet": "attention in permuted orders",
}
_NOT_COMPARED = (
    "apertus1p5_text beam bitnet cohere_compass_text cpmant ctrl emu3 git gpt-sw3 "
    "gpt_neox_japanese modernbert-decoder openai-gpt xlm"
)
_ENCODER_DECODERS = (
    "bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder fsmt led longt5 m2m_100 "
    "marian mbart mt5 musicgen musicgen_melody mvp nllb-moe pegasus pegasus_x plbart prophetnet "
    "switch_transformers t5 t5gemma t5gemma2 trocr umt5 whisper"
)
_MASKED = (
    "albert bert bert-generation big_bird camembert convbert data2vec-text deberta deberta-v2 "
    "distilbert electra ernie esm eurobert flaubert fnet funnel longformer megatron-bert "
    "mobilebert modernbert mpnet nomic_bert nystromformer rembert roberta roberta-prelayernorm "
    "roc_bert roformer squeezebert xlm-roberta xlm-roberta-xl xmod"
)

REFUSED: Mapping[str, Refused] = {
    **{model_type: Refused(RECURRENT, layers) for model_type, layers in _LAYERS.items()},
    **{
        model_type: Refused(RECURRENT, _LAYERS[text], text) for model_type, text in _WRAPPED.items()
    },
    **{model_type: Refused(OTHER_LAYERS, layers) for model_type, layers in _OTHER_LAYERS.items()},
    **{
        model_type: Refused(OTHER_LAYERS, _OTHER_LAYERS[text], text)
        for model_type, text in {"dots3_note": "dots3_note_text"}.items()
    },
    **dict.fromkeys(_NOT_COMPARED.split(), Refused(NOT_COMPARED)),
    **dict.fromkeys(_ENCODER_DECODERS.split(), Refused(ENCODER_DECODER)),
    **dict.fromkeys(_MASKED.split(), Refused(BOTH_SIDES)),
}


def reason(model_type: str, refused: Refused) -> str:
    """Return the reason why a model type is refused, and which program scores it."""
    return f"{model_type} {refused.kind.why.format(layers=refused.layers)}; {refused.kind.instead}"


def check(raw: Mapping[str, Any], where: str) -> None:
    """Refuse a config whose model or text model is in `REFUSED`.

    Args:
        raw: the contents of a `config.json`.
        where: the file's name for error messages.

    Raises:
        InputError: the model type, the reason, and advice.
    """
    model_type, text = raw["model_type"], raw.get("text_config")
    inside = text.get("model_type") if isinstance(text, Mapping) else None
    if not isinstance(inside, str) or inside not in REFUSED:
        inside = REFUSED[model_type].text if model_type in REFUSED else None
    if inside is not None:
        why = f"its text model {reason(inside, REFUSED[inside])}"
    elif model_type in REFUSED:
        why = f"a {reason(model_type, REFUSED[model_type])}"
    else:
        return
    raise InputError(
        f"{where}: model_type {model_type!r} is not covered by the native decoder: {why}"
    )


Dtype = Literal["float32", "bfloat16"]
DtypeOption = Literal["auto", "float32", "bfloat16"]
Implementation = Literal["native", "transformers", "function"]
ImplementationOption = Literal["auto", "native", "transformers"]
Quantize = Literal["int8", "stored"]

DTYPES: tuple[DtypeOption, ...] = get_args(DtypeOption)
IMPLEMENTATIONS: tuple[ImplementationOption, ...] = get_args(ImplementationOption)
QUANTIZED: tuple[Quantize, ...] = get_args(Quantize)


def resolve_implementation(requested: ImplementationOption) -> Implementation:
    """Return the implementation for an option: "auto" is "native", which loads all families."""
    return "native" if requested == "auto" else requested
