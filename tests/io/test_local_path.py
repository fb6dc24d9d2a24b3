"""Addresses are refused for every flag that names a path; other colons are part of a name."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import platformdirs
import pytest

from jaxscore.adapters import model as making
from jaxscore.adapters.arguments import read_arguments
from jaxscore.cli import app, listing
from jaxscore.cli.main import main
from jaxscore.engine.devices import use_compilation_cache
from jaxscore.errors import InputError
from jaxscore.io.atomic import atomic
from jaxscore.io.local_path import cache_folder, create_cache_folder, local_path
from jaxscore.journal.files import open_database
from jaxscore.model_pair import DivergenceScorer
from jaxscore.models.weights import folder
from jaxscore.scorer import Scorer
from tests.conftest import CASES

REFUSED = r"found an address of scheme {}://, which is not handled, expected a local"
MODEL = str(CASES / "models/tiny-gpt2")


@pytest.mark.parametrize("scheme", ["gs", "s3", "hdfs", "abfss", "file", "https", "hf", "memory"])
def test_an_address_is_refused_by_its_scheme(scheme):
    for written in (scheme, scheme.upper()):
        with pytest.raises(InputError, match=REFUSED.format(written)):
            local_path(f"{written}://bucket/out.jsonl")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("ftp://u:pw@host/x.jsonl", "ftp://host/x.jsonl"),
        ("ftp://u:p/w@host/x.jsonl", "ftp://host/x.jsonl"),
        ("https://host?sig=SECRET", "https://host?..."),
        ("ftp://host/a b.jsonl#SECRET", "ftp://host/a b.jsonl#..."),
        ("ftp://u:SECRET word@host/x.jsonl", "ftp://host/x.jsonl"),
    ],
)
def test_a_refused_address_shows_no_secret(address, shown, capsys):
    with pytest.raises(InputError) as refusal:
        local_path(address)
    assert str(refusal.value).startswith(f"{shown}: found an address")
    with pytest.raises(SystemExit):
        main(["score", "--model", MODEL, "--input", address, "--output", "out.jsonl"])
    said = capsys.readouterr().err
    assert shown in said
    assert not any(secret in said for secret in ("u:p", "SECRET"))


@pytest.mark.parametrize(
    "name", ["C:\\runs\\out.jsonl", "C://out", "12:30.jsonl", "gs:", "a:b/c", "./gs://out", "-", ""]
)
def test_a_colon_alone_makes_no_address(name):
    assert local_path(name) == Path(name)


def paths(name):
    """A command's flags and places that hold paths."""
    return [
        option.names[0] if option.names else option.dest
        for option in app.command(name).options
        if option.type.base is Path
    ]


@pytest.mark.parametrize("name", listing.NAMES)
def test_every_flag_of_a_path_refuses_an_address(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for flag in [one for one in paths(name) if one.startswith("--")]:
        with pytest.raises(SystemExit) as end:
            main([name, flag, "hdfs://bucket/file.jsonl"])
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert f"argument {flag}" in said
        assert "hdfs://bucket/file.jsonl: found an address of scheme hdfs://" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--html", "--fewshot", "--system-file", "--lora"])
def test_a_store_is_refused_by_flags_of_other_files(flag, capsys):
    required = ["--model", MODEL, "--input", "in.jsonl", "--output", "out.jsonl"]
    with pytest.raises(SystemExit):
        main(["score", *required, flag, "gs://user:secret@bucket/file"])
    said = capsys.readouterr().err
    assert f"argument {flag}: gs://bucket/file: found an address of scheme gs://" in said


def test_the_flags_that_were_found_are_those_of_the_commands():
    found = {name: paths(name) for name in listing.NAMES}
    assert {"--input", "--output", "--html", "--lora"} <= set(found["score"])
    assert found["compare"][:2] == ["a", "others"]
    assert all(found[name] for name in listing.NAMES if name not in ("families", "schema"))


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "s3://bucket/a.jsonl", "b.jsonl"],
        ["chronologic", "demo", "q.jsonl", "--output-dir", "s3://bucket/out"],
        ["journal", "info", "s3://bucket/out.journal"],
        ["score", "--config", "s3://bucket/score.yaml"],
        ["families", "--model", "s3://bucket/model"],
        ["plan", "--model", "s3://bucket/model"],
        ["lm-eval", "--tasks", "piqa", "--output_path", "s3://bucket/results"],
        ["lm-eval", "--tasks", "piqa", "--output_path=s3://bucket/results"],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_other_words_that_name_a_path(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert "found an address of scheme s3://" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", ["hf://org/name", "gs://bucket/model", "https://host/org/name"])
def test_a_model_is_no_address(model):
    expected = "expected a local folder, a GGUF file or a hub id such as NAME/NAME"
    with pytest.raises(InputError, match=expected):
        folder.resolve(model, None)


@pytest.mark.parametrize("flag", ["journal", "lora"])
def test_a_scorer_takes_no_address(flag):
    with pytest.raises(InputError, match=REFUSED.format("gs")):
        Scorer.from_pretrained(MODEL, **{flag: "gs://bucket/place"})


@pytest.mark.parametrize("name", ["journal", "lora", "reference_lora"])
def test_a_divergence_scorer_takes_no_address(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = {"reference_dtype": "bfloat16", name: "gs://bucket/place"}
    with pytest.raises(InputError, match=REFUSED.format("gs")):
        DivergenceScorer.from_pretrained(MODEL, MODEL, **flags)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "folder", [making._folder, making.load_model], ids=["_folder", "load_model"]
)
def test_model_args_take_no_address_as_cache_dir(folder):
    args, _ = read_arguments({"pretrained": MODEL, "cache_dir": "gs://bucket/cache"})
    words = (MODEL, args, None) if folder is making._folder else (args,)
    with pytest.raises(InputError, match=REFUSED.format("gs")):
        folder(*words)


def test_the_journal_of_a_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"context": "a", "continuation": " b"}\n')
    words = ["score", "--model", MODEL, "--input", "in.jsonl", "--output", "out.jsonl"]
    assert main([*words, "--journal", "gs://bucket/j"]) == 2
    assert "found an address of scheme gs://" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["in.jsonl"]


def test_the_cache_folder(monkeypatch):
    monkeypatch.setenv("JAXSCORE_CACHE", "gs://bucket/cache")
    with pytest.raises(InputError, match=REFUSED.format("gs")):
        cache_folder("xla")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A user's cache folder, which JAXSCORE_CACHE does not name, and an umask of 0."""
    monkeypatch.delenv("JAXSCORE_CACHE")
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "home" / name))
    before = os.umask(0)
    yield tmp_path / "home/jaxscore"
    os.umask(before)


def mode_of(path):
    return path.stat().st_mode & 0o7777


needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files to other users"
)
OTHER = 65534  # a user's number that is not this process's


def test_created_cache_folders_are_private_whatever_the_umask(own_cache):
    assert create_cache_folder("xla") == own_cache / "xla"
    assert [mode_of(path) for path in (own_cache / "xla", own_cache, own_cache.parent)] == [
        0o700
    ] * 3


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o722])
def test_compile_cache_that_others_can_write_is_refused(own_cache, mode):
    (own_cache / "xla").mkdir(parents=True)
    (own_cache / "xla").chmod(mode)
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with pytest.raises(InputError, match=rf"xla: found a folder that others .*{mode:o}.*chmod"):
            use_compilation_cache()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_compile_cache_that_jax_was_given_is_checked_too(tmp_path):
    before = jax.config.values["jax_compilation_cache_dir"]
    (tmp_path / "given").mkdir()
    (tmp_path / "given").chmod(0o777)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "given"))
    try:
        with pytest.raises(InputError, match=r"given: found a folder that others can write.*JAX"):
            use_compilation_cache()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@needs_root
@pytest.mark.parametrize("kind", ["xla", "weights", "remote"])
def test_cache_folder_of_another_user_is_refused_by_name(own_cache, kind):
    (own_cache / kind).mkdir(parents=True)
    os.chown(own_cache / kind, OTHER, OTHER)
    with pytest.raises(InputError, match=rf"{kind}: found a folder of \w+, expected .* root alone"):
        create_cache_folder(kind)


@pytest.mark.parametrize("kind", ["xla", "weights", "remote"])
def test_link_or_file_as_cache_folder_is_refused(own_cache, tmp_path, kind):
    own_cache.mkdir(parents=True)
    (own_cache / kind).symlink_to(tmp_path)
    with pytest.raises(InputError, match=rf"{kind}: found a link, expected a folder"):
        create_cache_folder(kind)
    (own_cache / kind).unlink()
    (own_cache / kind).write_text("")
    with pytest.raises(InputError, match=rf"{kind}: found a file, expected a folder"):
        create_cache_folder(kind)


def test_group_of_a_named_cache_is_trusted_and_everybody_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSCORE_CACHE", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2775)
    assert mode_of(create_cache_folder("xla")) & 0o777 == 0o770
    if os.geteuid() == 0:
        os.chown(tmp_path / "shared/xla", OTHER, OTHER)
    assert create_cache_folder("xla") == tmp_path / "shared/xla"
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(InputError, match="xla: found a folder"):
        create_cache_folder("xla")


@needs_root
def test_named_cache_that_another_user_planted_in_a_common_folder_is_not_trusted(
    tmp_path, monkeypatch
):
    (tmp_path / "common").mkdir()
    (tmp_path / "common").chmod(0o1777)
    (tmp_path / "common/cache/xla").mkdir(parents=True)
    for path in ("common/cache", "common/cache/xla"):
        os.chown(tmp_path / path, OTHER, OTHER)
    monkeypatch.setenv("JAXSCORE_CACHE", str(tmp_path / "common/cache"))
    with pytest.raises(InputError, match="xla: found a folder of"):
        create_cache_folder("xla")
    (tmp_path / "common").chmod(0o755)  # then the folder's owner is whom the user named
    create_cache_folder("xla")


@needs_root
def test_output_through_the_link_of_another_user_in_a_common_folder_is_refused(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common").chmod(0o1777)
    (tmp_path / "precious").write_text("precious")
    for name, write in (
        ("out.jsonl", lambda path: atomic(path).__enter__()),
        ("my.journal", lambda path: open_database(path, create=True)),
    ):
        link = tmp_path / "common" / name
        link.symlink_to(tmp_path / "precious")
        os.lchown(link, OTHER, OTHER)
        with pytest.raises(InputError, match=f"{name}: found a link of .*give another name"):
            write(link)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("value", ["s3://user:secret@bucket/cache", "https://host/x", "file:///x"])
def test_an_address_as_cache_folder_is_one_message_of_every_command(value, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"context": "a", "continuation": " b"}\n')
    for words in (
        ["score", "--model", MODEL, "--input", "in.jsonl", "--output", "out.jsonl"],
        ["score", "--model", MODEL, "--input", "s3://b/in.jsonl", "--output", "s3://b/out.jsonl"],
        ["merge", "s3://bucket/run/", "--output", "all.jsonl"],
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "jaxscore", *words],
            cwd=tmp_path,
            env=os.environ | {"JAXSCORE_CACHE": value},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 2
        [*_, last] = ended.stderr.splitlines()
        assert f"JAXSCORE_CACHE={value.replace('user:secret@', '')}: found an address" in last
        assert "Traceback" not in ended.stderr
        assert "secret" not in ended.stderr
