"""The flags of `judge`: what they mean together, and the metric that they name."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.cli import experiments, model_flags, outputs
from jaxscore.cli.messages import remark
from jaxscore.endpoints.chat import OLLAMA_URL, OPENAI_URL
from jaxscore.errors import InputError
from jaxscore.systems.rag import (
    bem,
    bem_evaluation,
    evaluation,
    evaluator_file,
    experiment_folder,
    records,
)

DEFAULT_MODEL = "upstage/SOLAR-10.7B-Instruct-v1.0"  # BERGEN's, for `--llm` alone
MANIFEST = ".md.run"  # a metric of this ending has a report of the name of another's manifest


def add(parser: argparse.ArgumentParser) -> None:
    """All of them, but for those that every scoring command has."""
    experiments.add_folder_flags(parser, "judge")
    _add_judges(parser)
    parser.add_argument(
        "--llm-prompt",
        default="default_qa",
        metavar="NAME",
        help="evaluator file: a path, or a name in configs/evaluator, config/evaluator or this "
        "package, which has default_qa (default) and default_multi_qa",
    )
    parser.add_argument(
        "--label-score",
        choices=evaluation.LABEL_SCORES,
        help="what a label's probability is: its first token's (default), or the whole label's, "
        "for labels that share their first token",
    )
    parser.add_argument(
        "--sample",
        "--limit",
        type=_sample,
        metavar="N",
        help="only the first N records; the metric's name ends in _N",
    )
    parser.add_argument(
        "--force", action="store_true", help="judge again where the metric exists already"
    )
    parser.add_argument(
        "--opponent-folder", type=Path, metavar="FOLDER", help="compare with the responses there"
    )
    parser.add_argument(
        "--opponent-name", type=_name, metavar="NAME", help="of the opponent, in the metrics"
    )
    parser.add_argument(
        "--both-orders", action="store_true", help="ask twice, each response first once"
    )
    parser.add_argument(
        "--n-bootstrap",
        type=model_flags.positive,
        default=1000,
        metavar="N",
        help="draws for the 95%% intervals (default 1000)",
    )
    outputs.add_page_flags(parser)
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    model_flags.add_lora_flag(parser)


def _add_judges(parser: argparse.ArgumentParser) -> None:
    judges = parser.add_mutually_exclusive_group(required=True)
    judges.add_argument(
        "--llm",
        nargs="*",
        type=_name,
        metavar=("MODEL", "SHORT"),
        help="a local Hugging Face folder, a hub id, or `demo`, and its name in the metric "
        f"(default: the last part of MODEL). Alone: {DEFAULT_MODEL}, metric LLMeval",
    )
    judges.add_argument(
        "--model", dest="llm", nargs=1, type=_name, metavar="NAME", help="the same as --llm NAME"
    )
    judges.add_argument(
        "--llm-ollama",
        nargs="+",
        type=_name,
        metavar=("MODEL", "SHORT"),
        help="a model of an ollama server, and its name in the metric (default: MODEL)",
    )
    judges.add_argument(
        "--gpt", type=_name, metavar="MODEL", help="a model of an OpenAI-compatible server"
    )
    judges.add_argument(
        "--bem",
        nargs="?",
        type=_name,
        const=bem.DEFAULT_MODEL,
        metavar="MODEL",
        help="a BERT classifier of answer equivalence, with the extra flax-classes (default: "
        f"{bem.DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--ollama-url",
        metavar="URL",
        help=f"the server of --llm-ollama (default: {OLLAMA_URL})",
    )
    parser.add_argument(
        "--api-base", metavar="URL", help=f"the server of --gpt (default: {OPENAI_URL})"
    )
    parser.add_argument(
        "--llm-batch-size",
        type=model_flags.positive,
        metavar="N",
        help="requests in flight to a server; of no effect on a model that runs here, whose "
        "batches are of --batch-tokens",
    )


def _sample(text: str) -> int | None:
    """-1 is all, as in the published script."""
    return None if text == "-1" else model_flags.positive(text)


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name")
    return text


def check(args: argparse.Namespace) -> None:
    """Refuse what does not fit together.

    Raises:
        InputError: it does not.
    """
    for flag, words in (("--llm", args.llm), ("--llm-ollama", args.llm_ollama)):
        if words and len(words) > 2:
            raise InputError(f"{flag} {' '.join(words)}: expected MODEL and SHORT at most")
    if (args.lora is not None or args.quantize is not None) and args.llm is None:
        raise InputError("--lora and --quantize change a model that runs here; give --llm too")
    if args.distributed and args.llm is None:
        raise InputError("--distributed: only --llm runs in several processes; leave it out")
    if args.reproducible and args.llm is None and args.bem is None:
        raise InputError("--reproducible: a server does not promise it; give --llm or --bem")
    if args.html is not None and args.folder is None:
        raise InputError(
            f"--html {args.html}: one page, and --experiments-folder may hold several folders; "
            "leave it out, and each folder gets its own, or judge one with --folder"
        )
    if (args.opponent_folder is None) != (args.opponent_name is None):
        raise InputError("--opponent-folder and --opponent-name belong together; give both")
    if args.opponent_folder is not None:
        if args.folder is None:
            raise InputError("--opponent-folder is compared with one folder; name it with --folder")
        if args.bem is not None:
            raise InputError("--bem compares a response with references; it takes no opponent")
    elif args.both_orders:
        raise InputError("--both-orders is of a comparison; give --opponent-folder too")
    if args.bem is not None and args.label_score == "sequence":
        raise InputError(f"--label-score sequence reads probabilities, which {evaluation.NEEDED}")


def system(args: argparse.Namespace) -> str:
    """Which system judges: its name for `jaxscore.evaluate`."""
    return "judge" if args.bem is None else "bem"


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The system's settings that the flags give, files read, without the metric's name.

    Raises:
        InputError: the evaluator file or the opponent's records cannot be used.
    """
    common = {**model_flags.common_settings(args), "n_bootstrap": args.n_bootstrap}
    if args.bem is not None:
        return common
    opponent = None
    if args.opponent_folder is not None:
        opponent = experiment_folder.load(args.opponent_folder, args.split)
    return {
        "evaluator": evaluator_file.load(evaluator_file.find(args.llm_prompt)),
        "label_score": args.label_score or "first",
        "opponent": opponent,
        "both_orders": args.both_orders,
        **common,
    }


def kind(args: argparse.Namespace, chosen: Mapping[str, Any]) -> str:
    """How the score comes about; see `evaluation.kind_of`.

    Args:
        chosen: of `settings`.

    Raises:
        InputError: a setting has no effect there.
    """
    if args.bem is not None:
        bem_evaluation.Settings(**chosen)
        return "bem"
    return evaluation.kind_of(evaluation.Settings(**chosen), local=args.llm is not None)


def warn_unused_flags(args: argparse.Namespace, kind: str) -> None:
    """Say on stderr which of the flags that were given have no effect on this kind of judge."""
    if args.bem is not None:
        names = [name for name in model_flags.UNUSED if name not in ("device", "dtype")]
        why = "the classifier runs on one device, in batches of its own, and keeps no journal"
        model_flags.warn_unused_flags(args, names, why)
    elif args.llm is None:
        model_flags.warn_unused_flags(args, [*model_flags.UNUSED], "the server computes")
    server = args.gpt is not None or args.llm_ollama is not None
    for flag, given, used, where in (
        ("--llm-batch-size", args.llm_batch_size, server, "with --llm-ollama and --gpt"),
        ("--ollama-url", args.ollama_url, args.llm_ollama is not None, "with --llm-ollama"),
        ("--api-base", args.api_base, args.gpt is not None, "with --gpt"),
        (
            "--label-score",
            args.label_score,
            kind in evaluation.READS_PROBABILITIES,
            "where probabilities of labels are read",
        ),
        ("--revision", args.revision, args.llm is not None or args.bem is not None,
         "with --llm and --bem"),
        ("--llm-prompt", None if args.llm_prompt == "default_qa" else args.llm_prompt,
         args.bem is None, "with a language model"),
    ):  # fmt: skip
        if given is not None and not used:
            remark(args, f"{flag}: of no effect, it is used {where}")


def metric(args: argparse.Namespace, kind: str) -> str:
    """The metric's name, without the endings of a comparison.

    Raises:
        InputError: it is the name of a field, or its report would be named like a manifest.
    """
    if args.bem is not None:
        name = bem_evaluation.METRIC
    elif args.gpt is not None:
        name = args.gpt
    elif args.llm_ollama is not None:
        name = f"LLMeval_{args.llm_ollama[-1]}"
    elif args.llm:
        name = f"LLMeval_{args.llm[1] if len(args.llm) == 2 else _last_part(args.llm[0])}"
    else:
        name = "LLMeval"
    if args.opponent_name is not None:
        name += f"_VS_{args.opponent_name}"
    elif kind in evaluation.READS_PROBABILITIES:
        name += "_logits"
    if args.sample is not None:
        name += f"_{args.sample}"
    if name in records.FIELDS:
        raise InputError(f"the metric would be named {name!r}, which is a field of the records")
    if name.casefold().endswith(MANIFEST):
        raise InputError(
            f"the metric would be named {name!r}, and its report would replace the manifest of "
            f"{name[: -len(MANIFEST)]!r}; give another short name"
        )
    return name


def model_name(args: argparse.Namespace) -> str:
    """The model of --llm."""
    return args.llm[0] if args.llm else DEFAULT_MODEL


def server(args: argparse.Namespace) -> str | None:
    """The URL of --gpt or --llm-ollama; None for a model that runs here."""
    if args.gpt is not None:
        return args.api_base or OPENAI_URL
    if args.llm_ollama is not None:
        return args.ollama_url or OLLAMA_URL
    return None


def _last_part(model: str) -> str:
    return Path(model).name or Path(model).resolve().name  # `.` is a folder with a name, too
