"""`jaxscore demo`: runs the five systems on the embedded model and prints one table."""

import argparse
import contextlib
import dataclasses
import io
import json
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.cli import app, messages, model_flags
from jaxscore.cli.app import Command
from jaxscore.cli.model_flags import model_options
from jaxscore.errors import InputError
from jaxscore.io import streams
from jaxscore.report.markdown import LEFT, aligned
from jaxscore.shell.flags import flag, options_of
from jaxscore.shell.settings import ScoringSettings

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer

INPUTS = Path(__file__).parent.parent / "demo" / "inputs"
MARK = ".jaxscore-demo"  # only in folders that a demo made: the next demo may empty them
# Flags of the demo that change results, so that its commands have them too.
OF_OTHER_MODELS = (
    "model",
    "revision",
    "lora",
    "audit_noise",
    "prefix_token_id",
    "chat_template_arg",
)
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
each command is printed, to be tried again with other flags. The pages for a
browser are listed last.
"""


@dataclasses.dataclass(kw_only=True)
class Flags:
    """The flags of `demo` in addition to those of the model."""

    output_dir: Path = flag(
        Path("jaxscore-demo"),
        "--output",
        metavar="DIR",
        help="for inputs and reports; emptied each time (default: jaxscore-demo)",
    )


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
    commands = _Commands(args, scorer)
    rows = [("system", "what is measured", "here", "against", "report")]
    for show in (_paths, _chronologic, _probsem, _judge, _self_certainty):
        rows += show(commands, folder)
    print()
    print(aligned(rows, LEFT))
    print(
        "\nYour own: python -m jaxscore paths --model NAME --input FILE.jsonl --output OUT.json"
        "\nAll commands: python -m jaxscore --help\n"
    )
    return messages.print_closing_block(
        done=f"{commands.n} commands",
        failures=commands.failures,
        results=[f"{len(rows) - 1} measures, in the table above"],
        files=[folder, *sorted(folder.rglob("*.html"))],
        scorer=scorer,
        seconds=time.perf_counter() - started,
    )


def _check(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo.

    Raises:
        InputError: naming it.
    """
    with _explain_os_errors(folder):
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if used and not (folder / MARK).is_file():
            raise InputError(
                f"--output-dir {folder}: exists and is not the folder of an earlier demo; give "
                "another name"
            )


def _start(folder: Path) -> None:
    """Empty the folder and copy the inputs to it.

    Raises:
        InputError: it cannot be written.
    """
    with _explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()  # first, so that a copy that breaks off can be replaced too
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != MARK:
                path.unlink()
        shutil.copytree(INPUTS, folder / "inputs")


@contextlib.contextmanager
def _explain_os_errors(folder: Path) -> Iterator[None]:
    """Turn OSError into an InputError."""
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
        """Run a command without its output, which the table replaces."""
        command = app.command(name)
        argv = [*map(str, words)]
        defaults = vars(app.values(command, argv))
        for field in PASSED_ON:
            value = getattr(self.args, field)
            if field in defaults and value != defaults[field]:
                argv.append(f"--{field.replace('_', '-')}")
                argv += [] if value is True else [str(value)]
        print(f"jaxscore {shlex.join([name, *argv])}", flush=True)
        parsed = app.values(command, argv)
        parsed.scorer, parsed.quiet = self.scorer, True
        with contextlib.redirect_stdout(io.StringIO()):
            code = parsed.run(parsed)
        self.n += 1
        if code != 0:
            self.failures.append((name, f"exit code {code}"))


Row = tuple[str, str, str, str, str]


def _paths(commands: _Commands, folder: Path) -> Iterator[Row]:
    inputs, output = folder / "inputs/paths.jsonl", folder / "paths.json"
    commands.run("paths", "--model", "demo", "--input", inputs, "--output", output)
    page = folder / "paths_report.md"
    means = _read(page.with_suffix(".json"))["summary"]
    here, against = (_percent(means[name]["mean"]) for name in ("retrieved", "baseline"))
    measured = "probability of the answer with its support path"
    yield "paths", measured, here, f"{against} without", str(page)


def _chronologic(commands: _Commands, folder: Path) -> Iterator[Row]:
    output, questions = folder / "chronologic", folder / "inputs/chronologic.jsonl"
    for mode in ("--full-eval", "--mcq"):
        commands.run("chronologic", "demo", questions, mode, "--output-dir", output)
    full, quiz = (_read(next(output.glob(f"eval_results_{m}_*.json"))) for m in ("full", "mcq"))
    pages = (str(next(output.glob(f"eval_report_{m}_*.md"))) for m in ("full", "mcq"))
    scores = full["summary"]["overall"]
    here, against = (f"{scores[name]['mean']:.3f}" for name in ("brier", "uniform_brier"))
    measured = "Brier score of the answers, 0 is best"
    yield "chronologic", measured, here, f"{against} at equal probabilities", next(pages)
    truths = [item["truth"] for item in quiz["questions"] if "error" not in item]
    chance = sum(sum(truth) / len(truth) for truth in truths) / len(truths)
    here = _percent(quiz["summary"]["overall"]["accuracy"]["mean"])
    measured = "multiple choice, share of right letters"
    yield "chronologic", measured, here, f"{_percent(chance)} by chance", next(pages)


def _probsem(commands: _Commands, folder: Path) -> Iterator[Row]:
    output = folder / "probsem"
    places = ("--input-dir", folder / "inputs/probsem", "--output-dir", output)
    commands.run("probsem", "--prompt", "demo", "--test", "truth", "--model", "demo", *places)
    page, data = (  # their names have the settings that change the numbers
        next(output.glob(f"demo_truth_demo*{end}")) for end in ("_report.md", "_results.json")
    )
    results = _read(data)
    chance = 1 / len(results["contexts"][0]["queries"])
    here, measured = _percent(results["accuracy"]["mean"]), "true or false, share of right queries"
    yield "probsem", measured, here, f"{_percent(chance)} by chance", str(page)


def _judge(commands: _Commands, folder: Path) -> Iterator[Row]:
    inputs, metric = folder / "inputs/judge", "LLMeval_demo_logits"
    commands.run("judge", "--experiments-folder", inputs, "--llm", "demo", "demo")
    here, against = (
        f"{_read(inputs / side / 'eval_dev_metrics.json')[metric]:.3f}"
        for side in ("right", "wrong")
    )
    page = inputs / f"right/eval_dev_judge_{metric}.md"
    yield "judge", "score of right responses", here, f"{against} of wrong ones", str(page)


def _self_certainty(commands: _Commands, folder: Path) -> Iterator[Row]:
    samples, scored = folder / "inputs/self_certainty.json", folder / "self_certainty.json"
    commands.run("self-certainty", "--input-file", samples, "--output-file", scored)
    n = len(_read(scored)[0]["output"])
    for command, measured, flags in (
        ("select", f"most certain of {n}", ()),
        ("vote", f"Borda vote of {n}", ("--power", 0.5)),
    ):
        output = folder / f"self_certainty_{command}.json"
        read = ("--input-file", scored, "--best-N", n, "--gold", "answer")
        commands.run(command, *read, *flags, "--output-file", output)
        page = output.with_name(f"{output.stem}_report.md")
        results = _read(page.with_suffix(".json"))
        shares = results["summary"]["accuracy"]
        here = _percent(shares[results["chosen_by"]]["mean"])
        against = f"{_percent(shares['first sample']['mean'])} the first sample"
        yield "self-certainty", f"{measured}, share of right answers", here, against, str(page)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


COMMAND = Command(
    "demo",
    DESCRIPTION,
    [
        *options_of(Flags),
        *model_options(ScoringSettings, omitted=OF_OTHER_MODELS),
    ],
    run,
)
