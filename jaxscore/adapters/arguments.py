"""Model arguments of evaluation harnesses: hf's names where hf has them, and jaxscore's own.

READERS    arguments that are used, each with a function that converts and checks its value
IDLE       arguments of hf that have no effect here, each with the values that are accepted
"""

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.lm import LM
from jaxscore.models.choices import DTYPES, IMPLEMENTATIONS, QUANTIZED
from jaxscore.plan.row_batches import SHORTEST_ROW

# lm-evaluation-harness' command line passes these if its user gives nothing.
HARNESS_DEFAULTS = {"batch_size": 1, "device": "cuda:0"}
MAX_GEN_TOKS = 256  # as hf


class ArgumentError(InputError, TypeError):
    """An unknown name in `model_args`, or an invalid value."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Checked `model_args`.

    Attributes:
        pretrained: a folder, a hub id, "demo", or a `Scorer`.
        tokenizer: a folder or hub id of another tokenizer.
        max_length: maximum tokens of a text, or None for the config's, see `model.max_length`.
        add_bos_token: None leaves it to the tokenizer.
        prefix_token_id: precedes a text without context; None is BOS, or EOS if there is none.
        think_end_token: text or id after which the answer starts.
        peft: a LoRA adapter.
        details: JSONL file for per-token numbers.
        audit_noise: number of requests per call that are scored again in other layouts.
        device, dtype, mesh, quantize, batch_tokens, journal, reproducible, implementation,
            accept_config, cache_dir, revision, trust_remote_code: as of `Scorer.from_pretrained`.
    """

    pretrained: Any
    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str = "auto"
    device: str | None = None
    max_length: int | None = None
    max_gen_toks: int = MAX_GEN_TOKS
    add_bos_token: bool | None = None
    prefix_token_id: int | None = None
    chat_template_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    enable_thinking: bool | None = None
    think_end_token: str | int | None = None
    peft: str | None = None
    quantize: str | None = None
    mesh: str | None = None
    batch_tokens: int | str | None = None
    journal: str | None = None
    reproducible: bool = False
    implementation: str = "auto"
    accept_config: tuple[str, ...] = ()
    cache_dir: str | None = None
    details: str | None = None
    audit_noise: int = 0


# Arguments that make a scorer, and so have no place beside one that is already made.
SCORER_ARGUMENTS = (
    "tokenizer revision trust_remote_code dtype device peft quantize mesh batch_tokens journal "
    "reproducible implementation accept_config cache_dir"
).split()
# Arguments that only requests of lm-evaluation-harness use.
LM_EVAL_ARGUMENTS = frozenset(
    "audit_noise chat_template_args details enable_thinking max_gen_toks prefix_token_id "
    "think_end_token".split()
)


def read_arguments(values: Mapping[str, Any]) -> tuple[Arguments, list[str]]:
    """Check `model_args` together with `batch_size`, `max_batch_size` and `device`.

    Args:
        values: name -> Python value, or its text.

    Returns:
        The arguments, and the names given by the user that have no effect.

    Raises:
        ArgumentError: an unknown name, or an invalid value.
    """
    read: dict[str, Any] = {}
    idle = []
    for name, value in values.items():
        if name in READERS:
            read[name] = READERS[name](name, value)
        elif name in IDLE:
            if value is not None and not IDLE[name].accepts(value):
                raise ArgumentError(f"model_args: {name}={value!r}: {IDLE[name].advice}")
            if value is not None and HARNESS_DEFAULTS.get(name) != value:
                idle.append(name)
        else:
            near = difflib.get_close_matches(name, [*READERS, *IDLE], n=2)
            known = f"known are {', '.join(sorted(READERS))}"
            hint = f"is it {' or '.join(near)}?" if near else known
            raise ArgumentError(f"model_args: {name} is no argument of jaxscore; {hint}")
    if read.get("pretrained") is None:
        raise ArgumentError(
            "model_args: pretrained is missing; give a folder, a hub id or demo: "
            "--model_args pretrained=NAME"
        )
    args = Arguments(**{name: value for name, value in read.items() if value is not None})
    if args.enable_thinking is not None:
        template = {**args.chat_template_args, "enable_thinking": args.enable_thinking}
        args = dataclasses.replace(args, chat_template_args=template)
    if args.enable_thinking and args.think_end_token is None:
        raise ArgumentError(
            "model_args: enable_thinking needs think_end_token, the text or id after which the "
            "answer begins, such as think_end_token=</think>"
        )
    made = [name for name in SCORER_ARGUMENTS if read.get(name) not in (None, False)]
    if made and not isinstance(args.pretrained, str):
        raise ArgumentError(
            f"model_args: {', '.join(made)} beside a Scorer as pretrained; make the scorer with "
            "it, or give the name of the model"
        )
    return args, idle


def _invalid(name: str, value: Any, expected: str) -> ArgumentError:
    return ArgumentError(f"model_args: {name} is {value!r}, expected {expected}")


def _text(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # a name that the command line parsed as a number
    raise _invalid(name, value, "a text")


def _path(name: str, value: Any) -> str | None:
    return _text(name, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _pretrained(name: str, value: Any) -> Any:
    if isinstance(value, LM) and value.capabilities.is_local:
        return value
    try:
        return _path(name, value)
    except ArgumentError:
        found = type(value).__name__
        raise _invalid(name, found, "a folder, a hub id, demo or a Scorer") from None


def _one_of(*choices: str) -> Callable[[str, Any], str | None]:
    def one_of(name: str, value: Any) -> str | None:
        if value not in (None, *choices):
            raise _invalid(name, value, f"one of {', '.join(choices)}")
        chosen: str | None = value
        return chosen

    return one_of


def read_flag(name: str, value: Any) -> bool | None:
    """Convert true or false, as Python value or text.

    Raises:
        ArgumentError: any other value.
    """
    if value is None or isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false", "1", "0"):
        return str(value).lower() in ("true", "1")
    raise _invalid(name, value, "true or false")


def _integer(minimum: int) -> Callable[[str, Any], int | None]:
    def integer(name: str, value: Any) -> int | None:
        if value is None:
            return None
        digits = str(value)
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,18}", digits):
            raise _invalid(name, value, "a whole number")
        if int(digits) < minimum:
            raise _invalid(name, value, f"at least {minimum}")
        return int(digits)

    return integer


def _revision(name: str, value: Any) -> str | None:
    """hf's default is "main", which a folder does not have."""
    revision = _text(name, value)
    return None if revision == "main" else revision


def _dtype(name: str, value: Any) -> str | None:
    if value is None:
        return None
    dtype = str(value).removeprefix("torch.")
    dtype = {"float": "float32"}.get(dtype, dtype)
    if dtype in ("float16", "half"):
        raise _invalid(name, value, "bfloat16 or float32: float16 overflows in some models")
    if dtype not in DTYPES:
        raise _invalid(name, value, f"one of {', '.join(DTYPES)}")
    return dtype


def _device(name: str, value: Any) -> str | None:
    if value is None or value == HARNESS_DEFAULTS["device"]:
        return None
    kind, colon, number = str(value).partition(":")
    if kind not in ("cpu", "cuda", "gpu", "tpu"):
        raise _invalid(name, value, "cpu, gpu, cuda or tpu, as JAX has them")
    if colon and number != "0":
        raise _invalid(
            name, value, f"{kind}; CUDA_VISIBLE_DEVICES chooses among several, and mesh takes all"
        )
    return kind


def _template_args(name: str, value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _invalid(name, value, "a JSON object") from None
    if value is not None and not isinstance(value, dict):
        raise _invalid(name, value, "an object")
    return value


def _token(name: str, value: Any) -> str | int | None:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    if value is None or (isinstance(value, str) and value) or type(value) is int:
        return value
    raise _invalid(name, value, "the text or the id of a token")


def _batch_tokens(name: str, value: Any) -> int | str | None:
    return value if value == "auto" else _integer(SHORTEST_ROW)(name, value)


def _keys(name: str, value: Any) -> tuple[str, ...] | None:
    """A list of keys, or a text with `+` between them: a comma separates arguments."""
    if value is None:
        return None
    keys = value.split("+") if isinstance(value, str) else value
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) and key for key in keys):
        raise _invalid(name, value, "keys of the config, such as KEY or KEY+OTHER")
    return tuple(keys)


READERS: dict[str, Callable[[str, Any], Any]] = {
    "pretrained": _pretrained,
    "tokenizer": _path,
    "revision": _revision,
    "trust_remote_code": read_flag,
    "dtype": _dtype,
    "device": _device,
    "max_length": _integer(1),
    "max_gen_toks": _integer(1),
    "add_bos_token": read_flag,
    "prefix_token_id": _integer(0),
    "chat_template_args": _template_args,
    "enable_thinking": read_flag,
    "think_end_token": _token,
    "peft": _path,
    "quantize": _one_of(*QUANTIZED),
    "mesh": _text,
    "batch_tokens": _batch_tokens,
    "journal": _path,
    "reproducible": read_flag,
    "implementation": _one_of(*IMPLEMENTATIONS),
    "accept_config": _keys,
    "cache_dir": _path,
    "details": _path,
    "audit_noise": _integer(0),
}


class Idle(NamedTuple):
    """An argument of hf that has no effect here.

    Attributes:
        accepts: whether a value changes no number.
        advice: what to do instead of the other values.
    """

    accepts: Callable[[Any], bool]
    advice: str = ""


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
GPTQ = "GPTQ checkpoints need no argument here; leave it out"
IDLE = {
    "batch_size": Idle(_batch_size, "expected a whole number, auto or auto:N"),
    "max_batch_size": Idle(_batch_size, "expected a whole number"),
    "truncation": Idle(OFF, "it cuts prompts at the right; max_length cuts them at the left"),
    "logits_cache": Idle(_any),
    "use_fast_tokenizer": Idle(_only(True, "true"), "slow tokenizers give no offsets"),
    "low_cpu_mem_usage": Idle(_any),
    "attn_implementation": Idle(_any),
    "device_map": Idle(_any),
    "max_memory_per_gpu": Idle(_any),
    "max_cpu_memory": Idle(_any),
    "offload_folder": Idle(_any),
    "backend": Idle(_only("default", "causal"), "jaxscore has causal language models alone"),
    "subfolder": Idle(_only(""), "give the folder itself as pretrained"),
    "softmax_dtype": Idle(_only("float32", "torch.float32"), "the softmax is float32 always"),
    "mixed_precision_dtype": Idle(_only(), "give dtype=bfloat16"),
    "parallelize": Idle(OFF, MESH),
    "tp_plan": Idle(_only(), MESH),
    "load_in_8bit": Idle(OFF, INT8),
    "load_in_4bit": Idle(OFF, INT8),
    "autogptq": Idle(OFF, GPTQ),
    "gptqmodel": Idle(OFF, GPTQ),
    "gguf_file": Idle(_only(), "GGUF is not read; give the original checkpoint"),
    "delta": Idle(_only(), NO_CODE),
    "steer_path": Idle(_only(), NO_CODE),
}
