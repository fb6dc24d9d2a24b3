"""Flags that many commands have."""

import argparse

from jaxscore.cli import model_flags
from jaxscore.cli.main import parse


def test_flags_of_no_effect_are_told(capsys):
    args = argparse.Namespace(**model_flags.UNUSED, quiet=False)
    model_flags.warn_unused_flags(args, [*model_flags.UNUSED], "the server computes")
    assert capsys.readouterr().err == ""
    args.mesh, args.batch_tokens = "data=2", 64
    model_flags.warn_unused_flags(args, [*model_flags.UNUSED], "the server computes")
    assert capsys.readouterr().err == "--mesh, --batch-tokens: no effect, the server computes\n"


def test_what_is_unused_is_what_nobody_has_given():
    words = ["chronologic", "m", "q.jsonl"]
    args = parse(words)
    assert {name: getattr(args, name) for name in model_flags.UNUSED} == model_flags.UNUSED


def test_the_published_spelling_of_the_limit():
    words = ["paths", "--model", "m", "--input", "i", "--output", "o"]
    assert parse([*words, "--max-samples", "3"]).limit == parse([*words, "--limit", "3"]).limit == 3
    assert parse(words).limit is None
