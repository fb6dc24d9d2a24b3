"""`jaxscore lm-eval`: runs lm-evaluation-harness with jaxscore as its model."""

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from jaxscore.cli.model_flags import PROCESSES, ModelSpec
from jaxscore.errors import InputError, install_extra
from jaxscore.io import processes
from jaxscore.io.local_path import check_local
from jaxscore.io.yaml_input import read_yaml
from jaxscore.models.weights.folder import resolve
from jaxscore.shell.flags import SWITCH, options_of

PLACES = ("--output_path", "-o", "--use_cache", "-c", "--include_path", "--config", "-C")
OWN = ("ls", "validate")  # subcommands of lm-evaluation-harness that run no model
ABOUT = """\
jaxscore lm-eval ARGS: lm-evaluation-harness' own arguments, which follow. The
model is jaxscore unless --model or a --config names another one:

  python -m jaxscore lm-eval --model_args pretrained=NAME,dtype=float32 \\
      --tasks hellaswag --output_path results
"""


def words(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the flags of several processes; lm-evaluation-harness reads the others."""
    parser = argparse.ArgumentParser("jaxscore lm-eval", add_help=False, allow_abbrev=False)
    for option in options_of(ModelSpec):
        if option.dest in PROCESSES:
            about = (
                {"action": "store_true"} if option.words == SWITCH else {"type": option.type.base}
            )
            parser.add_argument(*option.names, **about)
    args, rest = parser.parse_known_args(argv)
    args.run, args.arguments, args.device, args.quiet = run, rest, None, False
    args.loaded, args.batch_tokens = None, "auto"  # until there is a scorer
    return args


def _values(arguments: Sequence[str], names: Collection[str]) -> Iterator[str]:
    """Values of some flags."""
    for k, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in names:
            yield value if equals else "".join(arguments[k + 1 : k + 2])


def _check_arguments(arguments: Sequence[str]) -> None:
    """Refuse addresses, and a missing folder as the model.

    lm-evaluation-harness would make local folders of addresses, and its import takes seconds.

    Raises:
        InputError: naming the address or the folder.
    """
    for path in _values(arguments, PLACES):
        check_local(path)
    for word in arguments:
        for setting in word.removeprefix("--model_args=").split(","):
            name, _, model = setting.partition("=")
            if name == "pretrained" and model.startswith((".", "/", "~")):
                resolve(model, None)


def run(args: argparse.Namespace) -> int:
    """Run lm-evaluation-harness; returns its exit code.

    Raises:
        InputError: it is not installed, or a request or argument cannot be used.
    """
    if args.arguments in ([], ["-h"], ["--help"], ["run"]):
        print(ABOUT)
    _check_arguments(args.arguments)
    if importlib.util.find_spec("lm_eval") is None:
        raise InputError(f"lm-evaluation-harness is not installed; {install_extra('lm-eval')}")
    importlib.import_module("jaxscore.adapters.lm_eval")
    from lm_eval.__main__ import cli_evaluate

    from jaxscore.adapters.model import LOADED

    if not processes.is_first():
        # lm-eval writes no file in a process with another rank than 0.
        os.environ["LOCAL_RANK"] = str(processes.process_index())
    before = sys.argv
    sys.argv = ["lm-eval", *with_model(args.arguments)]
    LOADED.clear()  # of what this process has run before
    try:
        cli_evaluate()
    except SystemExit as end:  # of several processes none may end before the others
        return _exit_code(end)
    except (FileNotFoundError, ValueError) as problem:
        if not _of_their_checks(problem):
            raise
        raise InputError(str(problem)) from None
    finally:
        sys.argv = before
        args.loaded = next(iter(LOADED), None)  # of a run that has ended early
    return 0


def _exit_code(end: SystemExit) -> int:
    """Exit code and message as of Python's own exit."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _of_their_checks(problem: BaseException) -> bool:
    """Return True if lm-evaluation-harness raised it while checking input, such as a task name."""
    at = problem.__traceback__
    assert at is not None  # it was raised
    while at.tb_next is not None:
        at = at.tb_next
    name = str(at.tb_frame.f_globals.get("__name__"))
    return name == "lm_eval.evaluator" or name.startswith(("lm_eval._cli.", "lm_eval.config."))


def with_model(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, with `--model jaxscore` if a run names no model."""
    out = list(arguments)
    flags = {word.partition("=")[0] for word in out}
    runs = bool(out) and out != ["run"] and out[0] not in OWN
    if not runs or flags & {"-h", "--help", "--model", "-M"} or _config_names_one(out):
        return out
    at = 1 if out[0] == "run" else 0
    return [*out[:at], "--model", "jaxscore", *out[at:]]


def _config_names_one(arguments: Sequence[str]) -> bool:
    """Return True if the first existing file of `--config` names a model."""
    for path in map(Path, _values(arguments, ("--config", "-C"))):
        if path.is_file():
            config = read_yaml(path)
            return isinstance(config, dict) and config.get("model") is not None
    return False
