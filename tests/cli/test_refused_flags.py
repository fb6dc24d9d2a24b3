"""The four common flags: each command has a use for one, or refuses it by name."""

from pathlib import Path

import pytest

from jaxscore.cli import app, help_pages, listing
from jaxscore.cli import main as cli

ROOT = Path(__file__).parents[2]
EVERY = [(name, flag) for name in listing.NAMES for flag in listing.COMMON_FLAGS]
REFUSED = [(name, flag) for name, why in listing.REFUSED.items() for flag in why]


def parsed(name, *words):
    """What the command's own configuration file says, and words beside it."""
    return vars(cli.parse(["--config", str(ROOT / f"configs/{name}.yaml"), *words]))


@pytest.mark.parametrize(("name", "flag"), EVERY)
def test_every_command_takes_or_refuses_each_flag(run, name, flag):
    if flag in listing.REFUSED.get(name, {}):
        why = listing.REFUSED[name][flag]
        want = f"jaxscore {name}: error: {flag}: refused: {why}\n"
        for words in ([flag, "7"], [f"{flag}=7"], [flag]):
            assert run(name, *words) == (2, "", want)
    else:
        assert parsed(name, flag, "7") != parsed(name)


def test_a_refused_flag_is_in_no_namespace():
    """A manifest holds all flags; one that nobody can give is none of them."""
    for name in listing.REFUSED:
        assert [key for key in parsed(name) if "refused" in key] == []


@pytest.mark.parametrize(("name", "flag"), REFUSED)
def test_a_configuration_file_is_refused_too(run, tmp_path, name, flag):
    text = (ROOT / f"configs/{name}.yaml").read_text(encoding="utf-8")
    path = tmp_path / "c.yaml"
    path.write_text(f"{text}\n{flag[2:]}: 7\n", encoding="utf-8")
    code, out, err = run("--config", path)
    assert (code, out) == (2, "")
    line = len(text.splitlines()) + 2
    assert f"{path}:{line}: {flag}: refused: {listing.REFUSED[name][flag]}" in err


def test_the_reasons_are_on_the_full_page_alone():
    for name, flag in REFUSED:
        command = app.command(name)
        assert "refused:" not in help_pages.page(command, everything=False)
        assert f"{flag} [X]" in help_pages.page(command, everything=True)
