"""Check whether a shard is finished: compare its manifest with this run."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.cli import messages
from jaxscore.cli.made import MADE, difference
from jaxscore.cli.shard_files import BESIDE, Shard
from jaxscore.errors import InputError
from jaxscore.io import remote, run_files
from jaxscore.io.manifest import changed_output
from jaxscore.io.streams import is_stream
from jaxscore.models.weights.folder import resolve
from jaxscore.shell.system import System
from jaxscore.systems.system import declaration
from jaxscore.version import NUMBERS

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
    if isinstance(declaration(args.command), System):
        why: str | None = "of an earlier version of jaxscore"
        if (found := manifest.get(MADE)) is not None:
            differs = difference(args, found)
            why = differs and f"with {differs.name} {differs.before}, this one has {differs.now}"
    else:
        why = _difference(args, manifest, output)
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
        digest = run_files.file_digest(shard.source)
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
        why = f"{source} has no version (ETag or time), and may differ from that of {written}"
    messages.remark(args, f"{why}: scored again")
    return False


def _facts(identity: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (identity or {}).items()) or "not known"


def _difference(args: argparse.Namespace, manifest: Mapping[str, Any], output: Path) -> str | None:
    """Describe the first difference between a finished run and this one, or return None."""
    flags = run_files.manifest_flags(vars(args))
    before = manifest.get("flags")
    if manifest.get("command") != args.command or not isinstance(before, dict):
        return f"of the command {manifest.get('command')}"
    for name in sorted((flags.keys() | before.keys()) - run_files.OF_THE_RUN):
        if flags.get(name) != before.get(name):
            flag = f"--{name.replace('_', '-')}"
            return f"with {flag} {before.get(name)}, this one has {flags.get(name)}"
    for name in sorted(name for name in manifest if name.endswith(DIGEST)):
        path = getattr(args, name.removesuffix(DIGEST), None)
        if not isinstance(path, Path) or name == "input_sha256":
            continue
        if run_files.file_digest(path) != manifest[name]:
            return f"with another content of {path}"
    if manifest.get(run_files.RECORD_VERSION, 1) != declaration(args.command).version:
        return "with records of another version of jaxscore"
    return _model_difference(args, manifest)


def _model_difference(args: argparse.Namespace, manifest: Mapping[str, Any]) -> str | None:
    """Describe the first difference between the models of both runs, or return None."""
    made = manifest.get("model")
    if not isinstance(made, dict):  # of an endpoint
        return None
    if made.get("numbers", NUMBERS) != NUMBERS:
        return "with another version of jaxscore, whose numbers differ"
    for prefix, flag, name in (
        ("", "model", manifest.get("model_name") or args.model),
        ("reference_", "reference", getattr(args, "reference", None)),
    ):
        weights = made.get(f"{prefix}model")
        if isinstance(weights, str) and weights != _fingerprint(args, prefix, name):
            return f"with other weights of the same name (--{flag} {name})"
    tokenizer, name = manifest.get(run_files.TOKENIZER), manifest.get("model_name") or args.model
    if tokenizer is not None and name is not None and _tokenizer(args, name) != tokenizer:
        return f"with another tokenizer, chat template or generation_config.json (--model {name})"
    return None


def _tokenizer(args: argparse.Namespace, name: str) -> str | None:
    """Digest of a model's tokenizer files, computed once."""
    known = args.__dict__.setdefault("fingerprints", {})
    if (run_files.TOKENIZER, name) not in known:
        from jaxscore.text import tokenizer_files

        folder = resolve(name, args.revision)
        known[run_files.TOKENIZER, name] = tokenizer_files.digest(folder)
    digest: str | None = known[run_files.TOKENIZER, name]
    return digest


def _fingerprint(args: argparse.Namespace, prefix: str, name: str | None) -> str | None:
    """Digest of a model, computed once; without JAX. None if its name is not known.

    Args:
        prefix: of the flags beside the name: "" or "reference_".
    """
    if name is None:
        return None
    known = args.__dict__.setdefault("fingerprints", {})
    if (prefix, name) not in known:
        from jaxscore.models.weights import fingerprint

        folder = resolve(name, getattr(args, f"{prefix}revision", None))
        adapter = getattr(args, f"{prefix}lora", None)
        known[prefix, name] = fingerprint.fingerprint(folder, adapter)
    return str(known[prefix, name])
