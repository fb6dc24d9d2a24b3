"""Records as the commands write them."""

import hashlib
import json
from pathlib import Path
from typing import Any


def score(id: Any, logprob: Any = -2.0, **more: Any) -> dict[str, Any]:
    mean = logprob / 2 if isinstance(logprob, float) else logprob
    numbers = {"sum_logprob": logprob, "mean_logprob": mean, "mean_entropy": 1.0}
    counts = {"n_scored": 2, "n_tokens": 2, "tokens": ["Text ", str(id)]}
    return {"id": id, **numbers, "mean_self_certainty": 0.5, **counts, **more}


def path(names: list[str], without: float, with_path: float, **more: Any) -> dict[str, Any]:
    gain = with_path - without
    return {
        "path": names,
        "answer": names[-1],
        "baseline_prob": without,
        "retrieved_prob": with_path,
        "absolute_improvement": gain,
        "relative_improvement": gain / without if without else "Infinity",
        "prompt_results": [],
        **more,
    }


def paths(id: Any, *own: dict[str, Any], question: str = "Where?") -> dict[str, Any]:
    return {"id": id, "question": question, "path_evaluations": list(own)}


def write(place: Path, records: list[Any], made: dict[str, Any] | None = None) -> Path:
    """A JSONL file, or an array where the name ends in .json; with a manifest, if one is given."""
    if place.suffix == ".json":
        place.write_text(json.dumps(records), encoding="utf-8")
    else:
        place.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
    if made is not None:
        manifest = place.with_name(f"{place.name}.run.json")
        manifest.write_text(json.dumps(made), encoding="utf-8")
    return place


def made_by(command: str, input: Path | None = None, **flags: Any) -> dict[str, Any]:
    """A manifest; with the digest of the input, if one is given."""
    out: dict[str, Any] = {"command": command, "flags": {"boundary": "joint", **flags}}
    if input is not None:
        out["flags"]["input"] = str(input)
        out["input_sha256"] = hashlib.sha256(input.read_bytes()).hexdigest()
    return out
