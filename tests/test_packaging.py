"""What a user installs holds the files that are no code."""

import itertools
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from jaxscore.errors import install_extra

ROOT = Path(__file__).parents[1]
DATA = tuple(".css .html .jinja .js .json .jsonl .safetensors .txt .typed .yaml".split())
BUILD = """\
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""


def build(kind, sources, out):
    """The one file that `build_<kind>` of our build backend makes; takes no network."""
    out.mkdir()
    command = [sys.executable, "-c", BUILD, f"build_{kind}", out]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [built] = out.iterdir()
    return built


def test_hints_install_extras_that_exist_from_a_clone():
    """Not by jaxscore's name, which no package index has yet."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    named = set()
    for folder, ending in itertools.product((".", "jaxscore", "tests", "tools"), ("md", "py")):
        for path in (ROOT / folder).glob(f"*.{ending}" if folder == "." else f"**/*.{ending}"):
            text = path.read_text(encoding="utf-8")
            by_name = re.search(r"pip install[^`\n]*\bjaxscore\[(?!NAME)", text)
            assert by_name is None, f"{path}: {by_name}"
            named |= set(re.findall(r"-e '\.\[([a-z-]+)\]'", text))
            named |= set(re.findall(r"install_extra\([\"']([a-z-]+)", text))
    assert {"serve", "lm-eval", "flax-classes", "tpu-compiler"} <= named <= set(extras)
    assert install_extra("serve") == "in jaxscore's clone run pip install -e '.[serve]'"


def test_a_wheel_by_way_of_an_sdist(tmp_path):
    """Both hold the package's data: the embedded model, its inputs and the evaluator files."""
    sources = tmp_path / "sources"
    no_builds = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "jaxscore", sources / "jaxscore", ignore=no_builds)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    with tarfile.open(build("sdist", sources, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(build("wheel", unpacked, tmp_path / "wheel")) as wheel:
        held = {name: wheel.read(name) for name in wheel.namelist()}
    files = [path for path in (ROOT / "jaxscore").rglob("*") if path.is_file()]
    wanted = {
        path.relative_to(ROOT).as_posix(): path
        for path in files
        if "__pycache__" not in path.parts and path.suffix in (".py", *DATA)
    }
    evaluators = "jaxscore/systems/rag/evaluators"
    assert {f"{evaluators}/default_qa.yaml", f"{evaluators}/default_multi_qa.yaml"} <= set(wanted)
    assert "jaxscore/demo/model/model.safetensors" in wanted
    assert set(wanted) <= set(held)
    for name, path in wanted.items():
        assert held[name] == path.read_bytes(), name


def test_ci_runs_the_test_command_of_the_readme():
    """Each command of the line, in its environment's folder and without compiling modules."""
    [line] = re.findall(r"^.*python -m pytest$", (ROOT / "README.md").read_text(), re.MULTILINE)
    commands = line.split(" && ")
    assert commands[0] == "python3 -m venv .venv"
    run = (ROOT / ".ci/run").read_text(encoding="utf-8")
    run = run.replace('source "$environment/bin/activate"', ". .venv/bin/activate")
    run = run.replace('"$environment"\n', ".venv\n").replace("--no-compile ", "")
    words = [word for part in run.splitlines() for word in part.split(" && ")]
    places = [words.index(command) for command in commands]
    assert places == sorted(places)
