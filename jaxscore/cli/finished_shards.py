"""Check whether a shard is finished: compare its manifest with this run."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from jaxscore.cli import messages
from jaxscore.cli.made import MADE, difference
from jaxscore.cli.shard_files import BESIDE, Shard
from jaxscore.errors import InputError
from jaxscore.io import remote
from jaxscore.io.manifest import changed_output, file_digest
from jaxscore.io.streams import is_stream

DIGEST = "_sha256"  # ending of the names of digests in a manifest: of the files that flags name


def is_finished(
    args: argparse.Namespace,
    shard: Shard,
    manifest: Mapping[str, Any] | None,
    changed: str | None = None,
) -> bool:
    """Return True if this run has finished a shard, as its manifest describes.

    Args:
        changed: difference between the output and its manifest, or None, see `output_difference`.

    Raises:
        InputError: another run has finished it: with other flags, another model or another input
            file.
    """
    output = shard.output
    if args.force or output is None or is_stream(output):
        return False
    if manifest is None:
        return False
    why: str | None = "of an earlier version of jaxscore"
    if (stored := manifest.get(MADE)) is not None:
        differs = difference(args, stored)
        why = differs and f"with {differs.name} {differs.before}, this one has {differs.now}"
    if why is not None:
        raise InputError(
            f"{remote.displayed(output)}: finished by another run, {why}; give another --output, "
            "or --force to replace it"
        )
    before, now = manifest.get("input_identity"), shard.identity
    has_version = any(value for name, value in (now or {}).items() if name not in ("size", BESIDE))
    source = remote.displayed(shard.source)
    made_from = str(manifest.get("input_path") or manifest["flags"].get("input", source))
    is_other = made_from != source and os.path.realpath(made_from) != os.path.realpath(shard.source)
    # Files of different folders may have one size and time, so that their bytes decide.
    is_same = before == now and has_version and not (is_other and "mtime_ns" in (now or {}))
    same = all((before or {}).get(name) == (now or {}).get(name) for name in ("size", BESIDE))
    if not is_same and before and now and "mtime_ns" in now and same:
        digest = file_digest(shard.source)
        is_same = digest is not None and digest == manifest.get("input_sha256")
    if is_same:
        if changed is not None:
            messages.remark(args, f"{changed_output(output, changed)}: scored again")
        return changed is None
    written = remote.displayed(output)
    if is_other:
        raise InputError(
            f"{written}: finished with another input, {made_from} and not {source}; give another "
            "--output, or --force to replace it"
        )
    if has_version:
        facts = f"{_facts(before)}, now {_facts(now)}"
        why = f"{source} has changed since {written} was written ({facts})"
    else:
        why = f"{source} lacks a version (ETag or time), and may differ from that of {written}"
    messages.remark(args, f"{why}: scored again")
    return False


def _facts(identity: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (identity or {}).items()) or "not known"
