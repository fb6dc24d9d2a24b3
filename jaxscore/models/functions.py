"""Any JAX model as a `Model`, from a function for its hidden states and one for its LM head.

without the interval mask   each row is one text, padded at the end, which causality hides
with the interval mask      packed tries: text that requests share is computed once

Such a model does not have a KV cache. In generation the token ids take the place of keys, and each
step computes the whole text again.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding
from jaxtyping import Int

from jaxscore.device import jax_settings
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.backends import BACKENDS, Backend, current_platform
from jaxscore.device.decoder import KeysValues
from jaxscore.device.dots import compute_dtype, to_storage
from jaxscore.device.lm_head.token_scores import weight_and_bias
from jaxscore.device.rows import Unembedding
from jaxscore.device.sharding import REPLICATED, DeviceMesh
from jaxscore.errors import InputError
from jaxscore.models.model import Cached, Devices, MeshChoice, Model, ModelFunctions
from jaxscore.models.model_types import Implementation
from jaxscore.models.weights.array_tensors import abstract_array, copied_to, copied_tree
from jaxscore.plan.row_batches import row_lengths

PROBE = 8  # tokens in the row that shapes are checked with
FLOATS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Functions:
    """A causal language model as pure functions; see `Scorer.from_function`.

    Attributes:
        hidden_states: function (params, ids [R, L]) -> [R, L, D]; with `takes_mask` (params, ids,
            positions [R, L], mask [R, L, L]) -> [R, L, D].
        unembed: function params -> weight [V, D], or a pair of weight and bias [V].
        takes_mask: see `hidden_states`.
        scale, softcap: scale and soft cap of the logits, see `Unembedding`.
    """

    hidden_states: Callable[..., jax.Array]
    unembed: Callable[[Any], Any]
    takes_mask: bool = False
    scale: float = 1.0
    softcap: float | None = None


def build(
    functions: Functions,
    params: Any,
    *,
    vocab_size: int,
    max_positions: int,
    name: str = "function",
    mesh_choice: MeshChoice | None = None,
    implementation: Implementation = "function",
    is_owned: bool = False,
) -> Model:
    """Return a model that runs functions, with a copy of the parameters on each device.

    The functions are traced with the JAX semantics (`jax_settings`) of the caller.

    Args:
        params: tree of NumPy or JAX arrays.
        name: the name of the model in reports.
        is_owned: if True, `params` have no other owner, so they are not copied on their device.

    Raises:
        InputError: parameters that are not arrays, functions that return unexpected shapes, or a
            mesh that splits the model.
    """
    if vocab_size < 1 or max_positions < 1:
        raise InputError(
            f"vocab_size is {vocab_size} and max_positions {max_positions}, expected at least 1"
        )
    mesh = None if mesh_choice is None else mesh_choice(None, None)
    if mesh is not None and (mesh.shape.model > 1 or mesh.shape.fsdp):
        raise InputError(
            f"mesh {mesh.shape}: only our own decoder is split over devices; give data=N"
        )
    placed = {"model": _placed(params, mesh, is_owned)}
    width, dtype = _check(functions, placed["model"], vocab_size, max_positions)
    like = jax.tree.map(abstract_array, placed["model"])
    precision = "highest" if dtype == "float32" else "default"
    semantics = jax_settings.current_semantics() | {"default_matmul_precision": precision}
    forms = _Forms(functions, max_positions, BACKENDS[current_platform()], semantics)

    def copy_values(values: Any) -> Any:
        with jax_settings.applied(semantics):
            return {"model": copied_tree(values, like)}

    return Model(
        functions=ModelFunctions(
            forms.hidden_states,
            forms.unembedding,
            Cached(forms.extend, _empty_cache, saves_work=False),
        ),
        params=placed,
        vocab_size=vocab_size,
        max_positions=max_positions,
        width=width,
        shares_text=functions.takes_mask,
        implementation=implementation,
        dtype="float32" if dtype == "float32" else "bfloat16",
        model_type=name,
        devices=Devices(current_platform(), mesh),
        replace_params=copy_values,
    )


@dataclasses.dataclass(frozen=True)
class _Forms:
    """The functions with the signatures that a `Model` needs.

    Attributes:
        semantics: JAX settings with which the functions are traced: those of the caller, and the
            matmul precision, since by default a GPU computes float32 in TF32 and a TPU in
            bfloat16.
    """

    functions: Functions
    max_positions: int
    backend: Backend
    semantics: dict[str, Any]

    def hidden_states(self, params: Any, ids: Any, position: Any, subtree_end: Any) -> jax.Array:
        if self.functions.takes_mask:
            return self._run(params, ids, position, interval_mask(subtree_end))
        # A row may be longer than the model's tables; the excess is padding.
        in_range = ids[:, : self.max_positions]
        states = self._run(params, in_range)
        return jnp.pad(states, ((0, 0), (0, ids.shape[1] - in_range.shape[1]), (0, 0)))

    def _run(self, params: Any, *inputs: Any) -> jax.Array:
        with jax_settings.applied(self.semantics):
            return self.functions.hidden_states(params["model"], *inputs).astype(jnp.float32)

    def extend(
        self, params: Any, ids: Any, position: Any, end: Any, caches: Any, paths: Any = None,
        kept: Any = None,
    ) -> Any:  # fmt: skip
        """Implement `decoder.extend`, with hidden states only for rows of one token (steps)."""
        key = ids[None, :, None, :, None]
        new_cache = KeysValues(key, key)
        if ids.shape[1] > 1:
            return jnp.zeros((*ids.shape, 0)), new_cache
        text = ids_of_caches(ids, position, caches, self.max_positions)
        end = jnp.full(text.shape, text.shape[1], jnp.int32)
        at = jnp.broadcast_to(jnp.arange(text.shape[1], dtype=jnp.int32), text.shape)
        states = self.hidden_states(params, text, at, end)
        return jnp.take_along_axis(states, position[..., None], axis=1), new_cache

    def unembedding(self, params: Any) -> Unembedding:
        functions = self.functions
        with jax_settings.applied(self.semantics):
            weight, bias = weight_and_bias(functions.unembed(params["model"]))
        if bias is not None:
            bias = bias.astype(jnp.float32)
        weight = to_storage(weight, self.backend.integers)
        return Unembedding(weight, bias, functions.scale, functions.softcap, backend=self.backend)


def _empty_cache(rows: int, slots: int) -> KeysValues:
    return KeysValues(*jnp.zeros((2, 1, rows, 1, slots, 1), jnp.int32))


def ids_of_caches(
    ids: Int[Array, "R 1"],
    position: Int[Array, "R 1"],
    caches: tuple[KVCache, ...],
    max_positions: int,
) -> Int[Array, "R L"]:
    """Return each row's text by position, padded at its end.

    The text consists of the ids in the caches and the token `ids` after them.
    """
    n_slots = sum(cache.key.shape[3] for cache in caches)
    # Use the row lengths of scoring, since the functions may be compiled for these.
    length = next(n for n in row_lengths(max_positions) if n >= min(n_slots + 1, max_positions))
    row = jnp.arange(len(ids))[:, None]
    text = jnp.zeros((len(ids), length), jnp.int32)
    for cache in caches:
        slot = jnp.arange(cache.key.shape[3])
        at = jnp.reshape(cache.first, (-1, 1)) + slot
        at = jnp.where(slot < cache.length[:, None], at, length)  # out of range is dropped
        text = text.at[row, at].set(cache.key[0, :, 0, :, 0], mode="drop")
    return text.at[row, position].set(ids, mode="drop")


def interval_mask(subtree_end: jax.Array) -> jax.Array:
    """Return the mask [R, L, L] that is True if token i of a row attends to token j.

    Args:
        subtree_end: the end of each token's subtree, [R, L].
    """
    at = jnp.arange(subtree_end.shape[1])
    return (at[None, :] <= at[:, None]) & (at[:, None] < subtree_end[:, None, :])


def _placed(params: Any, mesh: DeviceMesh | None, is_owned: bool) -> Any:
    """Return the parameters, replicated on each device."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not isinstance(leaf, np.ndarray | jax.Array):
            raise InputError(
                f"params: {jax.tree_util.keystr(path)} is {type(leaf).__name__}, expected an "
                "array; separate the arrays from the rest, as flax.nnx.split and "
                "equinox.partition do"
            )
    sharding: Sharding = SingleDeviceSharding(jax.devices()[0])
    if mesh is not None:
        sharding = NamedSharding(mesh.mesh, REPLICATED)
    if is_owned:
        return jax.device_put(params, sharding)
    return jax.tree.map(lambda leaf: copied_to(leaf, sharding), params)


def _check(
    functions: Functions, params: Any, vocab_size: int, max_positions: int
) -> tuple[int, str]:
    """Return the width of the hidden states and the dtype of the LM head.

    The functions are evaluated abstractly.

    Raises:
        InputError: they return unexpected shapes or dtypes.
    """
    length = min(PROBE, max_positions)
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    mask_inputs = (
        [ids, jax.ShapeDtypeStruct((1, length, length), bool)] if functions.takes_mask else []
    )
    hidden = jax.eval_shape(functions.hidden_states, params, ids, *mask_inputs)
    if not hasattr(hidden, "shape"):
        raise InputError(f"hidden_states gives {type(hidden).__name__}, expected one array")
    try:
        weight, bias = weight_and_bias(jax.eval_shape(functions.unembed, params))
    except ValueError as error:
        raise InputError(str(error)) from None
    expected = f"[{vocab_size}, width], one row per token id"
    if len(weight.shape) != 2 or weight.shape[0] != vocab_size:
        raise InputError(f"unembed gives {list(weight.shape)}, expected {expected}")
    if bias is not None and bias.shape != (vocab_size,):
        raise InputError(f"unembed gives a bias of {list(bias.shape)}, expected [{vocab_size}]")
    if hidden.shape != (1, length, weight.shape[1]):
        raise InputError(
            f"hidden_states gives {list(hidden.shape)} for ids [1, {length}], expected "
            f"[1, {length}, {weight.shape[1]}]: the states after the last norm, before the LM head"
        )
    if (name := compute_dtype(weight).name) not in FLOATS:
        raise InputError(f"unembed gives {name}, expected {' or '.join(FLOATS)}")
    return weight.shape[1], name
