"""Run a command and report time and peak memory: `child_memory.py REPORT.json COMMAND ...`.

A process inherits the peak memory of its parent, so a small process starts the measured one.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    started = time.perf_counter()
    code = subprocess.run(sys.argv[2:], check=False).returncode
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    Path(sys.argv[1]).write_text(json.dumps({"seconds": seconds, "peak_bytes": peak * unit}))
    return code


if __name__ == "__main__":
    sys.exit(main())
