"""Which calls share a compiled program: those whose functions and abstract arguments are equal."""

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device.attention.score_rule import BatchTooLong
from jaxscore.engine.programs import Programs, function_key
from jaxscore.engine.progress import Progress
from jaxscore.errors import InputError


def add(n, x, tree):
    return x + n + tree["a"].sum()


def run(programs, function, *args, name="add"):
    return programs.run((name, 1), function, args, Progress(False))


def test_a_program_for_each_shape_type_and_function():
    programs, tree = Programs(), {"a": jnp.ones(3)}
    x = jnp.zeros(2)
    assert run(programs, functools.partial(add, 1), x, tree).tolist() == [4, 4]
    assert run(programs, functools.partial(add, 1), x + 1, tree).tolist() == [5, 5]
    assert run(programs, functools.partial(add, 1), x, {"a": jnp.ones(3)}).tolist() == [4, 4]
    assert len(programs.compiled) == 1
    others = [
        (functools.partial(add, 2), x, tree),
        (functools.partial(add, 1), jnp.zeros(3), tree),
        (functools.partial(add, 1), jnp.zeros(2, jnp.int32), tree),
        (functools.partial(add, 1), x, {"a": jnp.ones(4)}),
        (functools.partial(add, 1), jnp.asarray(1.0), tree),  # weakly typed
        (functools.partial(add, 1), jnp.float32(1.0), tree),
    ]
    for n, args in enumerate(others, 2):
        run(programs, *args)
        assert len(programs.compiled) == n
    run(programs, *others[0], name="of another name")
    assert len(programs.compiled) == len(others) + 1


def test_the_name_decides_nothing():
    """A name that leaves out a size finds no program of another size."""
    programs = Programs()
    for n in (2, 3):
        assert run(programs, jnp.cumsum, jnp.ones(n), name="same").shape == (n,)
    assert len(programs.compiled) == 2


def test_threads_wait_for_a_program_that_one_of_them_compiles():
    programs, begun = Programs(), threading.Barrier(3)

    def slow(x):
        time.sleep(0.1)  # while it is traced
        return x + 1

    def own(k):
        begun.wait(10)
        return run(programs, slow, jnp.full(2, k)).tolist()

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(own, range(3))) == [[1, 1], [2, 2], [3, 3]]
    assert len(programs.compiled) == len(programs.as_text("add")) == 1


def test_parameters_are_looked_at_once():
    programs, looked = Programs(), []

    class Leaf:
        def __init__(self, of):
            self.of = of

        def __getattr__(self, name):
            looked.append(name)
            return getattr(self.of, name)

    tree = {"a": Leaf(jnp.ones(3))}
    first = programs._abstract(tree)
    n = len(looked)
    assert n
    assert programs._abstract(tree) == first
    assert len(looked) == n


def test_partials_of_equal_parts_are_one_function():
    inner = functools.partial(add, 1)
    one, same = (functools.partial(inner, steps=3, greedy=True) for _ in range(2))
    turned = functools.partial(inner, greedy=True, steps=3)
    assert function_key(one) == function_key(same) == function_key(turned)
    assert hash(function_key(one)) == hash(function_key(turned))
    other = functools.partial(functools.partial(add, 2), steps=3, greedy=True)
    assert function_key(one) != function_key(other)


def test_where_an_argument_lies_is_part_of_it():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    programs, x = Programs(), jnp.ones(4)
    run(programs, jnp.cumsum, x)
    run(programs, jnp.cumsum, jax.device_put(x, spread))
    assert len(programs.compiled) == 2


def test_a_batch_that_attention_cannot_address_is_refused_by_name():
    def attention(x):
        raise BatchTooLong(f"a batch of {len(x)} tokens is too long")

    with pytest.raises(InputError, match="a batch of 3 tokens is too long; shorten the longest"):
        run(Programs(), attention, jnp.ones(3))
