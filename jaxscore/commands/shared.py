"""Flags that every scoring command has, and what they make."""

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxscore.commands import distributed_flags
from jaxscore.engine import processes
from jaxscore.engine.batch_budget import AUTO
from jaxscore.engine.mesh_choice import AUTO as MESH
from jaxscore.engine.noise import Noise
from jaxscore.engine.platform import DEVICES, use_device
from jaxscore.errors import InputError
from jaxscore.journal.database import check_path
from jaxscore.metrics.margins import Decisions
from jaxscore.models.load import DTYPES, IMPLEMENTATIONS, QUANTIZED
from jaxscore.models.weights import lora
from jaxscore.plan.packing import SHORTEST_ROW
from jaxscore.printable import one_line
from jaxscore.reports import manifest, provenance
from jaxscore.requests import Request
from jaxscore.scorer import BATCH_TOKENS, Scorer
from jaxscore.text.encoder import boundary_audit

SHOWN_FAILURES = 20
UNUSED = {  # where another program computes, and what they are if nobody gives them
    "device": None,
    "dtype": "auto",
    "model_impl": "auto",
    "mesh": MESH,
    "batch_tokens": BATCH_TOKENS,
    "journal": None,
}
MOST_BATCH_TOKENS = 1 << 22
AUDITED_TOGETHER = 1024  # requests
AUDITED_CHARACTERS = 1000  # of a continuation that is encoded as often as it has tokens


def add_model_flags(
    parser: argparse.ArgumentParser, *, model_required: bool = True, audited: bool = True
) -> None:
    """--model and the flags that decide how it runs.

    Args:
        audited: whether the command has numbers for --audit-noise.
    """
    group = parser.add_argument_group("model and device")
    if model_required:
        group.add_argument(
            "--model",
            required=True,
            metavar="NAME",
            help="a local Hugging Face folder, a hub id, or `demo`, the embedded model",
        )
        group.add_argument("--revision", help="branch, tag or commit of a hub id")
        add_lora_flag(group)
    group.add_argument(
        "--device",
        choices=DEVICES,
        help="default: the best there is; one that is absent is an error",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="of the weights; auto: float32 on the CPU, the checkpoint's on accelerators "
        "(bfloat16 for float16); sums over the vocabulary are float32 in any case",
    )
    group.add_argument(
        "--quantize",
        choices=QUANTIZED,
        help="store the layers' weights as 8-bit integers, half the memory of bfloat16; --dtype "
        "is then that of the products; scores move, see the README",
    )
    group.add_argument(
        "--model-impl",
        choices=IMPLEMENTATIONS,
        default="auto",
        help="native: our decoder, which shares text between requests; transformers: their Flax "
        "class, one request a row; auto: native where it covers the family",
    )
    group.add_argument(
        "--mesh",
        default=MESH,
        metavar="auto|data=N,model=M",
        help="devices that share the rows of a batch, and devices that share each layer (default "
        "auto: all devices, with the smallest model whose part of the weights fits)",
    )
    group.add_argument(
        "--batch-tokens",
        type=_batch_tokens,
        default=BATCH_TOKENS,
        metavar="N|auto",
        help=f"tokens a batch, padding included (default {BATCH_TOKENS}); less takes less "
        "memory, more is faster on accelerators; auto: as many as the device's memory takes. A "
        "batch that does not fit is halved",
    )
    group.add_argument(
        "--reproducible",
        action="store_true",
        help="compute each request by itself, so that the bits of its scores depend on nothing "
        "else in the run; slower, several times where texts begin alike, and --batch-tokens is of "
        "no effect",
    )
    if audited:
        group.add_argument(
            "--audit-noise",
            type=_count,
            default=0,
            metavar="N",
            help="score N of the requests, drawn by --seed, again in other layouts (alone, in "
            "other batches, one a row), tell how far their numbers move, and mark decisions that "
            "lie within that (default 0: no audit)",
        )
    group.add_argument(
        "--truncate",
        choices=("left",),
        help="drop the oldest context tokens of a request that is longer than the model's "
        "positions; without it that request fails and the others are kept",
    )
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="let the checkpoint's tokenizer bring its own code",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of whatever a command draws at random: samples, orders, bootstrap intervals",
    )
    group.add_argument(
        "--journal",
        metavar="PATH|off",
        help="where what is finished is kept, so that the same command goes on where it was "
        "interrupted (default: beside the output)",
    )
    group.add_argument("--quiet", action="store_true", help="no progress and no remarks on stderr")
    distributed_flags.add(parser)


def add_lora_flag(parser: argparse._ActionsContainer) -> None:
    """--lora."""
    parser.add_argument(
        "--lora",
        type=Path,
        metavar="DIR",
        help="a LoRA adapter as PEFT saves it, merged into the weights as they are read",
    )


def _batch_tokens(text: str) -> int | str:
    if text == AUTO:
        return text
    value = _whole(text)
    if value < SHORTEST_ROW:
        raise argparse.ArgumentTypeError(f"{value} is below the shortest row of {SHORTEST_ROW}")
    if value > MOST_BATCH_TOKENS:
        raise argparse.ArgumentTypeError(f"{value} is above {MOST_BATCH_TOKENS}")
    return value


def _count(text: str) -> int:
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is below 0")
    return value


def positive(text: str) -> int:
    """argparse type: a whole number above 0."""
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def load_scorer(args: argparse.Namespace, model: str, output: Path | None) -> Scorer:
    """The scorer that the flags describe, or `args.scorer` where a caller has loaded it.

    Args:
        output: beside which the journal lies unless the flags say otherwise: a file, or a folder
            of files; None where every run begins anew.
    """
    if (loaded := getattr(args, "scorer", None)) is not None:
        return loaded
    use_device(args.device)
    tell_lora(args)
    args.loaded = Scorer.from_pretrained(
        model,
        dtype=args.dtype,
        implementation=args.model_impl,
        revision=getattr(args, "revision", None),
        trust_remote_code=args.trust_remote_code,
        cache_dir=getattr(args, "cache_dir", None),
        lora=getattr(args, "lora", None),
        quantize=args.quantize,
        mesh=args.mesh,
        reproducible=args.reproducible,
        batch_tokens=args.batch_tokens,
        progress=not args.quiet,
        journal=_journal(args, output),
    )
    if args.batch_tokens == AUTO and not args.reproducible:
        remark(args, f"--batch-tokens auto: {args.loaded.batch_tokens}")
    return args.loaded


def _journal(args: argparse.Namespace, output: Path | None) -> Path | None:
    asked = args.journal
    if output is None and asked not in (None, "off"):
        remark(args, f"--journal {asked}: this command begins anew each time and keeps nothing")
    if asked == "off" or output is None:
        return None
    if asked is not None:
        check_path(Path(asked), output, getattr(args, "input", None))
        return Path(asked)
    if output.is_dir():
        return output / "jaxscore.journal"
    return output.with_name(f"{output.name}.journal")


def tell_unused(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Flags that were given, or differ from what they are by default, and do nothing here."""
    given = [name for name in names if getattr(args, name) != UNUSED[name]]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        remark(args, f"{flags}: of no effect, {why}")


def tell_lora(args: argparse.Namespace) -> None:
    """What the adapter says it was trained on: for people to judge, since names decide nothing."""
    if (folder := getattr(args, "lora", None)) is not None:
        base = lora.read(folder).base_model or "a model that it does not name"
        remark(args, f"--lora {folder}: an adapter of {base}")


def remark(args: argparse.Namespace, text: str) -> None:
    """A line on stderr, unless --quiet."""
    if not args.quiet:
        _tell(text)


def _tell(text: str) -> None:
    """A line on stderr, whatever users' ids and servers' answers hold."""
    if not processes.first():
        return
    encoding = sys.stderr.encoding or "utf-8"
    shown = one_line(text).encode(encoding, "backslashreplace").decode(encoding)
    print(shown, file=sys.stderr)


def check_output(output: Path, *inputs: Path | None, flag: str = "--output") -> None:
    """Refuse to write over what is read; `flag` is the one to change, for people."""
    for place, path in itertools.product((output, manifest.path_of(output)), inputs):
        try:
            same = path is not None and place.resolve() == path.resolve()
        except (OSError, RuntimeError) as problem:  # a loop of links
            raise InputError(f"{flag} {output}: not usable as a path ({problem})") from None
        if same:
            raise InputError(f"{flag} {place} is an input of this run; give another name")


class Audit:
    """Counts, while requests stream by, those that another boundary policy would change."""

    def __init__(
        self, scorer: Scorer, chosen: str, others: Sequence[str], *, quiet: bool = False
    ) -> None:
        self.changed = dict.fromkeys(others, 0)
        self.n_requests = self.n_too_long = 0
        self._scorer, self._chosen, self._quiet = scorer, chosen, quiet

    def watch(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The same requests; not counted where nobody would be told."""
        if self._quiet:
            yield from requests
            return
        part: list[Request] = []
        for request in requests:
            part.append(request)
            if len(part) == AUDITED_TOGETHER:
                yield from self._count(part)
                part = []
        yield from self._count(part)

    def _count(self, part: list[Request]) -> list[Request]:
        short = part
        if "reencoded" in self.changed:  # which encodes a text anew for each of its tokens
            short = [one for one in part if len(one.continuation) <= AUDITED_CHARACTERS]
        self.n_requests += len(short)
        self.n_too_long += len(part) - len(short)
        found = boundary_audit(self._scorer.encoder, short, self._chosen, list(self.changed))
        for name, count in found.items():
            self.changed[name] += count
        return part

    def text(self, chosen: str, names: Sequence[str]) -> str:
        """One line for people; `names` are the flag's values for the policies."""
        parts = [
            f"{name} would change {count}"
            for name, count in zip(names, self.changed.values(), strict=True)
        ]
        left_out = (
            f"; {self.n_too_long} of over {AUDITED_CHARACTERS} characters were not looked at"
            if self.n_too_long
            else ""
        )
        return f"boundary {chosen}: of {self.n_requests} requests {', '.join(parts)}{left_out}"


def made_by(args: argparse.Namespace, scorer: Scorer, model: str) -> dict[str, Any]:
    """The model and how it was computed, for a report's settings."""
    return provenance.of_model(
        model,
        scorer.model,
        args.revision,
        getattr(args, "cache_dir", None),
        args.lora,
        reproducible=scorer.reproducible,
    )


def write_manifest(
    args: argparse.Namespace,
    scorer: Scorer,
    seconds: float,
    output: Path,
    noise: Noise | None = None,
    **more: int,
) -> None:
    """What this output was made of and with, and its noise where it was audited, beside it."""
    facts = {"model": scorer.about, **scorer.facts(), **more, "seconds": round(seconds, 3)}
    manifest.write(output, vars(args), facts | noise_fields(args, noise))


def noise_fields(
    args: argparse.Namespace, noise: Noise | None, decisions: Sequence[Decisions] = ()
) -> dict[str, Any]:
    """`noise` of a report and of a manifest; nothing where no audit was asked for.

    Args:
        noise: None where there was nothing to score again.
        decisions: marked by it.
    """
    if not getattr(args, "audit_noise", 0):
        return {}
    return {"noise": None if noise is None else noise.record(decisions)}


def tell_noise(
    args: argparse.Namespace, noise: Noise | None, decisions: Sequence[Decisions] = ()
) -> None:
    """The noise in one line on stdout, where an audit was asked for: it is a result."""
    if not args.audit_noise:
        return
    if noise is None:
        print("noise floor: no request was scored, so none was scored again")
        return
    parts = [
        f"noise floor: {noise.n_requests} requests in {len(noise.layouts)} layouts move by at most "
        + ", ".join(f"{one.largest:.2g} ({name})" for name, one in noise.spread.items())
    ]
    if noise.n_tokens is not None:
        parts.append(f"greedy differs on {noise.n_greedy_differs} of {noise.n_tokens} tokens")
    if decisions:
        told = (f"{one.what} {one.n_within} of {one.n}" for one in decisions)
        parts.append(f"decisions within that: {', '.join(told)}")
    print("; ".join(parts))


def tell_run(args: argparse.Namespace, scorer: Scorer, seconds: float) -> None:
    """What was computed, and how much of it sharing saved."""
    given, unique = scorer.tokens_given, scorer.tokens_unique
    share = f", {given / unique:.1f} given for each computed" if unique else ""
    model = scorer.model
    remark(
        args,
        f"{given} tokens given, {unique} unique, {scorer.tokens_scored} scored in {seconds:.1f} s"
        f"{share}; {model.model_type}, {model.implementation}, {model.dtype}",
    )
    if scorer.journal is not None:
        remark(args, f"{scorer.sequences_restored} of {scorer.sequences} texts were in the journal")


def tell_failures(failures: Sequence[tuple[object, str]]) -> int:
    """List failed items on stderr and give the exit code."""
    for name, why in failures[:SHOWN_FAILURES]:
        _tell(f"failed: {name}: {why}")
    if len(failures) > SHOWN_FAILURES:
        _tell(f"and {len(failures) - SHOWN_FAILURES} more")
    if failures:
        _tell(f"{len(failures)} failed, the others are kept")
    return 1 if failures else 0
