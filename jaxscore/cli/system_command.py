"""The command of a system that scores the items of a file: flags, run, files, closing block."""

import argparse
import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from jaxscore.cli import messages, outputs, settings_flags, shards
from jaxscore.cli.app import Command
from jaxscore.cli.model_flags import ModelSpec, PairSpec, model_options
from jaxscore.io import records as record_files
from jaxscore.shell.flags import Flag, flag, options_of
from jaxscore.shell.prompts import PromptSettings
from jaxscore.shell.system import System, item_fields

if TYPE_CHECKING:
    from jaxscore.endpoints.completions import CompletionsEndpoint


@dataclasses.dataclass(kw_only=True)
class ApiFlags:
    """The flag of a command whose model may be an endpoint."""

    api_base: str | None = flag(
        None,
        metavar="URL",
        help="use this OpenAI-compatible server: its /completions with echo and logprobs; the "
        "model is then the name that it has there",
    )


def api_endpoint(
    args: argparse.Namespace, url: str | None, settings: PromptSettings
) -> "CompletionsEndpoint | None":
    """Return the server's model, by the name that `--model` gives.

    Args:
        url: the server's URL; None for a local model.

    Raises:
        InputError: a flag or a setting that no endpoint supports; an invalid URL; a key in the
            environment that is malformed.
    """
    if url is None:
        return None
    from jaxscore.endpoints.completions import CompletionsEndpoint  # imports an HTTP client

    settings.check_model(CompletionsEndpoint.CAPABILITIES)
    ModelSpec.of(args).check_endpoint()
    return CompletionsEndpoint(args.model, url, progress=not args.quiet)


PAIR = "compares_models"  # capability of a model pair


def file_options(system: System) -> list[Flag]:
    """The flags of input and output."""
    layout = system.layout
    is_named = layout is not None and bool(layout.ending)  # otherwise --output is required
    forms = f"results: {record_files.FORMS}" if layout is None else "JSON of results"
    if layout is not None and is_named:
        forms = f"JSON (default: next to the input, its name with {layout.ending})"

    @dataclasses.dataclass(kw_only=True)
    class Flags:
        input: list[Path] = flag(
            dataclasses.MISSING,
            *("--input-file",) * is_named,
            takes_address=True,
            metavar="FILE",
            help=f"{system.what}: {settings_flags.FORMS}; also several files, patterns, folders, "
            "addresses such as s3://bucket/file, or -",
        )
        column: list[str] = settings_flags.column_flag(item_fields(system))
        output: Path | None = flag(
            None if is_named else dataclasses.MISSING,
            *("--output-file",) * is_named,
            takes_address=True,
            metavar="FILE",
            help=f"{forms}; - is stdout",
        )
        limit: int | None = flag(None, least=1, metavar="N", help=f"only the first N {system.what}")

    return options_of(Flags)


def command_of(system: System) -> Command:
    """Declare the command of a system."""
    from jaxscore.cli import execute

    needs = system.needs(None)
    spec = PairSpec if PAIR in needs else ModelSpec
    options = [
        *file_options(system),
        *(model_options(system.settings, spec) if needs else options_of(system.settings)),
        *(options_of(outputs.PageFlags) if type(system).report is not System.report else ()),
        *(options_of(ApiFlags) if issubclass(system.settings, PromptSettings) else ()),
        *(() if needs else options_of(messages.Quiet)),
    ]
    return shards.command(system, options, shards.run, functools.partial(execute.run, system))
