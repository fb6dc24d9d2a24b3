"""The command of a system that scores the items of a file: flags, run, files, closing block."""

import argparse
import dataclasses
import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from jaxscore.cli import messages, outputs, settings_flags, shards
from jaxscore.cli.app import Command
from jaxscore.cli.flags import (
    Option,
    column_flag,
    flag,
    limit_flag,
    options_of,
    options_of_settings,
)
from jaxscore.cli.model_flags import ModelSpec, PairSpec, model_options
from jaxscore.io import records as record_files
from jaxscore.shell.prompts import PromptSettings
from jaxscore.shell.settings import MODEL_GROUP
from jaxscore.shell.system import System

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
    """The server's model, by the name that `--model` gives.

    Args:
        url: of the server; None for a local model, which has no endpoint.

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


def file_options(system: System, ending: str | None) -> list[Option]:
    """The flags of input and output.

    Args:
        ending: how the default name of the output ends; None if --output is required.
    """
    forms = f"results: {record_files.FORMS}" if system.layout is None else "JSON of results"
    if ending is not None:
        forms = f"JSON (default: next to the input, its name with {ending})"

    @dataclasses.dataclass(kw_only=True)
    class Flags:
        input: list[Path] = flag(
            dataclasses.MISSING,
            *(() if ending is None else ("--input-file",)),
            takes_address=True,
            metavar="FILE",
            help=f"{system.what}: {settings_flags.FORMS}; also several files, patterns, folders, "
            "addresses such as s3://bucket/file, or -",
        )
        column: list[str] = column_flag(system.item_fields)
        output: Path = flag(
            dataclasses.MISSING if ending is None else None,
            *(() if ending is None else ("--output-file",)),
            takes_address=True,
            metavar="FILE",
            help=f"{forms}; - is stdout",
        )
        limit: int | None = limit_flag(system.what, *system.aliases.get("limit", ()))

    return options_of(Flags)


def command_of(system: System) -> Command:
    """Declare the command of a system."""
    from jaxscore.cli import execute

    layout, needs = system.layout, system.needs(None)
    ending = (layout and layout.ending) or None
    settings = options_of_settings(system.settings)
    options = [
        *file_options(system, ending),
        *(option for option in settings if option.group == "options"),
        *(option for option in settings if option.group not in ("options", MODEL_GROUP)),
        *(options_of(outputs.PageFlags) if type(system).report is not System.report else ()),
        *(options_of(ApiFlags) if issubclass(system.settings, PromptSettings) else ()),
    ]
    if needs:
        spec = PairSpec if PAIR in needs else ModelSpec
        options += model_options((), system.settings, spec=spec, model_field=system.model_field)
    else:
        options += options_of(messages.Quiet)
    return shards.command(
        system.name,
        f"{inspect.getdoc(system)}\n",
        [*options, *options_of(shards.ShardFlags)],
        shards.run,
        functools.partial(execute.run, system),
        is_array=layout is not None,
    )
