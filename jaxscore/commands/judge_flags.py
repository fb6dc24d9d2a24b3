"""The flags of `judge`: what they mean together, and the metric that they name."""

import argparse
from pathlib import Path

from jaxscore.commands import shared
from jaxscore.endpoints import chat as openai
from jaxscore.endpoints import ollama
from jaxscore.errors import InputError
from jaxscore.tasks.rag import bem, experiment_folder
from jaxscore.tasks.rag.evaluator_file import Evaluator

DEFAULT_MODEL = "upstage/SOLAR-10.7B-Instruct-v1.0"  # BERGEN's, for `--llm` alone


def add(parser: argparse.ArgumentParser) -> None:
    """All of them, but for those that every scoring command has."""
    parser.add_argument(
        "--experiments-folder",
        type=Path,
        default=Path("experiments"),
        metavar="FOLDER",
        help="judge each folder in it (default: experiments/)",
    )
    parser.add_argument("--folder", type=Path, help="judge this one instead")
    parser.add_argument("--split", default="dev", help="default: dev")
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
        choices=("first", "sequence"),
        default="first",
        help="what a label's probability is: its first token's (default), or the whole label's, "
        "for labels that share their first token",
    )
    parser.add_argument(
        "--sample",
        type=_sample,
        metavar="N",
        help="only the first N records; the metric's name ends in _N",
    )
    parser.add_argument(
        "--force", action="store_true", help="judge anew where the metric is there already"
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
        type=shared.positive,
        default=1000,
        metavar="N",
        help="draws for the 95%% intervals (default 1000)",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    shared.add_lora_flag(parser)


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
        help=f"a BERT classifier of answer equivalence (default: {bem.DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--ollama-url", default=ollama.DEFAULT_URL, metavar="URL", help="default: %(default)s"
    )
    parser.add_argument(
        "--api-base",
        default=openai.DEFAULT_URL,
        metavar="URL",
        help="the server of --gpt (default: %(default)s)",
    )
    parser.add_argument(
        "--llm-batch-size",
        type=shared.positive,
        metavar="N",
        help="requests at a time to a server; of no effect on a model here, whose batches are of "
        "--batch-tokens",
    )


def _sample(text: str) -> int | None:
    """-1 is all, as in the published script."""
    return None if text == "-1" else shared.positive(text)


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
    if (args.opponent_folder is None) != (args.opponent_name is None):
        raise InputError("--opponent-folder and --opponent-name belong together; give both")
    if args.opponent_folder is not None:
        if args.folder is None:
            raise InputError("--opponent-folder is compared with one folder; name it with --folder")
        if args.bem is not None:
            raise InputError("--bem compares a response with references; it takes no opponent")
    elif args.both_orders:
        raise InputError("--both-orders is of a comparison; give --opponent-folder too")


def kind(args: argparse.Namespace, evaluator: Evaluator | None) -> str:
    """How the score comes about, see `judge_findings.Findings`.

    Args:
        evaluator: None with --bem.

    Raises:
        InputError: a flag is of no use for that, or the evaluator file lacks the prompt.
    """
    if evaluator is None:
        found = "bem"
    elif args.opponent_folder is not None:
        found = "pairwise"
        if evaluator.pairwise is None:
            raise InputError(
                f"{evaluator.path}: it has no prompt_pairwise, which --opponent-folder needs"
            )
    elif args.llm is not None and evaluator.use_logits:
        found = "logits" if args.label_score == "first" else "sequence"
    else:
        found = "text"
    if args.truncate and found in ("text", "pairwise"):
        raise InputError(
            "--truncate is of prompts whose labels are scored; an answer is written to a whole "
            "prompt, so leave it out here"
        )
    if args.truncate and found == "bem":
        raise InputError(
            "--truncate is of a causal model's prompts; --bem leaves out the ends of texts that "
            "are too long by itself"
        )
    if args.audit_noise and found not in ("logits", "sequence"):
        raise InputError(
            "--audit-noise is of probabilities, which are read with --llm, an evaluator file with "
            "use_logits: true, and no opponent; leave it out here"
        )
    if args.label_score == "sequence" and found != "sequence":
        raise InputError(
            "--label-score sequence reads probabilities, which needs --llm, an evaluator file "
            "with use_logits: true, and no opponent"
        )
    return found


def metric(args: argparse.Namespace, kind: str) -> str:
    """The metric's name, without the endings of a comparison.

    Raises:
        InputError: it is the name of a field.
    """
    if kind == "bem":
        name = "BEM"
    elif args.gpt is not None:
        name = args.gpt
    elif args.llm_ollama is not None:
        name = f"LLMeval_{args.llm_ollama[-1]}"
    elif args.llm:
        name = f"LLMeval_{args.llm[1] if len(args.llm) == 2 else _last_part(args.llm[0])}"
    else:
        name = "LLMeval"
    if kind == "pairwise":
        name += f"_VS_{args.opponent_name}"
    elif kind in ("logits", "sequence"):
        name += "_logits"
    if args.sample is not None:
        name += f"_{args.sample}"
    if name in experiment_folder.FIELDS:
        raise InputError(f"the metric would be named {name!r}, which is a field of the records")
    return name


def _last_part(model: str) -> str:
    return Path(model).name or Path(model).resolve().name  # `.` is a folder with a name, too
