"""Every file of a run lies in its output folder, whatever ids, models and tests are called."""

import contextlib
import json
import re
from typing import ClassVar

import fsspec
import pytest
from fsspec import AbstractFileSystem
from hypothesis import given

from jaxscore.cli import probsem
from jaxscore.errors import InputError
from jaxscore.io import remote
from jaxscore.io.local_path import distinct_file_name, model_file_name
from tests.cli.conftest import QWEN
from tests.conftest import CASES
from tests.hostile.conftest import paths_below
from tests.hostile.inputs import HOSTILE, TEXTS, any_texts, put
from tests.hostile.test_reports import COMMANDS

NAMES = (
    *TEXTS,
    "..",
    ".",
    "...",
    "a/../../b",
    "~",
    "-",
    "--quiet",
    "CON.txt",
    "a" * 300,
    "é" * 200,
)
# what no system's file may be called; the endings that are added make CON and the like harmless
FORBIDDEN = re.compile('[<>:"/\\\\|?*\x00-\x1f\x7f]')


class Keys(AbstractFileSystem):
    """A store whose keys are texts, as those of S3 are: `a//b` and `a/../b` are names."""

    protocol = "keys"
    cachable = False
    keys: ClassVar[dict[str, str]] = {}

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **_: object):
        names = [name for name in self.keys if name.startswith(f"{path.rstrip('/')}/")]
        return {name: self.info(name) for name in names}

    def glob(self, path, maxdepth=None, **_: object):
        pattern = re.escape(path).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
        names = [name for name in self.keys if re.fullmatch(pattern, name)]
        return {name: self.info(name) for name in names}

    def info(self, path, **_: object):
        if path in self.keys:
            return {"name": path, "type": "file", "size": len(self.keys[path]), "ETag": path}
        return {"name": path, "type": "directory", "size": 0}

    def get_file(self, rpath, lpath, **_: object):
        with open(lpath, "w", encoding="utf-8") as file:
            file.write(self.keys[rpath])


@pytest.fixture
def keys(monkeypatch, tmp_path):
    """`keys({key: content})`: fills a store under keys://."""
    fsspec.register_implementation("keys", Keys, clobber=True)
    monkeypatch.setitem(remote.SCHEMES, "keys", "nothing to install")
    monkeypatch.setenv("JAXSCORE_CACHE", str(tmp_path / "cache"))
    return lambda content: monkeypatch.setattr(Keys, "keys", content)


def assert_one_name(name: str) -> None:
    assert not FORBIDDEN.search(name)
    assert len(name.encode()) <= 200  # of 255, which leaves room for an ending and a draft's
    assert name.strip(".") or not name


@HOSTILE
@given(any_texts)
def test_names_of_files(name):
    for text in (name, *NAMES):
        assert_one_name(f"eval_{model_file_name(text)}")
        assert_one_name(f"eval_{distinct_file_name(text)}")
        assert_one_name(probsem.run_name(text, text, text))
        assert_one_name(probsem.run_name("p", "t", text))


def test_names_that_differ_stay_apart():
    kept = {distinct_file_name(name) for name in NAMES}
    assert len(kept) == len(NAMES)


def outside(before, after, *allowed):
    """What has appeared, and is in none of these folders."""
    return {
        one for one in after - before if not f"{one}/".startswith(tuple(f"{a}/" for a in allowed))
    }


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_writes_into_its_folder_only(run, tmp_path, monkeypatch, command, hostile_model):
    folder = tmp_path / "up" / "run"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = [name for name in NAMES if name.strip() and "\0" not in name]
    words = [name for name in words if len(name) < 1000]
    _, *flags = COMMANDS[command](folder, words)
    (folder / "out").mkdir(exist_ok=True)
    before = paths_below(tmp_path)
    for name in ("../../x", "/tmp/x", "\x1b[31m\u202e", "a" * 300) if command == "judge" else ("",):
        named = {"chronologic": [hostile_model], "judge": ["--llm", hostile_model, name]}
        code, _, err = run(
            command, *named.get(command, ["--model", hostile_model]), *flags, "--quiet"
        )
        assert code in (0, 1), err  # some are longer than the model's positions
    appeared = paths_below(tmp_path) - before
    assert appeared
    assert not outside(before, paths_below(tmp_path), "up/run/out")
    for name in appeared:
        assert_one_name(name.removeprefix("up/run/out/"))


@pytest.mark.parametrize("name", ["../q", "../../q", "sub/../../q"])
def test_a_prompt_from_elsewhere_is_written_here(run, tmp_path, name, hostile_model):
    """What `--prompt` and `--test` name is read where they say; the results stay in the folder."""
    place = tmp_path / "a" / "b" / "in"
    (place / "sub").mkdir(parents=True)
    suite = json.dumps({"queries": ["x", "y"], "context": [{"text": "z", "expected": 0}]}).encode()
    put(place / f"{name}.txt", b"prompt")
    put(place / f"{name}_t.json", suite)
    before = paths_below(tmp_path)
    words = ("--prompt", name, "--test", "t", "--input-dir", place, "--model", hostile_model)
    code, _, err = run("probsem", *words, "--output-dir", place / "out", "--quiet")
    assert code == 0, err
    appeared = paths_below(tmp_path) - before
    assert len(appeared) >= 4
    assert all(re.fullmatch("a/b/in/out(/[^/]+)?", one) for one in appeared)


def test_ids_of_samples_name_no_file(run, tmp_path):
    """Four commands that write one file each, beside the input, whatever the items are called."""
    folder = tmp_path / "up" / "run"
    folder.mkdir(parents=True)
    items = [
        {
            "id": name,
            "question_id": name,
            "session_id": name,
            "generator": name,
            "dataset": name,
            "task": name,
            "output": ['{"answer": "1"}', "Response 1"],
            "responses": ["a", "b"],
            "confidence_list": [0.5, 0.25],
        }
        for name in NAMES
    ]
    path = put(folder / "in.json", json.dumps(items).encode())
    before = paths_below(tmp_path)
    words = ("--input-file", path)
    assert run("select", *words, "--best-N", 2).code == 0
    assert run("vote", *words, "--best-N", 2, "--power", 1).code == 0
    assert run("livecode-select", *words, "--best-N", 2).code == 0
    assert run("livecode-parse", *words).code == 0
    assert run("usc-select", *words, "--dataset-type", "open").code == 0
    appeared = paths_below(tmp_path) - before
    assert len([one for one in appeared if one.endswith(".json")]) >= 5
    assert all(re.fullmatch(r"up/run/in-[\w.-]+", one) for one in appeared)


@pytest.mark.parametrize("name", ["a\n\x1b[31m", "<b>|x", "\u202e", "a" * 200, "..a", "CON"])
def test_folders_of_experiments(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments" / name
    folder.mkdir(parents=True)
    put(folder / "eval_dev_out.json", (CASES / "judge/ours/eval_dev_out.json").read_bytes())
    before = paths_below(tmp_path)
    for words in (("metrics",), ("results",), ("results", "--experiments-folder", ".")):
        code, out, err = run(*words)
        said = (out + err).replace("\n", "")
        assert code in (0, 2), err
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", said)
    assert not outside(before, paths_below(tmp_path), f"experiments/{name}", "results")


NOT_BELOW = ("/etc/x", "a//x", "a/", "", ".", "./x", "a/./x", "..", "../x", "a/../../x",
             "a\\..\\x", "C:/x", "C:x", "a/C:x", "a\0b", None, 1, ["x"])  # fmt: skip


@pytest.mark.parametrize("name", NOT_BELOW)
def test_name_from_data_that_leads_out_of_a_folder_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=re.escape(f"the name {name!r} ")):
        remote.below(tmp_path, name)


@HOSTILE
@given(any_texts)
def test_path_below_a_folder_is_below_it(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp()
    for text in (name, *NAMES):
        with contextlib.suppress(InputError):
            path = remote.below(folder, text)
            assert path != folder
            assert path.is_relative_to(folder)
            assert ".." not in path.parts


LINE = '{"continuation": "The cat"}\n'


def scoring(source, output, *more):
    return ("score", "--model", QWEN, "--quiet", "--no-html", "--input", source,
            "--output", output, *more)  # fmt: skip


@pytest.mark.parametrize("pattern", ["data2/", "data2/**", "*2/**/*.jsonl"])
def test_object_key_with_an_empty_part_replaces_no_local_file(run, tmp_path, keys, pattern):
    victim = tmp_path / "victim.jsonl"
    victim.write_text("mine")
    keys({f"b/data2/{victim}": LINE, "b/data2/good.jsonl": LINE})
    ran = run(*scoring(f"keys://b/{pattern}", f"{tmp_path}/out/"))
    assert ran.code == 2
    assert f"--input keys://b/{pattern.removesuffix('/')}: the name" in ran.err
    assert f"{victim}' is empty or absolute" in ran.err or "has an empty part" in ran.err
    assert victim.read_text() == "mine"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["data/../x.jsonl", "data/./x.jsonl", "data/a\\..\\x.jsonl",
                                 "data/C:/x.jsonl"])  # fmt: skip
def test_object_key_with_an_odd_part_is_refused_by_name(run, tmp_path, keys, key):
    keys({f"b/{key}": LINE})
    for source in ("keys://b/data/", "keys://b/data/**"):
        ran = run(*scoring(source, f"{tmp_path}/out/"))
        assert (ran.code, f"the name {key.removeprefix('data/')!r} has" in ran.err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_local_pattern_with_dots_writes_nothing_outside(run, tmp_path):
    (tmp_path / "up/data/d1").mkdir(parents=True)
    (tmp_path / "up/x.jsonl").write_text(LINE)
    before = paths_below(tmp_path)
    ran = run(*scoring(tmp_path / "up/data/d*/../../*.jsonl", f"{tmp_path}/out/run/"))
    assert (ran.code, "the name 'd1/../../x.jsonl' has the part . or .." in ran.err) == (2, True)
    assert paths_below(tmp_path) == before


@pytest.mark.parametrize("link", ["sub", "sub/x.jsonl", "sub/x.jsonl.run.json",
                                  "sub/x.jsonl.report.md"])  # fmt: skip
def test_link_out_of_the_output_folder_is_refused(run, tmp_path, link):
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/x.jsonl").write_text(LINE)
    victim = tmp_path / "victim"
    path = tmp_path / "out" / link
    path.parent.mkdir(parents=True)
    if link == "sub":
        victim.mkdir()
    else:
        victim.write_text("mine")
    path.symlink_to(victim)
    ran = run(*scoring(tmp_path / "in", f"{tmp_path}/out/", "--force"))
    assert (ran.code, f"a symbolic link leads out of {tmp_path}/out" in ran.err) == (2, True)
    assert [*victim.iterdir()] == [] if link == "sub" else victim.read_text() == "mine"


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("output", ["/etc/hostname", "../elsewhere.jsonl", "a.jsonl/..", 5, None])
def test_listing_of_merge_reads_nothing_from_elsewhere(run, tmp_path, output, is_link):
    (tmp_path / "a.jsonl").write_text(LINE)
    assert run(*scoring(tmp_path / "a.jsonl", f"{tmp_path}/out/")).code == 0
    for file in ("a.jsonl", "a.jsonl.run.json"):
        moved = (tmp_path / "out" / file).rename(
            tmp_path / file.replace("a.jsonl", "elsewhere.jsonl")
        )
        if is_link:
            (tmp_path / "out" / file).symlink_to(moved)
    [listing] = (tmp_path / "out").glob("_shards-*.json")
    listing.write_text(json.dumps({"a.jsonl": "a.jsonl" if is_link else output}))
    ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.jsonl")
    assert ran.code == 2
    assert ("a symbolic link leads out" if is_link else f"{listing}") in ran.err
    assert not (tmp_path / "m.jsonl").exists()


def test_split_names_no_folder(run, tmp_path, capsys):
    for command in ("judge", "metrics", "results"):
        more = ("--llm", "demo") if command == "judge" else ()
        ran = run(command, *more, "--split", "../../x", "--experiments-folder", tmp_path)
        assert (ran.code, "has a slash" in ran.err) == (2, True)
