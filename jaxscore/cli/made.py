"""Everything that decides the records of a run, except its input, so that shards fit together.

One description, in each manifest, decides whether an output is finished and whether shards may be
merged. It is known without JAX, except for `loaded`, which a loaded model adds.
"""

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.io.manifest import OF_THE_RUN, file_digest, manifest_flags
from jaxscore.models.weights.folder import resolve
from jaxscore.version import NUMBERS, RECORDS

MADE = "made"  # field of a manifest
OF_THE_DEVICE = frozenset({"platform", "device_kind", "shards"})  # facts that move last bits alone

SHOWN = 60  # characters of a value in a message
OF_THE_MODEL = ("name", "weights", "tokenizer", "loaded")


def made_of(
    args: argparse.Namespace, files: Mapping[str, str | None], scorer: Any = None
) -> dict[str, Any]:
    """Describe what decides the records.

    Args:
        files: digests of the files that flags name, by flag.
        scorer: the loaded model; None before it is loaded, or if none is.

    Returns:
        `command`; `flags` that decide records; `files`; `records`, the version of their fields;
        `numbers`, the version of the numerics; `name`, `weights` and `tokenizer` of the model,
        and `loaded`, further facts of it; None if no local model was loaded.
    """
    decisive = manifest_flags(vars(args))
    out: dict[str, Any] = {
        "command": args.command,
        "flags": {k: v for k, v in decisive.items() if k not in OF_THE_RUN},
        "files": dict(files),
        "records": RECORDS,
        "numbers": NUMBERS,
        **dict.fromkeys(OF_THE_MODEL),
    }
    if scorer is not None:
        about = dict(scorer.about)
        weights = {"model": about.pop("model"), "reference": about.pop("reference_model", None)}
        out["weights"] = {flag: digest for flag, digest in weights.items() if digest is not None}
        out |= {"name": args.shard_run.model, "tokenizer": args.shard_run.tokenizer}
        loaded = {k: v for k, v in about.items() if k not in OF_THE_DEVICE}
        out["loaded"] = json.loads(json.dumps(loaded, default=str))
    return out


def digest(description: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a description, equal for all shards of a run."""
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode()).hexdigest()


class Mismatch(NamedTuple):
    """A part of two descriptions that differs: its name, and both values, long ones cut."""

    name: str
    before: str
    now: str


def difference(args: argparse.Namespace, before: Mapping[str, Any]) -> Mismatch | None:
    """Describe the first difference between a finished run and this one, or return None.

    Weights and tokenizer are hashed only if the rest agrees.
    """
    files = {
        name: path if path is None else file_digest(path)
        for name in before["files"]
        if isinstance(path := getattr(args, name, None), Path | None)
    }
    now = made_of(args, files)
    why = mismatch(before, now)
    if why is None and before["weights"] is not None:
        name = args.model or before["name"]  # the input may name the model
        names = {"model": name, "reference": getattr(args, "reference", None)}
        now["weights"] = {flag: _weights(args, flag, names[flag]) for flag in before["weights"]}
        now["tokenizer"] = _tokenizer(args, name)
        why = mismatch(before, now)
    return why


def mismatch(before: Mapping[str, Any], now: Mapping[str, Any]) -> Mismatch | None:
    """Describe the first difference between two descriptions, or return None.

    A fact that one of them lacks, since no model was loaded, is not a difference.
    """
    for field, title in (
        ("command", "command"),
        ("flags", "--{}"),
        ("files", "content of --{}"),
        ("records", "version of the records"),
        ("numbers", "version of jaxscore's numerics (numbers)"),
        ("weights", "weights (--{})"),
        ("tokenizer", "tokenizer, chat template or generation_config.json"),
        ("loaded", "{}"),
    ):
        a, b = before.get(field), now.get(field)
        if field in OF_THE_MODEL and (a is None or b is None):
            continue
        if not (isinstance(a, dict) and isinstance(b, dict)):
            a, b = {"": a}, {"": b}
        for name in sorted(a.keys() | b.keys()):
            if a.get(name) != b.get(name):
                named = title.format(name if field == "loaded" else name.replace("_", "-"))
                return Mismatch(named, str(a.get(name))[:SHOWN], str(b.get(name))[:SHOWN])
    return None


def _weights(args: argparse.Namespace, flag: str, name: str | None) -> str | None:
    """Return the digest of the weights that a flag names, computed once for all shards."""
    if name is None:
        return None
    digests = args.__dict__.setdefault("fingerprints", {})
    if (flag, name) not in digests:
        from jaxscore.models.weights import fingerprint

        prefix = "" if flag == "model" else f"{flag}_"
        folder = resolve(name, getattr(args, f"{prefix}revision", None))
        adapter = getattr(args, f"{prefix}lora", None)
        digests[flag, name] = str(fingerprint.fingerprint(folder, adapter))
    return str(digests[flag, name])


def _tokenizer(args: argparse.Namespace, name: str) -> str | None:
    """Return the digest of a model's tokenizer files, computed once for all shards."""
    digests = args.__dict__.setdefault("fingerprints", {})
    if ("tokenizer", name) not in digests:
        from jaxscore.text import tokenizer_files

        digests["tokenizer", name] = tokenizer_files.digest(resolve(name, args.revision))
    digest_of_files: str | None = digests["tokenizer", name]
    return digest_of_files
