"""JAX settings of this package's programs, independent of those of the calling program.

The calling program may set stricter type promotion, 64-bit numbers, another random generator,
checks of each operation, or a mesh. This package traces and runs its programs in contexts that
restore the settings they were written for, so that scores are bit-identical in all these cases.
JAX's contexts are thread-local, so each function that traces or runs a program enters them.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax

# Settings that change the result of a traced function. Keys are the names of JAX's contexts; the
# corresponding config options have the prefix jax_.
SEMANTICS = {
    "enable_x64": False,
    "numpy_dtype_promotion": "standard",
    "numpy_rank_promotion": "allow",
    "default_matmul_precision": None,
    "default_prng_impl": "threefry2x32",
    "threefry_partitionable": True,
    "legacy_prng_key": "allow",
    "debug_key_reuse": False,
}
# Debugging checks. Some intermediate values are infinite on purpose; texts with non-finite scores
# are reported by name.
CHECKS = {
    "debug_nans": False,
    "debug_infs": False,
    "disable_jit": False,
    "no_tracing": False,
    "transfer_guard": "allow",
}
# Devices of arrays without a sharding. JAX can set a mesh only outside `jit`.
PLACEMENT = {"default_device": None, "set_mesh": None}


@contextlib.contextmanager
def applied(settings: Mapping[str, Any]) -> Iterator[None]:
    """Apply settings to this thread; usable as a decorator."""
    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(getattr(jax, name)(value))
        yield


# Contexts for functions that run inside a caller's `jit`, and for all other functions.
inside_jit = functools.partial(applied, SEMANTICS | CHECKS)
isolated = functools.partial(applied, SEMANTICS | CHECKS | PLACEMENT)


def current_semantics() -> dict[str, Any]:
    """Return the calling thread's values of `SEMANTICS`."""
    return {name: getattr(jax.config, f"jax_{name}") for name in SEMANTICS}
