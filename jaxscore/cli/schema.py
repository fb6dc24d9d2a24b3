"""`jaxscore schema`: JSON Schema of a system's input, settings and output."""

import argparse

from jaxscore.io.json_output import json_text
from jaxscore.systems.json_schema import PARTS, schema_of
from jaxscore.systems.registry import SYSTEMS, declaration

DESCRIPTION = """\
Print the JSON Schema (draft 2020-12) of a system's input, settings and output.

  python -m jaxscore schema choose
  python -m jaxscore schema choose item > item.schema.json

output, on stdout, one schema whose $defs are
  item      an object of the input; other fields are allowed, and repeated in
            the output
  settings  arguments of jaxscore.evaluate, and with hyphens in place of
            underscores most flags and keys of --config: type, choices, lowest
            value, default, help
  record    an object of the output
  With one of these as second word the schema is that of this part.

exit code: 0 printed, 2 no such system.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("schema", description=DESCRIPTION)
    parser.add_argument("system", metavar="SYSTEM", choices=tuple(SYSTEMS), help=", ".join(SYSTEMS))
    parser.add_argument(
        "part", metavar="PART", nargs="?", choices=PARTS, help=f"one of {', '.join(PARTS)}"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    print(json_text(schema_of(declaration(args.system), args.part)), end="")
    return 0
