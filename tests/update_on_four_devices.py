"""Tensors sharded over a training mesh, for scorers of several meshes, never through the host."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxscore import Scorer
from tests import test_scorer_update as cases

assert jax.device_count() == 4
FOLDER = cases.QWEN2


def sharded(devices, factor=1.0):
    """The tensors, each split along its first axis that divides."""
    mesh = jax.make_mesh((len(devices),), ("fsdp",), devices=devices)  # its axes are explicit
    mesh = Mesh(np.array(devices), ("fsdp",)) if len(devices) < 4 else mesh

    def place(array):
        axes = [size % len(devices) == 0 for size in array.shape]
        spec = [None] * array.ndim
        if any(axes):
            spec[axes.index(True)] = "fsdp"
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))

    tensors = cases.tensors_of(FOLDER, factor=factor)
    return {name: place(array) for name, array in tensors.items()}


def forbid_host_copies():
    """Make each copy of a device array to the host fail; returns what undoes it."""
    kind = type(jax.numpy.zeros(1))
    before = {name: getattr(kind, name) for name in ("__array__", "_value")}

    def refused(*_):
        raise AssertionError("a device array is copied to the host")

    kind.__array__, kind._value = refused, property(refused)

    def undo():
        for name, value in before.items():
            setattr(kind, name, value)

    return undo


expected = cases.logprobs(Scorer.from_pretrained(str(FOLDER), dtype="float32"))
other = cases.logprobs(cases.in_memory(FOLDER, cases.tensors_of(FOLDER, factor=1.5)))
devices = jax.devices()
for source in (devices, devices[::-1], devices[2:]):
    for mesh in (None, "fsdp=2,model=2"):
        first, second = sharded(source), sharded(source, 1.5)
        undo = forbid_host_copies()
        try:
            with pytest.raises(AssertionError, match="is copied to the host"):
                np.asarray(first[cases.NORM])
            scorer = cases.in_memory(FOLDER, first, mesh=mesh)
        finally:
            undo()
        np.testing.assert_allclose(cases.logprobs(scorer), expected, atol=2e-5)
        undo = forbid_host_copies()
        try:
            scorer.update(second)
        finally:
            undo()
        np.testing.assert_allclose(cases.logprobs(scorer), other, atol=2e-5)
        if mesh is None:
            np.testing.assert_array_equal(cases.logprobs(scorer), other)
