"""The families that our decoder covers, by the config's `model_type`."""

from jaxscore.models.families.bloom import BLOOM
from jaxscore.models.families.cohere import COHERE
from jaxscore.models.families.falcon import FALCON
from jaxscore.models.families.family import Family, Source
from jaxscore.models.families.gemma import GEMMA, GEMMA2, GEMMA3
from jaxscore.models.families.gpt2 import GPT2
from jaxscore.models.families.gpt_neo import GPT_NEO
from jaxscore.models.families.gpt_neox import GPT_NEOX
from jaxscore.models.families.gptj import GPTJ
from jaxscore.models.families.granite import GRANITE
from jaxscore.models.families.llamalike import LLAMA, MISTRAL
from jaxscore.models.families.mixtral import MIXTRAL
from jaxscore.models.families.olmo2 import OLMO2
from jaxscore.models.families.opt import OPT
from jaxscore.models.families.phi import PHI
from jaxscore.models.families.phi3 import PHI3
from jaxscore.models.families.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from jaxscore.models.families.smollm3 import SMOLLM3
from jaxscore.models.families.stablelm import STABLELM
from jaxscore.models.families.starcoder2 import STARCODER2

FAMILIES: dict[str, Family] = {
    "bloom": BLOOM,
    "cohere": COHERE,
    "falcon": FALCON,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gpt2": GPT2,
    "gpt_neo": GPT_NEO,
    "gpt_neox": GPT_NEOX,
    "gptj": GPTJ,
    "granite": GRANITE,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "olmo2": OLMO2,
    "opt": OPT,
    "phi": PHI,
    "phi3": PHI3,
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "smollm3": SMOLLM3,
    "stablelm": STABLELM,
    "starcoder2": STARCODER2,
}

__all__ = ["FAMILIES", "Family", "Source"]
