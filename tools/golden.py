"""Records what every command writes, and compares two recordings.

    python tools/golden.py OUT                        run all cases, store their outputs in OUT
    python tools/golden.py OUT --compare GOLDEN       the same, then print what differs from GOLDEN
    python tools/golden.py OUT --compare GOLDEN --no-run      compare what is stored already
    python tools/golden.py OUT --cases score-tables config-choose --compare GOLDEN

The commands are those of `configs/*.yaml` (their first line), of `tools/golden_cases.py`, and
`--help-all` of each command. The package is the one that this Python imports, so that
PYTHONPATH=CHECKOUT records another checkout. All run in one process, except `serve`.
Outputs are stored unchanged. The comparison ignores dates, durations and versions. Exit code 1 if
anything differs.
"""

import argparse
import contextlib
import http.client
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import golden_cases
from golden_compare import compare_folders
from requirements import require

LINKS = ("jaxscore", "configs", "tests")
JOURNALED = "resumed"  # case that a second run continues from journals of the compared recording


def main() -> int:
    args = _parse()
    out = args.out.resolve()
    golden = None if args.compare is None else args.compare.resolve()
    if not args.no_run:
        require("datasets", "test")
        _run_cases(args.cases, out, golden or out)
    return 0 if golden is None else compare_folders(golden, out, args.cases, args.tolerance)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the recording")
    parser.add_argument("--compare", type=Path, help="recording to compare with")
    parser.add_argument("--no-run", action="store_true", help="compare stored recordings")
    parser.add_argument("--cases", nargs="+", help="only these cases (default: all)")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="relative difference of numbers to ignore"
    )
    return parser.parse_args()


def _run_cases(selected: Sequence[str] | None, out: Path, journals: Path) -> None:
    """Run the selected cases, each in an empty folder, and move its files to OUT/CASE.

    Args:
        journals: recording whose journals the second half of `resumed` continues.
    """
    _set_environment()
    root = Path(importlib.import_module("jaxscore").__file__ or "").parents[1]
    cases = all_cases(root)
    if unknown := set(selected or ()) - set(cases):
        raise SystemExit(
            f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(cases)}"
        )
    with tempfile.TemporaryDirectory(prefix="golden-") as work:
        for name in selected or cases:
            start = time.monotonic()
            folder = Path(work) / name
            _prepare(folder, root)
            _run_case(name, cases[name], folder, out / name, journals)
            print(f"{time.monotonic() - start:7.1f} s  {name}", flush=True)


def _set_environment() -> None:
    """Offline, on the CPU, with a cache of compiled programs; before JAX is imported."""
    cache = Path(tempfile.gettempdir()) / "jaxscore-golden-cache"
    os.environ |= {
        "COLUMNS": "80",
        "HF_DATASETS_CACHE": str(cache / "datasets"),
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "JAXSCORE_CACHE": str(cache / "programs"),
        "PYTHONWARNINGS": "ignore",
        "TOKENIZERS_PARALLELISM": "false",
    }
    warnings.simplefilter("ignore")


def all_cases(root: Path) -> dict[str, list[str]]:
    """Command lines of each case: config files, then the table, help pages and the server."""
    cases = {}
    for path in sorted((root / "configs").glob("*.yaml")):
        first_line = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        if path.stem != "serve":
            cases[f"config-{path.stem}"] = [
                _as_line(command) for command in first_line.split(" && ")
            ]
    for name, text in golden_cases.CASES.items():
        cases[name] = text.strip().splitlines()
    commands = importlib.import_module(f"{_command_folder()}.listing").NAMES
    cases["help"] = ["--help", *(f"{name} --help-all" for name in commands)]
    cases["help-common"] = [f"{name} --help" for name in commands]
    cases["server"] = []
    return cases


def _as_line(command: str) -> str:
    """Convert a command of a config file's first line to a line of `golden_cases.CASES`."""
    prefix = "python -m jaxscore "
    return command.removeprefix(prefix) if command.startswith(prefix) else f"$ {command}"


def _command_folder() -> str:
    """`jaxscore.cli`, or `jaxscore.commands` in checkouts where `jaxscore.cli` is a module."""
    cli = importlib.import_module("jaxscore.cli")
    return "jaxscore.cli" if hasattr(cli, "__path__") else "jaxscore.commands"


def _main_function() -> Any:
    folder = _command_folder()
    module = "jaxscore.cli.main" if folder == "jaxscore.cli" else "jaxscore.cli"
    return importlib.import_module(module).main


def _prepare(folder: Path, root: Path) -> None:
    folder.mkdir()
    for name in LINKS:
        (folder / name).symlink_to(root / name)
    with contextlib.chdir(folder):
        golden_cases.write_inputs(folder / "in")


def _run_case(name: str, lines: list[str], folder: Path, out: Path, journals: Path) -> None:
    """Run the lines of one case in `folder` and store streams, exit codes and files in `out`."""
    shutil.rmtree(out, ignore_errors=True)
    streams = out / "streams"
    streams.mkdir(parents=True)
    with contextlib.chdir(folder):
        if name == "server":
            _run_server(streams)
        else:
            _run_lines(lines, streams)
        if name == JOURNALED:
            _continue_from_journals(lines, streams, out, journals)
    _store_files(folder, out / "files")


def _run_lines(lines: list[str], streams: Path, first: int = 1) -> None:
    """Run each line, and store its stdout, stderr and exit code under its number."""
    for number, line in enumerate(map(str.strip, lines), start=first):
        stem = streams / f"{number:02}"
        with _redirected(stem.with_suffix(".out"), stem.with_suffix(".err")):
            if line.startswith("$ "):  # of `golden_cases`: copies and moves with globs, no input
                code = subprocess.run(line[2:], shell=True, check=False).returncode
            else:
                code = _run_command(shlex.split(line))
        words = " ".join(line.split())
        stem.with_suffix(".code").write_text(f"{words}\nexit code {code}\n", encoding="utf-8")


def _run_command(argv: list[str]) -> int | str:
    try:
        return int(_main_function()(argv))
    except SystemExit as stop:
        return stop.code or 0
    except BaseException:
        traceback.print_exc()
        return "traceback"


@contextlib.contextmanager
def _redirected(out: Path, err: Path) -> Iterator[None]:
    """Send the file descriptors 1 and 2 to files, whoever writes to them."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    stdout, stderr = sys.stdout, sys.stderr
    try:
        with open(out, "wb") as first, open(err, "wb") as second:
            os.dup2(first.fileno(), 1)
            os.dup2(second.fileno(), 2)
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace")
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError):
                stream.close()
        sys.stdout, sys.stderr = stdout, stderr
        for descriptor, target in zip(kept, (1, 2), strict=True):
            os.dup2(descriptor, target)
            os.close(descriptor)


def _continue_from_journals(lines: list[str], streams: Path, out: Path, journals: Path) -> None:
    """Run the lines again beside journals of another recording, which a run must continue.

    Of a first recording these are its own journals. Outputs of the second run replace the first.
    """
    source = journals / JOURNALED / "files" / ".jaxscore"
    journal = Path(".jaxscore")
    if source.is_dir() and source != out / "files" / ".jaxscore":
        shutil.rmtree(journal)
        shutil.copytree(source, journal)
    for path in Path().iterdir():
        if path.is_file() and not path.is_symlink():
            path.unlink()
    _run_lines(lines, streams, first=len(lines) + 1)


def _store_files(folder: Path, files: Path) -> None:
    """Move what a case wrote. Of an Orbax checkpoint only the names are stored."""
    for name in LINKS:
        (folder / name).unlink()
    shutil.rmtree(folder / "in")
    for params in [path for path in folder.rglob("params") if path.is_dir()]:
        shutil.rmtree(params)
    shutil.move(folder, files)


def _run_server(streams: Path) -> None:
    """Start `serve`, store its answers to `REQUESTS`, and run the commands with `--api-base`."""
    command = [sys.executable, "-m", "jaxscore", "serve", "--model", "demo", "--port", "0"]
    command.append("--reproducible")  # bits do not depend on which requests meet in a batch
    package = Path("jaxscore").resolve().parent
    with (
        open(streams / "server.err", "wb") as err,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=os.environ | {"PYTHONPATH": str(package)},
        ) as server,
    ):
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        for number, (method, path, body) in enumerate(golden_cases.REQUESTS, start=1):
            answer = _ask(port, method, path, body)
            target = streams / f"request-{number:02}.json"
            target.write_text(json.dumps(answer, indent=1, ensure_ascii=False), encoding="utf-8")
        address = f"http://127.0.0.1:{port}/v1"
        os.environ["OPENAI_API_KEY"] = "none"
        lines = golden_cases.ENDPOINT.strip().splitlines()
        _run_lines([line.replace("URL", address) for line in lines], streams)
        server.send_signal(signal.SIGINT)
        server.wait(60)


def _ask(port: int, method: str, path: str, body: Any) -> Mapping[str, Any]:
    """Send one request; a list is sent as JSON lines, and text unchanged."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    data, content_type = None, "application/json"
    if isinstance(body, list):
        data, content_type = (
            "".join(json.dumps(line) + "\n" for line in body),
            "application/x-ndjson",
        )
    elif body is not None:
        data = body if isinstance(body, str) else json.dumps(body)
    headers = {} if data is None else {"Content-Type": content_type}
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if path == "/metrics":  # names without values, which count seconds
        text = re.sub(r"(?m)^([^#].*) .*$", r"\1", text)
    record: dict[str, Any] = {"request": [method, path, body], "status": answer.status}
    record["content_type"] = answer.getheader("Content-Type")
    try:
        record["body"] = json.loads(text)
    except ValueError:
        record["body"] = text.splitlines()
    return record


if __name__ == "__main__":
    sys.exit(main())
