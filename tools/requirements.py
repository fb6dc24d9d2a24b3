"""Packages that some tools need in addition to the package's requirements."""

import importlib.util
import sys
from pathlib import Path


def require(package: str, extra: str) -> None:
    """Check that a package is installed.

    Args:
        extra: the extra of jaxscore that installs it.

    Raises:
        SystemExit: with exit code 2, after a line on stderr, if it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        tool = Path(sys.argv[0]).name
        install = f"pip install -e '.[{extra}]'"
        print(f"{tool}: needs {package}, which is not installed: {install}", file=sys.stderr)
        raise SystemExit(2)
