"""Run by test_processes.py: `jaxscore`, whose process 1 has room for small batches alone.

Takes the words of a command.
"""

import sys
from typing import Any
from unittest import mock

import jax
from jax.errors import JaxRuntimeError

from jaxscore.cli.main import main
from jaxscore.engine.programs import Programs
from jaxscore.io import processes

MOST = 2  # rows of a batch

compile_program = Programs._compile


def refuse_large(self: Programs, name: tuple[Any, ...], *args: Any) -> Any:
    if processes.process_index() != 1 or name[0] != "score" or name[1] <= MOST:
        return compile_program(self, name, *args)
    refusal = JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    with mock.patch.object(jax.stages.Lowered, "compile", side_effect=refusal):
        return compile_program(self, name, *args)


if __name__ == "__main__":
    with mock.patch.object(Programs, "_compile", refuse_large):
        sys.exit(main())
