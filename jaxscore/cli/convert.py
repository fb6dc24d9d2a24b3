"""`jaxscore convert`: writes a checkpoint as our own parameter tree, for `--model`."""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jaxscore.cli import messages, model_flags
from jaxscore.cli.app import Command
from jaxscore.errors import InputError
from jaxscore.io import streams
from jaxscore.models.model_types import Dtype
from jaxscore.shell.flags import flag, options_of
from jaxscore.version import VERSION

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.models.model import Model

DESCRIPTION = """\
Write a checkpoint as an Orbax checkpoint of our decoder's own parameters, from
which every device of a mesh then reads its part in its final layout.

input:
  a local Hugging Face folder or a hub id, of a family that the native decoder
  covers, and with --lora an adapter, which is merged into the weights for good;
  weights that are stored quantized are written as the numbers they stand for

output, a folder for --model of any command:
  config.json, tokenizer files   copied from the original
  params/                        the parameters, an Orbax checkpoint
  checksums.json                 of the arrays, which loading checks
  jaxscore.json                  what was converted, in which dtype and by which
                                 version

  python -m jaxscore convert --model NAME --output converted
  python -m jaxscore score --model converted --input FILE.jsonl \\
      --output scores.jsonl

Scores are bit for bit those of the original in the dtype it is converted to.
Runs on the CPU and holds the model in memory once.

exit code: 0 written, 2 unusable input.
"""


@dataclasses.dataclass(kw_only=True)
class Flags(messages.Quiet):
    """The flags of `convert`."""

    model: str = flag(
        metavar="NAME",
        help=model_flags.MODEL,
    )
    revision: str | None = flag(None, is_advanced=True, help=model_flags.REVISION)
    lora: Path | None = flag(None, metavar="DIR", is_advanced=True, help=model_flags.LORA)
    accept_config: list[str] = flag([], metavar="KEY", is_advanced=True, help=model_flags.ACCEPT)
    maxtext: Path | None = flag(
        None,
        metavar="DIR",
        is_advanced=True,
        help="an Orbax checkpoint of MaxText (checkpoints/STEP/items) whose weights take the place "
        "of the model's: llama, qwen2, qwen3 or gemma",
    )
    output: Path = flag(metavar="DIR", help="a folder that does not exist yet, or is empty")
    dtype: model_flags.Dtype = flag(
        "auto",
        help="of the matrices; auto loses nothing: bfloat16 where all weights are stored so and "
        "no adapter is merged, else float32",
    )
    trust_remote_code: bool = flag(
        False, is_advanced=True, help="copy the tokenizer's own code too"
    )


def run(args: argparse.Namespace) -> int:
    spec = model_flags.ModelSpec.of(args)
    folder = spec.check()
    model_flags.remark_lora(spec)
    import jax  # deferred with the next ones, which import JAX

    from jaxscore.engine import provenance
    from jaxscore.engine.devices import use_device
    from jaxscore.models.load import load
    from jaxscore.models.weights import converted
    from jaxscore.models.weights.folder import is_converted

    streams.refuse_stream(args.output, "--output")
    use_device("cpu")
    converted.check_absent(args.output)
    if is_converted(folder):
        raise InputError(f"--model {args.model}: is already converted; give the original")
    started = time.perf_counter()
    if args.maxtext is not None:
        model = _of_maxtext(args, folder)
        dtype: Dtype = model.dtype
    else:
        dtype = args.dtype if args.dtype != "auto" else _lossless(folder, args.lora)
        model = load(
            folder,
            dtype=dtype,
            implementation="native",
            adapter=args.lora,
            accept_config=args.accept_config,
        )
    model_flags.remark_model(args, model)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    messages.remark(
        args,
        f"read {model.model_type}, {size / 1e9:.2f} GB in {dtype}, in "
        f"{time.perf_counter() - started:.1f} s",
    )
    facts = converted.Facts(
        model_type=model.model_type,
        dtype=dtype,
        source=args.model if args.maxtext is None else f"{args.model}, weights {args.maxtext}",
        revision=provenance.commit(args.model, args.revision),
        lora=None if args.lora is None else str(args.lora),
        jaxscore=VERSION,
    )
    converted.save(args.output, folder, model.params, facts, with_code=args.trust_remote_code)
    return messages.print_closing_block(
        done="1 checkpoint converted",
        results=[f"{model.model_type}, {size / 1e9:.2f} GB in {dtype}"],
        files=[args.output],
        seconds=time.perf_counter() - started,
    )


def _of_maxtext(args: argparse.Namespace, folder: Path) -> "Model":
    """The model of `--maxtext`, with the config of `--model`.

    Raises:
        InputError: flags that it does not take, or parameters that do not fit the config.
    """
    from jaxscore.models.load import load_tensors
    from jaxscore.models.weights import maxtext
    from jaxscore.models.weights.checkpoint import read_config

    if args.lora is not None or args.accept_config:
        raise InputError("--maxtext takes neither --lora nor --accept-config; leave them out")
    config = read_config(folder)
    tensors = maxtext.tensors_of_maxtext(maxtext.read_orbax(args.maxtext), config)
    kinds = {array.dtype.name for array in tensors.values()}
    exact: Dtype = "bfloat16" if kinds == {"bfloat16"} else "float32"
    return load_tensors(config, tensors, dtype=exact if args.dtype == "auto" else args.dtype)


def _lossless(folder: Path, lora: Path | None) -> Dtype:
    """The narrowest dtype that represents every weight exactly."""
    from jaxscore.models.weights.checkpoint import Checkpoint
    from jaxscore.models.weights.tensor_files import FLOATS

    arrays = Checkpoint.open(folder).tensors.stored.values()
    kinds = {array.dtype.name for array in arrays if array.dtype in FLOATS}
    return "bfloat16" if lora is None and kinds == {"bfloat16"} else "float32"


COMMAND = Command("convert", DESCRIPTION, options_of(Flags), run)
