"""`jaxscore families`: lists covered model types, or checks whether a checkpoint would load."""

import argparse
import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any

from jaxscore.cli import messages, model_flags
from jaxscore.cli.app import Command
from jaxscore.cli.help_pages import WIDTH
from jaxscore.errors import InputError
from jaxscore.io.json_output import json_text, to_json_value
from jaxscore.report.markdown import LEFT, aligned
from jaxscore.shell.flags import flag, options_of

DESCRIPTION = """\
List the model types that are covered, or say whether one checkpoint would load
and which of its attributes decide.

without --model, on stdout:
  covered: model_type; what runs, native or transformers (the first one unless
    --model-impl says otherwise), and for a wrapper the family of the text in
    it; the version of jaxscore that first covers it; and the lines of
    transformers whose PyTorch class it, or one of these texts, is compared with
  refused, by reason: known model types, with what scores them instead; all
    others are refused as unknown
  architectures of GGUF files that are read, by the name in the file

with --model, a folder with config.json, or config.json alone:
  family, text model of a wrapper, stored type of the weights
  each attribute that the family reads: its value, and whether that is from the
    file, a default, or derived from others
  names, types and shapes of all tensors are checked where weights are there;
    no value of a weight is read, and nothing is computed
  where it does not load, the messages that loading gives

  python -m jaxscore families
  python -m jaxscore families --json > families.json
  python -m jaxscore families --model demo
  python -m jaxscore families --model FOLDER/config.json

exit code: 0 listed, or would load; 2 would not load, or unusable input.
"""
WIDEST = 72  # characters of a value; --json has all


@dataclasses.dataclass(kw_only=True)
class Flags:
    """The flags of `families`."""

    model: str | None = flag(
        None,
        metavar="PATH",
        help=f"its config.json, or {model_flags.MODEL}",
    )
    json: bool = flag(False, help="the same as JSON on stdout")
    model_impl: model_flags.Implementation = flag(
        "auto", is_advanced=True, help="with --model: what it would load as; auto: native"
    )
    accept_config: list[str] = flag([], metavar="KEY", is_advanced=True, help=model_flags.ACCEPT)


def run(args: argparse.Namespace) -> int:
    source = None if args.model is None else model_flags.config_source(args.model)
    from jaxscore.engine.devices import use_device  # here: it imports JAX

    use_device("cpu")  # nothing is computed, and accelerators stay free
    return _list(args) if source is None else _inspect(args, source)


def _list(args: argparse.Namespace) -> int:
    from jaxscore.models.model_types import REFUSED, covered, reason
    from jaxscore.models.weights.gguf import architectures

    in_gguf = sorted(architectures.ARCHITECTURES)
    covered_types = list(covered())
    if args.json:
        refused = [
            {"model_type": name, "kind": entry.kind.name, "why": reason(name, entry)}
            for name, entry in sorted(REFUSED.items())
        ]
        listed = {
            "covered": [entry._asdict() for entry in covered_types],
            "refused": refused,
            "gguf": {"read": in_gguf, "refused": dict(sorted(architectures.REFUSED.items()))},
        }
        print(json_text(listed), end="")
        return 0
    rows = [("model_type", "runs", "text", "since", "transformers")]
    for entry in covered_types:
        runs, texts, lines = map(", ".join, (entry.implementations, entry.texts, entry.lines))
        rows.append((entry.model_type, runs, texts, entry.since, lines))
    print("covered\n" + aligned(rows, LEFT))
    for refusal in dict.fromkeys(entry.kind for entry in REFUSED.values()):
        entries = {name: entry for name, entry in sorted(REFUSED.items()) if entry.kind is refusal}
        print("\n" + textwrap.fill(f"refused, {refusal.name}: {refusal.instead}", WIDTH))
        if any(entry.layers for entry in entries.values()):
            cells = [(name, entry.layers, entry.text or "") for name, entry in entries.items()]
            print(aligned([("model_type", "layers", "text"), *cells], LEFT))
        else:
            print(textwrap.fill(", ".join(entries), WIDTH, break_on_hyphens=False))
    print("\nread from GGUF files")
    print(textwrap.fill(", ".join(in_gguf), WIDTH, break_on_hyphens=False))
    print()
    done = f"{len(covered_types)} model types covered, {len(REFUSED)} known and refused"
    return messages.print_closing_block(done=done)


def _inspect(args: argparse.Namespace, source: Path) -> int:
    from jaxscore.models.inspect_checkpoint import inspect_checkpoint

    description = inspect_checkpoint(source, args.model_impl, args.accept_config)
    if args.json:
        print(json_text(description), end="")
    else:
        family = f", family {description.family}" if description.family else ""
        text = f", a wrapper; its text is {description.text}" if description.text else ""
        facts = [("config", description.config), ("model_type", description.model_type + text)]
        if description.refused and not family:
            facts.append(("covered", "no"))
        else:
            verb = "read as" if description.refused else "runs as"
            facts.append((verb, description.implementation + family))
        facts += [("accepted", ", ".join(description.accepted))] if description.accepted else []
        facts += [("stored as", description.stored)] if description.stored else []
        facts += [("weights", description.weights)]
        print(aligned(facts, LEFT))
        if description.attributes:
            rows = [(a.name, _format_value(a.value), a.origin) for a in description.attributes]
            print("\n" + aligned([("attribute", "value", "from"), *rows], LEFT))
        print()
    if description.refused:
        raise InputError("\nalso: ".join(description.refused))
    if args.json:
        return 0
    return messages.print_closing_block(done="1 model looked at", results=["it would load"])


def _format_value(value: Any) -> str:
    text = json.dumps(to_json_value(value), ensure_ascii=False)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 2]} …"


COMMAND = Command("families", DESCRIPTION, options_of(Flags), run)
