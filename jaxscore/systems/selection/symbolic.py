r"""Compares two LaTeX answers as expressions with SymPy, in a separate process.

SymPy may need forever, or all memory, for a short text (`9^{9^{9^9}}`), and nothing inside a
process can stop it reliably. So each question has a time limit, after which the process is ended
and the two answers count as different; the next question starts another.
"""

import contextlib
import re
import time
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.child_process import ChildProcess, RestartedProcess

WORKER = Path(__file__).with_name("symbolic_worker.py")
TIME_LIMIT = 5.0  # seconds, as published
INSTALL = "pip install sympy 'antlr4-python3-runtime==4.11.*'"  # as the extra `math` has them
LONGEST = 2000  # characters; longer answers are texts, not expressions
# Of one item, after which its answers are compared as text: questions without a reply in time,
# and time limits that all its questions may take together, since many may each need nearly one.
MOST_TIMEOUTS, MOST_LIMITS = 3, 12


class SymbolicComparison(contextlib.AbstractContextManager["SymbolicComparison"]):
    """Compares answers of one item after another; a context manager that owns the process.

    The process is started by the first question, so items without one cost nothing.
    """

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        self.time_limit = time_limit
        self.timeouts, self._seconds = 0, 0.0  # of this item
        self._worker = RestartedProcess(lambda: _started(time_limit))
        self._known: dict[str, bool] = {}  # whether SymPy can work with a text
        self._equal: dict[tuple[str, str], bool] = {}

    def __exit__(self, *_: object) -> None:
        self._worker.end()

    def next_item(self) -> None:
        """Forget how much time the last item took."""
        self.timeouts, self._seconds = 0, 0.0

    @property
    def exhausted(self) -> bool:
        """Whether this item has had its time, so that what is new to it is compared as text."""
        return self.timeouts >= MOST_TIMEOUTS or self._seconds >= MOST_LIMITS * self.time_limit

    def equal(self, one: str, other: str) -> bool:
        """Whether SymPy makes the difference of two sanitised answers less than 0.001.

        False if it cannot read one of them, or runs out of time.
        """
        pair = (expression(one), expression(other))
        if pair[0] == pair[1]:
            return True
        if max(map(len, pair)) > LONGEST:
            return False
        if pair not in self._equal:
            if not all(map(self._is_known, pair)) or self.exhausted:
                return False
            reply = self._ask({"compare": pair})
            self._equal[pair] = reply is not None and reply["equal"]
        return self._equal[pair]

    def _is_known(self, text: str) -> bool:
        # Alone first: a text that hangs by itself is then set aside, and cannot take its time
        # again from every answer it is compared with.
        if text not in self._known:
            if self.exhausted:
                return False
            reply = self._ask({"check": text})
            self._known[text] = reply is not None and reply["known"]
        return self._known[text]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The reply; None when there was none in time, or the process died of the question."""
        self._worker.start()
        started = time.monotonic()
        reply = self._worker.ask(question, self.time_limit)
        self._seconds += time.monotonic() - started
        self.timeouts += reply is None
        return reply


def _started(time_limit: float) -> ChildProcess:
    # A fixed hash seed: the order of SymPy's sets, and with it what simplify finds, is the same
    # every time.
    process = ChildProcess(WORKER, [str(time_limit)], {"PYTHONHASHSEED": "0"})
    started = process.started or {"missing": "no reply from its process"}
    if started["missing"] is not None:
        process.end()
        raise InputError(
            f"SymPy, which compares amps_hard answers, does not start ({started['missing']}); "
            f"install it with its parser: {INSTALL}"
        )
    return process


def expression(answer: str) -> str:
    """The expression in a sanitised answer, in the LaTeX that the parser reads.

    As Lewkowycz et al. (arXiv 2206.14858, appendix D) normalise final answers: the right side of
    an equation, without boxes, text and overlines, and with braces after `frac` and `sqrt`.
    """
    text = answer
    if text.startswith(r"\boxed{") and text.endswith("}"):
        text = text.removeprefix(r"\boxed{")[:-1]
    text = text.rpartition("=")[2]
    if len(text) > LONGEST:  # before the patterns below, which look for a brace from each start
        return text
    for command in ("text", "textbf", "overline"):
        text = re.sub(rf"\\{command}\{{(.*?)\}}", r"\1", text)
    text = re.sub(r"\\boxed\{(.*)\}", r"\1", text)
    text = re.sub(r"frac([^{])(.)", r"frac{\1}{\2}", text)
    return re.sub(r"sqrt([^{])", r"sqrt{\1}", text).replace("$", "")
