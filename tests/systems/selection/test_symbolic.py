"""SymPy in its own process: right where it ends, and ended where it does not."""

import subprocess
import sys

import pytest

from jaxscore.errors import InputError
from jaxscore.io.child_process import ChildProcess
from jaxscore.systems.selection import symbolic
from jaxscore.systems.selection.symbolic import MOST_TIMEOUTS, SymbolicComparison, expression

PATIENT = 60.0  # seconds: a machine under load must not change what these find
HANGING = ("9^{9^{9^9}}", "9^{9^{9^{8}}}", "8^{8^{8^8}}", "7^{7^{7^{7^7}}}", "6^{6^{6^{6^6}}}")


@pytest.fixture(scope="module")
def patient():
    with SymbolicComparison(PATIENT) as comparison:
        yield comparison


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("x^2+1", "1+x^2", True),
        ("(x-1)*(x+1)", "x^2-1", True),
        ("\\sin(x)^2+\\cos(x)^2", "1", True),
        ("1/\\sqrt{3}", "\\sqrt{3}/3", True),
        ("0.577", "1/\\sqrt{3}", True),  # within 0.001, as published
        ("0.579", "1/\\sqrt{3}", False),
        ("\\boxed{2x}", "x+x", True),
        ("f(x)=2x", "2x", True),
        ("x\\text{ }", "x", True),
        ("x", "y", False),
        ("x", "x+0.1", False),
        ("x>1", "x", False),
        ("\\left{", "x", False),  # no LaTeX
        ("", "x", False),
        ("\u202ex\u0301", "x", False),
        ("(" * 300 + "x" + ")" * 300, "x", False),
        ("x" * 3000, "x", False),
        ("{" * 1900, "x", False),
    ],
)
def test_equal(patient, one, other, equal):
    patient.next_item()
    assert patient.equal(one, other) is equal
    assert patient.equal(other, one) is equal
    assert patient.timeouts == 0


def test_an_item_has_its_time_over_all_its_answers(monkeypatch):
    monkeypatch.setattr(symbolic, "MOST_LIMITS", 1e-9)  # that is over with the first question
    with SymbolicComparison(PATIENT) as comparison:
        assert not comparison.exhausted
        assert not comparison.equal("x+x", "2*x")
        assert (comparison.exhausted, comparison.timeouts) == (True, 0)
        comparison.next_item()
        assert not comparison.exhausted
        monkeypatch.setattr(symbolic, "MOST_LIMITS", 12)
        assert comparison.equal("x+x", "2*x")


def test_a_comparison_after_an_interrupt_has_its_own_reply(patient, monkeypatch):
    def interrupted(self, seconds):
        monkeypatch.undo()
        raise KeyboardInterrupt

    assert patient.equal("z+z", "2*z")  # starts the process
    monkeypatch.setattr(ChildProcess, "_reply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        patient.equal("z", "z+3")
    assert patient.equal("z+z+z", "3*z")


def test_the_same_text_needs_no_process():
    with SymbolicComparison() as comparison:
        assert comparison.equal("a=9^{9^{9^9}}", "9^{9^{9^9}}")
        assert comparison._workers[symbolic.SYMPY].process is None


@pytest.mark.slow
def test_what_hangs_is_ended_and_the_others_are_compared():
    with SymbolicComparison(0.5) as comparison:
        assert not comparison.equal(HANGING[0], "x+x")
        assert comparison.timeouts == 1
        assert not comparison.equal(HANGING[0], "x")  # set aside: it takes no time again
        assert comparison.timeouts == 1
        comparison.time_limit = PATIENT
        assert comparison.equal("x+x", "2*x")
        for text in HANGING[1:]:
            comparison.time_limit = 0.1
            comparison.equal(text, "2*x")
        assert comparison.timeouts == MOST_TIMEOUTS
        comparison.time_limit = PATIENT
        assert not comparison.equal("y+y", "2*y")  # as text from here on
        assert comparison.equal("x+x", "2*x")  # known before
        comparison.next_item()
        assert comparison.equal("y+y", "2*y")


def worker(code):
    """A process that has the worker's names as `w` and runs some lines."""
    lines = f"import runpy, sys; w = runpy.run_path({str(symbolic.WORKER)!r})\n{code}"
    return subprocess.run([sys.executable, "-P", "-c", lines], capture_output=True, text=True)


def test_memory_and_files_are_limited(tmp_path):
    pytest.importorskip("resource")
    ran = worker("w['_confine'](); bytearray(w['MEMORY'])")
    assert ran.stderr.splitlines()[-1] == "MemoryError"
    path = str(tmp_path / "ran")
    ran = worker(f"w['_confine']()\nwith open({path!r}, 'w') as file: file.write('x')")
    assert "File too large" in ran.stderr
    assert worker("w['_confine'](); bytearray(1000)").stderr == ""


def test_a_worker_whose_parent_is_gone_ends(tmp_path):
    signal = pytest.importorskip("signal")
    with subprocess.Popen(
        [sys.executable, "-P", str(symbolic.WORKER), "0.1", symbolic.SYMPY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == '{"missing": null}\n'
        process.stdin.write('{"check": "9^{9^{9^9}}"}\n')
        process.stdin.flush()
        assert process.wait(timeout=PATIENT) == -signal.SIGALRM


def test_text_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SymbolicComparison(PATIENT) as comparison:
        for text in (
            "__import__('pathlib').Path('ran').touch()",
            "\\text{__import__('os').mkdir('ran')}",
            "x.__class__",
            "lambda:1",
            "1);open('ran','w')#",
        ):
            comparison.next_item()
            comparison.equal(text, "1")
            comparison.equal(f"\\frac{{{text}}}{{2}}", "1")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_died_is_replaced():
    with SymbolicComparison(PATIENT) as comparison:
        assert comparison.equal("x+x", "2*x")
        comparison._workers[symbolic.SYMPY].process._process.kill()
        comparison._workers[symbolic.SYMPY].process._process.wait()
        assert not comparison.equal("y+y", "2*y")
        assert comparison.timeouts == 1
        assert comparison.equal("z+z", "2*z")


def test_no_process_is_left():
    with SymbolicComparison(PATIENT) as comparison:
        comparison.equal("x+x", "2*x")
        process = comparison._workers[symbolic.SYMPY].process._process
    assert process.poll() is not None


def test_no_sympy(monkeypatch, tmp_path):
    script = "import sys; sys.modules['sympy'] = None; import runpy; sys.argv = sys.argv[1:]; "
    broken = tmp_path / "broken.py"
    broken.write_text(f"{script}runpy.run_path({str(symbolic.WORKER)!r}, run_name='__main__')\n")
    start = subprocess.Popen

    def popen(command, **options):
        assert command[:2] == [sys.executable, "-P"]
        return start([*command[:2], str(broken), *command[2:]], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with (
        SymbolicComparison() as comparison,
        pytest.raises(InputError, match=r"does not start \(.*sympy.*pip install sympy 'antlr4"),
    ):
        comparison.equal("x+x", "2*x")


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("x", "x"),
        ("a=b=c", "c"),
        ("\\boxed{x=5}", "5"),
        ("1+\\boxed{2}", "1+2"),
        ("\\text{if}x", "ifx"),
        ("\\textbf{2}", "2"),
        ("\\overline{AB}", "AB"),
        ("\\frac12", "\\frac{1}{2}"),
        ("\\sqrt3x", "\\sqrt{3}x"),
        ("$x$", "x"),
        ("", ""),
        ("=", ""),
    ],
)
def test_expression(answer, read):
    assert expression(answer) == read


def test_a_long_expression_stays_as_it_is():
    text = "\\text{" * 50_000
    assert expression(text) == text
