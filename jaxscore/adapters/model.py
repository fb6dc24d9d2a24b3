"""Loads the scorer and tokenizer that model arguments name."""

import copy
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.adapters.arguments import Arguments
from jaxscore.engine.defaults import AUTO
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.gguf_file import is_gguf
from jaxscore.io.local_path import local_path
from jaxscore.models import wrappers
from jaxscore.models.config import read
from jaxscore.models.config.accepted_keys import without
from jaxscore.models.weights import checkpoint
from jaxscore.scorer import Scorer
from jaxscore.text import tokenizer_files
from jaxscore.text.bounded_tokenizer import panics_as_errors
from jaxscore.text.checkpoint_tokenizer import errors_only
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer import load_tokenizer

LENGTH_ATTRIBUTES = ("n_positions", "max_position_embeddings", "n_ctx")
DEFAULT_LENGTH = 2048
NO_LIMIT = int(1e30)  # transformers' value for a tokenizer without a limit

# Scorers of this process that `load_model` has loaded and that are in use.
LOADED: weakref.WeakSet[Scorer] = weakref.WeakSet()


class LoadedModel(NamedTuple):
    """A scorer and its tokenizer.

    Attributes:
        length: maximum tokens of a text.
        folder: of the checkpoint, or None if the arguments hold a `Scorer`.
    """

    scorer: Scorer
    tokenizer: Any
    length: int
    folder: Path | None


def load_model(args: Arguments) -> LoadedModel:
    """Load the model and its tokenizer.

    Raises:
        InputError: either cannot be used, and why.
    """
    if not isinstance(args.pretrained, str):
        scorer: Scorer = args.pretrained
        if args.add_bos_token is not None:
            raise InputError(
                "model_args: add_bos_token beside a Scorer as pretrained, whose tokenizer is made "
                "already; give the name of the model"
            )
        _check_length(args, scorer)
        length = args.max_length or scorer.model.max_positions
        # Copied: a harness adds a pad token, which the owner of the scorer does not expect.
        return LoadedModel(scorer, copy.deepcopy(scorer.encoder.tokenizer), length, None)
    options: dict[str, Any] = {"batch_tokens": args.batch_tokens, "quantize": args.quantize}
    scorer = Scorer.from_pretrained(
        args.pretrained,
        device=args.device,
        dtype=args.dtype,  # type: ignore[arg-type]  # checked by `read_arguments`
        implementation=args.implementation,  # type: ignore[arg-type]  # checked by it too
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
        cache_dir=None if args.cache_dir is None else local_path(args.cache_dir),
        lora=args.peft,
        journal=args.journal,
        mesh=args.mesh or (AUTO if processes.is_distributed() else None),
        reproducible=args.reproducible,
        accept_config=args.accept_config,
        **options,
    )
    LOADED.add(scorer)
    _check_length(args, scorer)
    folder = _folder(args.pretrained, args, args.revision)
    tokenizer_name = args.tokenizer or args.pretrained
    tokenizer_folder = _folder(tokenizer_name, args, None if args.tokenizer else args.revision)
    if args.add_bos_token is not None:
        scorer.encoder = TextEncoder(_load_with_bos(tokenizer_folder, args))
    elif args.tokenizer is not None:
        tokenizer = load_tokenizer(tokenizer_folder, trust_remote_code=args.trust_remote_code)
        scorer.encoder = TextEncoder(tokenizer)
    length = args.max_length or max_length(folder, tokenizer_folder, args.accept_config)
    return LoadedModel(scorer, scorer.encoder.tokenizer, length, folder)


def _check_length(args: Arguments, scorer: Scorer) -> None:
    """Refuse a length of more tokens than the model has positions."""
    most = scorer.model.max_positions
    if args.max_length is not None and args.max_length > most:
        raise InputError(
            f"model_args: max_length is {args.max_length}, and the model takes {most} positions; "
            "give at most that, or leave it out"
        )


def _folder(name: str, args: Arguments, revision: str | None) -> Path:
    cache = None if args.cache_dir is None else local_path(args.cache_dir)
    return checkpoint.resolve(name, revision, with_code=args.trust_remote_code, cache_dir=cache)


def _load_with_bos(folder: Path, args: Arguments) -> Any:
    """transformers' own tokenizer, whose class decides what `add_bos_token` does."""
    from transformers import AutoTokenizer

    if is_gguf(folder):
        raise InputError(
            f"model_args: add_bos_token is not for a GGUF file, which says it itself: {folder}"
        )
    with panics_as_errors(f"{folder}: no tokenizer with add_bos_token", error=InputError):
        if (path := folder / tokenizer_files.TRUTH).exists():
            tokenizer_files.check_tokenizer_file(path)
        with errors_only():
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder),
                add_bos_token=args.add_bos_token,
                trust_remote_code=args.trust_remote_code,
            )
    if not tokenizer.is_fast:
        raise InputError(f"{folder}: its tokenizer with add_bos_token is a slow one")
    return tokenizer


def config_length(folder: Path, accepted: Sequence[str] = ()) -> int | None:
    """Maximum tokens of a text by a checkpoint's config, or None if it has none.

    Args:
        accepted: keys of the config that are left out.
    """
    where = str(checkpoint.config_path(folder))
    text = wrappers.text_of(without(checkpoint.read_config(folder), accepted), where, tied=None)
    config = read(text.raw, where).config
    lengths = (getattr(config, name, None) for name in LENGTH_ATTRIBUTES)
    return next((int(length) for length in lengths if length is not None), None)


def max_length(folder: Path, tokenizer_folder: Path, accepted: Sequence[str] = ()) -> int:
    """The config's length, the tokenizer's, or 2,048, as lm-evaluation-harness resolves it.

    The model's own limit may be another: Bloom has none, and this returns 2,048.

    Args:
        accepted: keys of the config that are left out.
    """
    if (length := config_length(folder, accepted)) is not None:
        return length
    limit = tokenizer_files.read_settings(tokenizer_folder).get("model_max_length")
    return DEFAULT_LENGTH if limit is None or limit >= NO_LIMIT else int(limit)
