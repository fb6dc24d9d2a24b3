"""Flags of a second model, and the scorer of two."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.cli.help_pages import advanced
from jaxscore.cli.model_flags import add_accept_flag
from jaxscore.models.choices import DTYPES, IMPLEMENTATIONS, QUANTIZED

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.model_pair import DivergenceScorer

FLAGS = ("dtype", "model_impl", "revision", "lora", "quantize", "accept_config")


def add(parser: argparse.ArgumentParser) -> None:
    """--reference and how it is loaded."""
    group = parser.add_argument_group("reference")
    group.add_argument(
        "--reference",
        required=True,
        metavar="NAME",
        help="the second model, as --model; it has the same tokenizer, and may be the same model "
        "with other settings",
    )
    group.add_argument(
        "--reference-dtype", choices=DTYPES, help="of its weights (default: that of --dtype)"
    )
    group.add_argument(
        "--reference-quantize", choices=QUANTIZED, help="as --quantize (default: none)"
    )
    group.add_argument(
        "--reference-lora", type=Path, metavar="DIR", help="as --lora (default: none)"
    )
    advanced(
        group,
        "--reference-revision",
        metavar="R",
        help="branch, tag or commit of a hub id (default: none)",
    )
    add_accept_flag(group, "--reference-accept-config", "as --accept-config (default: none)")
    advanced(
        group,
        "--reference-model-impl",
        choices=IMPLEMENTATIONS,
        help="as --model-impl (default: that of --model-impl)",
    )


def loader(args: argparse.Namespace) -> Callable[..., "DivergenceScorer"]:
    """What loads both models, and otherwise takes what `Scorer.from_pretrained` takes."""
    own: dict[str, Any] = {name: getattr(args, f"reference_{name}") for name in FLAGS}
    own["implementation"] = own.pop("model_impl")

    def load(model: str, **settings: Any) -> "DivergenceScorer":
        from jaxscore.model_pair import DivergenceScorer  # here: it imports JAX

        return DivergenceScorer.from_pretrained(
            model,
            reference=args.reference,
            **{f"reference_{name}": value for name, value in own.items()},
            **settings,
        )

    return load
