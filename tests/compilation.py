"""Which code XLA makes for the CPU in tests: code that is quick to make, or that of users' runs.

Compiling small programs takes most of the time of many tests. Two choices shorten it. XLA's older
code generator is used everywhere. LLVM's optimisations are left out within pytest alone: commands
that a test runs as processes compute for longer than they compile. XLA's own passes over a program,
which decide what is computed, are the same. `JAXSCORE_TEST_COMPILE=full` compiles as users' runs
do; `.ci/run` runs the quick tests of numbers so, and the slow ones outside of models/.

`JAXSCORE_TEST_SHAPES=unchecked` leaves out the checks of shapes in signatures, a tenth of the time
of tests that compile much. Each function has had them in the quick run; the slow tests, which
compare numbers, repeat it with other models.
"""

from collections.abc import Mapping
from importlib import metadata

QUICK = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
KNOWN_BY = "0.10."  # XLA ends the process at a flag that it does not know
NAME, FULL = "JAXSCORE_TEST_COMPILE", "full"


def is_full(environment: Mapping[str, str]) -> bool:
    """Whether programs are those of users' runs."""
    return environment.get(NAME) == FULL


def checks_shapes(environment: Mapping[str, str]) -> bool:
    """Whether calls are checked against the shapes in signatures."""
    return environment.get("JAXSCORE_TEST_SHAPES") != "unchecked"


def xla_flags(environment: Mapping[str, str], jaxlib: str | None = None) -> str:
    """The value of XLA_FLAGS for tests and for the processes that they start; what it has stays.

    Args:
        jaxlib: its version; None is the one that is installed.
    """
    given = environment.get("XLA_FLAGS", "").split()
    version = metadata.version("jaxlib") if jaxlib is None else jaxlib
    if is_full(environment) or not version.startswith(KNOWN_BY):
        return " ".join(given)
    named = {flag.partition("=")[0] for flag in given}
    return " ".join([*given, *(flag for flag in QUICK if flag.partition("=")[0] not in named)])
