"""Metadata of a GGUF file as attributes of a config; unread keys are refused."""

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile
from jaxscore.models.weights.gguf.layouts import Heads, Recurrent

T = TypeVar("T")
MAX_SIZE = 1 << 24  # largest width, length, or number of heads or layers
VOCABULARY = "tokenizer.ggml."
ROPE_FACTORS = "rope_freqs.weight"
# Parameters of Llama 3's frequencies, which converters store as one factor per frequency
LOW_FREQUENCY, ORIGINAL_LENGTH = 1.0, 8192
HIGH_FREQUENCIES = (4.0, 1.0)  # 1.0 is Llama 4 Scout, whose frequencies are not interpolated
TINY = 1e-12
INTEGERS = (bool, int, np.bool_, np.integer)
# Keys that do not affect scores
INERT = frozenset({"tensor_data_layout"})
# Tokens at which llama.cpp ends a text although no key names them, except for its separators of
# files and "</s>", which is an HTML tag in Gemma's vocabularies
ENDS_OF_TEXTS = frozenset(
    "<end_of_turn> <turn|> <|tool_response> <|eot_id|> <|eom_id|> <|im_end|> <|end|> <|return|> "
    "<|call|> <|calls|> <|flush|> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT] [EOS] <eos> "
    "<end_of_utterance> [e~[ <\uff5cend\u2581of\u2581sentence\uff5c>".split()
)
# <|end|> ends a message, not the answer, if the vocabulary has tokens for calls and for the end of
# an answer (gpt-oss, solar-open).
END_OF_MESSAGE, ENDS_OF_ANSWERS = "<|end|>", frozenset(("<|return|>", "<|flush|>"))
CALLS = frozenset(("<|call|>", "<|calls|>"))
CONTROL, USER_DEFINED = 3, 4  # values of `tokenizer.ggml.token_type`


class Keys:
    """The metadata keys of a file's architecture; keys that nothing reads are an error.

    Attributes:
        file: the file that has the keys.
    """

    # Over 250 lines: every method records the keys that it reads, so that the rest can be refused.

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._prefix = f"{file.architecture}."
        self._read: set[str] = set(INERT)

    def get(self, name: str, value_type: type[T], default: T | None = None) -> T:
        """Return the value of a key, without the architecture's prefix.

        Args:
            value_type: int, float (also accepts a whole number), bool or str.
            default: the value if the key is missing; None if it is required.

        Raises:
            InputError: the key is missing without a default, or the value has another type.
        """
        value = self.optional(name, value_type)
        if value is not None:
            return value
        if default is None:
            raise InputError(
                f"{self.file.path}: key {self._prefix}{name} is missing; the model is incomplete"
            )
        return default

    def optional(self, name: str, value_type: type[T]) -> T | None:
        """Return the value of a key, or None if it is missing; see `get`."""
        self._read.add(name)
        value = self.file.metadata.get(self._prefix + name)
        if value_type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if value is not None and (
            not isinstance(value, value_type)
            or (isinstance(value, bool) and value_type is not bool)
            or (isinstance(value, float) and not math.isfinite(value))
        ):
            raise InputError(
                f"{self.file.path}: key {self._prefix}{name} is {_describe(value)}, expected "
                f"a value of type {value_type.__name__}"
            )
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 1 to `MAX_SIZE`.

        Raises:
            InputError: see `get`; or the number is out of range.
        """
        value = self.get(name, int, default)
        if not 1 <= value <= MAX_SIZE:
            raise InputError(
                f"{self.file.path}: key {self._prefix}{name} is {value}, expected 1 to {MAX_SIZE:,}"
            )
        return value

    def single_precision(self, name: str, default: float | None = None) -> float:
        """Return a float32 as its shortest decimal: 1e-5, not 9.999999747378752e-06."""
        return float(np.format_float_positional(np.float32(self.get(name, float, default))))

    def has(self, tensor: str) -> bool:
        """Return True if the file has a tensor."""
        return tensor in self.file.tensors

    def check_all_read(self) -> None:
        """Refuse keys of the architecture that were not read.

        Raises:
            InputError: naming them with their values.
        """
        unread = {
            key.removeprefix(self._prefix): value
            for key, value in self.file.metadata.items()
            if key.startswith(self._prefix) and key.removeprefix(self._prefix) not in self._read
        }
        if unread:
            named = ", ".join(f"{name}={_describe(value)}" for name, value in unread.items())
            raise InputError(
                f"{self.file.path}: keys that are not handled for architecture "
                f"{self.file.architecture!r}: {named}"
            )

    def common_attributes(self) -> dict[str, Any]:
        """Return the attributes that all architectures have.

        Raises:
            InputError: the vocabulary and the embedding have different sizes.
        """
        rows = self.embedding_rows()
        tokens = self._list("tokens")
        if any(self.get(name, int, 0) for name in ("expert_count", "expert_used_count")):
            self.size("expert_count")  # checks it in mixtures; dense files may have 0
        self._refuse_no_rotary()
        self.heads()
        if self.get("vocab_size", int, rows) != rows or len(tokens) > rows:
            raise InputError(
                f"{self.file.path}: the embedding has {rows:,} rows, the vocabulary "
                f"{len(tokens):,} tokens, and the key vocab_size is "
                f"{self.get('vocab_size', int, rows):,}"
            )
        return {
            "vocab_size": rows,
            "tie_word_embeddings": not self.has("output.weight"),
            **self._special_ids(),
        }

    def n_layers(self) -> int:
        """Return the number of layers, without multi-token-prediction layers.

        Raises:
            InputError: the last layer's tensors are missing.
        """
        n = self.size("block_count")
        further = self.get("nextn_predict_layers", int, 0)
        if not 0 <= further < n:
            raise InputError(
                f"{self.file.path}: nextn_predict_layers is {further} of {n} layers in block_count"
            )
        n -= further
        start = f"blk.{n - 1}."
        if not any(name.startswith(start) for name in self.file.tensors):
            raise InputError(
                f"{self.file.path}: block_count is {n}, but the tensors of layer {n} are missing"
            )
        return n

    def is_mtp(self, tensor: str) -> bool:
        """Return True if a tensor belongs to a multi-token-prediction layer."""
        _, _, rest = tensor.partition("blk.")
        layer = rest.partition(".")[0]
        n = self.size("block_count")
        return layer.isdecimal() and n - self.get("nextn_predict_layers", int, 0) <= int(layer) < n

    def heads(self) -> Heads:
        """Return the numbers of heads; if layers differ, key heads of the first attention layer."""
        queries = self.get("attention.head_count", int)
        if queries == 0 and not self.layers_have("attn_q.weight"):
            queries = 1  # a model without attention
        else:
            queries = self.size("attention.head_count")
        name = "attention.head_count_kv"
        keys = self.numbers(name, self.size("block_count"))
        listed = [n for n in keys if n] if isinstance(keys, list) else [self.size(name, queries)]
        recurrent = None
        is_mamba = self.layers_have("ssm_x.weight")  # Mamba-1 is without heads
        if self.layers_have("ssm_conv1d.weight") and not is_mamba:
            groups, values = self.size("ssm.group_count"), self.size("ssm.time_step_rank")
            if values % groups:
                raise InputError(
                    f"{self.file.path}: ssm.time_step_rank {values} is not a multiple of "
                    f"ssm.group_count {groups}"
                )
            recurrent = Recurrent(groups, groups * self.size("ssm.state_size"), values)
        return Heads(queries, listed[0] if listed else queries, recurrent)

    def is_sigmoid(self) -> bool:
        """Return True if a router's scores are sigmoids."""
        return self.get("expert_gating_func", int, 1) == 2

    def layers_have(self, tensor_name: str) -> bool:
        """Return True if any layer has a tensor, such as `attn_q.bias`."""
        return any(self.has(f"blk.{layer}.{tensor_name}") for layer in range(self.n_layers()))

    def ignore(self, names: Iterable[str]) -> None:
        """Record keys as read."""
        self._read |= set(names)

    def numbers(self, name: str, n: int) -> int | list[int] | None:
        """Return a whole number or a list of n, or None if the key is missing.

        Raises:
            InputError: the value is something else.
        """
        self._read.add(name)
        value = self.file.metadata.get(self._prefix + name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            number: int | None = value
            return number
        listed = [int(entry) for entry in value] if _is_list_of(value, n, INTEGERS) else []
        if not listed or min(listed) < 0 or max(listed) > MAX_SIZE:
            raise InputError(
                f"{self.file.path}: key {self._prefix}{name} is {_describe(value)}, expected a "
                f"whole number or {n} of at most {MAX_SIZE:,}"
            )
        return listed

    def per_layer(self, name: str) -> list[int]:
        """Return a whole number for each layer; the file may have one for all layers.

        Raises:
            InputError: the key is missing, or the value is something else.
        """
        n = self.n_layers()
        value = self.numbers(name, n)
        return value if isinstance(value, list) else [self.size(name)] * n

    def reals(self, key: str, n: int) -> list[float]:
        """Return a number for each of n layers, by a complete key.

        Raises:
            InputError: the key is missing, or the value is something else.
        """
        value = self.file.metadata.get(key)
        if isinstance(value, float):
            return [value] * n
        if value is None or not _is_list_of(value, n, (float, np.floating)):
            raise InputError(
                f"{self.file.path}: key {key} is {_describe(value)}, expected {n} numbers"
            )
        return [float(entry) for entry in value]

    def head_width(self) -> int:
        """Return the width of a head.

        Raises:
            InputError: keys and values have different widths.
        """
        heads = self.size("attention.head_count")
        width = self.size("attention.key_length", self.size("embedding_length") // heads)
        value = self.size("attention.value_length", width)
        if value != width:
            raise InputError(
                f"{self.file.path}: heads have keys of {width} and values of {value} channels, "
                "expected equal widths"
            )
        return width

    def check_full_rotary(self) -> None:
        """Require that all channels of a head are rotary.

        Raises:
            InputError: some channels are non-rotary.
        """
        width = self.head_width()
        if (n_rotary := self.get("rope.dimension_count", int, width)) != width:
            raise InputError(
                f"{self.file.path}: rope.dimension_count is {n_rotary}, expected {width}, the "
                "width of a head"
            )

    def rope(self, theta: float = 10_000.0, mscale: int | None = None) -> dict[str, Any]:
        """Return `rope_parameters`.

        Args:
            theta: the base of the frequencies if the file has none.
            mscale: the factor from `yarn_log_multiplier` to `mscale_all_dim`; `mscale` is equal in
                all published models. None if the family has neither.

        Raises:
            InputError: the scaling is not supported.
        """
        base = {"rope_theta": self.single_precision("rope.freq_base", theta)}
        factor = self.single_precision("rope.scaling.factor", 0.0) or 1.0
        # llama.cpp takes a factor without a type as linear
        scaling_type = self.get("rope.scaling.type", str, "none" if factor == 1 else "linear")
        length = self.optional("rope.scaling.original_context_length", int)
        if self.has(ROPE_FACTORS):
            if scaling_type != "none":
                raise InputError(
                    f"{self.file.path}: has {ROPE_FACTORS} and rope.scaling.type {scaling_type}"
                )
            return base | self._llama3()
        if scaling_type == "none" or (scaling_type == "linear" and factor == 1):
            return {"rope_type": "default", **base}
        if scaling_type == "linear":
            return {"rope_type": "linear", "factor": factor, **base}
        if scaling_type == "yarn" and length is not None:
            parameters = {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": length,
                **base,
            }
            # llama.cpp multiplies YaRN's attention factor by attn_factor.
            for key in ("attn_factor", "yarn_ext_factor"):
                if (other := self.get(f"rope.scaling.{key}", float, 1.0)) != 1:
                    raise InputError(f"{self.file.path}: rope.scaling.{key} is {other}, expected 1")
            for name in ("beta_fast", "beta_slow"):
                if self.optional(f"rope.scaling.yarn_{name}", float) is not None:
                    parameters[name] = self.single_precision(f"rope.scaling.yarn_{name}")
            self._check_attention_factor(factor)
            if mscale and (log := self.single_precision("rope.scaling.yarn_log_multiplier", 0.0)):
                both = float(mscale * Decimal(repr(log)))
                parameters |= {"mscale": both, "mscale_all_dim": both}
            return parameters
        raise InputError(f"{self.file.path}: rope.scaling.type {scaling_type!r} is not supported")

    def _check_attention_factor(self, factor: float) -> None:
        """Require YaRN's default attention factor, or its inverse.

        Converters write the config's attention_factor, or an attn_factor that transformers ignores,
        under one key, which llama.cpp does not read. The inverse is such an attn_factor, used by
        DeepSeek-R1-0528-Qwen3-8B; it would cancel YaRN's factor.

        Raises:
            InputError: the file has another factor.
        """
        name, usual = "rope.scaling.yarn_attn_factor", 1 + 0.1 * math.log(max(factor, 1))
        value = self.get(name, float, usual)
        if not any(math.isclose(value, valid, rel_tol=1e-6) for valid in (usual, 1 / usual)):
            raise InputError(
                f"{self.file.path}: {name} is {value:.7g}, expected {usual:.7g}, the factor of YaRN"
            )

    def _llama3(self) -> dict[str, Any]:
        """Return the parameters of Llama 3's rotary frequencies that give the stored factors.

        Raises:
            InputError: no parameters of Llama 3 give these factors.
        """
        from jaxscore.models.weights.gguf.layouts import values_of

        factors = values_of(self.file, ROPE_FACTORS)
        width = self.head_width()
        theta = self.single_precision("rope.freq_base", 10_000.0)
        if factors.shape != (width // 2,) or not np.isfinite(factors).all() or factors.min() < 1:
            raise InputError(
                f"{self.file.path}: {ROPE_FACTORS} has shape {list(factors.shape)} or factors "
                f"below 1, expected {width // 2} of at least 1"
            )
        largest = float(factors.max())
        wavelengths = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)
        rotations = ORIGINAL_LENGTH / wavelengths
        for high in HIGH_FREQUENCIES:
            span = max(high - LOW_FREQUENCY, TINY)
            share = np.clip((rotations - LOW_FREQUENCY) / span, 0.0, 1.0)  # 1 for high frequencies
            if np.allclose(factors, 1 / ((1 - share) / largest + share), rtol=1e-6, atol=0):
                return {
                    "rope_type": "llama3",
                    "factor": float(np.format_float_positional(np.float32(largest))),
                    "low_freq_factor": LOW_FREQUENCY,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": ORIGINAL_LENGTH,
                }
        raise InputError(
            f"{self.file.path}: {ROPE_FACTORS} has factors other than those of Llama 3 (largest "
            f"{largest:.6g}), which are not supported"
        )

    def embedding_rows(self) -> int:
        """Return the number of rows of the embedding, the size of the vocabulary."""
        name = "token_embd.weight"
        if not self.has(name):
            raise InputError(f"{self.file.path}: tensor {name} is missing; the model is incomplete")
        return self.file.tensors[name].shape[0]

    def _special_ids(self) -> dict[str, Any]:
        """Return the ids of special tokens; EOS ids include the other tokens that end texts."""
        roles = {"bos": "bos_token_id", "padding": "pad_token_id"}
        ids = {
            attribute: id
            for role, attribute in roles.items()
            if (id := self._token_id(role)) is not None
        }
        ends = [self._token_id(name) for name in ("eos", "eot", "eom")]
        types = self._list("token_type")
        others = {
            token: id
            for id, (token, token_type) in enumerate(zip(self._list("tokens"), types, strict=False))
            if token_type in (CONTROL, USER_DEFINED) and token in ENDS_OF_TEXTS
        }
        ends += others.values()
        if not (CALLS.isdisjoint(others) or ENDS_OF_ANSWERS.isdisjoint(others)):
            ends = [id for id in ends if id != others.get(END_OF_MESSAGE)]
        return ids | {"eos_token_id": list(dict.fromkeys(id for id in ends if id is not None))}

    def _token_id(self, role: str) -> int | None:
        id = self.file.metadata.get(f"{VOCABULARY}{role}_token_id")
        if id is not None and (not isinstance(id, int) or isinstance(id, bool)):
            raise InputError(
                f"{self.file.path}: {VOCABULARY}{role}_token_id is {_describe(id)}, expected the "
                "id of a token"
            )
        return id

    def _list(self, name: str) -> Any:
        values = self.file.metadata.get(f"{VOCABULARY}{name}", [])
        if not isinstance(values, list | np.ndarray):
            raise InputError(
                f"{self.file.path}: {VOCABULARY}{name} is {_describe(values)}, expected a list"
            )
        return values

    def _refuse_no_rotary(self) -> None:
        """Refuse granite without rotary positions, for which llama.cpp reads `finetuned`."""
        is_rotated = self.get("rope.scaling.finetuned", bool, True)
        if self.file.architecture in ("granite", "granitemoe") and not is_rotated:
            raise InputError(
                f"{self.file.path}: rope.scaling.finetuned is false; models without rotary "
                "positions are not supported for this architecture"
            )


def _is_list_of(value: Any, n: int, types: tuple[type, ...]) -> bool:
    return (
        isinstance(value, list | np.ndarray)
        and len(value) == n
        and all(isinstance(entry, types) for entry in value)
    )


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray | list):
        return f"an array of {len(value)}"
    return repr(value)[:60]
