"""Run by test_model.py in a process with four CPU devices: two models with split layers.

Takes pairs of folders as JSON, prints one JSON line. A folder twice is float32 against bfloat16.
"""

import json
import sys
from pathlib import Path

from jaxscore.device.lm_head.divergence import MEASURES
from jaxscore.engine.devices import mesh_choice
from jaxscore.models.load import load
from jaxscore.models.model import paired
from tests.models.checkpoints import ragged, scorer


def main(pairs: str) -> None:
    report = []
    for p, q in json.loads(pairs):
        choice = mesh_choice("fsdp=2,model=2")
        own = load(Path(p), dtype="float32", mesh_choice=choice)
        other = load(Path(q), dtype="bfloat16" if p == q else "float32", mesh_choice=choice)
        assert own.devices.mesh is not None
        found = scorer(paired(own, other)).score_sequences(ragged(), measures=MEASURES)
        columns = [{name: one.measures[name].tolist() for name in MEASURES} for one in found]
        report.append({"shape": str(own.devices.shape), "scores": columns})
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
