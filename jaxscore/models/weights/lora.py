"""LoRA adapters in PEFT's format, merged into a checkpoint's tensors at look-up.

W + scale * B @ A (arXiv 2106.09685), in float32 and before any rounding to the model's dtype,
with scale = alpha / r, or alpha / sqrt(r) if the adapter is rank-stabilised (arXiv 2312.03732).
Deltas are added to the checkpoint's tensors before a family's table splits them, so fused matrices
need no special case. Only settings that a test compares with PEFT's merge are supported.
"""

import dataclasses
import math
import re
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import regex

from jaxscore.errors import InputError, one_line
from jaxscore.models.weights.folder import read_json
from jaxscore.models.weights.tensor_files import LazyMapping, Tensors, check_float, map_file

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ROOT = "base_model.model."  # PEFT's prefix for names of the base model
PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
# Original tensors of an adapted LM head, which PEFT saves by default
BASE = re.compile(r"(?P<module>.+)\.base_layer\.(?P<tensor>weight|bias)")

# Settings of `adapter_config.json` that are read
READ = frozenset("r lora_alpha use_rslora rank_pattern alpha_pattern".split())
# Settings that do not affect a merge: those of training, and the adapted modules, which follow from
# the tensors' names. fan_in_fan_out follows from the module's class, as in PEFT.
INERT = frozenset(
    "auto_mapping base_model_name_or_path exclude_modules fan_in_fan_out inference_mode "
    "layers_pattern layers_to_transform lora_dropout megatron_core peft_version "
    "qalora_group_size revision runtime_config target_modules".split()
)
# Settings of which only these values are supported. All others must be off.
ONLY: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none",),
    # Others, such as PiSSA, change the base weights.
    "init_lora_weights": (True, False, "gaussian"),
}
# Modules of transformers' class Conv1D, whose weights are [in, out].
CONV1D = {"gpt2": ("c_attn", "c_fc", "c_proj")}
# Modules that several layers share, which PEFT adapts separately for each layer
SHARED = {"zamba": ".shared_transf.", "zamba2": ".shared_transformer."}
MAX_SCALE = 1e9  # alpha / rank; usually 0.5 to 4
PATTERN_SECONDS = 10.0  # for all patterns and modules; `(a+)+b` alone takes years


@dataclasses.dataclass(frozen=True)
class Delta:
    """Update of one weight [out, in].

    Attributes:
        a, b: the factors [r, in] and [out, r], as stored.
        scale: the factor of their product.
    """

    a: np.ndarray
    b: np.ndarray
    scale: float

    def added_to(self, weight: np.ndarray, *, transposed: bool) -> np.ndarray:
        """Return the updated weight, float32; `transposed` if the weight is [in, out]."""
        product = self.b.astype(np.float32) @ self.a.astype(np.float32)
        product *= np.float32(self.scale)
        product += (weight.T if transposed else weight).astype(np.float32)
        return product.T if transposed else product


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A checked adapter.

    Attributes:
        weights: the adapter's file, for error messages.
        base_model: the base model named by the adapter's config; not checked.
        deltas: the updates by module of the base model.
        base_tensors: tensors of the base model in the adapter's file, by name. As in PEFT, they
            replace those of the checkpoint before the deltas are added.
    """

    weights: Path
    base_model: str | None
    deltas: Mapping[str, Delta]
    base_tensors: Mapping[str, np.ndarray]


def read(folder: Path) -> Adapter:
    """Read an adapter from a folder written by PEFT's `save_pretrained`.

    Raises:
        InputError: a file is missing or damaged, or a setting or tensor is not supported.
    """
    where = folder / CONFIG
    if not folder.is_dir():
        raise InputError(f"adapter {folder}: no such folder; expected one with {CONFIG}")
    if not where.exists():
        raise InputError(f"adapter {folder}: {CONFIG} is missing; give a folder saved by PEFT")
    config = read_json(where)
    if not isinstance(config, dict):
        raise InputError(f"{where}: expected an object, found {type(config).__name__}")
    _check_config(config, where)
    weights = folder / WEIGHTS
    if not weights.exists() and (pickled := sorted(folder.glob("adapter_model.*"))):
        raise InputError(f"{pickled[0]}: not read; save the adapter again as {WEIGHTS}")
    halves: dict[str, dict[str, np.ndarray]] = {}
    base_tensors: dict[str, np.ndarray] = {}
    tensors = map_file(weights)
    if not tensors:
        raise InputError(f"{weights}: the file is without tensors")
    adapted = {pair["module"] for name in tensors if (pair := PAIR.fullmatch(name))}
    for name, array in tensors.items():
        match = PAIR.fullmatch(name) or BASE.fullmatch(name)
        if match is None or not name.startswith(ROOT) or match["module"] not in adapted:
            raise InputError(
                f"{weights}: tensor {name} is not handled, expected names like "
                f"{ROOT}MODULE.lora_A.weight; merge this adapter with PEFT itself"
            )
        check_float(weights, name, array)
        module = match["module"].removeprefix(ROOT)
        if match.re is PAIR:
            halves.setdefault(module, {})[match["half"]] = array
        else:
            base_tensors[f"{module}.{match['tensor']}"] = array
    deadline = time.monotonic() + PATTERN_SECONDS
    deltas = {
        module: _delta(module, arrays, config, where, weights, deadline)
        for module, arrays in halves.items()
    }
    base = config.get("base_model_name_or_path")
    base_model = one_line(base) if isinstance(base, str) else None
    return Adapter(weights, base_model, deltas, base_tensors)


def merged(
    tensors: Tensors, adapter: Adapter, model_type: str, bare: Callable[[str], str]
) -> Tensors:
    """Return the tensors with the adapter merged in at each look-up.

    Args:
        model_type: the config's model type.
        bare: a function that removes from a name what differs between checkpoint and adapter.

    Raises:
        InputError: a module of the adapter matches no tensor of the model.
    """
    stored = {bare(name): name for name in tensors.stored}
    deltas: dict[str, tuple[Delta, bool]] = {}
    for module, delta in adapter.deltas.items():
        name = stored.get(bare(f"{module}.weight"))
        if SHARED.get(model_type, " ") in module:
            raise InputError(
                f"{adapter.weights}: module {module} belongs to a block that several layers share, "
                "but the adapter is for one of them; adapt modules that are not shared"
            )
        if name is None and module.rpartition(".")[2] == "lm_head":
            raise InputError(
                f"{adapter.weights}: module {module} is adapted, but the model lacks this tensor, "
                "because its LM head is the embedding; save the model with tie_word_embeddings "
                "false and both tensors, or adapt other modules"
            )
        if name is None:
            raise InputError(
                f"{adapter.weights}: module {module} is not in the model, which has "
                f"{', '.join(sorted(tensors.stored)[:3])} ...; the adapter was made for "
                f"{adapter.base_model or 'an unnamed model'}"
            )
        if name in deltas:
            raise InputError(f"{adapter.weights}: module {module} appears under two names")
        transposed = module.rpartition(".")[2] in CONV1D.get(model_type, ())
        shape = tensors.stored[name].shape
        expected = (delta.b.shape[0], delta.a.shape[1])
        if shape != (expected[::-1] if transposed else expected):
            raise InputError(
                f"{adapter.weights}: module {module} is for a weight of shape {list(expected)}; "
                f"tensor {name} of the model has {list(shape)}"
                f"{', which is [in, out]' if transposed else ''}"
            )
        check_float(tensors.where[name], name, tensors.stored[name])
        deltas[name] = delta, transposed
    replaced = {}
    for base_name, array in adapter.base_tensors.items():
        name = stored.get(bare(base_name))
        if name is None or tensors.stored[name].shape != array.shape:
            actual = "no such tensor" if name is None else list(tensors.stored[name].shape)
            raise InputError(
                f"{adapter.weights}: the original {base_name} of the adapted module has shape "
                f"{list(array.shape)}; the model has {actual}"
            )
        check_float(tensors.where[name], name, tensors.stored[name])
        replaced[name] = array

    def value(name: str) -> np.ndarray:
        array = replaced.get(name)
        if array is None:
            array = tensors.arrays[name]
        if name not in deltas:
            return array
        delta, transposed = deltas[name]
        return delta.added_to(array, transposed=transposed)

    arrays = LazyMapping(tensors.arrays, value)
    # `pieces` stay: they belong to tensors with three axes, which have no deltas.
    changed_here = {*deltas, *replaced}
    rows = {name: stored for name, stored in tensors.rows.items() if name not in changed_here}
    changed = tensors.changed | changed_here
    return dataclasses.replace(tensors, arrays=arrays, changed=changed, rows=rows)


def _check_config(config: dict[str, Any], where: Path) -> None:
    """Require every setting to be read, inert, or at a supported value."""
    for name, value in sorted(config.items()):
        if name in ONLY:
            # `in` would accept 1 for True
            is_valid = any(type(value) is type(option) and value == option for option in ONLY[name])
        else:
            is_valid = name in READ | INERT or value is None or value is False or value in ({}, [])
        if not is_valid:
            raise InputError(
                f"{where}: {name} is {value!r}, which is not handled"
                + (f"; handled are {', '.join(map(repr, ONLY[name]))}" if name in ONLY else "")
                + "; merge this adapter with PEFT itself"
            )
    if "peft_type" not in config:
        raise InputError(f"{where}: peft_type is missing, expected 'LORA'")
    if type(config.get("use_rslora", False)) is not bool:
        raise InputError(f"{where}: use_rslora is {config['use_rslora']!r}, expected true or false")
    _check_positive(config.get("r"), "r", where, integral=True)
    _check_positive(config.get("lora_alpha"), "lora_alpha", where)
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(name) or {}
        if not isinstance(patterns, dict):
            raise InputError(f"{where}: {name} is {patterns!r}, expected an object")
        for pattern, value in patterns.items():
            _check_positive(value, f"{name} of {pattern!r}", where, integral=name == "rank_pattern")
            try:
                with warnings.catch_warnings():  # about nested sets, irrelevant here
                    warnings.simplefilter("ignore")
                    re.compile(_at_end(pattern))  # the syntax that PEFT uses
                    regex.compile(_at_end(pattern))
            except (re.error, regex.error, OverflowError, RecursionError) as problem:
                raise InputError(
                    f"{where}: {name}: {pattern!r} is not a valid pattern ({problem})"
                ) from None


def _check_positive(value: Any, name: str, where: Path, *, integral: bool = False) -> None:
    types = int if integral else int | float
    if isinstance(value, bool) or not isinstance(value, types) or not 0 < value < math.inf:
        expected = "a whole number" if integral else "a number"
        raise InputError(f"{where}: {name} is {value!r}, expected {expected} above 0")


def _delta(
    module: str,
    halves: dict[str, np.ndarray],
    config: dict[str, Any],
    where: Path,
    weights: Path,
    deadline: float,
) -> Delta:
    if set(halves) != {"A", "B"}:
        raise InputError(f"{weights}: module {module} has only lora_{next(iter(halves))}")
    a, b = halves["A"], halves["B"]
    rank = _value_for(config.get("rank_pattern"), module, config["r"], where, deadline)
    alpha = _value_for(config.get("alpha_pattern"), module, config["lora_alpha"], where, deadline)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != rank or b.shape[1] != rank:
        raise InputError(
            f"{weights}: module {module} has lora_A {list(a.shape)} and lora_B {list(b.shape)}, "
            f"expected [{rank}, in] and [out, {rank}], since its rank is {rank} in {where.name}"
        )
    if alpha > MAX_SCALE * rank:
        raise InputError(
            f"{where}: lora_alpha of module {module} is {alpha}, too large for its rank {rank}"
        )
    return Delta(a, b, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _value_for(
    patterns: dict[str, Any] | None, module: str, default: Any, where: Path, deadline: float
) -> Any:
    """Return the value of the first pattern that matches the end of a module's name, as in PEFT."""
    for pattern, value in (patterns or {}).items():
        try:
            seconds_left = max(0.001, deadline - time.monotonic())
            if regex.match(_at_end(pattern), module, timeout=seconds_left):
                return value
        except TimeoutError:
            raise InputError(
                f"{where}: matching of patterns takes more than {PATTERN_SECONDS:g} s, stopped at "
                f"{pattern!r} for module {module}; write it without nested repeats"
            ) from None
    return default


def _at_end(pattern: str) -> str:
    return rf"(.*\.)?({pattern})$"
