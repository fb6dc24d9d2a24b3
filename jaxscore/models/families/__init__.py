"""The families that our decoder covers, by the config's `model_type`."""

from jaxscore.models.families.apertus import APERTUS
from jaxscore.models.families.arcee import ARCEE
from jaxscore.models.families.bloom import BLOOM
from jaxscore.models.families.cohere import COHERE, COHERE2
from jaxscore.models.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from jaxscore.models.families.ernie4_5 import ERNIE4_5
from jaxscore.models.families.ernie4_5_moe import ERNIE4_5_MOE
from jaxscore.models.families.exaone4 import EXAONE4
from jaxscore.models.families.falcon import FALCON
from jaxscore.models.families.family import Family, Source
from jaxscore.models.families.gemma import GEMMA, GEMMA2, GEMMA3
from jaxscore.models.families.gemma4 import GEMMA4
from jaxscore.models.families.glm4 import GLM4
from jaxscore.models.families.glm4_moe import GLM4_MOE
from jaxscore.models.families.gpt2 import GPT2
from jaxscore.models.families.gpt_neo import GPT_NEO
from jaxscore.models.families.gpt_neox import GPT_NEOX
from jaxscore.models.families.gpt_oss import GPT_OSS
from jaxscore.models.families.gptj import GPTJ
from jaxscore.models.families.granite import GRANITE, GRANITEMOE
from jaxscore.models.families.hunyuan import HUNYUAN_V1_DENSE
from jaxscore.models.families.llama4 import LLAMA4
from jaxscore.models.families.llamalike import LLAMA, MISTRAL
from jaxscore.models.families.minimax_m2 import MINIMAX_M2
from jaxscore.models.families.ministral3 import MINISTRAL3
from jaxscore.models.families.mixtral import MIXTRAL
from jaxscore.models.families.nanochat import NANOCHAT
from jaxscore.models.families.nemotron import NEMOTRON
from jaxscore.models.families.olmo2 import OLMO2, OLMO3
from jaxscore.models.families.olmoe import OLMOE
from jaxscore.models.families.opt import OPT
from jaxscore.models.families.phi import PHI
from jaxscore.models.families.phi3 import PHI3
from jaxscore.models.families.phimoe import PHIMOE
from jaxscore.models.families.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from jaxscore.models.families.seed_oss import SEED_OSS
from jaxscore.models.families.smollm3 import SMOLLM3
from jaxscore.models.families.stablelm import STABLELM
from jaxscore.models.families.starcoder2 import STARCODER2
from jaxscore.models.families.xglm import XGLM

FAMILIES: dict[str, Family] = {
    "apertus": APERTUS,
    "arcee": ARCEE,
    "bloom": BLOOM,
    "cohere": COHERE,
    "cohere2": COHERE2,
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK_V3,
    "ernie4_5": ERNIE4_5,
    "ernie4_5_moe": ERNIE4_5_MOE,
    "exaone4": EXAONE4,
    "falcon": FALCON,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma4_text": GEMMA4,
    "glm4": GLM4,
    "glm4_moe": GLM4_MOE,
    "gpt2": GPT2,
    "gpt_neo": GPT_NEO,
    "gpt_neox": GPT_NEOX,
    "gpt_oss": GPT_OSS,
    "gptj": GPTJ,
    "granite": GRANITE,
    "granitemoe": GRANITEMOE,
    "hunyuan_v1_dense": HUNYUAN_V1_DENSE,
    "llama": LLAMA,
    "llama4_text": LLAMA4,
    "minimax_m2": MINIMAX_M2,
    "ministral3": MINISTRAL3,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "nanochat": NANOCHAT,
    "nemotron": NEMOTRON,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "olmoe": OLMOE,
    "opt": OPT,
    "phi": PHI,
    "phi3": PHI3,
    "phimoe": PHIMOE,
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "seed_oss": SEED_OSS,
    "smollm3": SMOLLM3,
    "stablelm": STABLELM,
    "starcoder2": STARCODER2,
    "xglm": XGLM,
}

__all__ = ["FAMILIES", "Family", "Source"]
