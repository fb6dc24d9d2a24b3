"""Model arguments of evaluation harnesses: hf's names where hf has one, else jaxscore's.

READERS    arguments that are used, each with a function that converts and checks its value
IDLE       arguments of hf that are ignored here, each with the values that are accepted
"""

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, get_type_hints

from jaxscore.errors import InputError
from jaxscore.lm import LM
from jaxscore.models.model_types import DTYPES, IMPLEMENTATIONS, QUANTIZED
from jaxscore.plan.row_batches import SHORTEST_ROW

# lm-evaluation-harness' command line passes these if its user gives nothing.
HARNESS_DEFAULTS = {"batch_size": 1, "device": "cuda:0"}


class ArgumentError(InputError, TypeError):
    """An unknown name in `model_args`, or an invalid value."""


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
        type_name = type(value).__name__
        raise _invalid(name, type_name, "a folder, a hub id, demo or a Scorer") from None


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
    revision = _text(name, value)
    return None if revision == "main" else revision  # hf's default, which a folder does not have


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
    backend, colon, number = str(value).partition(":")
    if backend not in ("cpu", "cuda", "gpu", "tpu"):
        raise _invalid(name, value, "cpu, gpu, cuda or tpu, as in JAX")
    if colon and number != "0":
        raise _invalid(
            name,
            value,
            f"{backend}; CUDA_VISIBLE_DEVICES chooses among several, and mesh takes all",
        )
    return backend


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
    """Return the keys of a list or of a text such as "KEY+OTHER": a comma separates arguments."""
    if value is None:
        return None
    keys = value.split("+") if isinstance(value, str) else value
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) and key for key in keys):
        raise _invalid(name, value, "keys of the config, such as KEY or KEY+OTHER")
    return tuple(keys)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Checked `model_args`, each annotated with the function that converts (name, value).

    Attributes:
        pretrained: a folder, a hub id, "demo", or a `Scorer`.
        tokenizer: a folder or hub id of another tokenizer.
        max_length: the maximum tokens of a text, or None for the config's, see `model.max_length`.
        add_bos_token: None leaves it to the tokenizer.
        prefix_token_id: the token before a text without context; None is the BOS, or the EOS if
            there is none.
        think_end_token: the text or id after which the answer starts.
        peft: a LoRA adapter.
        details: a JSONL file for per-token numbers.
        audit_noise: the number of requests per call that are scored again in other layouts.
        device, dtype, mesh, quantize, batch_tokens, journal, reproducible, implementation,
            accept_config, cache_dir, revision, trust_remote_code: see `Scorer.from_pretrained`.
    """

    pretrained: Annotated[Any, _pretrained]
    tokenizer: Annotated[str | None, _path] = None
    revision: Annotated[str | None, _revision] = None
    trust_remote_code: Annotated[bool, read_flag] = False
    dtype: Annotated[str, _dtype] = "auto"
    device: Annotated[str | None, _device] = None
    max_length: Annotated[int | None, _integer(1)] = None
    max_gen_toks: Annotated[int, _integer(1)] = 256  # as hf
    add_bos_token: Annotated[bool | None, read_flag] = None
    prefix_token_id: Annotated[int | None, _integer(0)] = None
    chat_template_args: Annotated[Mapping[str, Any], _template_args] = dataclasses.field(
        default_factory=dict
    )
    enable_thinking: Annotated[bool | None, read_flag] = None
    think_end_token: Annotated[str | int | None, _token] = None
    peft: Annotated[str | None, _path] = None
    quantize: Annotated[str | None, _one_of(*QUANTIZED)] = None
    mesh: Annotated[str | None, _text] = None
    batch_tokens: Annotated[int | str | None, _batch_tokens] = None
    journal: Annotated[str | None, _path] = None
    reproducible: Annotated[bool, read_flag] = False
    implementation: Annotated[str, _one_of(*IMPLEMENTATIONS)] = "auto"
    accept_config: Annotated[tuple[str, ...], _keys] = ()
    cache_dir: Annotated[str | None, _path] = None
    details: Annotated[str | None, _path] = None
    audit_noise: Annotated[int, _integer(0)] = 0


READERS: dict[str, Callable[[str, Any], Any]] = {
    name: annotation.__metadata__[0]
    for name, annotation in get_type_hints(Arguments, include_extras=True).items()
}
# Arguments that configure a new scorer, so they are refused if `pretrained` is a scorer.
SCORER_ARGUMENTS = (
    "tokenizer revision trust_remote_code dtype device peft quantize mesh batch_tokens journal "
    "reproducible implementation accept_config cache_dir"
).split()
# Arguments that only requests of lm-evaluation-harness use.
LM_EVAL_ARGUMENTS = frozenset(
    "audit_noise chat_template_args details enable_thinking max_gen_toks prefix_token_id "
    "think_end_token".split()
)


class Idle(NamedTuple):
    """An argument of hf that is ignored here.

    Attributes:
        accepts: a predicate: True for a value that changes no number.
        advice: the remedy for other values.
    """

    accepts: Callable[[Any], bool]
    advice: str = ""


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
    **dict.fromkeys(
        (
            "logits_cache",
            "low_cpu_mem_usage",
            "attn_implementation",
            "device_map",
            "max_memory_per_gpu",
            "max_cpu_memory",
            "offload_folder",
        ),
        Idle(lambda value: True),
    ),
    "batch_size": Idle(_batch_size, "expected a whole number, auto or auto:N"),
    "max_batch_size": Idle(_batch_size, "expected a whole number"),
    "truncation": Idle(OFF, "it cuts prompts at the right; max_length cuts them at the left"),
    "use_fast_tokenizer": Idle(_only(True, "true"), "slow tokenizers give no offsets"),
    "backend": Idle(_only("default", "causal"), "jaxscore has causal language models only"),
    "subfolder": Idle(_only(""), "give the folder itself as pretrained"),
    "softmax_dtype": Idle(_only("float32", "torch.float32"), "the softmax is always float32"),
    "mixed_precision_dtype": Idle(_only(), "give dtype=bfloat16"),
    "parallelize": Idle(OFF, MESH),
    "tp_plan": Idle(_only(), MESH),
    **dict.fromkeys(("load_in_8bit", "load_in_4bit"), Idle(OFF, INT8)),
    **dict.fromkeys(("autogptq", "gptqmodel"), Idle(OFF, GPTQ)),
    "gguf_file": Idle(_only(), "give the file itself as pretrained"),
    **dict.fromkeys(("delta", "steer_path"), Idle(_only(), NO_CODE)),
}


def read_arguments(values: Mapping[str, Any]) -> tuple[Arguments, list[str]]:
    """Check `model_args` together with `batch_size`, `max_batch_size` and `device`.

    Args:
        values: name -> Python value, or its text.

    Returns:
        The arguments, and the names that the user gave but that are ignored.

    Raises:
        ArgumentError: an unknown name, or an invalid value.
    """
    checked: dict[str, Any] = {}
    idle = []
    for name, value in values.items():
        if name in READERS:
            checked[name] = READERS[name](name, value)
        elif name in IDLE:
            if value is not None and not IDLE[name].accepts(value):
                raise ArgumentError(f"model_args: {name}={value!r}: {IDLE[name].advice}")
            if value is not None and HARNESS_DEFAULTS.get(name) != value:
                idle.append(name)
        else:
            matches = difflib.get_close_matches(name, [*READERS, *IDLE], n=2)
            expected = f"expected one of {', '.join(sorted(READERS))}"
            hint = f"is it {' or '.join(matches)}?" if matches else expected
            raise ArgumentError(f"model_args: {name} is not an argument of jaxscore; {hint}")
    if checked.get("pretrained") is None:
        raise ArgumentError(
            "model_args: pretrained is missing; give a folder, a hub id or demo: "
            "--model_args pretrained=NAME"
        )
    args = Arguments(**{name: value for name, value in checked.items() if value is not None})
    if args.enable_thinking is not None:
        template = {**args.chat_template_args, "enable_thinking": args.enable_thinking}
        args = dataclasses.replace(args, chat_template_args=template)
    if args.enable_thinking and args.think_end_token is None:
        raise ArgumentError(
            "model_args: enable_thinking needs think_end_token, the text or id after which the "
            "answer begins, such as think_end_token=</think>"
        )
    scorer_args = [name for name in SCORER_ARGUMENTS if checked.get(name) not in (None, False)]
    if scorer_args and not isinstance(args.pretrained, str):
        raise ArgumentError(
            f"model_args: {', '.join(scorer_args)} cannot change a Scorer passed as pretrained; "
            "create the Scorer with it, or give the name of the model"
        )
    return args, idle
