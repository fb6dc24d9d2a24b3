"""The families that our decoder covers, by the config's `model_type`."""

from jaxscore.models.families.family import Family, Source
from jaxscore.models.families.gpt2 import GPT2
from jaxscore.models.families.llamalike import LLAMA, QWEN2

FAMILIES: dict[str, Family] = {"gpt2": GPT2, "llama": LLAMA, "qwen2": QWEN2}

__all__ = ["FAMILIES", "Family", "Source"]
