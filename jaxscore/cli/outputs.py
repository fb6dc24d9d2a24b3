"""Output files of a command: places that may not be used, and the manifest."""

import argparse
import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.evaluate import Report
from jaxscore.io import run_files
from jaxscore.io.run_files import file_digest
from jaxscore.io.streams import NOWHERE, is_stream

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer


# How the names of reports end, see `report_paths`.
REPORTS = tuple(f"{mark}report{kind}" for mark in "_." for kind in (".md", ".json", ".html"))


def check_output(output: Path, *inputs: Path | None, flag: str = "--output") -> None:
    """Refuse to write over what is read, a manifest or a report; `flag` is the one to change.

    Raises:
        InputError: naming the flag and the place.
    """
    for endings, what in (((run_files.MANIFEST,), "manifests"), (REPORTS, "reports")):
        for ending in endings:
            if output.name.endswith(ending):
                raise InputError(
                    f"{flag} {output}: names that end in {ending} are those of {what}; give "
                    "another name"
                )
    check_place(output, *inputs, flag=flag)


def check_place(output: Path, *inputs: Path | None, flag: str) -> None:
    """Refuse to write over what is read; `flag` is the one to change.

    Raises:
        InputError: naming the flag and the place.
    """
    for place, path in itertools.product((output, run_files.manifest_path(output)), inputs):
        if path is not None and _resolved(place, flag) == _resolved(path, flag):
            raise InputError(f"{flag} {place} is an input of this run; give another name")


def check_outputs(outputs: Sequence[Path], *inputs: Path | None, flag: str = "--output") -> None:
    """`check_output` for each file that a run writes, and none of them twice.

    Args:
        outputs: the first one has a manifest, the others may be its reports.

    Raises:
        InputError: naming the flag and the places.
    """
    if is_stream(outputs[0]):  # nothing lies beside it
        return
    check_output(outputs[0], *inputs, flag=flag)
    for output in outputs[1:]:
        check_place(output, *inputs, flag=flag)
    places = [*outputs, run_files.manifest_path(outputs[0])]
    for one, other in itertools.combinations(places, 2):
        if _resolved(one, flag) == _resolved(other, flag):
            raise InputError(
                f"{flag} {outputs[0]}: {one} and {other} are one file, and this run would write "
                "both; give another name"
            )


def _resolved(path: Path, flag: str) -> Path:
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.stat()  # fails at a loop of links, which Python 3.13 resolves to itself
        return path.resolve()
    except (OSError, ValueError) as problem:
        raise InputError(f"{flag} {path}: not usable as a path ({problem})") from None


def report_paths(output: Path) -> tuple[Path, Path]:
    """Where the page and the JSON file of an output's report lie.

        OUT.json    OUT_report.md       OUT_report.json
        OUT.jsonl   OUT.jsonl.report.md OUT.jsonl.report.json   and so for any other name

    No two outputs of one folder share them. The report of a stream is not written: its places are
    `NOWHERE`.

    Raises:
        InputError: the output has no file name.
    """
    if is_stream(output):
        return NOWHERE, NOWHERE
    if not output.name:
        raise InputError(f"--output {output}: found a folder, expected the name of a file")
    if output.name.endswith(".json"):
        stem = f"{output.name.removesuffix('.json')}_report"
    else:
        stem = f"{output.name}.report"
    return output.with_name(f"{stem}.md"), output.with_name(f"{stem}.json")


def about_input(args: argparse.Namespace) -> dict[str, Any]:
    """What a report's settings say of the input."""
    return {"limit": args.limit, "input": str(args.input), "input_sha256": file_digest(args.input)}


def write_manifest(
    args: argparse.Namespace,
    scorer: "Scorer | None",
    output: Path,
    report: Report,
    **more: int | str | None,
) -> Path:
    """What this output was made of and with, and its noise where it was audited, beside it.

    Args:
        scorer: None for a command that computes nothing on a device.
        more: further counts and facts.

    Returns:
        Where the manifest lies; `NOWHERE` where the output is a stream.
    """
    if is_stream(output):
        return NOWHERE
    found = report.evaluation
    facts: dict[str, Any] = {"versions": provenance.of_run({})}
    if scorer is not None:
        facts |= {"machine": provenance.machine(), "model": scorer.about, **scorer.facts()}
    if isinstance(source := getattr(args, "input", None), Path):
        facts["input_sha256"] = file_digest(source)
    facts |= {**more, "failed": len(found.failures), "seconds": round(found.seconds, 3)}
    if found.prompting:
        facts["prompting"] = dict(found.prompting)
    if found.audited:
        facts["noise"] = None if found.noise is None else found.noise.record(found.decisions)
    return run_files.write_manifest(output, vars(args), facts)
