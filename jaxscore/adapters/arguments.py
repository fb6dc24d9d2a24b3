"""What model arguments may hold: hf's names where hf has them, and jaxscore's own."""

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

# The command line of lm-evaluation-harness gives these where its user gives nothing.
UNSAID = {"batch_size": 1, "device": "cuda:0"}


class ArgumentError(InputError, TypeError):
    """A name that `model_args` does not know, or a value that it does not take."""


def wrong(name: str, value: Any, expected: str) -> ArgumentError:
    return ArgumentError(f"model_args: {name} is {value!r}, expected {expected}")


def _text(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # a name that reads as a number
    raise wrong(name, value, "a text")


def _place(name: str, value: Any) -> str | None:
    return _text(name, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _pretrained(name: str, value: Any) -> Any:
    if isinstance(value, LM) and value.capabilities.is_local:
        return value
    try:
        return _place(name, value)
    except ArgumentError:
        found = type(value).__name__
        raise wrong(name, found, "a folder, a hub id, demo or a Scorer") from None


def _one_of(*choices: str) -> Callable[[str, Any], str | None]:
    def one_of(name: str, value: Any) -> str | None:
        if value not in (None, *choices):
            raise wrong(name, value, f"one of {', '.join(choices)}")
        found: str | None = value
        return found

    return one_of


def flag(name: str, value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false", "1", "0"):
        return str(value).lower() in ("true", "1")
    raise wrong(name, value, "true or false")


def _whole(least: int) -> Callable[[str, Any], int | None]:
    def whole(name: str, value: Any) -> int | None:
        if value is None:
            return None
        written = str(value)
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,18}", written):
            raise wrong(name, value, "a whole number")
        if int(written) < least:
            raise wrong(name, value, f"at least {least}")
        return int(written)

    return whole


def _revision(name: str, value: Any) -> str | None:
    """hf's default is "main", which a folder does not have."""
    found = _text(name, value)
    return None if found == "main" else found


def _dtype(name: str, value: Any) -> str | None:
    if value is None:
        return None
    found = str(value).removeprefix("torch.")
    found = {"float": "float32"}.get(found, found)
    if found in ("float16", "half"):
        raise wrong(name, value, "bfloat16 or float32: float16 overflows in some models")
    if found not in DTYPES:
        raise wrong(name, value, f"one of {', '.join(DTYPES)}")
    return found


def _device(name: str, value: Any) -> str | None:
    if value is None or value == UNSAID["device"]:
        return None
    kind, colon, number = str(value).partition(":")
    if kind not in ("cpu", "cuda", "gpu", "tpu"):
        raise wrong(name, value, "cpu, gpu, cuda or tpu, as JAX has them")
    if colon and number != "0":
        raise wrong(
            name, value, f"{kind}; CUDA_VISIBLE_DEVICES chooses among several, and mesh takes all"
        )
    return kind


def _template_args(name: str, value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise wrong(name, value, "a JSON object") from None
    if value is not None and not isinstance(value, dict):
        raise wrong(name, value, "an object")
    return value


def _token(name: str, value: Any) -> str | int | None:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    if value is None or (isinstance(value, str) and value) or type(value) is int:
        return value
    raise wrong(name, value, "the text or the id of a token")


def _batch_tokens(name: str, value: Any) -> int | str | None:
    return value if value == "auto" else _whole(SHORTEST_ROW)(name, value)


def _keys(name: str, value: Any) -> tuple[str, ...] | None:
    """Several are a list, or one text with `+` between them: a comma ends an argument of hf's."""
    if value is None:
        return None
    found = value.split("+") if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(
        isinstance(one, str) and one for one in found
    ):
        raise wrong(name, value, "keys of the config, such as KEY or KEY+OTHER")
    return tuple(found)


READERS: dict[str, Callable[[str, Any], Any]] = {
    "pretrained": _pretrained,
    "tokenizer": _place,
    "revision": _revision,
    "trust_remote_code": flag,
    "dtype": _dtype,
    "device": _device,
    "max_length": _whole(1),
    "max_gen_toks": _whole(1),
    "add_bos_token": flag,
    "prefix_token_id": _whole(0),
    "chat_template_args": _template_args,
    "enable_thinking": flag,
    "think_end_token": _token,
    "peft": _place,
    "quantize": _one_of(*QUANTIZED),
    "mesh": _text,
    "batch_tokens": _batch_tokens,
    "journal": _place,
    "reproducible": flag,
    "implementation": _one_of(*IMPLEMENTATIONS),
    "accept_config": _keys,
    "cache_dir": _place,
    "details": _place,
    "audit_noise": _whole(0),
}

# Those that only requests of lm-evaluation-harness ask for
OF_LM_EVAL = frozenset(
    "audit_noise chat_template_args details enable_thinking max_gen_toks prefix_token_id "
    "think_end_token".split()
)


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


MAX_GEN_TOKS = 256  # as hf


@dataclasses.dataclass(frozen=True)
class Arguments:
    """`model_args`, read.

    Attributes:
        pretrained: a folder, a hub id, "demo", or a `Scorer`.
        tokenizer: a folder or hub id of another tokenizer.
        max_length: tokens that the model reads at most; None is the config's, see `lengths`.
        add_bos_token: None is what the tokenizer does by itself.
        prefix_token_id: what a text without context is scored after; None is BOS, else EOS.
        think_end_token: text or id; a generated text begins after it.
        peft: a LoRA adapter.
        details: a JSONL file for per-token numbers.
        audit_noise: requests of each call whose numbers are computed in other layouts too.
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


def read(given: Mapping[str, Any]) -> tuple[Arguments, list[str]]:
    """`model_args` with `batch_size`, `max_batch_size` and `device`, checked.

    Returns:
        The arguments, and the names that a user gave and that decide nothing here.

    Raises:
        ArgumentError: a name that does not exist, or a value that cannot be.
    """
    values: dict[str, Any] = {}
    idle = []
    for name, value in given.items():
        if name in READERS:
            values[name] = READERS[name](name, value)
        elif name in IDLE:
            IDLE[name].check(name, value)
            if value is not None and UNSAID.get(name) != value:
                idle.append(name)
        else:
            raise ArgumentError(_unknown(name))
    if values.get("pretrained") is None:
        raise ArgumentError(
            "model_args: pretrained is missing; give a folder, a hub id or demo: "
            "--model_args pretrained=NAME"
        )
    out = Arguments(**{name: value for name, value in values.items() if value is not None})
    if out.enable_thinking is not None:
        template = {**out.chat_template_args, "enable_thinking": out.enable_thinking}
        out = dataclasses.replace(out, chat_template_args=template)
    if out.enable_thinking and out.think_end_token is None:
        raise ArgumentError(
            "model_args: enable_thinking needs think_end_token, the text or id after which the "
            "answer begins, such as think_end_token=</think>"
        )
    if not isinstance(out.pretrained, str):
        _check_beside_scorer(values)
    return out, idle


OF_A_SCORER = (
    "tokenizer revision trust_remote_code dtype device peft quantize mesh batch_tokens journal "
    "reproducible implementation accept_config cache_dir"
).split()


def _check_beside_scorer(values: Mapping[str, Any]) -> None:
    """A scorer that is made already takes none of the arguments that make one."""
    if made := [name for name in OF_A_SCORER if values.get(name) not in (None, False)]:
        raise ArgumentError(
            f"model_args: {', '.join(made)} beside a Scorer as pretrained; make the scorer with "
            "it, or give the name of the model"
        )


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [*READERS, *IDLE], n=2)
    hint = f"is it {' or '.join(near)}?" if near else f"known are {', '.join(sorted(READERS))}"
    return f"model_args: {name} is no argument of jaxscore; {hint}"
