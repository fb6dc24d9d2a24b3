"""`--distributed`: runs a command as one of several processes."""

import argparse
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator

from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.manifest import manifest_flags
from jaxscore.version import VERSION

PER_PROCESS = {"process_id", "quiet"}  # flags that may differ between processes
MEETING = ("coordinator", "num_processes", "process_id", "join_timeout")


@contextlib.contextmanager
def join_run(args: argparse.Namespace) -> Iterator[None]:
    """Join the run of --distributed; all processes but the first print only errors.

    Raises:
        InputError: the flags are inconsistent, or the other processes have other flags.
    """
    if not getattr(args, "distributed", False):
        if unused := [name for name in MEETING if getattr(args, name, None) is not None]:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise InputError(f"{names}: only with --distributed; give it too, or leave them out")
        yield
        return
    import jax

    from jaxscore.engine.devices import choose_device

    choose_device(args.device)
    processes.join(
        args.coordinator,
        args.num_processes,
        args.process_id,
        processes.JOIN if args.join_timeout is None else args.join_timeout,
        notify=lambda text: None if args.quiet else print(text, file=sys.stderr, flush=True),
    )
    flags = {
        name: value for name, value in manifest_flags(vars(args)).items() if name not in PER_PROCESS
    }
    same = json.dumps([args.command, flags, VERSION, jax.__version__], sort_keys=True)
    with _reserve_stdout():
        processes.verify_same("flags", hashlib.sha256(same.encode()).digest())
        with contextlib.ExitStack() as silence:
            if not processes.is_first():
                args.quiet = True
                nowhere = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
                silence.enter_context(contextlib.redirect_stdout(nowhere))
            yield
        # The others wait here for the first, which writes.
        processes.verify_same("work to do", b"")


@contextlib.contextmanager
def _reserve_stdout() -> Iterator[None]:
    """Reserve standard output for Python: Gloo would print a greeting between our lines."""
    sys.stdout.flush()
    stdout = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    try:
        python_stdout = open(stdout, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
        with python_stdout, contextlib.redirect_stdout(python_stdout):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
