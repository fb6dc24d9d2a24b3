"""`--api-base`: a server computes in place of a local model. What it cannot do is refused."""

import argparse
from typing import TYPE_CHECKING

from jaxscore.cli import model_flags
from jaxscore.cli.messages import remark
from jaxscore.errors import InputError
from jaxscore.systems.prompt_settings import PromptSettings

if TYPE_CHECKING:
    from jaxscore.endpoints.completions import CompletionsEndpoint


def add(parser: argparse._ActionsContainer) -> None:
    """--api-base."""
    parser.add_argument(
        "--api-base",
        metavar="URL",
        help="use this OpenAI-compatible server: its /completions with echo and logprobs; the "
        "model is then the name that it has there",
    )


def endpoint(
    args: argparse.Namespace, url: str | None, settings: PromptSettings
) -> "CompletionsEndpoint | None":
    """The server's model, by the name that `--model` gives.

    Args:
        url: of the server; None for a local model, of which there is no endpoint.

    Raises:
        InputError: a flag or a setting that an endpoint cannot do; the URL is none, or the key in
            the environment cannot be one.
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
