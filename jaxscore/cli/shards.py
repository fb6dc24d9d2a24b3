"""One command over many files: each file is a shard, which an ordinary run scores.

Workers share nothing but the output folder. Worker K of N takes every Nth shard from the Kth on;
a shard is finished when its manifest says so, and is then skipped before a model is loaded.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import functools
import gc
import inspect
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxscore.cli import messages, outputs
from jaxscore.cli.app import Command
from jaxscore.cli.help_pages import MANY_FILES
from jaxscore.cli.shard_files import (
    BESIDE,
    Shard,
    changed_outputs,
    check_apart,
    identity_of,
    is_pattern,
    manifests,
    shards_of,
    with_beside,
    write_listing,
)
from jaxscore.errors import Held, InputError
from jaxscore.io import processes, remote, streams
from jaxscore.io.items import SEVERAL
from jaxscore.io.local_path import Folder
from jaxscore.io.manifest import OUTPUTS, UNVERIFIED, file_digest, manifest_path
from jaxscore.journal.files import add_rows, default_path
from jaxscore.report.counts import counted
from jaxscore.shell.flags import Flag, flag, options_of
from jaxscore.shell.system import System
from jaxscore.systems import declaration

RunCommand = Callable[[argparse.Namespace], int]


@dataclasses.dataclass
class ShardRun:
    """The state of a run for the shard that it scores; attribute `shard_run` of the flags.

    Attributes:
        prefix: the beginning of the ids of items without an id.
        identity: size and version of the input.
        beside: a file that is read with the input, or None.
        scorer: the loaded model of the shard before, or None.
        model: name of the loaded model.
        tokenizer: digest of its tokenizer files; None without such files.
        dtype: the dtype of the finished shards' model, or None without finished shards.
        ignores_output: if True, results of an earlier output are computed again; an output in a
            store goes on from its journal alone.
    """

    prefix: str = ""
    identity: Mapping[str, Any] | None = None
    beside: Path | None = None
    scorer: Any = None
    model: str = ""
    tokenizer: str | None = None
    dtype: str | None = None
    ignores_output: bool = False

    def check_dtype(self, scorer: Any) -> None:
        """Refuse to mix shards of two precisions: that of --dtype auto depends on the device.

        Raises:
            InputError: the loaded model has another dtype than that of the finished shards.
        """
        if self.dtype not in (None, scorer.model.dtype):
            raise InputError(
                f"the finished outputs were made with weights in {self.dtype}, and --dtype auto "
                f"is {scorer.model.dtype} on this device; run on the other kind of device, give "
                "another --output, or --force to replace them"
            )


class Outcome(NamedTuple):
    """The end of a shard's run.

    Attributes:
        code: exit code.
        problem: why the shard lacks an output, or None.
    """

    name: str
    code: int
    problem: str | None = None


def _shard(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if slash and number.isdecimal() and count.isdecimal() and int(number) < int(count):
        return int(number), int(count)
    raise ValueError(f"{text!r} is not a shard, expected K/N with K from 0 to N - 1, such as 0/4")


shard_flag = functools.partial(flag, group=MANY_FILES)


@dataclasses.dataclass(kw_only=True)
class ShardFlags:
    """The flags of a command that runs on many files."""

    shard: str | None = shard_flag(
        None,
        read=_shard,
        metavar="K/N",
        help="score every Nth input from the Kth on, K from 0; of N workers each has its K "
        "(default: that of a Slurm array or an indexed Kubernetes Job, otherwise 0/1)",
    )
    force: bool = shard_flag(
        False,
        help="score finished shards again, also those that other flags, another model or another "
        "input made",
    )
    engine: Literal["ray"] | None = shard_flag(
        None,
        help="ray: a pool of Ray Data scores the files, on the cluster of RAY_ADDRESS, otherwise "
        "on one that this command starts (extra ray)",
    )
    actors: int | None = shard_flag(
        None,
        least=1,
        metavar="N",
        help="with --engine ray: models that are loaded (default: one per accelerator, or one per "
        "--mesh; without accelerators one per node)",
    )


def command(
    system: System, options: Sequence[Flag], run: RunCommand, run_file: RunCommand, **more: Any
) -> Command:
    """Declare the command of a system, which runs on one file or on many.

    Args:
        run_file: runs on one file.
        more: further attributes of the arguments: `forms`, endings of the files that are taken from
            a folder; `companions`, which computes from an input's name the possible names of a file
            that is read with it.
    """
    options = [*options, *options_of(ShardFlags)]
    attributes = {"run_file": run_file, **more}
    return Command(system.name, f"{inspect.getdoc(system)}\n", options, run, attributes)


def run(args: argparse.Namespace) -> int:
    """Run a command on one file, or on each shard of a folder that is this worker's."""
    _check_engine(args)
    paths = args.input if isinstance(args.input, list) else [args.input]
    if isinstance(args.output, Folder) and args.output.name:  # `/` and `./` are not a new folder
        return _run_shards(args, paths)
    if len(paths) > 1 or is_pattern(paths[0]):
        raise InputError(
            f"--input {' '.join(map(remote.displayed, paths))}: found several files or a pattern, "
            "which give one output each; give --output FOLDER/ with a slash, then "
            "jaxscore merge FOLDER/"
        )
    for name, value in (
        ("shard", args.shard and "{}/{}".format(*args.shard)),
        ("engine", args.engine),
    ):
        if value not in (None, "0/1"):
            raise InputError(
                f"--{name} {value}: shards are files of a folder; give --output FOLDER/ with a "
                "slash"
            )
    _check_file(args, paths[0])
    has_folder = getattr(args, "output_dir", None) is not None
    if args.output is None and not has_folder and _is_copied(paths[0]):
        raise InputError(
            f"--input {remote.displayed(paths[0])}: the default output is next to the input, and "
            "this one is read from a temporary copy; give --output FILE"
        )
    shard = with_beside(args, Shard(paths[0], "", args.output, None))
    if remote.address_of(shard.source) is not None:
        check_apart([shard])
    if args.output is None or remote.address_of(args.output) is None:
        return _run_one(args, shard, ShardRun())
    identity = {**(identity_of(shard.source) or {}), **(shard.identity or {})}
    shard = shard._replace(identity=identity or None)
    [state] = states_of(args, [shard])
    if state.is_finished:
        print(f"nothing was left to do in {remote.displayed(args.output)}")
        return int(state.has_failed)
    return _run_one(args, shard, ShardRun(identity=shard.identity))


def _check_file(args: argparse.Namespace, source: Path) -> None:
    """Refuse folders without the slash that makes shards of their files, before anything is read.

    Raises:
        InputError: the input is a folder in a store, or the output is a folder or an address that
            is only read.
    """
    if remote.address_of(source) is not None and isinstance(source, Folder):
        raise InputError(f"--input {remote.displayed(source)}: {SEVERAL}")
    if args.output is None:
        return
    if remote.address_of(args.output) is not None:
        remote.check_writable(args.output)
    elif args.output.is_dir() and not isinstance(args.output, Folder):
        raise InputError(
            f"--output {args.output}: found a folder, expected the name of a file, or "
            f"{args.output}/ with a slash for an output per input"
        )


class State(NamedTuple):
    """The state of a shard by its manifest.

    Attributes:
        is_finished: True if this run has finished it, see `finished_shards.is_finished`.
        is_outdated: True if it was finished with another input.
        has_failed: True if items of a finished shard failed.
        dtype: the dtype of its model, or None.
    """

    is_finished: bool
    is_outdated: bool
    has_failed: bool
    dtype: str | None


def states_of(args: argparse.Namespace, shards: Sequence[Shard]) -> list[State]:
    """Return the state of each shard, as the first process sees it.

    Raises:
        InputError: one is finished by another run, or the processes have other inputs.
    """
    from jaxscore.cli.finished_shards import is_finished  # deferred: one local file needs none

    processes.verify_same("inputs", json.dumps([shard.name for shard in shards]).encode())
    states, n_unverified = [], 0
    pairs = manifests(shards, is_forced=args.force) if processes.is_first() else []
    changes = [None] * len(pairs) if args.force else changed_outputs(pairs)
    for (shard, manifest), changed in zip(pairs, changes, strict=True):
        fields = manifest or {}
        is_done = is_finished(args, shard, manifest, changed)
        n_unverified += is_done and OUTPUTS not in fields
        dtype = (fields.get("model") or {}).get("dtype")
        is_same = args.force and fields.get("input_identity") == shard.identity
        is_outdated = manifest is not None and not is_done and not is_same
        states.append(State(is_done, is_outdated, is_done and bool(fields.get("failed")), dtype))
    if n_unverified:
        messages.remark(args, UNVERIFIED.replace("{n}", str(n_unverified)))
    return [
        State(*row)
        for row in json.loads(processes.broadcast_from_first(json.dumps(states).encode()))
    ]


def _is_copied(source: Path) -> bool:
    """Return True if an input is remote or standard input: a run then reads a copy."""
    return remote.address_of(source) is not None or streams.descriptor(source) is not None


def _run_one(
    args: argparse.Namespace,
    shard: Shard,
    shard_run: ShardRun,
    *,
    is_outdated: bool = False,
) -> int:
    """Run on one file, on a local copy of the input if it is remote.

    Args:
        is_outdated: True if the output was finished with another input.
    """
    shard_args = argparse.Namespace(**{**vars(args), "loaded": None})
    output, upload, journal = shard.output, None, None
    with contextlib.ExitStack() as stack:
        if output is not None and remote.address_of(output) is not None:
            from jaxscore.io.upload import Taken, Upload, copied_journal  # deferred: most are local

            upload = Upload(output, manifest_path(output))
            if getattr(args, "journal", None) is None:
                journal = default_path(output)
                stack.enter_context(copied_journal(journal, lambda: shard_args.loaded, add_rows))
        shard_run.ignores_output = args.force or is_outdated or upload is not None
        shard_run.beside = shard.beside
        try:
            args.loaded = None  # the part alone has the scorer, and can let it go
            source = stack.enter_context(remote.fetched(shard.source, shard.beside, shard.identity))
            _check_beside(shard, source)
            shard_args.input, shard_args.output, shard_args.shard_run = source, output, shard_run
            code = args.run_file(shard_args)
        finally:
            args.loaded = shard_run.scorer
    if upload is not None:
        if shard_args.loaded is not None:
            shard_args.loaded.close()  # the journal, which is removed
        try:
            upload.finish()
        except Taken:
            if remote.identity(manifest_path(shard_args.output)) is not None:  # it is finished
                _remove_copy(args, journal)
            raise
        _remove_copy(args, journal)
    return code


def _check_beside(shard: Shard, source: Path) -> None:
    """Check the copy of a remote file that is read with an input.

    Args:
        source: the copy of the input, which is next to it.

    Raises:
        InputError: it is not the one that the identity of the shard describes.
    """
    if shard.beside is None or remote.address_of(shard.beside) is None:
        return
    digest = file_digest(source.with_name(shard.beside.name))
    if digest != (shard.identity or {}).get(BESIDE):
        raise InputError(
            f"{remote.displayed(shard.beside)}: changed while this run read it; run the same "
            "command again"
        )


def _remove_copy(args: argparse.Namespace, journal: Path | None) -> None:
    """Remove the copy of a journal, if there is one; a failure does not affect the output."""
    if journal is None:
        return
    try:
        remote.remove(journal)
    except InputError as problem:
        messages.remark(args, f"the copy of the journal is left behind: {problem}")


def score_shard(
    args: argparse.Namespace, shard: Shard, shard_run: ShardRun, *, is_outdated: bool = False
) -> int:
    """Run the command on one shard of a folder; returns its exit code.

    Raises:
        InputError: the shard failed. An outdated manifest is then removed too, so that `merge`
            does not take the shard for finished.
    """
    if remote.address_of(shard.source) is None:  # hours may have passed since it was listed
        shard = shard._replace(identity=identity_of(shard.source))
        shard = with_beside(args, shard)
    shard_run.prefix, shard_run.identity = f"{shard.name}:", shard.identity
    # Every shard would print a closing block; its manifest and report have the same.
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return _run_one(args, shard, shard_run, is_outdated=is_outdated)
    except InputError as problem:
        if is_outdated and not isinstance(problem, Held):
            _remove_outdated(args, shard)
        raise
    finally:
        _release_memory()


def _remove_outdated(args: argparse.Namespace, shard: Shard) -> None:
    """Remove the manifest of an earlier input's output, and an output that a run would continue."""
    assert shard.output is not None
    paths = [manifest_path(shard.output)]
    if type(declaration(args.command)).recall is not System.recall:
        paths.append(shard.output)
    outputs.remove(paths)


def _release_memory() -> None:
    """Return freed memory to the system.

    The garbage collector runs too seldom for the reference cycles of a shard, and glibc keeps freed
    memory for each thread that has ended.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # of another C library
        ctypes.CDLL(None).malloc_trim(0)


Pending = Sequence[tuple[Shard, State]]


def _outcomes(args: argparse.Namespace, pending: Pending, dtype: str | None) -> Iterator[Outcome]:
    """Score shards in this process, one after the other."""
    shard_run = ShardRun(dtype=dtype)
    for shard, state in pending:
        try:
            code = score_shard(args, shard, shard_run, is_outdated=state.is_outdated)
        except InputError as problem:
            yield Outcome(shard.name, 2, remote.displayed(problem))
        else:
            yield Outcome(shard.name, code)


def _check_engine(args: argparse.Namespace) -> None:
    """Refuse flags that contradict --engine.

    Raises:
        InputError: naming them.
    """
    if args.engine is None:
        if args.actors is not None:
            raise InputError(f"--actors {args.actors}: only with --engine ray; give it too")
        return
    if getattr(args, "distributed", False):
        raise InputError(f"--distributed: --engine {args.engine} starts its own processes; drop it")
    if (journal := getattr(args, "journal", None)) not in (None, "off"):
        raise InputError(
            f"--journal {journal}: with --engine {args.engine} each shard has its own "
            "journal; leave it out, or give off"
        )


def _run_shards(args: argparse.Namespace, paths: Sequence[Path]) -> int:
    if (page := getattr(args, "html", None)) is not None:
        raise InputError(
            f"--html {page}: each file has its own page, and each would replace this one; "
            "leave it out, and give it to jaxscore merge"
        )
    if remote.address_of(args.output) is not None:
        remote.check_writable(args.output)
    shards = list(shards_of(args, paths))
    check_apart(shards, args.output)
    is_one_run = getattr(args, "distributed", False)  # all its processes score each shard
    number, count = args.shard or (None if is_one_run else _from_scheduler()) or (0, 1)
    write_listing(args.output, paths, shards)
    own_shards = shards[number::count]
    states = states_of(args, own_shards)
    n_finished = sum(state.is_finished for state in states)
    if n_finished:
        messages.remark(args, f"{n_finished} of {len(own_shards)} shards are finished")
    dtypes = [state.dtype for state in states if state.is_finished and state.dtype is not None]
    dtype = next(iter(dtypes), None)
    for shard, state in zip(own_shards, states, strict=True):
        if state.has_failed:
            print(f"shard    {shard.name}, finished before with failed items")
    pending = [pair for pair in zip(own_shards, states, strict=True) if not pair[1].is_finished]
    outcomes = _outcomes
    if args.engine is not None and pending:
        from jaxscore.cli.ray_engine import outcomes
    codes, refused = [], 0
    for outcome in outcomes(args, pending, dtype):
        if outcome.problem is not None:
            if len(own_shards) == 1:
                raise InputError(outcome.problem)
            refused += 1
            messages.print_failure(outcome.name, outcome.problem)
            continue
        codes.append(outcome.code)
        print(f"shard    {outcome.name}{', with failed items' if outcome.code else ''}")
    others = f", shard {number}/{count}" if count > 1 else ""
    print(
        f"done     {len(codes)} of {counted(len(own_shards), 'files')}{others}, {n_finished} were "
        f"finished, {refused} failed"
    )
    print(f"files    {remote.displayed(args.output)}/")
    if refused:
        return 1 if codes or n_finished else 2
    return max([*codes, *(int(state.has_failed) for state in states)], default=0)


def _from_scheduler() -> tuple[int, int] | None:
    """Return the shard that a Slurm array or an indexed Kubernetes Job gives this process.

    Raises:
        InputError: the variables contradict each other, or lack the count.
    """
    variables = os.environ
    try:
        if "SLURM_ARRAY_TASK_ID" in variables:
            first = int(variables.get("SLURM_ARRAY_TASK_MIN", 0))
            step = int(variables.get("SLURM_ARRAY_TASK_STEP", 1)) or 1  # some say 0 of one task
            number = (int(variables["SLURM_ARRAY_TASK_ID"]) - first) // step
            names, count = (
                "SLURM_ARRAY_TASK_ID, _MIN, _COUNT",
                int(variables["SLURM_ARRAY_TASK_COUNT"]),
            )
        elif "JOB_COMPLETION_INDEX" in variables:
            names = "JOB_COMPLETION_INDEX, JOB_COMPLETIONS"
            number, count = (
                int(variables["JOB_COMPLETION_INDEX"]),
                int(variables["JOB_COMPLETIONS"]),
            )
        else:
            return None
    except (KeyError, ValueError) as problem:
        raise InputError(
            f"the scheduler's variables are incomplete ({type(problem).__name__}: {problem}); set "
            "SLURM_ARRAY_TASK_COUNT with SLURM_ARRAY_TASK_ID, JOB_COMPLETIONS with "
            "JOB_COMPLETION_INDEX, or give --shard K/N"
        ) from None
    if not 0 <= number < count:
        raise InputError(
            f"{names}: found shard {number} of {count}, expected one from 0 to {count - 1}; give "
            "--shard K/N (an array with gaps does not have a count)"
        )
    return number, count
