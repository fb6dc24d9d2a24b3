"""What the environment says of the code that tests run."""

import pytest

from tests.compilation import QUICK, checks_shapes, xla_flags

AVX2 = "--xla_cpu_max_isa=AVX2"


@pytest.mark.parametrize(
    ("environment", "jaxlib", "flags"),
    [
        ({}, "0.10.2", [*QUICK]),
        ({"XLA_FLAGS": AVX2}, "0.10.2", [AVX2, *QUICK]),
        ({"XLA_FLAGS": " ".join(QUICK)}, "0.10.2", [*QUICK]),  # as a worker process has them
        ({"XLA_FLAGS": f"{QUICK[1][:-1]}3"}, "0.10.2", [f"{QUICK[1][:-1]}3", QUICK[0]]),
        ({"XLA_FLAGS": AVX2, "JAXSCORE_TEST_COMPILE": "full"}, "0.10.2", [AVX2]),
        ({}, "0.11.0", []),
    ],
)
def test_what_is_given_stays(environment, jaxlib, flags):
    assert xla_flags(environment, jaxlib).split() == flags


def test_shapes_are_checked_unless_the_environment_says_otherwise():
    assert checks_shapes({})
    assert not checks_shapes({"JAXSCORE_TEST_SHAPES": "unchecked"})
