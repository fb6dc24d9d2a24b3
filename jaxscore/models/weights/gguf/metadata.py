"""Metadata of a GGUF file as attributes of a config, with an account of what was read."""

import math
from typing import Any, TypeVar

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile

T = TypeVar("T")
MOST = 1 << 24  # of a size: a width, a number of heads or layers, a length
VOCABULARY = "tokenizer.ggml."
ROPE_FACTORS = "rope_freqs.weight"
# Frequencies of llama 3, which converters store as one factor per frequency
LOW_FREQUENCY, HIGH_FREQUENCY, ORIGINAL_LENGTH = 1.0, 4.0, 8192
# Keys of the model that decide no number
INERT = frozenset({"tensor_data_layout"})
# Texts of tokens that end a turn, at which llama.cpp ends a text though no key names them
ENDS_OF_TURNS = frozenset(
    "<end_of_turn> <|eot_id|> <|eom_id|> <|im_end|> <|end|> <|return|> <|call|>".split()
)
CONTROL, USER_DEFINED = 3, 4  # of `tokenizer.ggml.token_type`


class Keys:
    """Reads the keys of a file's architecture; one that nothing reads is an error.

    Attributes:
        file: where they are from.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._prefix = f"{file.architecture}."
        self._read: set[str] = set(INERT)

    def get(self, name: str, kind: type[T], default: T | None = None) -> T:
        """A value under the architecture's name.

        Args:
            kind: int, float (which takes a whole number), bool or str.
            default: of a key that may be missing.

        Raises:
            InputError: it is missing and has no default, or is of another type.
        """
        value = self.optional(name, kind)
        if value is not None:
            return value
        if default is None:
            raise InputError(
                f"{self.file.path}: has no key {self._prefix}{name}; it is no complete model"
            )
        return default

    def optional(self, name: str, kind: type[T]) -> T | None:
        """The same for a key that may be missing: None then."""
        self._read.add(name)
        value = self.file.metadata.get(self._prefix + name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if value is not None and (
            not isinstance(value, kind)
            or (isinstance(value, bool) and kind is not bool)
            or (isinstance(value, float) and not math.isfinite(value))
        ):
            raise InputError(
                f"{self.file.path}: key {self._prefix}{name} is {_described(value)}, expected "
                f"a value of type {kind.__name__}"
            )
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number above 0, and of at most `MOST`.

        Raises:
            InputError: as `get`, or it is another number.
        """
        value = self.get(name, int, default)
        if not 1 <= value <= MOST:
            raise InputError(
                f"{self.file.path}: key {self._prefix}{name} is {value}, expected 1 to {MOST:,}"
            )
        return value

    def single_precision(self, name: str, default: float | None = None) -> float:
        """A float32 as the shortest decimal that gives it: 1e-5, not 9.999999747378752e-06."""
        return float(np.format_float_positional(np.float32(self.get(name, float, default))))

    def has(self, tensor: str) -> bool:
        """Whether the file has a tensor."""
        return tensor in self.file.tensors

    def check_all_read(self) -> None:
        """Refuse keys of the architecture that were not read.

        Raises:
            InputError: naming them with their values.
        """
        left = {
            key.removeprefix(self._prefix): value
            for key, value in self.file.metadata.items()
            if key.startswith(self._prefix) and key.removeprefix(self._prefix) not in self._read
        }
        if left:
            named = ", ".join(f"{name}={_described(value)}" for name, value in left.items())
            raise InputError(
                f"{self.file.path}: keys that are not handled for architecture "
                f"{self.file.architecture!r}: {named}"
            )

    def sizes(self) -> dict[str, Any]:
        """Attributes that all architectures have.

        Raises:
            InputError: the vocabulary and the embedding are of different sizes.
        """
        heads = self.size("attention.head_count")
        width = self.size("embedding_length")
        rows = self._embedding_rows()
        tokens = self._list("tokens")
        if any(self.get(name, int, 0) for name in ("expert_count", "expert_used_count")):
            self.size("expert_count")  # of a mixture; dense files may say 0
        self._refuse_unrotated()
        if self.get("vocab_size", int, rows) != rows or len(tokens) > rows:
            raise InputError(
                f"{self.file.path}: the embedding has {rows:,} rows, the vocabulary "
                f"{len(tokens):,} tokens and the key vocab_size says "
                f"{self.get('vocab_size', int, rows):,}"
            )
        return {
            "hidden_size": width,
            "num_hidden_layers": self._n_layers(),
            "intermediate_size": self.size("feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.size("attention.head_count_kv", heads),
            "max_position_embeddings": self.size("context_length"),
            "rms_norm_eps": self.single_precision("attention.layer_norm_rms_epsilon"),
            "vocab_size": rows,
            "tie_word_embeddings": not self.has("output.weight"),
            **self._special_ids(),
        }

    def head_width(self) -> int:
        """Width of a head, of keys and values alike.

        Raises:
            InputError: keys and values are of different widths.
        """
        heads = self.size("attention.head_count")
        width = self.size("attention.key_length", self.size("embedding_length") // heads)
        value = self.size("attention.value_length", width)
        if value != width:
            raise InputError(
                f"{self.file.path}: keys of {width} and values of {value} channels in a head are "
                "not read from GGUF"
            )
        return width

    def whole_rotary(self) -> None:
        """Require rotary positions of whole heads.

        Raises:
            InputError: they cover a part of a head.
        """
        width = self.head_width()
        if (turned := self.get("rope.dimension_count", int, width)) != width:
            raise InputError(
                f"{self.file.path}: rope.dimension_count is {turned}, expected {width}, the width "
                "of a head"
            )

    def rope(self, theta: float = 10_000.0) -> dict[str, Any]:
        """`rope_parameters`.

        Args:
            theta: base of the frequencies if the file does not say it.

        Raises:
            InputError: a kind of scaling that is not read.
        """
        base = {"rope_theta": self.single_precision("rope.freq_base", theta)}
        kind = self.get("rope.scaling.type", str, "none")
        factor = self.single_precision("rope.scaling.factor", 1.0)
        length = self.optional("rope.scaling.original_context_length", int)
        if self.has(ROPE_FACTORS):
            if kind != "none":
                raise InputError(
                    f"{self.file.path}: has {ROPE_FACTORS} and rope.scaling.type {kind}"
                )
            return base | self._llama3()
        if kind == "none" or (kind == "linear" and factor == 1):
            return {"rope_type": "default", **base}
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor, **base}
        if kind == "yarn" and length is not None:
            found = {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": length,
                **base,
            }
            # llama.cpp multiplies its own factor of the logarithm by attn_factor.
            for key in ("attn_factor", "yarn_ext_factor"):
                if (other := self.get(f"rope.scaling.{key}", float, 1.0)) != 1:
                    raise InputError(f"{self.file.path}: rope.scaling.{key} is {other}, expected 1")
            for name, key in (
                ("attention_factor", "yarn_attn_factor"),
                ("beta_fast", "yarn_beta_fast"),
                ("beta_slow", "yarn_beta_slow"),
            ):
                if self.optional(f"rope.scaling.{key}", float) is not None:
                    found[name] = self.single_precision(f"rope.scaling.{key}")
            return found
        raise InputError(f"{self.file.path}: rope.scaling.type {kind!r} is not read")

    def _llama3(self) -> dict[str, Any]:
        """Parameters of llama 3's rotary frequencies, from the factors that divide them.

        Raises:
            InputError: no parameters of llama 3 give these factors.
        """
        from jaxscore.models.weights.gguf.values import values_of

        factors = values_of(self.file, ROPE_FACTORS)
        width = self.head_width()
        theta = self.single_precision("rope.freq_base", 10_000.0)
        if factors.shape != (width // 2,) or not np.isfinite(factors).all() or factors.min() < 1:
            raise InputError(
                f"{self.file.path}: {ROPE_FACTORS} has shape {list(factors.shape)} or factors "
                f"below 1, expected {width // 2} of at least 1"
            )
        largest = float(factors.max())
        found = {
            "rope_type": "llama3",
            "factor": float(np.format_float_positional(np.float32(largest))),
            "low_freq_factor": LOW_FREQUENCY,
            "high_freq_factor": HIGH_FREQUENCY,
            "original_max_position_embeddings": ORIGINAL_LENGTH,
        }
        wavelengths = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)
        share = (ORIGINAL_LENGTH / wavelengths - LOW_FREQUENCY) / (HIGH_FREQUENCY - LOW_FREQUENCY)
        share = np.clip(share, 0.0, 1.0)  # 0 for low frequencies, 1 for high ones
        expected = 1 / ((1 - share) / largest + share)
        if not np.allclose(factors, expected, rtol=1e-6, atol=0):
            raise InputError(
                f"{self.file.path}: {ROPE_FACTORS} has factors that are not those of llama 3 "
                f"({found}); they are not read"
            )
        return found

    def _embedding_rows(self) -> int:
        name = "token_embd.weight"
        if not self.has(name):
            raise InputError(f"{self.file.path}: has no tensor {name}; it is no complete model")
        return self.file.tensors[name].shape[0]

    def _special_ids(self) -> dict[str, Any]:
        """Ids of special tokens; a text ends at the EOS and at the end of a turn."""
        names = {"bos": "bos_token_id", "padding": "pad_token_id"}
        found = {
            theirs: id for ours, theirs in names.items() if (id := self._token_id(ours)) is not None
        }
        ends = [self._token_id(name) for name in ("eos", "eot", "eom")]
        types = self._list("token_type")
        ends += [
            id
            for id, (token, kind) in enumerate(zip(self._list("tokens"), types, strict=False))
            if kind in (CONTROL, USER_DEFINED) and token in ENDS_OF_TURNS
        ]
        return found | {"eos_token_id": list(dict.fromkeys(id for id in ends if id is not None))}

    def _token_id(self, role: str) -> int | None:
        id = self.file.metadata.get(f"{VOCABULARY}{role}_token_id")
        if id is not None and (not isinstance(id, int) or isinstance(id, bool)):
            raise InputError(
                f"{self.file.path}: {VOCABULARY}{role}_token_id is {_described(id)}, expected the "
                "id of a token"
            )
        return id

    def _list(self, name: str) -> Any:
        found = self.file.metadata.get(f"{VOCABULARY}{name}", [])
        if not isinstance(found, list | np.ndarray):
            raise InputError(
                f"{self.file.path}: {VOCABULARY}{name} is {_described(found)}, expected a list"
            )
        return found

    def _n_layers(self) -> int:
        n = self.size("block_count")
        if not self.has(f"blk.{n - 1}.attn_norm.weight"):
            raise InputError(f"{self.file.path}: block_count is {n}, and layer {n} has no tensors")
        return n

    def _refuse_unrotated(self) -> None:
        """llama.cpp takes `rope.scaling.finetuned` of granite for whether there are rotations."""
        is_rotated = self.get("rope.scaling.finetuned", bool, True)
        if self.file.architecture == "granite" and not is_rotated:
            raise InputError(
                f"{self.file.path}: rope.scaling.finetuned is false, a model without rotary "
                "positions, which is not read"
            )


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray | list):
        return f"an array of {len(value)}"
    return repr(value)[:60]
