"""`startup`: CPU seconds of ten short texts, from the start of the process to its end.

Loading a model dominates such a run. `cold` has an empty cache folder, so the program is compiled
and all bytes of the checkpoint are hashed; `warm` has that of a run before it. `imports` is what
importing JAX and Flax takes of that. The other side is what a user of PyTorch would write in ten
lines.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    ("The capital of Norway is", " Oslo"),
    ("The capital of France is", " Paris"),
    ("Water boils at", " one hundred degrees"),
    ("The opposite of hot is", " cold"),
    ("Two plus two is", " four"),
    ("The sun rises in the", " east"),
    ("A week has seven", " days"),
    ("The largest planet is", " Jupiter"),
    ("Shakespeare wrote", " Hamlet and Macbeth"),
    ("The chemical symbol of gold is", " Au"),
]
IMPORTS = "import jax, flax.linen; jax.devices()"
TORCH = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, options = sys.argv[1], json.loads(sys.argv[3])
tokenizer = AutoTokenizer.from_pretrained(folder, **options)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
for item in map(json.loads, open(sys.argv[2])):
    start = len(tokenizer(item["context"]).input_ids)
    ids = tokenizer(item["context"] + item["continuation"], return_tensors="pt").input_ids
    with torch.inference_mode():
        logprob = model(ids[:, :-1]).logits[0].log_softmax(-1).gather(1, ids[0, 1:, None])
    print(logprob[start - 1 :].sum().item())
"""


def run(models: Sequence[Path], turns: int, against: Path | None) -> None:
    """Print CPU seconds, medians of turns of processes, and what PyTorch takes of each.

    Args:
        models: GGUF files or folders.
        against: another checkout, measured too.
    """
    roots = {"here": ROOT} | ({} if against is None else {"against": against.resolve()})
    for model in models:
        print(f"\nstartup, ten short texts, {model.name}: CPU seconds, medians of {turns} turns")
        taken = measured(model, turns, roots)
        for contender, seconds in taken.items():
            ratios = [a / b for a, b in zip(taken["PyTorch"], seconds, strict=True)]
            ratio = f"PyTorch takes {statistics.median(ratios):.2f} times as much"
            print(f"  {contender:14}{statistics.median(seconds):6.2f} s  {ratio}", flush=True)


def measured(model: Path, turns: int, roots: Mapping[str, Path]) -> dict[str, list[float]]:
    """CPU seconds of each turn, by checkout and cache, of imports and of PyTorch."""
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "texts.jsonl"
        lines = [json.dumps({"context": a, "continuation": b}) for a, b in TEXTS]
        source.write_text("\n".join(lines), encoding="utf-8")
        command = score_command(model, source, folder)
        for turn in range(turns):
            for version, root in roots.items():
                cache = {"JAXSCORE_CACHE": str(folder / f"{version} {turn}")}
                for contender in ("cold", "warm"):
                    seconds = cpu_seconds(command, root, cache)
                    taken.setdefault(f"{contender} {version}", []).append(seconds)
            others = {
                "imports": [sys.executable, "-c", IMPORTS],
                "PyTorch": torch_command(model, source),
            }
            for contender, other in others.items():
                taken.setdefault(contender, []).append(cpu_seconds(other, ROOT, {}))
    return taken


def score_command(model: Path, source: Path, folder: Path) -> list[str]:
    """The command `score` without a journal, from which a second run would have its scores."""
    command = [sys.executable, "-m", "jaxscore", "score", "--device", "cpu", "--journal", "off"]
    output = str(folder / "scores.jsonl")
    return [*command, "--model", str(model.resolve()), "--input", str(source), "--output", output]


def torch_command(model: Path, source: Path) -> list[str]:
    folder, options = model.resolve(), {}
    if folder.is_file():
        folder, options = folder.parent, {"gguf_file": folder.name}
    return [sys.executable, "-c", TORCH, str(folder), str(source), json.dumps(options)]


def cpu_seconds(command: list[str], folder: Path, variables: dict[str, str]) -> float:
    """User and system seconds of a command in this folder.

    Raises:
        SystemExit: it failed.
    """
    env = os.environ | {"HF_HUB_OFFLINE": "1"} | variables
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            text = said.read().decode("utf-8", "replace")
            raise SystemExit(f"{command[2]} ended with {child.returncode}:\n{text}")
    return used.ru_utime + used.ru_stime
