"""Coverage-guided fuzzing of what reads users' files: JSON, YAML, templates, safetensors, …

    pip install -e '.[fuzz]'
    python tools/fuzz.py --target yaml --seconds 300 --findings findings

Targets are those of `tools/fuzz_targets.py`, or MODULE:FUNCTION. A finding is an input on which a
target raises, warns, or exceeds --most-seconds or --most-mb. It ends the run with exit code 1, and
is written to --findings with the output and the command that reproduces it:

    python tools/fuzz.py --target yaml --input findings/yaml-crash-0123…

Atheris (libFuzzer) mutates inputs towards lines of jaxscore and PyYAML that none has reached yet.
It runs in a separate process, which it may abort.
"""

import argparse
import importlib
import os
import shlex
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.requirements import require

INSTRUMENTED = ["jaxscore", "yaml", "tools", "tests"]
LONGEST = 8192  # bytes of an input
MOST_LINES = 40  # of the output of the process in a note


def main() -> int:
    args = _parser().parse_args()
    if args.child:
        _fuzz(args)
    if args.input is not None:
        return _once(args)
    if args.findings is None:
        raise SystemExit("--findings: where should inputs go that show a defect?")
    require("atheris", "fuzz")
    args.findings.mkdir(parents=True, exist_ok=True)
    before = set(args.findings.iterdir())
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        ended = subprocess.run(
            _command(args, Path(folder)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    lines = ended.stdout.decode(errors="replace").splitlines()
    output_lines = [line for line in lines if not line.startswith("INFO: Instrumenting")]
    findings = sorted(set(args.findings.iterdir()) - before)
    for path in findings:
        again = [sys.executable, __file__, "--target", args.target, "--input", str(path)]
        note = path.with_name(f"{path.name}.txt")
        note.write_text(
            "\n".join([shlex.join(again), *output_lines[-MOST_LINES:]]) + "\n", encoding="utf-8"
        )
        print(f"found {path}\n{shlex.join(again)}")
    if not findings:
        print("\n".join(output_lines[-MOST_LINES:] if ended.returncode else output_lines[-1:]))
    return 1 if findings else ended.returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, metavar="NAME|MODULE:FUNCTION")
    parser.add_argument("--seconds", type=int, default=60, help="default 60")
    parser.add_argument("--runs", type=int, default=-1, help="inputs at most (default: no limit)")
    parser.add_argument("--findings", type=Path, metavar="FOLDER")
    parser.add_argument("--most-seconds", type=int, default=5, help="for one input (default 5)")
    parser.add_argument(
        "--most-mb", type=int, default=1024, help="more than it has at the start (default 1024)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the mutations (default 1)")
    parser.add_argument("--input", type=Path, help="run the target on this file alone")
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _command(args: argparse.Namespace, folder: Path) -> list[str]:
    """libFuzzer's own flags go to the process that it runs in."""
    corpus = folder / "corpus"
    corpus.mkdir()
    words = folder / "words"
    targets = importlib.import_module("tools.fuzz_targets")
    for k, seed in enumerate(targets.seeds(args.target)):
        (corpus / str(k)).write_bytes(seed)
    words.write_text(
        "".join(f'"{_quoted(word.encode())}"\n' for word in targets.WORDS), encoding="ascii"
    )
    flags = {
        "max_total_time": args.seconds,
        "runs": args.runs,
        "timeout": args.most_seconds,
        "seed": args.seed,
        "max_len": LONGEST,
        "dict": words,
        "artifact_prefix": f"{args.findings / args.target.replace(':', '.')}-",
    }
    script_flags = ["--target", args.target, "--most-mb", str(args.most_mb), "--child"]
    libfuzzer_flags = [f"-{name}={value}" for name, value in flags.items()]
    return [sys.executable, __file__, *script_flags, *libfuzzer_flags, str(corpus)]


def _quoted(word: bytes) -> str:
    plain = range(32, 127)
    return "".join(chr(b) if b in plain and b not in b'"\\' else f"\\x{b:02x}" for b in word)


def _resident_mb() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _fuzz(args: argparse.Namespace) -> None:
    """Never returns."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        target = _target(args.target)
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        folder_path = Path(folder) / "input"

        def one(data: bytes) -> None:
            run_one(target, data, folder_path)

        for seed in sorted(
            Path(args.child[-1]).iterdir()
        ):  # so that a late import does not count as a slow input
            one(seed.read_bytes())
        limit = f"-rss_limit_mb={_resident_mb() + args.most_mb}"
        atheris.Setup([sys.argv[0], limit, *args.child], one)
        atheris.Fuzz()


def _once(args: argparse.Namespace) -> int:
    import faulthandler

    target = _target(args.target)
    warnings.simplefilter("error")
    faulthandler.dump_traceback_later(args.most_seconds, exit=True)
    before = _resident_mb()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        run_one(target, args.input.read_bytes(), Path(folder) / "input")
    grown = _resident_mb() - before
    print(f"no finding; {grown} MB more")
    return int(grown > args.most_mb)


def _target(name: str):
    module, _, function = name.partition(":")
    if function:
        return getattr(importlib.import_module(module), function)
    targets = importlib.import_module("tools.fuzz_targets").TARGETS
    if name not in targets:
        raise SystemExit(f"--target {name}: there are {', '.join(targets)}")
    return targets[name]


def run_one(target, data: bytes, folder: Path) -> None:
    """Run the target on one input, in an emptied folder."""
    folder.mkdir(exist_ok=True)
    for entry in os.scandir(folder):
        os.unlink(entry)
    target(data, folder)


if __name__ == "__main__":
    sys.exit(main())
