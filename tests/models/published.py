"""`RELEASED`: the config.json files of released models as they are on the hub, by name."""

import json
from pathlib import Path

RELEASED = {
    path.stem: json.loads(path.read_bytes())
    for path in sorted((Path(__file__).parent / "released").glob("*.json"))
}
