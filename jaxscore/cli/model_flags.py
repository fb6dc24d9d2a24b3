"""The model of a run: its flags, and the scorer that they describe."""

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import orjson

from jaxscore.cli.help_pages import SEVERAL_PROCESSES
from jaxscore.cli.messages import remark
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.engine import AUTO, BATCH_TOKENS, DEVICES, stages
from jaxscore.errors import InputError, format_bytes
from jaxscore.io import processes
from jaxscore.io.gguf_file import is_gguf
from jaxscore.io.local_path import check_local, local_path
from jaxscore.io.manifest import manifest_path
from jaxscore.io.streams import is_stream
from jaxscore.models import model_types
from jaxscore.models.model_types import DTYPES, IMPLEMENTATIONS, QUANTIZED
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.models.weights.folder import config_path, resolve
from jaxscore.plan.row_batches import SHORTEST_ROW
from jaxscore.shell.flags import Flag, ValueType, flag, flags_of, options_of
from jaxscore.shell.settings import MODEL_GROUP
from jaxscore.text import tokenizer_files

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.models.model import Model
    from jaxscore.scorer import Scorer

# Flags without effect if another program computes.
UNUSED = (
    "device dtype model_impl accept_config mesh batch_tokens journal prefix_token_id "
    "chat_template_arg"
).split()
CONVERSATIONS = ("judge", "preferences", "usc-generate")  # commands that need no flag for them
PROCESSES = ("distributed", "coordinator", "num_processes", "process_id", "join_timeout")
MOST_BATCH_TOKENS = 1 << 22
CONFIG = "config.json"
ACCEPT = (
    "a key of config.json that is not handled, and that you know to change no number; it is left "
    "out, and the manifest records it"
)
MODEL = (
    "a local Hugging Face folder, a GGUF file, a hub id (ORG/NAME, ORG/NAME:FILE.gguf), or `demo`, "
    "the embedded model"
)
REVISION = "branch, tag or commit of a hub id"
LORA = "a LoRA adapter as PEFT saves it, merged into the weights as they are read"

# Not annotations themselves: mypy does not accept `Literal` of a tuple as a type.
Device = Literal[DEVICES]  # type: ignore[valid-type]
Dtype = Literal[DTYPES]  # type: ignore[valid-type]
Quantize = Literal[QUANTIZED]  # type: ignore[valid-type]
Implementation = Literal[IMPLEMENTATIONS]  # type: ignore[valid-type]

model_flag = functools.partial(flag, group=MODEL_GROUP)
advanced = functools.partial(flag, group=MODEL_GROUP, is_advanced=True)
in_processes = functools.partial(flag, None, group=SEVERAL_PROCESSES, is_advanced=True)


def _batch_tokens(text: str) -> int | str:
    if text == AUTO:
        return text
    value: int = ValueType(int, least=SHORTEST_ROW).convert(text)
    if value > MOST_BATCH_TOKENS:
        raise ValueError(f"{value} is above {MOST_BATCH_TOKENS}")
    return value


def _mesh(text: str) -> str:
    if text != AUTO:
        MeshShape.parse(text)
    return text


def template_argument(text: str) -> tuple[str, Any]:
    """Return name and value of `NAME=VALUE`; VALUE is read as JSON, else it is a text.

    Raises:
        ValueError: the text lacks a name.
    """
    name, is_given, value = text.partition("=")
    if not (name.isidentifier() and is_given):
        raise ValueError(f"{text!r}, expected NAME=VALUE, such as enable_thinking=false")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


def _template_argument(text: str) -> str:
    template_argument(text)
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The flags of every command that runs a model."""

    model: str = model_flag(
        metavar="NAME",
        help=MODEL,
    )
    revision: str | None = advanced(None, help=REVISION)
    lora: Path | None = advanced(None, metavar="DIR", help=LORA)
    device: Device | None = model_flag(
        None, help="default: the best one present; one that is absent is an error"
    )
    dtype: Dtype = model_flag(
        "auto",
        help="of the weights; auto: float32 on the CPU, the checkpoint's on accelerators "
        "(bfloat16 for float16); sums over the vocabulary are float32 in any case",
    )
    batch_tokens: int | str | None = model_flag(
        None,
        read=_batch_tokens,
        metavar="N|auto",
        help=f"tokens per batch, padding included (default: {BATCH_TOKENS} on the CPU, auto on "
        "accelerators); fewer take less memory, more are faster on accelerators; auto: as many as "
        "the device's memory takes. A batch that does not fit is halved",
    )
    journal: str | None = model_flag(
        None,
        metavar="PATH|off",
        help="file of finished work, with which the same command continues after an "
        "interruption (default: in .jaxscore next to the output); off: keep nothing",
    )
    quiet: bool = model_flag(False, help="no progress and no warnings on stderr")
    quantize: Quantize | None = advanced(
        None,
        help="int8: store the layers' weights as 8-bit integers, half the memory of bfloat16; "
        "--dtype is then that of the products; single tokens move by a nat. stored: keep them in "
        "the blocks of a GGUF file or a quantized checkpoint; scores do not move",
    )
    model_impl: Implementation = advanced(
        "auto",
        help="native: our decoder, which shares text between requests; transformers: their Flax "
        "class, one request per row (extra flax-classes); auto: native",
    )
    mesh: str = advanced(
        AUTO,
        read=_mesh,
        metavar="auto|data=N,model=M|fsdp=N,model=M",
        help="devices that share the rows of a batch, and devices that share each layer; with fsdp "
        "in place of data, these also share the storage of weights (default auto: all devices, the "
        "fastest that fits by an estimate)",
    )
    reproducible: bool = advanced(
        False,
        help="compute each request by itself, so that the bits of its scores depend on nothing "
        "else in the run; slower, several times if texts share beginnings; --batch-tokens has no "
        "effect",
    )
    accept_config: list[str] = advanced([], metavar="KEY", help=ACCEPT)
    trust_remote_code: bool = advanced(
        False, help="let the checkpoint's tokenizer bring its own code"
    )
    prefix_token_id: int | None = advanced(
        None,
        least=0,
        metavar="ID",
        help="a token before each text in place of the tokenizer's BOS, such as the EOS, which "
        "lm-evaluation-harness takes without a BOS (default: the BOS that the tokenizer "
        "writes; without one the first token of a text is not scored)",
    )
    chat_template_arg: list[str] = advanced(
        [],
        read=_template_argument,
        metavar="NAME=VALUE",
        help="a variable of the tokenizer's chat template, such as enable_thinking=false; VALUE is "
        "JSON, otherwise a text",
    )
    cache_dir: Path | None = None  # only probsem has the flag
    distributed: bool = flag(
        False,
        group=SEVERAL_PROCESSES,
        is_advanced=True,
        help="join the other processes of this run; on a TPU VM and under Slurm nothing else is "
        "needed. The first process hashes the checkpoint; the others compare sizes, headers and "
        "samples with it, which does not show damage between the samples",
    )
    coordinator: str | None = in_processes(
        metavar="HOST:PORT", help="elsewhere: a free port of the first process"
    )
    num_processes: int | None = in_processes(metavar="N", help="elsewhere: how many processes")
    process_id: int | None = in_processes(metavar="K", help="elsewhere: of this process, from 0")
    join_timeout: int | None = in_processes(
        metavar="SECONDS", help=f"within which all processes join (default {processes.JOIN})"
    )

    @classmethod
    def of(cls, args: Any, **changes: Any) -> Self:
        """The spec that the flags of a command describe; flags that it lacks have defaults."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in vars(args).items() if k in names} | changes)

    @property
    def folder(self) -> Path:
        """The folder or GGUF file, checked without importing JAX.

        Raises:
            InputError: no such folder or hub id, no config.json, or a refused model type.
        """
        folder = resolve(
            self.model,
            self.revision,
            with_code=self.trust_remote_code,
            cache_dir=self.cache_dir,
        )
        model_types.check(read_config(folder), str(config_path(folder)))
        return folder

    def check(self) -> Path:
        """Check all models that the flags name; return the folder of the first."""
        return self.folder

    def options(self) -> dict[str, Any]:
        """Arguments of `Scorer.from_pretrained`."""
        names = (
            "device dtype revision trust_remote_code cache_dir lora quantize mesh reproducible "
            "accept_config batch_tokens prefix_token_id"
        )
        same = {name: getattr(self, name) for name in names.split()}
        return {
            **same,
            "implementation": self.model_impl,
            "progress": not self.quiet,
            "chat_template_args": dict(map(template_argument, self.chat_template_arg)),
        }

    def load(self, journal: Path | None, *, generates: bool) -> "Scorer":
        """Load the model."""
        from jaxscore.scorer import Scorer

        return Scorer.from_pretrained(
            self.model, **self.options(), journal=journal, generates=generates
        )

    def journal_path(
        self, output: Path | None, written: Sequence[Path], source: Any
    ) -> Path | None:
        """The journal of an output, or None if there is none.

        Args:
            output: the file or folder next to which the journal is by default.
            written: other files of this run, which the journal may not replace.
            source: the input of the run, if it has one.
        """
        if output is None and self.journal not in (None, "off"):
            remark(self, f"--journal {self.journal}: this command keeps no journal")
        if self.journal == "off" or output is None:
            return None
        if self.journal is None and is_stream(output):
            return None
        from jaxscore.journal.files import check_path, default_path

        path = default_path(output) if self.journal is None else local_path(self.journal)
        files = [output, *written]
        check_path(path, *files, *map(manifest_path, files), source)
        return path

    def adapters(self) -> dict[str, Path | None]:
        """Flag -> the adapter that it names."""
        return {"--lora": self.lora}

    def warn_unused(self, names: Sequence[str], why: str) -> None:
        """Warn about flags that differ from their default and have no effect here."""
        options = {each.field: each for each in flags_of(ModelSpec)}
        unused = [options[k].title for k in names if getattr(self, k) != options[k].default]
        if unused:
            remark(self, f"{', '.join(unused)}: no effect, {why}")

    def check_endpoint(self) -> None:
        """Refuse flags that no endpoint supports, and warn about those without effect.

        Raises:
            InputError: naming the flag.
        """
        if self.lora or self.quantize:
            raise InputError(
                "--lora and --quantize: an endpoint has its own weights; take a local model"
            )
        if self.reproducible:
            raise InputError("--reproducible: an endpoint does not promise it; take a local model")
        if self.distributed:
            raise InputError("--distributed: one process asks an endpoint; leave it out")
        self.warn_unused(UNUSED, "the endpoint computes")
        for name in ("revision", "trust_remote_code"):
            self.warn_unused((name,), "the endpoint computes")


of_reference = functools.partial(flag, group="reference")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairSpec(ModelSpec):
    """The flags of a command that compares two models."""

    reference: str = of_reference(
        metavar="NAME",
        help="the second model, as --model; it has the same tokenizer, and may be the same model "
        "with other settings",
    )
    reference_dtype: Dtype | None = of_reference(
        None, help="of its weights (default: that of --dtype)"
    )
    reference_quantize: Quantize | None = of_reference(None, help="as --quantize (default: none)")
    reference_lora: Path | None = of_reference(
        None, metavar="DIR", help="as --lora (default: none)"
    )
    reference_revision: str | None = of_reference(
        None, metavar="R", is_advanced=True, help=f"{REVISION} (default: none)"
    )
    reference_accept_config: list[str] = of_reference(
        [], metavar="KEY", is_advanced=True, help="as --accept-config (default: none)"
    )
    reference_model_impl: Implementation | None = of_reference(
        None, is_advanced=True, help="as --model-impl (default: that of --model-impl)"
    )

    def check(self) -> Path:
        """See `ModelSpec.check`."""
        second = dataclasses.replace(self, model=self.reference, revision=self.reference_revision)
        _ = super().folder, second.folder
        return self.folder

    def load(self, journal: Path | None, *, generates: bool) -> "Scorer":
        """Load both models."""
        from jaxscore.model_pair import DivergenceScorer

        names = ("dtype", "revision", "lora", "quantize", "accept_config")
        return DivergenceScorer.from_pretrained(
            self.model,
            reference=self.reference,
            reference_implementation=self.reference_model_impl,
            **{f"reference_{name}": getattr(self, f"reference_{name}") for name in names},
            **self.options(),
            journal=journal,
        )

    def adapters(self) -> dict[str, Path | None]:
        """See `ModelSpec.adapters`."""
        return {**super().adapters(), "--reference-lora": self.reference_lora}


def model_options(
    settings: type, spec: type = ModelSpec, omitted: Collection[str] = ()
) -> list[Flag]:
    """The flags of a system's settings and of its model, without those of some fields."""
    options = options_of(spec, omitted)
    k = [option.dest for option in options].index("batch_tokens") + 1
    chosen = options_of(settings, omitted)
    of_model = [option for option in chosen if option.group == MODEL_GROUP]
    others = [option for option in chosen if option.group != MODEL_GROUP]
    return [*others, *options[:k], *of_model, *options[k:]]


def spec_of(args: Any, **changes: Any) -> ModelSpec:
    """The spec of a command's flags, of a pair if they name a reference."""
    return (PairSpec if hasattr(args, "reference") else ModelSpec).of(args, **changes)


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
        output, written: see `ModelSpec.journal_path`.
        generates: see `Scorer.from_pretrained`.

    Raises:
        InputError: a flag cannot be used.
    """
    if (loaded := getattr(args, "scorer", None)) is not None:
        return loaded
    spec = spec_of(args, model=model)
    journal = functools.partial(spec.journal_path, output, written, getattr(args, "input", None))
    if (shard_run := getattr(args, "shard_run", None)) is not None and shard_run.scorer is not None:
        if shard_run.model == model:
            args.loaded = _with_journal(shard_run.scorer, journal())
            return args.loaded
        shard_run.scorer.close()
        shard_run.scorer = None  # its memory is free before the other model is loaded
    folder = spec.check()
    remark_lora(spec)
    if spec.chat_template_arg and not getattr(
        args, "apply_chat_template", args.command in CONVERSATIONS
    ):
        remark(spec, "--chat-template-arg: no effect on prompts that are not conversations")
    tokenizer = None if shard_run is None else tokenizer_files.digest(folder)
    args.loaded = scorer = spec.load(journal(), generates=generates)
    if shard_run is not None:
        shard_run.scorer, shard_run.model, shard_run.tokenizer = scorer, model, tokenizer
    stages.freeze_existing()
    remark_loaded(spec, scorer)
    return scorer


def _with_journal(scorer: "Scorer", path: Path | None) -> "Scorer":
    """The scorer of another output, with the journal and the counts of this one."""
    from jaxscore.journal import Journal

    scorer.close()
    scorer.journal = None if path is None else Journal(path, scorer.about)
    scorer.begin_output()
    return scorer


def remark_loaded(spec: Any, scorer: "Scorer") -> None:
    """Describe on stderr how the loaded models compute."""
    from jaxscore.engine.devices import limit_bytes  # deferred: imports JAX

    for loaded_model in scorer.models:
        remark_model(spec, loaded_model)
    remark_faster_dtype(spec, scorer.model)
    for replaced in dict.fromkeys(loaded.devices.replaced_kernels for loaded in scorer.models):
        if replaced is not None:
            remark(spec, f"GPU kernels replaced: {replaced}")
    on_accelerator = scorer.model.devices.platform != "cpu"
    if on_accelerator and (limit := limit_bytes()) is not None:
        remark(spec, f"memory of each device that programs may use: {format_bytes(limit)}")
    by_memory = spec.batch_tokens == AUTO or (spec.batch_tokens is None and on_accelerator)
    if by_memory and not spec.reproducible:
        remark(spec, f"--batch-tokens auto: {scorer.batch_tokens}")


def remark_lora(spec: ModelSpec) -> None:
    """Name the model that an adapter has as its base; names vary, so people judge that."""
    for name, folder in spec.adapters().items():
        if folder is not None:
            from jaxscore.models.weights import lora

            base = lora.read(folder).base_model or "a model that it does not name"
            remark(spec, f"{name} {folder}: an adapter of {base}")


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


def remark_model(args: argparse.Namespace, model: "Model") -> None:
    """Print a note on weights that are stored quantized, and on parts that are not read."""
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
LEAST_PARAMETERS = 50_000_000  # of models whose runs are long enough for a note


def remark_faster_dtype(args: argparse.Namespace, model: "Model") -> None:
    """Print that bfloat16 is faster here, if the default float32 was chosen."""
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
    """Return bfloat16's share of float32's time; None if the processor does not multiply it."""
    try:
        flags = cpuinfo.read_text().partition("flags")[2].partition("\n")[0].split()
    except OSError:  # not Linux
        return None
    return next((share for flag, share in BFLOAT16_SHARES.items() if flag in flags), None)
