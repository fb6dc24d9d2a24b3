"""What tells one model from another without reading all of it."""

import hashlib
from pathlib import Path

SLICES, SLICE = 256, 4096  # of each file, evenly spaced, and bytes of each
WEIGHTS = (".safetensors", ".index.json")


def fingerprint(folder: Path, adapter: Path | None = None) -> str:
    """A digest of a checkpoint's config and weights, and of an adapter's.

    Of a file of weights it takes name, size, time of change and a megabyte in slices, the header
    with all shapes among them: two fine-tuned models have the same header and size. A copy that
    has another time of change counts as another model, which costs time and never a number.
    """
    digest = hashlib.sha256()
    for place in (folder, adapter):
        if place is None:
            continue
        for path in sorted(file for file in place.rglob("*") if file.is_file()):
            name = path.relative_to(place)
            small = path.name in ("config.json", "adapter_config.json", "jaxscore.json")
            if not small and not path.name.endswith(WEIGHTS) and name.parts[0] != "params":
                continue  # tokens come as ids, so what makes them is no part of this
            facts = path.stat()
            times = () if small else (facts.st_mtime_ns,)
            digest.update(repr((name.as_posix(), facts.st_size, *times)).encode())
            with open(path, "rb") as file:
                step = max(SLICE, facts.st_size // SLICES)
                for at in range(0, facts.st_size, step):
                    file.seek(at)
                    digest.update(file.read(SLICE))
        digest.update(b"|")
    return digest.hexdigest()
