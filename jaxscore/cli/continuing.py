"""Continue an output that an earlier run, or another program, has made: which of its records stay.

Records are checked twice: before a model is loaded, by what the flags say of it, and afterwards,
since the precision `auto` depends on the device. If all records stay, no model is loaded.
"""

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import messages
from jaxscore.errors import InputError
from jaxscore.io.items import read_previous_output
from jaxscore.io.manifest import manifest_path, output_difference, read_manifest
from jaxscore.io.streams import is_stream
from jaxscore.report.counts import counted
from jaxscore.shell.items import Items
from jaxscore.shell.made import record_facts
from jaxscore.shell.system import Record, System

REMEDY = "give another --output, or delete it to compute everything again"


@dataclasses.dataclass(frozen=True)
class Earlier:
    """An output before the run.

    Attributes:
        path: the output.
        records: all that it has; none if the system does not continue outputs.
        manifest: the output's manifest; None without records.
        is_complete: all records stay.
    """

    path: Path
    records: Sequence[Record] = ()
    manifest: Mapping[str, Any] | None = None
    is_complete: bool = False

    def check_model(self, items: Items, settings: Any, scorer: Any) -> None:
        """Check the records again, by the loaded model.

        Raises:
            InputError: they were made by another one.
        """
        if self.records:
            with _naming(self.path):
                items.recall(self.records, settings, record_facts(scorer))

    def is_unchanged(self) -> bool:
        """Return True if all records stay, and the output is as its manifest describes it."""
        if self.manifest is None or not self.is_complete:
            return False
        return output_difference(self.path, self.manifest) is None


def check_replaced(
    system: System, args: argparse.Namespace, output: Path, model: str | None
) -> None:
    """Refuse to replace an output that another model made.

    Shards and outputs that are continued have other checks.

    Args:
        model: its name.

    Raises:
        InputError: there is such an output, and no --force.
    """
    is_checked = args.force or args.shard_run.prefix or type(system).recall is not System.recall
    if is_checked or model is None or is_stream(output) or not output.exists():
        return
    flags: Mapping[str, Any] = {}
    with contextlib.suppress(InputError):  # what describes no output is replaced
        flags = (read_manifest(output) or {}).get("flags", flags)
    earlier = flags.get("model")
    if not isinstance(earlier, str) or os.path.realpath(earlier) == os.path.realpath(model):
        return
    raise InputError(
        f"--output {output}: made with --model {earlier}, and this run has --model {model}; give "
        "another --output, or --force to replace it"
    )


def begin(
    system: System,
    args: argparse.Namespace,
    items: Items,
    settings: Any,
    output: Path,
    model: str | None,
) -> Earlier:
    """Find the records of an output that stay, and note them in `items`.

    Args:
        model: its name.

    Raises:
        InputError: the output cannot be continued, or its manifest describes another file.
    """
    if type(system).recall is System.recall or args.shard_run.ignores_output:
        return Earlier(output)
    records = read_previous_output(output)
    if not records:
        return Earlier(output)
    with _naming(output):
        n_changed = items.recall(records, settings, _flag_facts(args, model))
    manifest, is_complete = read_manifest(output), len(items.recalled) == items.n_all
    why = None if manifest is None else output_difference(output, manifest)
    if why is not None and is_complete:
        raise InputError(
            f"{output}: not as its manifest describes it ({why}), so its results may be of "
            "another origin; delete it to compute them again from the journal, or delete "
            f"{manifest_path(output)} to keep them"
        )
    if why is not None:
        messages.remark(args, f"{output}: not as its manifest describes it ({why}), unfinished")
    messages.remark(args, f"continuing {output}, which holds {counted(len(records), 'items')}")
    if n_changed:
        messages.remark(args, f"{n_changed} of them have changed and are computed again")
    return Earlier(output, records, manifest, is_complete)


def _flag_facts(args: argparse.Namespace, model: str | None) -> dict[str, Any]:
    """Return the facts of `record_facts` that flags give; `auto` depends on the device."""
    facts = {
        "model": model,
        "revision": args.revision,
        "lora": None if args.lora is None else str(args.lora),
        "quantize": args.quantize,
        "reproducible": args.reproducible or None,
    }
    return facts if args.dtype == "auto" else {**facts, "dtype": args.dtype}


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError as problem:
        raise InputError(f"{path}: {problem}; {REMEDY}") from None
