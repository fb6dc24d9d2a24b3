"""Arguments of hf that decide nothing here.

Each is accepted with the values that change no number, and refused with the others.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxscore.adapters.harness.readers import ArgumentError


class Idle(NamedTuple):
    """An argument that decides nothing here.

    Attributes:
        harmless: whether a value changes no number.
        advice: for the other values.
    """

    harmless: Callable[[Any], bool]
    advice: str

    def check(self, name: str, value: Any) -> None:
        """Raises:
        ArgumentError: the value would change numbers, or is none that hf takes.
        """
        if value is not None and not self.harmless(value):
            raise ArgumentError(f"model_args: {name}={value!r}: {self.advice}")


def _any(value: Any) -> bool:
    return True


def _only(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values or str(value).lower() in map(str, values)


def _batch_size(value: Any) -> bool:
    return re.fullmatch(r"[0-9]{1,9}|auto(:[0-9]{1,9})?", str(value)) is not None


OFF = _only(False, "false", "")
NO_CODE = "jaxscore does not do this; leave it out"
INT8 = "leave it out, and give quantize=int8 for 8-bit weights"
MESH = "leave it out, and give mesh=auto or mesh=data=N;model=M to spread the model"
IDLE = {
    "batch_size": Idle(_batch_size, "expected a whole number, auto or auto:N"),
    "max_batch_size": Idle(_batch_size, "expected a whole number"),
    "truncation": Idle(OFF, "it cuts prompts at the right; max_length cuts them at the left"),
    "logits_cache": Idle(_any, ""),
    "use_fast_tokenizer": Idle(_only(True, "true"), "slow tokenizers give no offsets"),
    "low_cpu_mem_usage": Idle(_any, ""),
    "attn_implementation": Idle(_any, ""),
    "device_map": Idle(_any, ""),
    "max_memory_per_gpu": Idle(_any, ""),
    "max_cpu_memory": Idle(_any, ""),
    "offload_folder": Idle(_any, ""),
    "backend": Idle(_only("default", "causal"), "jaxscore has causal language models alone"),
    "subfolder": Idle(_only(""), "give the folder itself as pretrained"),
    "softmax_dtype": Idle(_only("float32", "torch.float32"), "the softmax is float32 always"),
    "mixed_precision_dtype": Idle(_only(), "give dtype=bfloat16"),
    "parallelize": Idle(OFF, MESH),
    "tp_plan": Idle(_only(), MESH),
    "load_in_8bit": Idle(OFF, INT8),
    "load_in_4bit": Idle(OFF, INT8),
    "autogptq": Idle(OFF, "GPTQ checkpoints need no argument here; leave it out"),
    "gptqmodel": Idle(OFF, "GPTQ checkpoints need no argument here; leave it out"),
    "gguf_file": Idle(_only(), "GGUF is not read; give the original checkpoint"),
    "delta": Idle(_only(), NO_CODE),
    "steer_path": Idle(_only(), NO_CODE),
}
