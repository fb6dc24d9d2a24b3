"""Each tool runs as a script, in an environment that has the package's own requirements alone."""

import ast
import importlib.metadata
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT


def requirements(name: str) -> set[str]:
    """Return the names of all distributions that `pip install NAME` installs, itself included."""
    done: set[tuple[str, frozenset[str]]] = set()
    todo = [(name, frozenset[str]())]
    while todo:
        name, extras = todo.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        for line in importlib.metadata.requires(name) or []:
            required = Requirement(line)
            marker = required.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras)):
                todo.append((canonicalize_name(required.name), frozenset(required.extras)))
    return {name for name, _ in done}


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The interpreter of a virtual environment with links to these distributions.

    It has a package `tools` of its own, as some environments do, and none of this repository's
    tests.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(symlinks=True).create(folder)
    paths = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    for name in sorted(requirements("jaxscore") - {"jaxscore"}):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
    (packages / "jaxscore").symlink_to(ROOT / "jaxscore")
    (packages / "tools").mkdir()
    (packages / "tools" / "__init__.py").write_text("")
    # Its only line makes `import tests` fail, also from the repository's root.
    (packages / "sitecustomize.py").write_text("import sys; sys.modules['tests'] = None\n")
    return folder / "bin" / "python"


def environment() -> dict[str, str]:
    """Return the variables of the tools' processes."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(python: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a tool from the repository's root, as its page says."""
    return subprocess.run(
        [python, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        check=False,
    )


SOURCES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tools").glob("*.py")}
TOOLS = sorted(name for name, text in SOURCES.items() if "__main__" in text)
# Short calls that need nothing else; FOLDER is empty.
CALLS = {
    "bench.py": "--small --turns 1 html",
    "bench_load.py": "--gigabytes 0.01 --turns 1",
    "check_device.py": "--small --device cpu --only memory vocabulary --output FOLDER/results.md",
    "fuzz.py": "--target yaml --input configs/score.yaml",
    "mutants.py": "--list --only mask",
}
# Calls that need a package, and the extra that has it
NEEDED = {
    "bench.py": ("--small answers", "torch", "test"),
    "fuzz.py": ("--target yaml --findings FOLDER", "atheris", "fuzz"),
    "golden.py": ("FOLDER/recording --cases score-fields", "datasets", "test"),
    "joined_products.py": ("", "libtpu", "tpu-compiler"),
    "mutants.py": ("--results FOLDER/results.json", "pytest", "test"),
    "report_picture.py": ("--output FOLDER", "playwright", "test"),
    "rounding_error.py": ("", "torch", "test"),
    "token_scores_estimate.py": ("", "libtpu", "tpu-compiler"),
}
# Calls that need nothing else and take minutes, and a text of their first results
LONG = {
    "partial_sums.py": ("", "layout "),
    "train_demo_model.py": (
        "--steps 1 --out FOLDER/model --inputs FOLDER/inputs --checkpoints FOLDER/checkpoints",
        "trained in",
    ),
}


def test_every_tool_has_a_call():
    assert {*CALLS, *NEEDED, *LONG} == {*TOOLS}


@pytest.mark.parametrize("tool", TOOLS)
def test_help(python, tool):
    done = run(python, f"tools/{tool}", "--help")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert f"usage: {'python tools/' * (tool == 'train_demo_model.py')}{tool}" in done.stdout


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("tool", CALLS)
def test_short_call(python, tmp_path, tool):
    done = run(python, f"tools/{tool}", *CALLS[tool].replace("FOLDER", str(tmp_path)).split())
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout


@pytest.mark.parametrize("tool", NEEDED)
def test_missing_package_is_named_in_one_line(python, tmp_path, tool):
    words, package, extra = NEEDED[tool]
    done = run(python, f"tools/{tool}", *words.replace("FOLDER", str(tmp_path)).split())
    line = f"{tool}: needs {package}, which is not installed: pip install -e '.[{extra}]'"
    assert (done.returncode, done.stderr.splitlines()) == (2, [line])


@pytest.mark.slow
@pytest.mark.parametrize("tool", LONG)
def test_long_call_begins(python, tmp_path, tool):
    """The tool is ended after its first results, since the rest takes minutes."""
    words, text = LONG[tool]
    command = [python, "-u", f"tools/{tool}", *words.replace("FOLDER", str(tmp_path)).split()]
    with (
        (tmp_path / "stderr").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=environment()
        ) as process,
    ):
        assert process.stdout is not None
        has_begun = any(text in line for line in process.stdout)
        process.kill()
    assert has_begun, (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "tools").rglob("*.py")), ids=lambda p: p.stem)
def test_no_tool_imports_tests(path):
    """Also in functions, which no short call may reach."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        assert not {name.partition(".")[0] for name in modules} & {"tests", "conftest"}
