"""What tells one model from another without reading all of it."""

import hashlib
from pathlib import Path

SLICES, SLICE = 256, 4096  # of each file, evenly spaced, and bytes of each
WEIGHTS = (".safetensors", ".index.json")
SETTINGS = ("config.json", "adapter_config.json", "jaxscore.json")


def fingerprint(folder: Path, adapter: Path | None = None, *, times: bool = True) -> str:
    """A digest of a checkpoint's config and weights, and of an adapter's.

    Of a file of weights it takes name, size, time of change and a megabyte in slices, the header
    with all shapes among them: two fine-tuned models have the same header and size. A copy that
    has another time of change counts as another model, which costs time and never a number.
    What makes tokens is no part of this, since scores are asked for by token ids.

    Without `times` it is that of every copy, which tells one model from another nearly as well.
    """
    digest = hashlib.sha256()
    for place in (folder, adapter):
        if place is None:
            continue
        weights = [path for path in place.iterdir() if path.name.endswith(WEIGHTS)]
        weights += [path for path in (place / "params").rglob("*") if path.is_file()]
        for path in sorted([*weights, *(place / name for name in SETTINGS)]):
            if not path.is_file():
                continue
            name, small = path.relative_to(place), path.name in SETTINGS
            facts = path.stat()
            changed = (facts.st_mtime_ns,) if times and not small else ()
            digest.update(repr((name.as_posix(), facts.st_size, *changed)).encode())
            with open(path, "rb") as file:
                step = max(SLICE, facts.st_size // SLICES)
                for at in range(0, facts.st_size, step):
                    file.seek(at)
                    digest.update(file.read(SLICE))
        digest.update(b"|")
    return digest.hexdigest()
