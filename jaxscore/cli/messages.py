"""What commands say on stderr: remarks, which --quiet leaves out, and failures."""

import argparse
import sys
from collections.abc import Sequence

from jaxscore.io import processes
from jaxscore.io.printable import one_line

SHOWN_FAILURES = 20


def remark(args: argparse.Namespace, text: str) -> None:
    """A line on stderr, unless --quiet."""
    if not args.quiet:
        _tell(text)


def tell_failures(failures: Sequence[tuple[object, str]]) -> int:
    """List failed items on stderr and give the exit code."""
    for name, why in failures[:SHOWN_FAILURES]:
        _tell(f"failed: {name}: {why}")
    if len(failures) > SHOWN_FAILURES:
        _tell(f"and {len(failures) - SHOWN_FAILURES} more")
    if failures:
        _tell(f"{len(failures)} failed, the others are kept")
    return 1 if failures else 0


def _tell(text: str) -> None:
    """A line on stderr, whatever users' ids and servers' answers hold."""
    if not processes.is_first():
        return
    encoding = sys.stderr.encoding or "utf-8"
    shown = one_line(text).encode(encoding, "backslashreplace").decode(encoding)
    print(shown, file=sys.stderr)
