"""Train the model of `jaxscore demo` and write it as a Hugging Face folder.

    python tools/train_demo_model.py
    python tools/train_demo_model.py --start-from jaxscore/demo/model

A small llama learns an invented world: persons, cities, rivers and companies with made-up
names, and the prompts of the five evaluations about them. Most texts name things that occur
nowhere else, so the model learns to take an answer from its context, which is what a support
path, a passage or a golden answer is for.
"""

import argparse
import dataclasses
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path

# As a script Python finds this folder and not the repository, where `tools` is.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from jaxscore.device import decoder
from tools.demo_world import evaluation, inputs, model
from tools.demo_world.documents import PHASE_ENDS
from tools.demo_world.tokenizer import train_tokenizer
from tools.demo_world.training import Plan, train

DEMO = Path(__file__).resolve().parent.parent / "jaxscore" / "demo"
VOCAB_SIZE = 896  # what the world's texts give; 935 merges exhaust them


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python tools/train_demo_model.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="A run that was stopped goes on from its newest checkpoint when the same command "
        "is given again,\nand ends with the same parameters. Steps, seed and sizes decide which "
        "checkpoints are its own.",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=3400,
        help="batches of 3072 tokens (default: %(default)s, under an hour on two idle cores)",
    )
    parser.add_argument(
        "--start-from",
        type=Path,
        metavar="FOLDER",
        help="a folder this tool wrote, whose model copies names already: keep its tokenizer and "
        "parameters, and train on labels only, the later phases (default: from nothing)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=DEMO / "model",
        help="folder for config, weights and tokenizer (default: the one in the package)",
    )
    parser.add_argument(
        "--inputs",
        type=Path,
        default=DEMO / "inputs",
        help="folder for the inputs of the demo, about held-out names (default: in the package)",
    )
    parser.add_argument(
        "--checkpoints",
        type=Path,
        default=Path(".checkpoints"),
        help="folder for the state on the way, 25 MB a checkpoint, two kept (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the world, the tokenizer, the data order and the first parameters "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="forget this run's checkpoints and begin at step 0"
    )
    chosen = parser.parse_args(arguments)
    if chosen.steps < 1:
        parser.error(f"--steps {chosen.steps}: expected 1 or more")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    """Train, write the folder and the inputs, and print what was learned.

    The last two take minutes, since the model answers hundreds of questions eight times.
    """
    chosen = parse(arguments)
    raw = model.raw_config(VOCAB_SIZE)
    _, config = model.decoder_config(raw)
    if chosen.start_from is None:
        plan, start = Plan(steps=chosen.steps, seed=chosen.seed), None
        tokenizer = train_tokenizer(VOCAB_SIZE, chosen.seed)
    else:
        plan = Plan(steps=chosen.steps, seed=chosen.seed, begin=PHASE_ENDS[0])
        start, tokenizer = model.read_folder(chosen.start_from, raw)
    checkpoints = chosen.checkpoints.resolve() / run_name(plan, raw, start)
    if chosen.fresh and checkpoints.exists():
        shutil.rmtree(checkpoints)
    began = time.monotonic()
    params = train(
        config,
        tokenizer,
        plan,
        checkpoints,
        start=start,
        say=lambda line: print(line, flush=True),
    )
    print(f"trained in {(time.monotonic() - began) / 60:.1f} min")
    model.write_folder(chosen.out, raw, params, tokenizer)
    size = sum(path.stat().st_size for path in chosen.out.iterdir())
    print(f"wrote {chosen.out} ({size / 1e6:.2f} MB)")
    scorer = evaluation.scorer_of(chosen.out)
    for path in [
        *inputs.write(chosen.inputs, chosen.seed),
        evaluation.write_samples(chosen.inputs, scorer, chosen.seed),
    ]:
        print(f"wrote {path}")
    print("\nThe written model on names that no training text holds:")
    print(evaluation.table(scorer))


def run_name(plan: Plan, raw: dict[str, object], start: decoder.Params | None = None) -> str:
    """A name that tells runs of other plans, sizes or first parameters apart."""
    decided = hashlib.sha256(json.dumps([dataclasses.asdict(plan), raw], sort_keys=True).encode())
    for array in jax.tree.leaves(start):
        decided.update(np.asarray(array).tobytes())
    return f"demo-{decided.hexdigest()[:12]}"


if __name__ == "__main__":
    main()
