"""Addresses are refused for every flag that names a path; other colons are part of a name."""

from pathlib import Path

import pytest

from jaxscore.adapters import model as making
from jaxscore.adapters.arguments import read_arguments
from jaxscore.cli import listing
from jaxscore.cli.main import main
from jaxscore.errors import InputError
from jaxscore.io.local_path import cache_folder, local_path
from jaxscore.model_pair import DivergenceScorer
from jaxscore.models.weights import checkpoint
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
        action.option_strings[0] if action.option_strings else action.dest
        for action in listing.parser(name)._actions
        if action.type is Path
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
    assert found["compare"][:2] == ["a", "b"]
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
        checkpoint.resolve(model, None)


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
