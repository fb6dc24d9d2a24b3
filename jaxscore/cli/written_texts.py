"""What the commands that write texts share: a file that grows while the model writes."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from jaxscore.cli import messages, model_flags, outputs
from jaxscore.cli.resumed_output import interrupted
from jaxscore.evaluate import Report, evaluate
from jaxscore.io.json_output import GrowingArray
from jaxscore.systems.samples.sample_items import NothingUsable


class Work(Protocol):
    """Items, with what earlier runs have written of them."""

    @property
    def missing(self) -> Any: ...

    @property
    def n_previous(self) -> int: ...

    def records(self) -> Any: ...


def write(
    args: argparse.Namespace,
    work: Work,
    output: Path,
    unit: str,
    settings: Mapping[str, Any],
    further: Callable[[Report], Mapping[str, Any]],
) -> int:
    """Write what is missing with the model, then the output, its manifest and the closing block.

    Args:
        output: an array of records, which grows while the model writes.
        unit: what one item is, as a plural, for messages.
        settings: of the system that has the name of the command.
        further: what the manifest says beside the usual.

    Returns:
        The exit code.

    Raises:
        NothingUsable: no item has a text. The output is not written.
        KeyboardInterrupt: the user ended the run before any text was finished.
    """
    growing, scorer = GrowingArray(output, work.records), None

    def finished(record: Mapping[str, Any]) -> None:
        if "error" not in record:  # failures alone are not worth a file
            growing.offer()

    try:
        with growing.open():
            if work.missing:
                scorer = model_flags.load_scorer(args, args.model, output)
            about = outputs.about_input(args)
            report = evaluate(args.command, scorer, work, on_item=finished, about=about, **settings)
    except NothingUsable as problem:
        raise NothingUsable(f"{args.input}: {problem}") from None
    except KeyboardInterrupt:
        return interrupted(args, growing)
    files = [output]
    if scorer is not None or not work.n_previous:  # else that of the run that did the work stays
        files.append(outputs.write_manifest(args, scorer, output, report, **further(report)))
    else:
        print(f"nothing was left to do in {output}")
    return messages.close_run(args, report, unit, files, scorer)
