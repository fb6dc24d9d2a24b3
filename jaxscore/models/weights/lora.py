"""LoRA adapters in PEFT's format, merged into a checkpoint's tensors as they are read.

W + scale * B @ A (arXiv 2106.09685), in float32 and before any rounding to the model's dtype,
with scale = alpha / r, or alpha / sqrt(r) if the adapter is rank-stabilised (arXiv 2312.03732).
Whole tensors of the checkpoint are merged, before a family's table splits them, so fused matrices
need no special case. Settings that no test compares with PEFT's own merge are refused.
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
ROOT = "base_model.model."  # prefix of PEFT's model for the names of its base
PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
# Original tensors of an adapted LM head, which PEFT saves with it unless told otherwise
BASE = re.compile(r"(?P<module>.+)\.base_layer\.(?P<tensor>weight|bias)")

# Settings of `adapter_config.json` that a merge reads:
READ = frozenset("r lora_alpha use_rslora rank_pattern alpha_pattern".split())
# that do not affect it: training, and the modules, which the tensors' names tell; fan_in_fan_out
# follows from the kind of module, as PEFT sets it itself;
INERT = frozenset(
    "auto_mapping base_model_name_or_path exclude_modules fan_in_fan_out inference_mode "
    "layers_pattern layers_to_transform lora_dropout megatron_core peft_version "
    "qalora_group_size revision runtime_config target_modules".split()
)
# and that are handled with some values only. Any other must be off.
ONLY: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none",),
    # Others, such as PiSSA, change the weights that the adapter is added to.
    "init_lora_weights": (True, False, "gaussian"),
}
# Modules of transformers' class Conv1D, whose weights are [in, out].
CONV1D = {"gpt2": ("c_attn", "c_fc", "c_proj")}
# Modules that several layers share, each of which PEFT adapts on its own
SHARED = {"zamba": ".shared_transf.", "zamba2": ".shared_transformer."}
MOST_SCALE = 1e9  # alpha over rank; usual are 0.5 to 4
PATTERN_SECONDS = 10.0  # for all patterns and modules; `(a+)+b` alone takes years


@dataclasses.dataclass(frozen=True)
class Delta:
    """Update of one weight [out, in].

    Attributes:
        a, b: [r, in] and [out, r], as stored.
        scale: of their product.
    """

    a: np.ndarray
    b: np.ndarray
    scale: float

    def added_to(self, weight: np.ndarray, *, transposed: bool) -> np.ndarray:
        """The updated weight, float32; `transposed` if the weight is [in, out]."""
        product = self.b.astype(np.float32) @ self.a.astype(np.float32)
        product *= np.float32(self.scale)
        product += (weight.T if transposed else weight).astype(np.float32)
        return product.T if transposed else product


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A checked adapter.

    Attributes:
        weights: its file, named in errors.
        base_model: the model that its config names, which is not checked.
        deltas: by module of the base model.
        base_tensors: the base model's tensors that the file has, by their names. As in PEFT, they
            replace those of the checkpoint before the deltas are added.
    """

    weights: Path
    base_model: str | None
    deltas: Mapping[str, Delta]
    base_tensors: Mapping[str, np.ndarray]


def read(folder: Path) -> Adapter:
    """Read the adapter of a folder that PEFT's `save_pretrained` wrote.

    Raises:
        InputError: files that are missing or damaged, a setting or tensor that is not handled.
    """
    where = folder / CONFIG
    if not folder.is_dir():
        raise InputError(f"adapter {folder}: no such folder; expected one with {CONFIG}")
    if not where.exists():
        raise InputError(f"adapter {folder}: holds no {CONFIG}; give a folder that PEFT has saved")
    config = read_json(where)
    if not isinstance(config, dict):
        raise InputError(f"{where}: expected an object, found {type(config).__name__}")
    _check_config(config, where)
    weights = folder / WEIGHTS
    if not weights.exists() and (pickled := sorted(folder.glob("adapter_model.*"))):
        raise InputError(f"{pickled[0]}: is not read; save the adapter again, as {WEIGHTS}")
    halves: dict[str, dict[str, np.ndarray]] = {}
    base_tensors: dict[str, np.ndarray] = {}
    tensors = map_file(weights)
    if not tensors:
        raise InputError(f"{weights}: holds no tensors")
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
        module: _delta(module, found, config, where, weights, deadline)
        for module, found in halves.items()
    }
    base = config.get("base_model_name_or_path")
    base_model = one_line(base) if isinstance(base, str) else None
    return Adapter(weights, base_model, deltas, base_tensors)


def merged(
    tensors: Tensors, adapter: Adapter, model_type: str, bare: Callable[[str], str]
) -> Tensors:
    """The tensors with the adapter merged in at each look-up.

    Args:
        model_type: of the config.
        bare: a tensor's name without what checkpoint and adapter may spell differently.

    Raises:
        InputError: a module of the adapter that no tensor of the model matches.
    """

    stored = {bare(name): name for name in tensors.stored}
    deltas: dict[str, tuple[Delta, bool]] = {}
    for module, delta in adapter.deltas.items():
        name = stored.get(bare(f"{module}.weight"))
        if SHARED.get(model_type, " ") in module:
            raise InputError(
                f"{adapter.weights}: module {module} is of a block that several layers share, and "
                "the adapter is for one of them; train one of the layers' own modules"
            )
        if name is None and module.rpartition(".")[2] == "lm_head":
            raise InputError(
                f"{adapter.weights}: module {module} is adapted, and the model has no such tensor, "
                "since its LM head is the embedding; save the model with tie_word_embeddings false "
                "and both tensors, or adapt other modules"
            )
        if name is None:
            raise InputError(
                f"{adapter.weights}: module {module} is none of the model's, which has "
                f"{', '.join(sorted(tensors.stored)[:3])} ...; the adapter was made for "
                f"{adapter.base_model or 'an unnamed model'}"
            )
        if name in deltas:
            raise InputError(f"{adapter.weights}: module {module} is there under two names")
        transposed = module.rpartition(".")[2] in CONV1D.get(model_type, ())
        found = tensors.stored[name].shape
        wanted = (delta.b.shape[0], delta.a.shape[1])
        if found != (wanted[::-1] if transposed else wanted):
            raise InputError(
                f"{adapter.weights}: module {module} is for a weight of shape {list(wanted)}; "
                f"tensor {name} of the model has {list(found)}"
                f"{', which is [in, out]' if transposed else ''}"
            )
        check_float(tensors.where[name], name, tensors.stored[name])
        deltas[name] = delta, transposed
    replaced = {}
    for own_name, array in adapter.base_tensors.items():
        name = stored.get(bare(own_name))
        if name is None or tensors.stored[name].shape != array.shape:
            shape = "no such tensor" if name is None else list(tensors.stored[name].shape)
            raise InputError(
                f"{adapter.weights}: the original {own_name} of the adapted module has shape "
                f"{list(array.shape)}; the model has {shape}"
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
    """Require every setting to be read, inert, or at a value that is handled."""
    for name, value in sorted(config.items()):
        if name in ONLY:
            # `in` takes 1 for True
            good = any(type(value) is type(known) and value == known for known in ONLY[name])
        else:
            good = name in READ | INERT or value is None or value is False or value in ({}, [])
        if not good:
            raise InputError(
                f"{where}: {name} is {value!r}, which is not handled"
                + (f"; handled are {', '.join(map(repr, ONLY[name]))}" if name in ONLY else "")
                + "; merge this adapter with PEFT itself"
            )
    if "peft_type" not in config:
        raise InputError(f"{where}: has no peft_type, expected 'LORA'")
    if type(config.get("use_rslora", False)) is not bool:
        raise InputError(f"{where}: use_rslora is {config['use_rslora']!r}, expected true or false")
    _positive(config.get("r"), "r", where, whole=True)
    _positive(config.get("lora_alpha"), "lora_alpha", where)
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(name) or {}
        if not isinstance(patterns, dict):
            raise InputError(f"{where}: {name} is {patterns!r}, expected an object")
        for pattern, value in patterns.items():
            _positive(value, f"{name} of {pattern!r}", where, whole=name == "rank_pattern")
            try:
                with (
                    warnings.catch_warnings()
                ):  # of nested sets, which do not concern this checkpoint
                    warnings.simplefilter("ignore")
                    re.compile(_at_end(pattern))  # what PEFT takes
                    regex.compile(_at_end(pattern))
            except (re.error, regex.error, OverflowError, RecursionError) as problem:
                raise InputError(
                    f"{where}: {name}: {pattern!r} is no pattern ({problem})"
                ) from None


def _positive(value: Any, name: str, where: Path, *, whole: bool = False) -> None:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{where}: {name} is {value!r}, expected {kind} above 0")


def _delta(
    module: str,
    found: dict[str, np.ndarray],
    config: dict[str, Any],
    where: Path,
    weights: Path,
    deadline: float,
) -> Delta:
    if set(found) != {"A", "B"}:
        raise InputError(f"{weights}: module {module} has lora_{next(iter(found))} alone")
    a, b = found["A"], found["B"]
    rank = _own(config.get("rank_pattern"), module, config["r"], where, deadline)
    alpha = _own(config.get("alpha_pattern"), module, config["lora_alpha"], where, deadline)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != rank or b.shape[1] != rank:
        raise InputError(
            f"{weights}: module {module} has lora_A {list(a.shape)} and lora_B {list(b.shape)}, "
            f"expected [{rank}, in] and [out, {rank}], since its rank is {rank} in {where.name}"
        )
    if alpha > MOST_SCALE * rank:
        raise InputError(f"{where}: lora_alpha of module {module} is {alpha}, and its rank {rank}")
    return Delta(a, b, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _own(
    patterns: dict[str, Any] | None, module: str, default: Any, where: Path, deadline: float
) -> Any:
    """Value of the first pattern that matches the end of a module's name, as in PEFT."""
    for pattern, value in (patterns or {}).items():
        try:
            left = max(0.001, deadline - time.monotonic())
            if regex.match(_at_end(pattern), module, timeout=left):
                return value
        except TimeoutError:
            raise InputError(
                f"{where}: patterns take more than {PATTERN_SECONDS:g} s, {pattern!r} for module "
                f"{module} too; write it without repeats in repeats"
            ) from None
    return default


def _at_end(pattern: str) -> str:
    return rf"(.*\.)?({pattern})$"
