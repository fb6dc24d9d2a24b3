"""A process that answers lines of stdin one by one: to start it takes as long as most answers."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conftest import ROOT


@contextlib.contextmanager
def answering(
    *words: str, environment: Mapping[str, str], errors: Path
) -> Iterator[Callable[[str], Any]]:
    """`ask(line)`: what the process of a Python command prints after that line, as JSON.

    Args:
        errors: a file that takes its stderr.
    """
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            text=True, bufsize=1, cwd=ROOT, env=environment,
        ) as process,
    ):  # fmt: skip

        def ask(line: str) -> Any:
            assert process.poll() is None, f"ended at an earlier line: {errors.read_text()}"
            print(line, file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, errors.read_text()
            return json.loads(answer)

        yield ask
        process.stdin.close()
