r"""Compares two LaTeX answers as expressions, in a separate process.

| answers | library |
|---|---|
| read as published, of amps_hard | SymPy, with its LaTeX parser |
| others | Math-Verify, with SymPy; if it is not installed, they are compared as text |

SymPy may need forever, or all memory, for a short text (`9^{9^{9^9}}`), and nothing inside a
process can stop it reliably. So each question has a time limit, after which the process is ended
and the two answers count as different; the next question starts another.
"""

import contextlib
import functools
import re
import time
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.child_process import ChildProcess, RestartedProcess
from jaxscore.systems.selection.answers import AnswerRules
from jaxscore.systems.selection.equal_answers import LONGEST, Same, are_equal

WORKER = Path(__file__).with_name("symbolic_worker.py")
SYMPY, MATH_VERIFY = "sympy", "math_verify"
TIME_LIMIT = 5.0  # seconds, as published
INSTALL = "pip install sympy 'antlr4-python3-runtime==4.11.*'"  # as the extra `math` has them
UNVERIFIED = (
    "Math-Verify is not installed, so expressions were compared as text; pip install math-verify "
    "'antlr4-python3-runtime==4.11.*'"
)
# Limits of an item, after which its answers are compared as text: questions without a reply in
# time, and the total time of its questions in time limits, since many may each need nearly one.
MOST_TIMEOUTS, MOST_LIMITS = 3, 12


class SymbolicComparison(contextlib.AbstractContextManager["SymbolicComparison"]):
    """A context manager that compares answers item by item and owns the libraries' processes.

    The first question for a library starts its process, so items without questions cost nothing.

    Attributes:
        is_unverified: True if Math-Verify is not installed, and this item needs it.
    """

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        self.time_limit = time_limit
        self.timeouts, self._seconds = 0, 0.0  # of this item
        self.is_unverified = self._lacks_math_verify = False
        self._workers = {
            library: RestartedProcess(functools.partial(_started, time_limit, library))
            for library in (SYMPY, MATH_VERIFY)
        }
        # library and text(s) -> if the library can parse it, and if it compares two as equal
        self._known: dict[tuple[str, str], bool] = {}
        self._equal: dict[tuple[str, str, str], bool] = {}
        self._are_equal = functools.lru_cache(1 << 16)(
            lambda gold, answer: are_equal(gold, answer, self.verify)
        )

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.end()

    def comparison(self, rules: AnswerRules) -> Same | None:
        """Return the comparison of answers of different spellings; None if those differ."""
        if rules.forms is None or rules.code:
            return self.equal if rules.symbolic else None
        return self._are_equal

    def next_item(self) -> None:
        """Reset the time budget and notes for a new item."""
        self.timeouts, self._seconds, self.is_unverified = 0, 0.0, False

    @property
    def exhausted(self) -> bool:
        """True if this item's time is used up, so that new pairs are compared as text."""
        return self.timeouts >= MOST_TIMEOUTS or self._seconds >= MOST_LIMITS * self.time_limit

    def equal(self, first: str, second: str) -> bool:
        """Return True if SymPy makes the difference of two sanitised answers less than 0.001.

        False if it cannot read one of them, or runs out of time.
        """
        pair = (expression(first), expression(second))
        return pair[0] == pair[1] or self._compare(SYMPY, *pair)

    def verify(self, gold: str, answer: str) -> bool:
        """Return True if Math-Verify finds two expressions equal.

        False if it is not installed, cannot read one of them, or runs out of time.
        """
        if not self._lacks_math_verify:
            try:
                return self._compare(MATH_VERIFY, gold, answer)
            except InputError:
                self._lacks_math_verify = True
        self.is_unverified = True
        return False

    def _compare(self, library: str, first: str, second: str) -> bool:
        if max(len(first), len(second)) > LONGEST:
            return False
        if (library, first, second) not in self._equal:
            are_known = self._is_known(library, first) and self._is_known(library, second)
            if not are_known or self.exhausted:
                return False
            reply = self._ask(library, {"compare": (first, second)})
            self._equal[library, first, second] = reply is not None and reply["equal"]
        return self._equal[library, first, second]

    def _is_known(self, library: str, text: str) -> bool:
        # Checked alone first: a text that hangs the parser is then excluded, and does not time out
        # again for every answer it is compared with.
        if (library, text) not in self._known:
            if self.exhausted:
                return False
            reply = self._ask(library, {"check": text})
            self._known[library, text] = reply is not None and reply["known"]
        return self._known[library, text]

    def _ask(self, library: str, question: dict[str, Any]) -> dict[str, Any] | None:
        """Return the reply; None after the time limit, or if the question ended the process."""
        worker = self._workers[library]
        worker.start()
        started = time.monotonic()
        reply = worker.ask(question, self.time_limit)
        self._seconds += time.monotonic() - started
        self.timeouts += reply is None
        return reply


def _started(time_limit: float, library: str) -> ChildProcess:
    # A fixed hash seed makes the order of SymPy's sets, and with it `simplify`, deterministic.
    process = ChildProcess(WORKER, [str(time_limit), library], {"PYTHONHASHSEED": "0"})
    started = process.started or {"missing": "no reply from its process"}
    if started["missing"] is not None:
        process.end()
        raise InputError(
            f"SymPy, which compares amps_hard answers, does not start ({started['missing']}); "
            f"install it with its parser: {INSTALL}"
        )
    return process


def expression(answer: str) -> str:
    """Return the expression in a sanitised answer, as LaTeX for the parser.

    Final answers are normalised as in Lewkowycz et al. (arXiv 2206.14858, appendix D): the right
    side of an equation, without boxes, text and overlines, with braces after `frac` and `sqrt`.
    """
    text = answer
    if text.startswith(r"\boxed{") and text.endswith("}"):
        text = text.removeprefix(r"\boxed{")[:-1]
    text = text.rpartition("=")[2]
    if len(text) > LONGEST:  # the patterns below search for a brace from each start
        return text
    for command in ("text", "textbf", "overline"):
        text = re.sub(rf"\\{command}\{{(.*?)\}}", r"\1", text)
    text = re.sub(r"\\boxed\{(.*)\}", r"\1", text)
    text = re.sub(r"frac([^{])(.)", r"frac{\1}{\2}", text)
    return re.sub(r"sqrt([^{])", r"sqrt{\1}", text).replace("$", "")
