"""`jaxscore demo`: what the tool is for, on the embedded model, without a hub."""

import argparse
import time
from pathlib import Path

from jaxscore.commands import paths, shared
from jaxscore.tasks import path_gain

INPUTS = Path(__file__).parent.parent / "demo" / "inputs"
SHOWN = 6  # paths in the table

DESCRIPTION = """\
Run `paths` on the embedded model: a small llama-shaped model of an invented world. The questions
are about people and places that it never saw in training, so what it knows of them it reads in
the support path.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "demo",
        help="`paths` on the embedded model, as a short table",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shared.add_model_flags(parser, model_required=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = path_gain.load(INPUTS / "paths.jsonl")
    systems = path_gain.system_prompts([], None)
    scorer = shared.load_scorer(args, "demo")
    started = time.perf_counter()
    scored = scorer.score(
        path_gain.requests(items, systems), boundary="separate", truncate=args.truncate
    )
    results = path_gain.evaluate(items, systems, scored)
    print("paths: the probability of the answer without and with its support path\n")
    print(table(results[:SHOWN]))
    if len(results) > SHOWN:
        print(f"  and {len(results) - SHOWN} more questions")
    summary = path_gain.summarise(results)
    print("\n" + paths.text(summary))
    print(
        "\nYour own: python -m jaxscore paths --model NAME --input FILE.jsonl --output OUT.json"
        "\nAll commands: python -m jaxscore --help"
    )
    shared.tell_run(args, scorer, time.perf_counter() - started)
    return shared.tell_failures(summary.failures)


def table(results: list[dict]) -> str:
    """One line a path, columns aligned."""
    rows = [("question", "answer", "without", "with", "gain")]
    for result in results:
        for e in result["path_evaluations"]:
            if "error" in e:
                rows.append((result["question"], e["answer"], "-", "-", e["error"]))
                continue
            gain = f"{e['absolute_improvement']:+.4f}"
            probabilities = (f"{e['baseline_prob']:.4f}", f"{e['retrieved_prob']:.4f}")
            rows.append((result["question"], e["answer"], *probabilities, gain))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
