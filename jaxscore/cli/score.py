"""`jaxscore score`: the command of the system, and `--text`, which prints one text's tokens."""

import argparse
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxscore.analysis.text_measures import bits
from jaxscore.cli import model_flags, settings_flags
from jaxscore.cli.system_command import command_of
from jaxscore.errors import InputError, many_lines
from jaxscore.report import terminal
from jaxscore.report.counts import counted
from jaxscore.report.markdown import NOTHING, number
from jaxscore.shell.evaluate import evaluate
from jaxscore.shell.flags import flag, options_of
from jaxscore.systems import declaration
from jaxscore.text.decoder import TokenBytes

GROUP = "one text"
# Flags of files and of several texts, and those whose results the table does not show
REPLACED = frozenset(
    "input output column limit html no_html shard force engine actors lines by n_bootstrap "
    "audit_noise rows regions_field summary_only measures top_k min_k unit log_base leading_blank "
    "class word_correction against against_field long_gain long_logprob score_roles "
    "score_turn_end".split()
)
N_ALTERNATIVES = 3
SETTINGS = {"rows": "token", "measures": ("rank", "top_k"), "top_k": N_ALTERNATIVES + 1}
HEADER = ("token", "logprob", "rank", "entropy", "instead", *[""] * (N_ALTERNATIVES - 1))
NUMBERS = (1, 2, 3)  # columns that lean right
UNSCORED = (
    "The first token has nothing before it and so no probability; give it a context: --text "
    "CONTEXT --continuation TEXT."
)


@dataclasses.dataclass(kw_only=True)
class TextFlags:
    """The flags of `score` for one text."""

    text: str | None = flag(
        None,
        metavar="TEXT",
        group=GROUP,
        help="in place of --input and --output: print the tokens of TEXT with log-probability, "
        "rank, entropy (nats), and the three most probable alternatives",
    )
    continuation: str | None = flag(
        None, metavar="TEXT", group=GROUP, help="score TEXT after that of --text, its context"
    )


_SYSTEM = declaration("score")
_COMMAND = command_of(_SYSTEM)


def run(args: argparse.Namespace) -> int:
    """Score files, or print the tokens of --text."""
    if args.text is not None:
        return show(args)
    if args.continuation is not None:
        raise InputError("--continuation: it is scored after the text of --text; give that too")
    return _COMMAND.run(args)


def show(args: argparse.Namespace) -> int:
    """Print a table of one text's tokens.

    Raises:
        InputError: the text is empty, or the model is an endpoint.
    """
    declared: Any = _SYSTEM.settings
    chosen = settings_flags.values(args, declared)
    if args.api_base is not None:
        raise InputError(
            "--api-base: an endpoint does not give ranks and alternatives; take a local model with "
            "--text"
        )
    is_continued = args.continuation is not None
    context = args.text if is_continued else ""
    settings = declared(**{**chosen, **SETTINGS})
    flag_name = "continuation" if is_continued else "text"
    if not getattr(args, flag_name):
        raise InputError(f"--{flag_name}: it is empty; give a text")
    args.quiet = True
    args.journal = args.journal or "off"
    scorer = model_flags.load_scorer(args, args.model, None, generates=False)
    item = {"context": context, "continuation": getattr(args, flag_name)}
    report = evaluate(_SYSTEM, scorer, [item], settings)
    [record] = report.records
    if "error" in record:
        raise InputError(f"--{flag_name}: {record['error']}")
    token_bytes = TokenBytes(scorer.encoder.tokenizer)
    for line in table(context, record, token_bytes, has_colours=terminal.has_colours()):
        print(line)
    for finding in report.findings:
        print(f"{finding}.")
    return 0


def table(
    context: str, record: Mapping[str, Any], token_bytes: TokenBytes, *, has_colours: bool
) -> Iterator[str]:
    """Yield the lines of a table of tokens, and of their total.

    Args:
        record: the record of the text, with `rows` of tokens, `rank` and `top_k`.
        has_colours: shade tokens by their surprisal, and print the shaded text first.
    """
    rows = record["rows"]
    if has_colours:
        yield from shaded_lines(context, rows)
        yield ""
    cells = [HEADER]
    for row, shown in zip(rows, shown_tokens(rows, token_bytes), strict=True):
        numbers = decimals(row["logprob"]), rank_of(row), decimals(row["entropy"])
        others = [*alternatives(row, token_bytes)]
        cells.append((shown, *numbers, *others, *[""] * (N_ALTERNATIVES - len(others))))
    columns = terminal.widths(cells)
    for row, line in zip([None, *rows], cells, strict=True):
        parts = [
            terminal.padded(cell, columns[k], to_right=k in NUMBERS) for k, cell in enumerate(line)
        ]
        if not has_colours:
            yield "  ".join(parts).rstrip()
            continue
        first, rest = parts[0], "  ".join(parts[1:]).rstrip()
        if row is not None:
            first = terminal.shaded(first, row["surprisal"])
        yield terminal.cut(f"{first}  {rest}" if row else f"{terminal.BOLD}{first}  {rest}")
    yield ""
    yield total(record)
    if rows[0]["logprob"] is None:
        yield UNSCORED


def shown_tokens(rows: Sequence[Mapping[str, Any]], token_bytes: TokenBytes) -> Iterator[str]:
    """Yield the text of each token; of a part of a character the character and which part."""
    for k, row in enumerate(rows):
        raw = token_bytes.raw(row["token_id"])
        if _is_whole(raw):
            yield terminal.visible(raw.decode())
            continue
        shares = [
            j
            for j in range(max(0, k - 8), min(len(rows), k + 9))
            if rows[j]["start"] < row["end"] and rows[j]["end"] > row["start"]
        ]
        yield f"{terminal.visible(row['text'])} {shares.index(k) + 1}/{len(shares)}"


def _is_whole(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def alternatives(row: Mapping[str, Any], token_bytes: TokenBytes) -> Iterator[str]:
    """Yield the most probable other tokens with their probabilities."""
    if row["logprob"] is None:
        return
    pairs = zip(row["top_id"], row["top_logprob"], strict=True)
    others = [pair for pair in pairs if pair[0] != row["token_id"]]
    for id, logprob in others[:N_ALTERNATIVES]:
        text = token_bytes.raw(id).decode("utf-8", "backslashreplace")
        yield f"{terminal.visible(text)} {percent(logprob)}"


def percent(logprob: float) -> str:
    """Return the probability with two digits, or as below what they show."""
    share = 100 * math.exp(logprob)
    return f"{share:.0f} %" if share >= 9.5 else f"{share:.2g} %" if share >= 0.01 else "<0.01 %"


def decimals(value: float | None) -> str:
    """Return a number with three digits after the point, without the sign of 0."""
    return number(None if value is None else round(value, 3) + 0.0, 3)


def rank_of(row: Mapping[str, Any]) -> str:
    """Return the rank of a token, or a dash."""
    return NOTHING if row["rank"] is None else str(row["rank"])


def shaded_lines(context: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the text with each token's shade, after its context."""
    text = f"{terminal.DIM}{many_lines(context)}{terminal.RESET}"
    end = 0
    for row in rows:
        if row["end"] > end:  # the first token of a character has it
            start = max(0, end - row["start"])
            text += terminal.shaded_text(row["text"][start:], row["surprisal"])
            end = row["end"]
    yield from text.split("\n")


def total(record: Mapping[str, Any]) -> str:
    """Return the sums of a text in one line."""
    tokens = counted(record["n_tokens"], "tokens")
    if record["sum_logprob"] is None:
        return tokens
    nats = float(record["sum_logprob"])
    return (
        f"{tokens}: log-probability {nats:.3f} nats, {-bits(nats):.2f} bits; perplexity "
        f"{float(record['perplexity']):.4g}; mean entropy {record['mean_entropy']:.3f} nats"
    )


COMMAND = dataclasses.replace(
    _COMMAND,
    options=[
        dataclasses.replace(option, unless="text") if option.dest in REPLACED else option
        for option in _COMMAND.options
    ]
    + options_of(TextFlags),
    run=run,
)
