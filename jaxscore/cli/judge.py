"""`jaxscore judge`: a model judges the responses of RAG experiments."""

import argparse
import dataclasses
import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.cli import execute, model_flags, outputs, results, settings_flags, shards
from jaxscore.cli.app import Command
from jaxscore.cli.judge_run import JudgeRun
from jaxscore.cli.messages import remark
from jaxscore.endpoints import OLLAMA_URL, OPENAI_URL, ChatEndpoint, OllamaEndpoint
from jaxscore.endpoints.http import Limits
from jaxscore.errors import InputError
from jaxscore.models.weights.folder import resolve
from jaxscore.shell.flags import ANY, MAYBE, Flag, ValueType, flag, options_of
from jaxscore.systems import rag
from jaxscore.systems.rag import bem, experiment_folder, judge

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer

DEFAULT_MODEL = "upstage/SOLAR-10.7B-Instruct-v1.0"  # BERGEN's, for `--llm` alone
MANIFEST = ".md.run"  # a metric of this ending has a report of the name of another's manifest


def _sample(text: str) -> int | None:
    """Read --sample; -1 is all, as in the published script."""
    return None if text == "-1" else ValueType(int, least=1).convert(text)


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("an empty name")
    return text


judge_flag = functools.partial(flag, None, read=_name, excludes="judge")


@dataclasses.dataclass(kw_only=True)
class Judges:
    """The flags that name the judge."""

    llm: list[str] | None = judge_flag(
        words=ANY,
        metavar=("MODEL", "SHORT"),
        help="a local Hugging Face folder, a GGUF file, a hub id, or `demo`, and its name in the "
        f"metric (default: the last part of MODEL). Alone: {DEFAULT_MODEL}, metric LLMeval",
        also=(
            Flag(
                names=("--model",),
                dest="llm",
                type=ValueType(is_list=True),
                read=_name,
                excludes="judge",
                metavar="NAME",
                help="the same as --llm NAME",
            ),
        ),
    )
    llm_ollama: list[str] | None = judge_flag(
        metavar=("MODEL", "SHORT"),
        help="a model of an ollama server, and its name in the metric (default: MODEL)",
    )
    gpt: str | None = judge_flag(metavar="MODEL", help="a model of an OpenAI-compatible server")
    bem: str | None = judge_flag(
        words=MAYBE,
        bare=bem.DEFAULT_MODEL,
        metavar="MODEL",
        help="a BERT classifier of answer equivalence, with the extra flax-classes (default: "
        f"{bem.DEFAULT_MODEL})",
    )
    ollama_url: str | None = flag(
        None, metavar="URL", help=f"the server of --llm-ollama (default: {OLLAMA_URL})"
    )
    api_base: str | None = flag(
        None, metavar="URL", help=f"the server of --gpt (default: {OPENAI_URL})"
    )
    llm_batch_size: int | None = flag(
        None,
        least=1,
        metavar="N",
        help="requests in flight to a server; of no effect on a model that runs here, whose "
        "batches are of --batch-tokens",
    )


@dataclasses.dataclass(kw_only=True)
class Flags(outputs.PageFlags):
    """The flags of `judge` after its settings."""

    sample: int | None = flag(
        None,
        "--limit",
        read=_sample,
        metavar="N",
        help="only the first N records; the metric's name ends in _N",
    )
    force: bool = flag(False, help="judge again what is judged already")
    opponent_folder: Path | None = flag(
        None, metavar="FOLDER", help="compare with the responses there"
    )
    opponent_name: str | None = flag(
        None, read=_name, metavar="NAME", help="of the opponent, in the metrics"
    )
    revision: str | None = flag(None, help=model_flags.REVISION)
    lora: Path | None = flag(None, metavar="DIR", is_advanced=True, help=model_flags.LORA)


def run(args: argparse.Namespace) -> int:
    """Judge each folder that lacks the metric, or the records of files."""
    is_of_files = results.takes_files(args)
    _check(args)
    system = judge.SYSTEM if args.bem is None else bem.SYSTEM
    chosen = settings_flags.values(args, system.settings)
    if args.opponent_folder is not None:
        chosen["opponent"] = experiment_folder.load(args.opponent_folder, args.split)
    settings = system.settings(**chosen)
    is_local = args.llm is not None
    form = settings.kind(is_local=is_local) if isinstance(settings, judge.Settings) else "bem"
    if is_of_files:
        _warn_unused_flags(args, form)
        args.command, args.run_file = system.name, functools.partial(execute.run, system)
        args.limit, args.model = args.sample, _model(args)
        args.load_source = None if is_local else _other_source
        return shards.run(args)
    settings = dataclasses.replace(settings, metric=_metric(args, form))
    _warn_unused_flags(args, form)
    judged = JudgeRun(args, system, settings, form, _model(args), _server(args))
    judged.find_work()
    scorer = None
    if judged.work:
        scorer = _scorer(args, judged)
        judged.judge(scorer or _other_source(args), scorer)
    return judged.close(scorer)


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that do not fit together."""
    names = ("llm", "llm_ollama", "gpt", "bem")
    if all(getattr(args, name) is None for name in names):
        listed = "--llm --model --llm-ollama --gpt --bem"
        raise InputError(f"one of the arguments {listed} is required")
    is_local, is_bem = args.llm is not None, args.bem is not None
    if args.output is not None and (args.opponent_folder, args.opponent_name) != (None, None):
        raise InputError(
            "--opponent-folder and --opponent-name compare folders; leave them out, or judge "
            "--folder without --output"
        )
    for name, words in (("--llm", args.llm), ("--llm-ollama", args.llm_ollama)):
        if words and len(words) > 2:
            raise InputError(f"{name} {' '.join(words)}: expected MODEL and SHORT at most")
    has_opponent = args.opponent_folder is not None
    for is_wrong, why in (
        (
            (args.lora is not None or args.quantize is not None) and not is_local,
            "--lora and --quantize change a model that runs here; give --llm too",
        ),
        (
            args.distributed and not is_local,
            "--distributed: only --llm runs in several processes; leave it out",
        ),
        (
            args.reproducible and not is_local and not is_bem,
            "--reproducible: a server does not promise it; give --llm or --bem",
        ),
        (
            args.html is not None and args.folder is None,
            f"--html {args.html}: one page, and --experiments-folder may hold several folders; "
            "leave it out, and each folder gets its own, or judge one with --folder",
        ),
        (
            has_opponent != (args.opponent_name is not None),
            "--opponent-folder and --opponent-name belong together; give both",
        ),
        (
            has_opponent and args.folder is None,
            "--opponent-folder is compared with one folder; name it with --folder",
        ),
        (
            has_opponent and is_bem,
            "--bem compares a response with references; it takes no opponent",
        ),
        (
            args.both_orders and not has_opponent,
            "--both-orders is of a comparison; give --opponent-folder too",
        ),
        (
            is_bem and args.label_score == "sequence",
            f"--label-score sequence reads probabilities, which {judge.NEEDED}",
        ),
    ):
        if is_wrong:
            raise InputError(why)


def _warn_unused_flags(args: argparse.Namespace, form: str) -> None:
    """Warn of flags that have no effect on this form of judge."""
    is_local, is_bem, is_server = args.llm is not None, args.bem is not None, _server(args)
    if is_bem:
        names = [name for name in model_flags.UNUSED if name not in ("device", "dtype")]
        why = "the classifier runs on one device, in its own batches, and keeps no journal"
        model_flags.ModelSpec.of(args, model="").warn_unused(names, why)
    elif not is_local:
        model_flags.ModelSpec.of(args, model="").warn_unused(
            model_flags.UNUSED, "the server computes"
        )
    prompt = None if args.llm_prompt == "default_qa" else args.llm_prompt
    reads = form in judge.READS_PROBABILITIES
    for name, value, is_used, where in (
        ("--llm-batch-size", args.llm_batch_size, is_server, "with --llm-ollama and --gpt"),
        ("--ollama-url", args.ollama_url, args.llm_ollama, "with --llm-ollama"),
        ("--api-base", args.api_base, args.gpt, "with --gpt"),
        ("--label-score", args.label_score, reads, "where probabilities of labels are read"),
        ("--label-match", args.label_match, not reads and not is_bem, "where answers are written"),
        ("--revision", args.revision, is_local or is_bem, "with --llm and --bem"),
        ("--llm-prompt", prompt, not is_bem, "with a language model"),
    ):
        if value is not None and not is_used:
            remark(args, f"{name}: of no effect, it is used {where}")


def _metric(args: argparse.Namespace, form: str) -> str:
    """Return the metric's name, without the endings of a comparison.

    Raises:
        InputError: it is the name of a field, or its report would be named like a manifest.
    """
    name = "LLMeval"
    if args.bem is not None:
        name = "BEM"
    elif args.gpt is not None:
        name = args.gpt
    elif args.llm_ollama is not None:
        name += f"_{args.llm_ollama[-1]}"
    elif args.llm:
        *model, short = args.llm
        # `.` is a folder with a name, too
        name += f"_{short if model else Path(short).name or Path(short).resolve().name}"
    if args.opponent_name is not None:
        name += f"_VS_{args.opponent_name}"
    elif form in judge.READS_PROBABILITIES:
        name += "_logits"
    if args.sample is not None:
        name += f"_{args.sample}"
    if name in rag.FIELDS:
        raise InputError(f"the metric would be named {name!r}, which is a field of the records")
    if name.casefold().endswith(MANIFEST):
        raise InputError(
            f"the metric would be named {name!r}, and its report would replace the manifest of "
            f"{name[: -len(MANIFEST)]!r}; give another short name"
        )
    return name


def _model(args: argparse.Namespace) -> str:
    """Return the name of the model that judges."""
    if args.llm is not None:
        return args.llm[0] if args.llm else DEFAULT_MODEL
    name: str = args.bem or args.gpt or args.llm_ollama[0]
    return name


def _server(args: argparse.Namespace) -> str | None:
    """Return the URL of --gpt or --llm-ollama; None for a model that runs here."""
    if args.gpt is not None:
        return args.api_base or OPENAI_URL
    if args.llm_ollama is not None:
        return args.ollama_url or OLLAMA_URL
    return None


def _scorer(args: argparse.Namespace, judged: JudgeRun) -> "Scorer | None":
    """Load the local model that judges, or return None."""
    written = [path for output in judged.work for path in judged.files(output)]
    if args.llm is None:
        return None
    folder = args.folder or args.experiments_folder
    return model_flags.load_scorer(args, _model(args), folder, *written)


def _other_source(args: argparse.Namespace) -> Any:
    """Load the classifier or the endpoint that judges."""
    if args.bem is not None:
        resolve(args.bem, args.revision)  # a missing one is refused before JAX loads
        from jaxscore.engine.devices import use_compilation_cache, use_device

        use_device(args.device)
        use_compilation_cache()
        return bem.load(args.bem, args.revision, dtype=args.dtype, reproducible=args.reproducible)
    limits = Limits() if args.llm_batch_size is None else Limits(in_flight=args.llm_batch_size)
    endpoint = ChatEndpoint if args.gpt is not None else OllamaEndpoint
    return endpoint(_model(args), str(_server(args)), limits=limits, progress=not args.quiet)


COMMAND = Command(
    "judge",
    f"{inspect.getdoc(judge.SYSTEM)}\n",
    [
        *results.folder_options(judge.SYSTEM, "judge"),
        *options_of(Judges),
        *model_flags.model_options(judge.Settings, omitted=("model", "revision", "lora")),
        *options_of(Flags),
        *options_of(shards.ShardFlags, omitted=("force",)),
    ],
    run,
)
