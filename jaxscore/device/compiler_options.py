"""What programs ask of XLA."""

import jax


def same_bits() -> dict[str, bool]:
    """Compiler options with which a program gives equal inputs equal bits in every run.

    On a GPU XLA otherwise times several kernels and takes the fastest, and some of them add up
    in the order in which threads come along. A CPU and a TPU need no option.
    """
    return {"xla_gpu_deterministic_ops": True} if jax.default_backend() == "gpu" else {}
