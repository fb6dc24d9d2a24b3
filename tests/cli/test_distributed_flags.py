"""What libraries print does not get into what is printed."""

import os
import subprocess
import sys

CODE = """
import os
from jaxscore.cli.distributed_flags import _reserve_stdout
print("before")
with _reserve_stdout():
    os.write(1, b"a greeting")
    print("ours, \\u00e9")
print("after")
"""


def test_only_python_prints():
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.decode().splitlines() == ["before", "ours, é", "after"]
