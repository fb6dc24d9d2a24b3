"""Parameters as they lie on the devices are those of the files, however they are read."""

import functools
import itertools
import os
import subprocess
import sys
import threading

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from safetensors.numpy import load_file, save_file

from jaxscore.errors import InputError
from jaxscore.models.weights import filling, params
from jaxscore.models.weights.filling import Leaf, device_arrays
from tests.conftest import with_devices
from tests.models.checkpoints import loaded

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HERE = SingleDeviceSharding(jax.devices("cpu")[0])
# On eight devices, since sharding needs them and a process sets their number once.
SHARDED = """
import sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from pathlib import Path
from jaxscore.models import native
from jaxscore.models.load import load

usual = native._placement
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
asked = {}

def placement(path, shape):
    wanted = [None] * len(shape)
    for axis in reversed(range(len(shape))):  # over the last axes that can be, both if possible
        for name, size in (("model", 4), ("data", 2)):
            if name not in wanted and wanted[axis] is None and shape[axis] % size == 0:
                wanted[axis] = name
    asked[path] = NamedSharding(mesh, PartitionSpec(*wanted))
    return asked[path]

for folder in sys.argv[2:]:
    options = dict(dtype=sys.argv[1], implementation="native")
    whole = load(Path(folder), **options).params
    native._placement = lambda config, mesh: placement  # splits more than any rule does
    parts = load(Path(folder), **options).params
    native._placement = usual
    n_split = 0
    for (path, one), other in zip(
        jax.tree.leaves_with_path(whole), jax.tree.leaves(parts), strict=True
    ):
        path = tuple(entry.key for entry in path)
        assert other.sharding == asked[path], path
        assert one.dtype == other.dtype and np.array_equal(one, other), path
        n_split += other.addressable_shards[0].data.size < one.size
    assert n_split > len(jax.tree.leaves(whole)) / 2, n_split
    print(n_split)
"""


def run_sharded(dtype, *folders):
    """Loads each folder on eight devices, and checks each parameter there."""
    command = [sys.executable, "-c", SHARDED, dtype, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, env=with_devices(8))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == len(folders)


def tensors(shape, n_leading, stored, *, transposed, seed=0):
    """Random matrices, some of them seen through a transposition, and how a `Leaf` reads them."""
    draw = np.random.default_rng(seed)
    one = shape[n_leading:]
    n = int(np.prod(shape[:n_leading], dtype=int))
    drawn = [draw.standard_normal(one[::-1] if transposed else one) for _ in range(n)]
    views = [array.astype(stored).T if transposed else array.astype(stored) for array in drawn]
    return views, [functools.partial(lambda k: views[k], k) for k in range(n)]


SHAPES = [((97, 33), 0), ((3, 41, 70), 1), ((2, 3, 17, 18), 2), ((5, 64), 1), ((64,), 0)]


@pytest.mark.parametrize("piece", [1, 700, 1 << 20])
@pytest.mark.parametrize(("shape", "n_leading"), SHAPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_any_piece_gives_what_numpy_stacks(monkeypatch, piece, shape, n_leading, transposed):
    """The reference is one astype and one stack."""
    monkeypatch.setattr(filling, "PIECE", piece)
    kinds = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16, np.dtype(np.float64)]
    cases = list(itertools.product(kinds, [np.dtype(np.float32), BFLOAT16], [False, True]))
    leaves, wanted = [], []
    for seed, (stored, dtype, computed) in enumerate(cases):
        views, reads = tensors(shape, n_leading, stored, transposed=transposed, seed=seed)
        kept = np.dtype(np.uint16) if dtype == BFLOAT16 else dtype
        leaves.append(Leaf(shape, dtype, kept, n_leading, reads, computed))
        wanted.append(np.stack([view.astype(dtype) for view in views]).reshape(shape).view(kept))
    arrays = list(device_arrays((leaf, HERE) for leaf in leaves))
    for case, array, want in zip(cases, arrays, wanted, strict=True):
        assert array.dtype == want.dtype, case
        assert array.sharding == HERE, case
        assert np.array_equal(array, want), case


def one_leaf(read=None, n=6):
    views, reads = tensors((n, 8, 16), 1, np.float32, transposed=False)
    dtype = np.dtype(np.float32)
    return Leaf((n, 8, 16), dtype, dtype, 1, reads if read is None else [read] * n), views


def test_the_device_array_of_a_cpu_is_the_buffer(monkeypatch):
    """Nothing is copied a second time."""
    made = []

    def recorded(*args, plain=filling._aligned):
        made.append(plain(*args))
        return made[-1]

    monkeypatch.setattr(filling, "_aligned", recorded)
    for n in (1, 3, 6):
        [array] = device_arrays([(one_leaf(n=n)[0], HERE)])
        assert array.unsafe_buffer_pointer() == made[-1].ctypes.data


def test_two_parameters_at_most_are_on_their_way():
    taken = []

    def leaves():
        for k in range(5):
            taken.append(k)
            yield one_leaf()[0], HERE

    arrays = device_arrays(leaves())
    for k in range(5):
        next(arrays)
        assert taken == list(range(min(5, k + 2)))
    assert list(arrays) == []


def test_a_read_that_fails_is_told_and_leaves_no_thread():
    def broken():
        raise InputError("this tensor")

    before = threading.active_count()
    for later in (0, 1, 3):
        leaves = [(one_leaf()[0], HERE)] * later + [(one_leaf(broken)[0], HERE)] * 2
        with pytest.raises(InputError, match="this tensor"):
            list(device_arrays(leaves))
        assert threading.active_count() == before


@pytest.mark.slow
def test_tensors_are_checked_before_any_is_read(checkpoint, monkeypatch):
    def never(leaves):
        raise AssertionError("read")

    monkeypatch.setattr(params, "device_arrays", never)
    folder = checkpoint("llama")
    file = folder / "model.safetensors"
    with pytest.raises(AssertionError, match="read"):
        loaded(folder)
    held = load_file(file)
    for name in held:
        save_file({other: x for other, x in held.items() if other != name}, file)
        with pytest.raises(InputError, match="is missing"):
            loaded(folder)
        save_file(held | {name: np.ones((3, 5), np.float32)}, file)
        with pytest.raises(InputError, match=r"has shape \[(3, 5|5, 3)\]"):
            loaded(folder)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_on_eight_devices(originals, dtype):
    run_sharded(dtype, originals["llama"], originals["gpt2"])


def test_fewer_threads_than_cores_that_are_not_ours(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert filling.n_threads() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(200)))
    assert filling.n_threads() == filling.MAX_THREADS
