"""`jaxscore demo`: what each of the five systems shows, on the embedded model, without a hub."""

import argparse
import contextlib
import io
import json
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxscore.cli import listing, messages, model_flags
from jaxscore.errors import InputError
from jaxscore.io import streams

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer

INPUTS = Path(__file__).parent.parent / "demo" / "inputs"
MARK = ".jaxscore-demo"  # only in folders that a demo made: the next demo may empty them
# Flags of the demo that change results, so that its commands have them too.
PASSED_ON = (
    "device",
    "dtype",
    "quantize",
    "model_impl",
    "mesh",
    "batch_tokens",
    "reproducible",
    "seed",
)

DESCRIPTION = """\
Run the five systems on the embedded model, a small llama-shaped model of an
invented world, and show in one table what each is for. The items are about
people and places that the model never saw in training, so what it knows of them
it reads in the prompt.

The inputs are copied to --output-dir, where the commands leave their reports;
each command is printed, to be tried again with other flags.
"""


class Line(NamedTuple):
    """One row of the table."""

    system: str
    measure: str
    value: str
    against: str
    report: Path


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("demo", description=DESCRIPTION)
    parser.add_argument(
        "--output-dir",
        "--output",
        type=Path,
        default=Path("jaxscore-demo"),
        metavar="DIR",
        help="for inputs and reports; emptied each time (default: jaxscore-demo)",
    )
    model_flags.add_model_flags(parser, model_required=False, audited=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    folder = args.output_dir
    streams.refuse_stream(folder, "--output-dir")
    if args.distributed:
        raise InputError("--distributed: the demo runs in one process; leave it out")
    if args.truncate:
        raise InputError(
            f"--truncate {args.truncate}: no text of the demo is too long for its model; leave it "
            "out"
        )
    _check(folder)
    started = time.perf_counter()
    scorer = model_flags.load_scorer(args, "demo", None)
    scorer.progress = False  # the printed commands show how far it is
    _start(folder)
    ran = _Commands(args, scorer)
    shows = (_paths, _chronologic, _probsem, _judge, _self_certainty)
    lines = [line for show in shows for line in show(ran, folder)]
    print()
    print(table(lines))
    print(
        "\nYour own: python -m jaxscore paths --model NAME --input FILE.jsonl --output OUT.json"
        "\nAll commands: python -m jaxscore --help\n"
    )
    return messages.print_closing_block(
        done=f"{ran.n} commands",
        failures=ran.failures,
        results=[f"{len(lines)} measures, in the table above"],
        files=[folder],
        scorer=scorer,
        seconds=time.perf_counter() - started,
    )


def _check(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo.

    Raises:
        InputError: naming it.
    """
    with _refusals_told(folder):
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if used and not (folder / MARK).is_file():
            raise InputError(
                f"--output-dir {folder}: exists and is no folder of an earlier demo; give another "
                "name"
            )


def _start(folder: Path) -> None:
    """Empty the folder and copy the inputs to it.

    Raises:
        InputError: it cannot be written.
    """
    with _refusals_told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()  # first, so that a copy that breaks off can be replaced too
        for one in folder.iterdir():
            if one.is_dir() and not one.is_symlink():
                shutil.rmtree(one)
            elif one.name != MARK:
                one.unlink()
        shutil.copytree(INPUTS, folder / "inputs")


@contextlib.contextmanager
def _refusals_told(folder: Path) -> Iterator[None]:
    """Whatever the system refuses, as an InputError."""
    try:
        yield
    except OSError as problem:
        raise InputError(
            f"--output-dir {folder}: cannot be used ({problem.strerror or problem}); give another "
            "place"
        ) from None


class _Commands:
    """Runs commands as the command line does, all with one scorer."""

    def __init__(self, args: argparse.Namespace, scorer: "Scorer") -> None:
        self.args, self.scorer, self.n = args, scorer, 0
        self.failures: list[tuple[str, str]] = []

    def run(self, name: str, *words: object) -> None:
        """Run one, without what it prints: the table says it."""
        parser = listing.parser(name)
        argv = [*map(str, words)]
        usual = vars(parser.parse_args(argv))
        for flag in PASSED_ON:
            given = getattr(self.args, flag)
            if flag in usual and given != usual[flag]:
                argv.append(f"--{flag.replace('_', '-')}")
                argv += [] if given is True else [str(given)]
        print(f"jaxscore {shlex.join([name, *argv])}", flush=True)
        parsed = parser.parse_args(argv)
        parsed.scorer, parsed.quiet = self.scorer, True
        with contextlib.redirect_stdout(io.StringIO()):
            code = parsed.run(parsed)
        self.n += 1
        if code != 0:
            self.failures.append((name, f"exit code {code}"))


def _paths(ran: _Commands, folder: Path) -> list[Line]:
    output = folder / "paths.json"
    ran.run(
        "paths", "--model", "demo", "--input", folder / "inputs/paths.jsonl", "--output", output
    )
    page = folder / "paths_report.md"
    means = _read(page.with_suffix(".json"))["summary"]
    return [
        Line(
            "paths",
            "probability of the answer with its support path",
            _share(means["retrieved"]["mean"]),
            f"{_share(means['baseline']['mean'])} without",
            page,
        )
    ]


def _chronologic(ran: _Commands, folder: Path) -> list[Line]:
    place = folder / "chronologic"
    for mode in ("--full-eval", "--mcq"):
        questions = folder / "inputs/chronologic.jsonl"
        ran.run("chronologic", "demo", questions, mode, "--output-dir", place)
    full, quiz = (next(place.glob(f"eval_results_{mode}_*.json")) for mode in ("full", "mcq"))
    scored, chosen = _read(full), _read(quiz)
    truths = [one["truth"] for one in chosen["questions"] if "error" not in one]
    chance = [sum(truth) / len(truth) for truth in truths]
    return [
        Line(
            "chronologic",
            "Brier score of the answers, 0 is best",
            f"{scored['summary']['overall']['brier']['mean']:.3f}",
            f"{scored['summary']['overall']['uniform_brier']['mean']:.3f} at equal probabilities",
            next(place.glob("eval_report_full_*.md")),
        ),
        Line(
            "chronologic",
            "multiple choice, share of right letters",
            _share(chosen["summary"]["overall"]["accuracy"]["mean"]),
            f"{_share(sum(chance) / len(chance))} by chance",
            next(place.glob("eval_report_mcq_*.md")),
        ),
    ]


def _probsem(ran: _Commands, folder: Path) -> list[Line]:
    where = ("--input-dir", folder / "inputs/probsem", "--output-dir", folder / "probsem")
    ran.run("probsem", "--prompt", "demo", "--test", "truth", "--model", "demo", *where)
    page, data = (  # their names hold the settings that change the numbers
        next((folder / "probsem").glob(f"demo_truth_demo*{end}"))
        for end in ("_report.md", "_results.json")
    )
    found = _read(data)
    queries = len(found["contexts"][0]["queries"])
    return [
        Line(
            "probsem",
            "true or false, share of right queries",
            _share(found["accuracy"]["mean"]),
            f"{_share(1 / queries)} by chance",
            page,
        )
    ]


def _judge(ran: _Commands, folder: Path) -> list[Line]:
    ran.run("judge", "--experiments-folder", folder / "inputs/judge", "--llm", "demo", "demo")
    metric, means = "LLMeval_demo_logits", {}
    for side in ("right", "wrong"):
        means[side] = _read(folder / f"inputs/judge/{side}/eval_dev_metrics.json")[metric]
    return [
        Line(
            "judge",
            "score of right responses",
            f"{means['right']:.3f}",
            f"{means['wrong']:.3f} of wrong ones",
            folder / f"inputs/judge/right/eval_dev_judge_{metric}.md",
        )
    ]


def _self_certainty(ran: _Commands, folder: Path) -> list[Line]:
    samples, scored = folder / "inputs/self_certainty.json", folder / "self_certainty.json"
    ran.run("self-certainty", "--input-file", samples, "--output-file", scored)
    items = _read(scored)
    n = len(items[0]["output"])
    chosen, voted = folder / "self_certainty_select.json", folder / "self_certainty_vote.json"
    given = ("--input-file", scored, "--best-N", n, "--gold", "answer")
    ran.run("select", *given, "--output-file", chosen)
    ran.run("vote", *given, "--power", 0.5, "--output-file", voted)
    lines = []
    for what, path in ((f"most certain of {n}", chosen), (f"Borda vote of {n}", voted)):
        page = path.with_name(f"{path.stem}_report.md")
        found = _read(page.with_suffix(".json"))
        shares = found["summary"]["accuracy"]
        lines.append(
            Line(
                "self-certainty",
                f"{what}, share of right answers",
                _share(shares[found["chosen_by"]]["mean"]),
                f"{_share(shares['first sample']['mean'])} the first sample",
                page,
            )
        )
    return lines


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def table(lines: list[Line]) -> str:
    """One row per measure, columns aligned."""
    rows = [("system", "what is measured", "here", "against", "report")]
    rows += [(*line[:4], str(line.report)) for line in lines]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
