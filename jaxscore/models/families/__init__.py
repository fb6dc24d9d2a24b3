"""Model families of the native decoder, by the config's `model_type`."""

import importlib
from collections.abc import Iterator, Mapping

from jaxscore.models.families.family import Family, Source

# Module -> its families. A module is imported when one of its families is first looked up.
MODULES = {
    "attention_sinks": "flint gpt_oss mimo_v2_flash",
    "deepseek": "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa "
    "longcat_flash sarvam_mla youtu",
    "fairseq": "biogpt opt xglm",
    "fused_qkv": "bloom falcon gpt_neox mpt persimmon",
    "gated_delta": "lara_mini olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text",
    "gemma": "gemma gemma2 gemma3_text recurrent_gemma vaultgemma",
    "gemma4": "gemma3n_text gemma4_text gemma4_unified_text",
    "gpt": "codegen gpt2 gpt_bigcode gpt_neo gptj",
    "granite": "granite granite_swa granitemoe granitemoe_swa granitemoeshared hyperclovax",
    "kimi": "bailing_hybrid kimi_linear",
    "layer_norm": "cohere cohere2 nemotron phi stablelm starcoder2",
    "lfm2": "lfm2 lfm2_moe lfm3",
    "llama": "exaone iquestcoder llama ministral3 mistral",
    "llama_variants": "apertus arcee cwm ernie4_5 exaone4 glm glm4 helium internlm3 jais2 "
    "ministral nanochat olmo olmo2 olmo3 seed_oss smollm3",
    "mamba": "falcon_mamba jamba mamba",
    "mamba2": "bamba falcon_h1 granitemoehybrid mamba2 nemotron_h",
    "minimax": "minimax minimax_m3_vl_text",
    "mixtral": "dbrx flex_olmo minimax_m2 mixtral olmoe",
    "phi3": "minicpm3 phi3 phi4_multimodal phimoe",
    "qwen": "hunyuan_v1_dense hunyuan_v1_moe mellum qwen2 qwen2_moe qwen3 qwen3_moe",
    "shared_experts": "afmoe aria_text cohere2_moe ernie4_5_moe glm4_moe llama4_text sarvam_moe",
    "sigmoid_routers": "dots1 exaone_moe hy_v3 kolibri1 solar_open",
    "zamba": "zamba zamba2",
}
MODULE_OF = {
    model_type: module for module, kinds in MODULES.items() for model_type in kinds.split()
}


class _Families(Mapping[str, Family]):
    """Families by `model_type`, in alphabetical order."""

    def __getitem__(self, model_type: str) -> Family:
        module = importlib.import_module(f"{__name__}.{MODULE_OF[model_type]}")
        family: Family = module.FAMILIES[model_type]
        return family

    def __contains__(self, model_type: object) -> bool:
        return model_type in MODULE_OF

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(MODULE_OF))

    def __len__(self) -> int:
        return len(MODULE_OF)


FAMILIES = _Families()

__all__ = ["FAMILIES", "Family", "Source"]
