"""The scorer and the tokenizer that model arguments name."""

import copy
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.adapters.arguments import Arguments
from jaxscore.engine.defaults import AUTO
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.local_path import local_path
from jaxscore.models import wrappers
from jaxscore.models.config import read
from jaxscore.models.config.accepted_keys import without
from jaxscore.models.weights import checkpoint
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.scorer import Scorer
from jaxscore.text import tokenizer_files
from jaxscore.text.bounded_tokenizer import panics_named
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer import load_tokenizer
from jaxscore.text.transformers_log import errors_only

# Scorers of this process that `make` has loaded and that are in use.
LOADED: weakref.WeakSet[Scorer] = weakref.WeakSet()


class Made(NamedTuple):
    """A scorer and its tokenizer.

    Attributes:
        length: tokens that the model reads at most.
        folder: of the checkpoint; None where a `Scorer` was given.
    """

    scorer: Scorer
    tokenizer: Any
    length: int
    folder: Path | None


def make(args: Arguments) -> Made:
    """Load the model and its tokenizer.

    Raises:
        InputError: either cannot be used, and why.
    """
    if not isinstance(args.pretrained, str):
        scorer: Scorer = args.pretrained
        _check_special(args)
        _check_length(args, scorer)
        length = args.max_length or scorer.model.max_positions
        # A harness gives it a pad token, of which the scorer's owner knows nothing.
        return Made(scorer, copy.deepcopy(scorer.encoder.tokenizer), length, None)
    options: dict[str, Any] = {"batch_tokens": args.batch_tokens, "quantize": args.quantize}
    scorer = Scorer.from_pretrained(
        args.pretrained,
        device=args.device,
        dtype=args.dtype,  # type: ignore[arg-type]  # `arguments` has checked it
        implementation=args.implementation,  # type: ignore[arg-type]  # `load` checks it
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
        cache_dir=None if args.cache_dir is None else local_path(args.cache_dir),
        lora=args.peft,
        journal=args.journal,
        # In a multi-process run a single device would belong to one process alone.
        mesh=args.mesh or (AUTO if processes.is_distributed() else None),
        reproducible=args.reproducible,
        accept_config=args.accept_config,
        **options,
    )
    LOADED.add(scorer)
    _check_length(args, scorer)
    folder = _folder(args.pretrained, args, args.revision)
    named = args.tokenizer or args.pretrained
    of_tokenizer = _folder(named, args, None if args.tokenizer else args.revision)
    if args.add_bos_token is not None:
        scorer.encoder = TextEncoder(_with_bos(of_tokenizer, args))
    elif args.tokenizer is not None:
        tokenizer = load_tokenizer(of_tokenizer, trust_remote_code=args.trust_remote_code)
        scorer.encoder = TextEncoder(tokenizer)
    length = args.max_length or max_length(folder, of_tokenizer, args.accept_config)
    return Made(scorer, scorer.encoder.tokenizer, length, folder)


def _check_special(args: Arguments) -> None:
    if args.add_bos_token is not None:
        raise InputError(
            "model_args: add_bos_token beside a Scorer as pretrained, whose tokenizer is made "
            "already; give the name of the model"
        )


def _check_length(args: Arguments, scorer: Scorer) -> None:
    """See that the model has the positions: without them it reads no such text."""
    most = scorer.model.max_positions
    if args.max_length is not None and args.max_length > most:
        raise InputError(
            f"model_args: max_length is {args.max_length}, and the model takes {most} positions; "
            "give at most that, or leave it out"
        )


def _folder(name: str, args: Arguments, revision: str | None) -> Path:
    cache = None if args.cache_dir is None else local_path(args.cache_dir)
    return checkpoint.resolve(name, revision, with_code=args.trust_remote_code, cache_dir=cache)


def _with_bos(folder: Path, args: Arguments) -> Any:
    """transformers' own tokenizer: what `add_bos_token` does is for its class to say."""
    from transformers import AutoTokenizer

    with panics_named(f"{folder}: no tokenizer with add_bos_token", error=InputError):
        if (path := folder / tokenizer_files.TRUTH).exists():
            tokenizer_files.check_parts(path)
        with errors_only():
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder),
                add_bos_token=args.add_bos_token,
                trust_remote_code=args.trust_remote_code,
            )
    if not tokenizer.is_fast:
        raise InputError(f"{folder}: its tokenizer with add_bos_token is a slow one")
    return tokenizer


ATTRIBUTES = ("n_positions", "max_position_embeddings", "n_ctx")
DEFAULT = 2048
INFINITE = int(1e30)  # what transformers writes for a tokenizer without a limit


def of_config(folder: Path, accepted: Sequence[str] = ()) -> int | None:
    """What the config of a checkpoint says; None where it says nothing."""
    where = str(folder / "config.json")
    text = wrappers.text_of(without(read_config(folder), accepted), where, tied=None)
    config = read(text.raw, where).config
    for name in ATTRIBUTES:
        if (value := getattr(config, name, None)) is not None:
            return int(value)
    return None


def max_length(folder: Path, tokenizer_folder: Path, accepted: Sequence[str] = ()) -> int:
    """As lm-evaluation-harness resolves it: the config's length, the tokenizer's, or 2,048.

    Args:
        accepted: keys of the config that are left out.

    This is not the model's own limit: Bloom's positions have none, and this says 2,048.
    """
    if (found := of_config(folder, accepted)) is not None:
        return found
    own = tokenizer_files.read_settings(tokenizer_folder).get("model_max_length")
    return DEFAULT if own is None or own >= INFINITE else int(own)
