"""Run by tests in a process with several CPU devices: scores with split layers.

Takes a checkpoint's folder, a mesh and a value of --quantize, if any; prints one JSON line.
"""

import json
import sys
from pathlib import Path

from jaxscore.engine.devices import mesh_choice
from jaxscore.models.load import load
from jaxscore.models.model_types import Quantize
from tests.models.checkpoints import ragged, scorer


def main(folder: str, mesh: str, quantize: Quantize | None = None) -> None:
    model = load(Path(folder), dtype="float32", quantize=quantize, mesh_choice=mesh_choice(mesh))
    assert model.devices.mesh is not None
    found = scorer(model).score_sequences(ragged())
    columns = [[column.tolist() for column in one[:4]] for one in found]
    json.dump({"shards": model.devices.shape.model, "scores": columns}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
