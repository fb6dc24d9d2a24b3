"""Flags of every command that runs a model, and the scorer that they describe."""

import argparse
import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.cli import distributed_flags, settings_flags
from jaxscore.cli.help_pages import advanced
from jaxscore.cli.messages import remark
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.engine import AUTO, BATCH_TOKENS, DEVICES, stages
from jaxscore.errors import InputError, format_bytes
from jaxscore.io.gguf_file import is_gguf
from jaxscore.io.local_path import check_local, local_path
from jaxscore.io.manifest import manifest_path
from jaxscore.io.streams import is_stream
from jaxscore.models import model_types
from jaxscore.models.model_types import DTYPES, IMPLEMENTATIONS, QUANTIZED
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.models.weights.folder import config_path, resolve
from jaxscore.plan.row_batches import SHORTEST_ROW
from jaxscore.shell.settings import MODEL_GROUP, ScoringSettings
from jaxscore.text import tokenizer_files

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.models.model import Model
    from jaxscore.scorer import Scorer

UNUSED: dict[str, Any] = {  # flags without effect if another program computes, and their defaults
    "device": None,
    "dtype": "auto",
    "model_impl": "auto",
    "accept_config": [],
    "mesh": AUTO,
    "batch_tokens": None,
    "journal": None,
}
MOST_BATCH_TOKENS = 1 << 22
CONFIG = "config.json"


def add_model_flags(
    parser: argparse.ArgumentParser,
    *,
    model_required: bool = True,
    model_field: str = "",
    audited: bool = True,
    items: bool = True,
    settings: type = ScoringSettings,
) -> None:
    """Declare --model and the flags of how the model runs.

    Args:
        model_field: of the items, which names the model if --model does not; empty if it has to.
        audited: whether the command has numbers for --audit-noise.
        items: whether the command scores the items of a file; otherwise flags of such a run are
            left out.
        settings: of the command's system; settings of the model's section are declared here.
    """
    group = parser.add_argument_group(MODEL_GROUP)
    if model_required:
        default = f" (default: the first `{model_field}`)" if model_field else ""
        group.add_argument(
            "--model",
            *(["--model-name"] if model_field else []),
            required=not model_field,
            metavar="NAME",
            help=f"a local Hugging Face folder, a hub id, or `demo`, the embedded model{default}",
        )
        advanced(group, "--revision", help="branch, tag or commit of a hub id")
        add_lora_flag(group)
    group.add_argument(
        "--device",
        choices=DEVICES,
        help="default: the best one present; one that is absent is an error",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="of the weights; auto: float32 on the CPU, the checkpoint's on accelerators "
        "(bfloat16 for float16); sums over the vocabulary are float32 in any case",
    )
    group.add_argument(
        "--batch-tokens",
        type=_batch_tokens,
        metavar="N|auto",
        help=f"tokens per batch, padding included (default: {BATCH_TOKENS} on the CPU, auto on "
        "accelerators); fewer take less memory, more are faster on accelerators; auto: as many as "
        "the device's memory takes. A batch that does not fit is halved",
    )
    if items:
        omitted = () if audited else ("audit_noise",)
        settings_flags.add(group, settings, MODEL_GROUP, omitted)
        _add_journal_flag(group)
    group.add_argument("--quiet", action="store_true", help="no progress and no remarks on stderr")
    _add_advanced_flags(group)
    if items:
        distributed_flags.add(parser)


def _add_journal_flag(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--journal",
        metavar="PATH|off",
        help="file of finished work, with which the same command continues after an "
        "interruption (default: in .jaxscore beside the output); off: keep nothing",
    )


def _add_advanced_flags(group: argparse._ActionsContainer) -> None:
    advanced(
        group,
        "--quantize",
        choices=QUANTIZED,
        help="int8: store the layers' weights as 8-bit integers, half the memory of bfloat16; "
        "--dtype is then that of the products; single tokens move by a nat. stored: keep them in "
        "the blocks of a GGUF file or a quantized checkpoint; scores do not move",
    )
    advanced(
        group,
        "--model-impl",
        choices=IMPLEMENTATIONS,
        default="auto",
        help="native: our decoder, which shares text between requests; transformers: their Flax "
        "class, one request per row (extra flax-classes); auto: native",
    )
    advanced(
        group,
        "--mesh",
        type=_mesh,
        default=AUTO,
        metavar="auto|data=N,model=M|fsdp=N,model=M",
        help="devices that share the rows of a batch, and devices that share each layer; with fsdp "
        "in place of data, these also share the storage of weights (default auto: all devices, the "
        "fastest that fits by an estimate)",
    )
    advanced(
        group,
        "--reproducible",
        action="store_true",
        help="compute each request by itself, so that the bits of its scores depend on nothing "
        "else in the run; slower, several times if texts share beginnings; --batch-tokens has no "
        "effect",
    )
    add_accept_flag(group)
    advanced(
        group,
        "--trust-remote-code",
        action="store_true",
        help="let the checkpoint's tokenizer bring its own code",
    )


def add_reference_flags(parser: argparse.ArgumentParser) -> None:
    """Declare --reference, the second model of a pair, and the flags of how it is loaded."""
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


def add_limit_flag(parser: argparse._ActionsContainer, what: str, *spellings: str) -> None:
    """Declare --limit and the published spellings of it."""
    parser.add_argument(
        "--limit", *spellings, type=positive, metavar="N", help=f"only the first N {what}"
    )


def add_lora_flag(parser: argparse._ActionsContainer) -> None:
    """Declare --lora."""
    advanced(
        parser,
        "--lora",
        type=Path,
        metavar="DIR",
        help="a LoRA adapter as PEFT saves it, merged into the weights as they are read",
    )


ACCEPT = (
    "a key of config.json that is not handled, and that you know to change no number; it is left "
    "out, and the manifest records it"
)


def add_accept_flag(
    parser: argparse._ActionsContainer, flag: str = "--accept-config", help: str = ACCEPT
) -> None:
    """Declare --accept-config, which may come several times and take several keys."""
    advanced(parser, flag, nargs="+", action="extend", default=[], metavar="KEY", help=help)


def _batch_tokens(text: str) -> int | str:
    if text == AUTO:
        return text
    value = settings_flags.whole_number(text)
    if value < SHORTEST_ROW:
        raise argparse.ArgumentTypeError(f"{value} is below the shortest row of {SHORTEST_ROW}")
    if value > MOST_BATCH_TOKENS:
        raise argparse.ArgumentTypeError(f"{value} is above {MOST_BATCH_TOKENS}")
    return value


def _mesh(text: str) -> str:
    if text != AUTO:
        try:
            MeshShape.parse(text)
        except ValueError as problem:
            raise argparse.ArgumentTypeError(str(problem)) from None
    return text


positive = functools.partial(settings_flags.whole_number, least=1)


def load_scorer(
    args: argparse.Namespace,
    model: str,
    output: Path | None,
    *written: Path,
    generates: bool = True,
) -> "Scorer":
    """Load the model, or the pair with --reference, as the flags say; `args.scorer` if it is set.

    The scorer of the shard before is reused if it has the same model; all shards have the same
    flags.

    Args:
        output: file or folder beside which the journal lies by default; None for no journal.
        written: other files of this run, which the journal may not replace.
        generates: see `Scorer.from_pretrained`.

    Raises:
        InputError: a flag cannot be used.
    """
    if (loaded := getattr(args, "scorer", None)) is not None:
        return loaded
    if (part := getattr(args, "part", None)) is not None and part.scorer is not None:
        if part.model == model:
            return _with_journal_of(args, part.scorer, output, written)
        part.scorer.close()
        part.scorer = None  # its memory is free before the other model is loaded
    folder = check_model(args, model, getattr(args, "revision", None))
    if hasattr(args, "reference"):
        check_model(args, args.reference, args.reference_revision)
    remark_lora(args)
    place = _journal(args, output, written)
    tokenizer = None if part is None else tokenizer_files.digest(folder)
    scorer = _loader(args, generates=generates)(
        model,
        device=args.device,
        dtype=args.dtype,
        implementation=args.model_impl,
        revision=getattr(args, "revision", None),
        trust_remote_code=args.trust_remote_code,
        cache_dir=getattr(args, "cache_dir", None),
        lora=getattr(args, "lora", None),
        quantize=args.quantize,
        mesh=args.mesh,
        reproducible=args.reproducible,
        accept_config=getattr(args, "accept_config", ()),
        batch_tokens=args.batch_tokens,
        progress=not args.quiet,
        journal=place,
    )
    args.loaded = scorer
    if part is not None:
        part.scorer, part.model, part.tokenizer = scorer, model, tokenizer
    stages.freeze_existing()
    _remark_loaded(args, scorer)
    return scorer


def _remark_loaded(args: argparse.Namespace, scorer: "Scorer") -> None:
    """Describe on stderr how the loaded models compute."""
    from jaxscore.engine.devices import limit_bytes  # deferred: imports JAX

    for loaded_model in scorer.models:
        remark_model(args, loaded_model)
    remark_faster_dtype(args, scorer.model)
    for replaced in dict.fromkeys(loaded.devices.replaced_kernels for loaded in scorer.models):
        if replaced is not None:
            remark(args, f"GPU kernels replaced: {replaced}")
    on_accelerator = scorer.model.devices.platform != "cpu"
    if on_accelerator and (limit := limit_bytes()) is not None:
        remark(args, f"memory of each device that programs may use: {format_bytes(limit)}")
    by_memory = args.batch_tokens == AUTO or (args.batch_tokens is None and on_accelerator)
    if by_memory and not args.reproducible:
        remark(args, f"--batch-tokens auto: {scorer.batch_tokens}")


def _with_journal_of(
    args: argparse.Namespace, scorer: "Scorer", output: Path | None, written: Sequence[Path]
) -> "Scorer":
    """The scorer of another output, with the journal and the counts of this one."""
    from jaxscore.journal import Journal

    place = _journal(args, output, written)
    scorer.close()
    scorer.journal = None if place is None else Journal(place, scorer.about)
    scorer.begin_output()
    args.loaded = scorer
    return scorer


def _loader(args: argparse.Namespace, *, generates: bool) -> "Callable[..., Scorer]":
    """Function that loads the model, or both models with --reference."""
    if not hasattr(args, "reference"):
        from jaxscore.scorer import Scorer

        return functools.partial(Scorer.from_pretrained, generates=generates)
    from jaxscore.model_pair import DivergenceScorer

    names = ("dtype", "revision", "lora", "quantize", "accept_config")
    return functools.partial(
        DivergenceScorer.from_pretrained,
        reference=args.reference,
        reference_implementation=args.reference_model_impl,
        **{f"reference_{name}": getattr(args, f"reference_{name}") for name in names},
    )


def config_source(model: str) -> Path:
    """Folder of the config.json that `--model` names, or its GGUF file.

    Raises:
        InputError: neither a folder, a config.json nor a GGUF file.
    """
    check_local(model, f"a local folder or a {CONFIG}")
    path = resolve(model, None) if model == "demo" else Path(model)
    with contextlib.suppress(OSError, ValueError):  # too long, not permitted, a zero byte
        if path.is_dir() or is_gguf(path):
            return path
        if path.name == CONFIG and path.exists():
            return path.parent
    raise InputError(
        f"--model {model}: neither a folder, a {CONFIG} nor a GGUF file; give one (a hub id would "
        f"fetch the weights too, and only {CONFIG} is needed)"
    )


def check_model(args: argparse.Namespace, model: str, revision: str | None) -> Path:
    """The folder or GGUF file of a model, checked without importing JAX.

    Raises:
        InputError: no such folder or hub id, no config.json, or a refused model type.
    """
    folder = resolve(
        model,
        revision,
        with_code=getattr(args, "trust_remote_code", False),
        cache_dir=getattr(args, "cache_dir", None),
    )
    model_types.check(read_config(folder), str(config_path(folder)))
    return folder


def _journal(args: argparse.Namespace, output: Path | None, written: Sequence[Path]) -> Path | None:
    flag = getattr(args, "journal", None)
    if output is None and flag not in (None, "off"):
        remark(args, f"--journal {flag}: this command keeps no journal")
    if flag == "off" or output is None or (flag is None and is_stream(output)):
        return None
    from jaxscore.journal.files import check_path, default_path

    path = default_path(output) if flag is None else local_path(flag)
    files = [output, *written]
    check_path(path, *files, *map(manifest_path, files), getattr(args, "input", None))
    return path


def warn_unused_flags(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Remark on flags that differ from their default and have no effect here."""
    given = [name for name in names if getattr(args, name) != UNUSED[name]]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        remark(args, f"{flags}: no effect, {why}")


def remark_model(args: argparse.Namespace, model: "Model") -> None:
    """Remark on weights that are stored quantized, and on parts that are not read."""
    facts = model.checkpoint
    if facts.stored_as is not None:
        stored = facts.stored_share
        share = "" if stored is None else f"{stored:.0%} as stored, the rest "
        remark(args, f"weights stored as {facts.stored_as}; held {share}as {model.dtype}")
    if facts.left_out is not None:
        remark(args, f"left out of the model: {facts.left_out}; its text model alone is scored")


# Flags of x86 processors that multiply bfloat16, and bfloat16's share of float32's time on plain
# texts, measured (tools/README.md): 0.4 with AMX on GPT-2 124M's shape, 0.56 with AVX-512 on
# SmolLM2-135M.
BFLOAT16_SHARES = {"amx_bf16": "half", "avx512_bf16": "0.6"}
LEAST_PARAMETERS = 50_000_000  # of models whose runs are long enough to remark on it


def remark_faster_dtype(args: argparse.Namespace, model: "Model") -> None:
    """Remark that bfloat16 is faster here, if the default float32 was chosen."""
    if args.dtype != "auto" or model.devices.platform != "cpu" or model.dtype != "float32":
        return
    import jax  # deferred: takes a second, and a loaded model has imported it

    share = bfloat16_share(Path("/proc/cpuinfo"))
    n_parameters = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    if share is not None and n_parameters >= LEAST_PARAMETERS:
        remark(
            args,
            f"bfloat16 would take about {share} of the time on this processor; it moves a token's "
            "log-probability by some 0.015 nats (--dtype bfloat16)",
        )


def bfloat16_share(cpuinfo: Path) -> str | None:
    """bfloat16's share of float32's time, or None if the processor does not multiply bfloat16."""
    try:
        flags = cpuinfo.read_text().partition("flags")[2].partition("\n")[0].split()
    except OSError:  # not Linux
        return None
    return next((share for flag, share in BFLOAT16_SHARES.items() if flag in flags), None)


def remark_lora(args: argparse.Namespace) -> None:
    """Remark which model an adapter names as its base; names vary, so people judge that."""
    for flag in ("lora", "reference_lora"):
        if (folder := getattr(args, flag, None)) is not None:
            from jaxscore.models.weights import lora

            base = lora.read(folder).base_model or "a model that it does not name"
            remark(args, f"--{flag.replace('_', '-')} {folder}: an adapter of {base}")
