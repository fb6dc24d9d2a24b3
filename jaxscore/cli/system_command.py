"""The command of a system that scores the items of a file: flags, run, files, closing block."""

import argparse
import functools
import inspect
from typing import TYPE_CHECKING, Any

from jaxscore.cli import messages, model_flags, outputs, settings_flags, shards
from jaxscore.cli.help_pages import ADVANCED
from jaxscore.cli.messages import remark
from jaxscore.errors import InputError
from jaxscore.shell.prompts import PromptSettings
from jaxscore.shell.system import System, item_fields

if TYPE_CHECKING:
    from jaxscore.endpoints.completions import CompletionsEndpoint


def add_api_base(parser: argparse._ActionsContainer) -> None:
    """--api-base."""
    parser.add_argument(
        "--api-base",
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
    if args.lora or args.quantize:
        raise InputError(
            "--lora and --quantize: an endpoint has weights of its own; take a local model"
        )
    if args.reproducible:
        raise InputError("--reproducible: an endpoint does not promise it; take a local model")
    if args.distributed:
        raise InputError("--distributed: one process asks an endpoint; leave it out")
    model_flags.warn_unused_flags(args, [*model_flags.UNUSED], "the endpoint computes")
    for name in ("revision", "trust_remote_code"):
        if getattr(args, name):
            remark(args, f"--{name.replace('_', '-')}: no effect, the endpoint computes")
    return CompletionsEndpoint(args.model, url, progress=not args.quiet)


PAIR = "compares_models"  # capability of a model pair


def add(system: System, subparsers: Any) -> None:
    """Declare the command's flags."""
    from jaxscore.cli import execute

    help = inspect.getdoc(system)
    parser = subparsers.add_parser(system.name, description=f"{help}\n")
    layout = system.layout
    if layout is not None and layout.ending:
        settings_flags.add_input(parser, f"{system.what}:", item_fields(system), "--input-file")
        settings_flags.add_array_output(parser, layout.ending)
    else:
        settings_flags.add_input(parser, f"{system.what}:", item_fields(system))
        settings_flags.add_output(parser, "results", is_array=layout is not None)
    model_flags.add_limit_flag(parser, system.what, *system.aliases.get("limit", ()))
    settings_flags.add(parser, system.settings)
    settings_flags.add_groups(parser, system.settings)
    if type(system).report is not System.report:
        outputs.add_page_flags(parser)
    if issubclass(system.settings, PromptSettings):
        add_api_base(parser)
    needs = system.needs(None)
    if PAIR in needs:
        model_flags.add_reference_flags(parser)
    if needs:
        model_flags.add_model_flags(
            parser, settings=system.settings, model_field=system.model_field
        )
    else:
        messages.add_quiet(parser)
    if system.published_flags is not None:
        setattr(system.published_flags.add(parser), ADVANCED, True)
    shards.add_flags(parser, functools.partial(execute.run, system))
    parser.set_defaults(run=functools.partial(_run_all, system), is_array=layout is not None)


def _run_all(system: System, args: argparse.Namespace) -> int:
    """Run the command on its file, or on its shards."""
    if system.published_flags is not None:
        system.published_flags.check(args)
    return shards.run(args)
