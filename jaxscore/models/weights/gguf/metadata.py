"""Metadata of a GGUF file as attributes of a config, with an account of what was read."""

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile
from jaxscore.models.weights.gguf.layouts import Heads, Recurrent

T = TypeVar("T")
MOST = 1 << 24  # of a size: a width, a number of heads or layers, a length
VOCABULARY = "tokenizer.ggml."
ROPE_FACTORS = "rope_freqs.weight"
# Frequencies of llama 3, which converters store as one factor per frequency
LOW_FREQUENCY, ORIGINAL_LENGTH = 1.0, 8192
HIGH_FREQUENCIES = (4.0, 1.0)  # the second is of Llama 4 Scout, which blends none
TINY = 1e-12
WHOLE = (bool, int, np.bool_, np.integer)
# Keys of the model that decide no number
INERT = frozenset({"tensor_data_layout"})
# Texts of tokens at which llama.cpp ends a text though no key names them; not its tokens between
# parts of files, nor "</s>", a tag of HTML in vocabularies of Gemma
ENDS_OF_TEXTS = frozenset(
    "<end_of_turn> <turn|> <|tool_response> <|eot_id|> <|eom_id|> <|im_end|> <|end|> <|return|> "
    "<|call|> <|calls|> <|flush|> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT] [EOS] <eos> "
    "<end_of_utterance> [e~[ <\uff5cend\u2581of\u2581sentence\uff5c>".split()
)
# <|end|> ends a message, not the answer, if the vocabulary has a call and an end of the answer
# (gpt-oss, solar-open).
END_OF_MESSAGE, ENDS_OF_ANSWERS = "<|end|>", frozenset(("<|return|>", "<|flush|>"))
CALLS = frozenset(("<|call|>", "<|calls|>"))
CONTROL, USER_DEFINED = 3, 4  # of `tokenizer.ggml.token_type`


class Keys:
    """Reads the keys of a file's architecture; one that nothing reads is an error.

    Attributes:
        file: where they are from.
    """

    # Over 250 lines: every method notes which keys it has read, so that the rest can be refused.

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

    def of_all(self) -> dict[str, Any]:
        """Attributes that all architectures have.

        Raises:
            InputError: the vocabulary and the embedding are of different sizes.
        """
        rows = self.embedding_rows()
        tokens = self._list("tokens")
        if any(self.get(name, int, 0) for name in ("expert_count", "expert_used_count")):
            self.size("expert_count")  # of a mixture; dense files may say 0
        self._refuse_unrotated()
        self.heads()
        if self.get("vocab_size", int, rows) != rows or len(tokens) > rows:
            raise InputError(
                f"{self.file.path}: the embedding has {rows:,} rows, the vocabulary "
                f"{len(tokens):,} tokens and the key vocab_size says "
                f"{self.get('vocab_size', int, rows):,}"
            )
        return {
            "vocab_size": rows,
            "tie_word_embeddings": not self.has("output.weight"),
            **self._special_ids(),
        }

    def n_layers(self) -> int:
        """Number of layers, without those that predict further tokens.

        Raises:
            InputError: the last one has no tensors.
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
            raise InputError(f"{self.file.path}: block_count is {n}, and layer {n} has no tensors")
        return n

    def is_left_out(self, tensor: str) -> bool:
        """Whether a tensor is of a layer that predicts further tokens."""
        _, _, rest = tensor.partition("blk.")
        layer = rest.partition(".")[0]
        n = self.size("block_count")
        return layer.isdecimal() and n - self.get("nextn_predict_layers", int, 0) <= int(layer) < n

    def heads(self) -> Heads:
        """Numbers of heads; of key heads in the first attention layer if layers differ."""
        queries = self.get("attention.head_count", int)
        if queries == 0 and not self.layers_have("attn_q.weight"):
            queries = 1  # of a model without attention
        else:
            queries = self.size("attention.head_count")
        name = "attention.head_count_kv"
        keys = self.numbers(name, self.size("block_count"))
        listed = [n for n in keys if n] if isinstance(keys, list) else [self.size(name, queries)]
        recurrent = None
        is_mamba = self.layers_have("ssm_x.weight")  # Mamba-1 has no heads
        if self.layers_have("ssm_conv1d.weight") and not is_mamba:
            groups, values = self.size("ssm.group_count"), self.size("ssm.time_step_rank")
            if values % groups:
                raise InputError(
                    f"{self.file.path}: ssm.time_step_rank {values} is no multiple of "
                    f"ssm.group_count {groups}"
                )
            recurrent = Recurrent(groups, groups * self.size("ssm.state_size"), values)
        return Heads(queries, listed[0] if listed else queries, recurrent)

    def is_sigmoid(self) -> bool:
        """Whether a router's scores are sigmoids."""
        return self.get("expert_gating_func", int, 1) == 2

    def layers_have(self, part: str) -> bool:
        """Whether any layer has a tensor, such as `attn_q.bias`."""
        return any(self.has(f"blk.{layer}.{part}") for layer in range(self.n_layers()))

    def ignore(self, names: Iterable[str]) -> None:
        """Take keys as read."""
        self._read |= set(names)

    def numbers(self, name: str, n: int) -> int | list[int] | None:
        """A whole number, or a list of n; None if the key is missing.

        Raises:
            InputError: it is something else.
        """
        self._read.add(name)
        value = self.file.metadata.get(self._prefix + name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            found: int | None = value
            return found
        listed = [int(entry) for entry in value] if _is_list_of(value, n, WHOLE) else []
        if not listed or min(listed) < 0 or max(listed) > MOST:
            raise InputError(
                f"{self.file.path}: key {self._prefix}{name} is {_described(value)}, expected a "
                f"whole number or {n} of at most {MOST:,}"
            )
        return listed

    def per_layer(self, name: str) -> list[int]:
        """A whole number for each layer, such as a width that may be one for all.

        Raises:
            InputError: it is missing or something else.
        """
        n = self.n_layers()
        found = self.numbers(name, n)
        return found if isinstance(found, list) else [self.size(name)] * n

    def reals(self, key: str, n: int) -> list[float]:
        """A key's number, which is not under the architecture's name, for each of n layers.

        Raises:
            InputError: it is missing or something else.
        """
        value = self.file.metadata.get(key)
        if isinstance(value, float):
            return [value] * n
        if value is None or not _is_list_of(value, n, (float, np.floating)):
            raise InputError(
                f"{self.file.path}: key {key} is {_described(value)}, expected {n} numbers"
            )
        return [float(entry) for entry in value]

    def head_width(self) -> int:
        """Width of a head, of both keys and values.

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

    def rope(self, theta: float = 10_000.0, mscale: int | None = None) -> dict[str, Any]:
        """`rope_parameters`.

        Args:
            theta: base of the frequencies if the file does not say it.
            mscale: factor from `yarn_log_multiplier` to `mscale_all_dim`, to which all published
                models have an equal `mscale`; None if the family has neither.

        Raises:
            InputError: a kind of scaling that is not read.
        """
        base = {"rope_theta": self.single_precision("rope.freq_base", theta)}
        factor = self.single_precision("rope.scaling.factor", 0.0) or 1.0
        # As llama.cpp reads a factor without a type
        kind = self.get("rope.scaling.type", str, "none" if factor == 1 else "linear")
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
            for name in ("beta_fast", "beta_slow"):
                if self.optional(f"rope.scaling.yarn_{name}", float) is not None:
                    found[name] = self.single_precision(f"rope.scaling.yarn_{name}")
            self._check_attention_factor(factor)
            if mscale and (log := self.single_precision("rope.scaling.yarn_log_multiplier", 0.0)):
                both = float(mscale * Decimal(repr(log)))
                found |= {"mscale": both, "mscale_all_dim": both}
            return found
        raise InputError(f"{self.file.path}: rope.scaling.type {kind!r} is not read")

    def _check_attention_factor(self, factor: float) -> None:
        """Require YaRN's own factor of the logits' scale, or its inverse.

        Converters write the config's attention_factor, or an attn_factor that transformers ignores,
        under one key, which llama.cpp does not read. The inverse is such an attn_factor, of
        DeepSeek-R1-0528-Qwen3-8B: it would cancel YaRN's own.

        Raises:
            InputError: the file has another factor.
        """
        name, usual = "rope.scaling.yarn_attn_factor", 1 + 0.1 * math.log(max(factor, 1))
        found = self.get(name, float, usual)
        if not any(math.isclose(found, known, rel_tol=1e-6) for known in (usual, 1 / usual)):
            raise InputError(
                f"{self.file.path}: {name} is {found:.7g}, expected {usual:.7g}, the factor of YaRN"
            )

    def _llama3(self) -> dict[str, Any]:
        """Parameters of llama 3's rotary frequencies, from the factors that divide them.

        Raises:
            InputError: no parameters of llama 3 give these factors.
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
        turns = ORIGINAL_LENGTH / wavelengths
        for high in HIGH_FREQUENCIES:
            span = max(high - LOW_FREQUENCY, TINY)
            share = np.clip((turns - LOW_FREQUENCY) / span, 0.0, 1.0)  # 1 for high frequencies
            if np.allclose(factors, 1 / ((1 - share) / largest + share), rtol=1e-6, atol=0):
                return {
                    "rope_type": "llama3",
                    "factor": float(np.format_float_positional(np.float32(largest))),
                    "low_freq_factor": LOW_FREQUENCY,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": ORIGINAL_LENGTH,
                }
        raise InputError(
            f"{self.file.path}: {ROPE_FACTORS} has factors that are not those of llama 3 (largest "
            f"{largest:.6g}); they are not read"
        )

    def embedding_rows(self) -> int:
        """Size of the vocabulary."""
        name = "token_embd.weight"
        if not self.has(name):
            raise InputError(f"{self.file.path}: has no tensor {name}; it is no complete model")
        return self.file.tensors[name].shape[0]

    def _special_ids(self) -> dict[str, Any]:
        """Ids of special tokens; a text ends at the EOS and at the other ends of llama.cpp."""
        names = {"bos": "bos_token_id", "padding": "pad_token_id"}
        found = {
            theirs: id for ours, theirs in names.items() if (id := self._token_id(ours)) is not None
        }
        ends = [self._token_id(name) for name in ("eos", "eot", "eom")]
        types = self._list("token_type")
        others = {
            token: id
            for id, (token, kind) in enumerate(zip(self._list("tokens"), types, strict=False))
            if kind in (CONTROL, USER_DEFINED) and token in ENDS_OF_TEXTS
        }
        ends += others.values()
        if not (CALLS.isdisjoint(others) or ENDS_OF_ANSWERS.isdisjoint(others)):
            ends = [id for id in ends if id != others.get(END_OF_MESSAGE)]
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

    def _refuse_unrotated(self) -> None:
        """llama.cpp takes `rope.scaling.finetuned` of granite for whether there are rotations."""
        is_rotated = self.get("rope.scaling.finetuned", bool, True)
        if self.file.architecture in ("granite", "granitemoe") and not is_rotated:
            raise InputError(
                f"{self.file.path}: rope.scaling.finetuned is false, a model without rotary "
                "positions, which is not read"
            )


def _is_list_of(value: Any, n: int, kinds: tuple[type, ...]) -> bool:
    return (
        isinstance(value, list | np.ndarray)
        and len(value) == n
        and all(isinstance(entry, kinds) for entry in value)
    )


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray | list):
        return f"an array of {len(value)}"
    return repr(value)[:60]
