"""JAX settings of this package's programs, independent of those of the calling program.

A program that uses this package may set stricter types, 64-bit numbers, another random generator,
checks of each operation, or a mesh. Our programs are traced and run within contexts that restore
the settings they were written for, so that scores have the same bits under all of these. JAX's
contexts are local to a thread, so each function that traces or runs a program enters them itself.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax

# The meaning of a traced function. Names are those of JAX's contexts; its options have the prefix
# jax_.
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
# Checks of operations. Intermediate values are infinite on purpose, and a text whose scores are not
# finite is reported by name.
CHECKS = {
    "debug_nans": False,
    "debug_infs": False,
    "disable_jit": False,
    "no_tracing": False,
    "transfer_guard": "allow",
}
# Devices of arrays without a sharding. JAX sets a mesh outside of `jit` alone.
PLACEMENT = {"default_device": None, "set_mesh": None}


@contextlib.contextmanager
def applied(settings: Mapping[str, Any]) -> Iterator[None]:
    """Apply settings to this thread; usable as a decorator."""
    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(getattr(jax, name)(value))
        yield


# Contexts of this package's functions: those that run inside a caller's program, and all others.
inside_jit = functools.partial(applied, SEMANTICS | CHECKS)
isolated = functools.partial(applied, SEMANTICS | CHECKS | PLACEMENT)


def current_semantics() -> dict[str, Any]:
    """Return the calling thread's values of `SEMANTICS`."""
    return {name: getattr(jax.config, f"jax_{name}") for name in SEMANTICS}
