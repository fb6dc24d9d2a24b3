"""Help pages: 80 columns, common flags and all flags, and printed without JAX."""

import dataclasses
import re
import subprocess
import sys

import pytest

from jaxscore.cli import app, help_pages, listing
from jaxscore.cli import main as cli
from jaxscore.cli.help_pages import page as page_of
from jaxscore.shell.flags import flag, options_of

LIGHT = """
import sys
from jaxscore.cli import app, help_pages
help_pages.page(app.command(sys.argv[1]), everything=True)
print(*sorted({"jax", "flax", "transformers", "pandas"} & set(sys.modules)))
"""


@pytest.mark.parametrize("name", listing.NAMES)
def test_pages_are_of_80_columns(name):
    command = app.command(name)
    for everything in (False, True):
        page = page_of(command, everything=everything)
        assert page.startswith(f"usage: jaxscore {name}")
        assert [line for line in page.splitlines() if len(line) > help_pages.WIDTH] == []


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", listing.NAMES)
def test_a_page_needs_no_jax(name):
    ran = subprocess.run(
        [sys.executable, "-c", LIGHT, name], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout == "\n"


def listed(page):
    """The page's flags, those in the description left out."""
    after = page.partition("\noptions:\n")[2]
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", after, re.M))


@pytest.mark.parametrize("name", listing.NAMES)
def test_all_flags_include_the_common_ones(name):
    command = app.command(name)
    common, everything = (page_of(command, everything=flag) for flag in (False, True))
    assert all(flag in everything for flag in command.by_name)
    few = {flag for flag, option in command.by_name.items() if option.is_advanced}
    few |= {"--help-all", *listing.REFUSED.get(name, ())}
    n_hidden = 1 + len(listing.REFUSED.get(name, ())) + sum(o.is_advanced for o in command.options)
    assert not listed(common) & few
    assert listed(common) < listed(everything)
    assert f"{n_hidden} more flags: jaxscore {name} --help-all" in common


@pytest.mark.parametrize("name", ["score", "paths"])
def test_a_page_shows_input_output_and_common_flags(name):
    page = page_of(app.command(name), everything=False)
    fields = {
        "score": '"id" "context" "continuation" token_ids tokens logprob[] entropy[] '
        "self_certainty[] greedy[] sum_logprob mean_logprob perplexity mean_entropy "
        "mean_self_certainty n_tokens n_scored",
        "paths": '"id" "question" "paths" baseline_prob retrieved_prob absolute_improvement '
        "relative_improvement",
    }
    for word in f"{fields[name]} --model --device --dtype --batch-tokens --truncate".split():
        assert word in page
    assert "exit code: 0" in page
    assert "--output FOLDER/ with a slash" in page
    assert "several processes" not in page
    assert "several processes" in page_of(app.command(name), everything=True)


def test_the_list_of_commands(run):
    code, page, err = run("--help")
    assert (code, err) == (0, "")
    assert run("-h").out == run("--help-all").out == page
    assert all(len(line) <= help_pages.WIDTH for line in page.splitlines())
    lines = page.splitlines()
    places = [
        next(k for k, line in enumerate(lines) if line.startswith(f"  {name} "))
        for group in listing.GROUPS.values()
        for name in group
    ]
    assert places == sorted(places)
    assert listing.NAMES[0] == "demo"
    titles = (
        "start here|score|the five systems|samples|after the runs|models and files|in other tools"
    ).split("|")
    assert [line[:-1] for line in lines if line.endswith(":")] == titles


def test_both_pages_of_a_command(run):
    code, common, err = run("score", "--help")
    assert (code, err) == (0, "")
    everything = run("score", "--help-all").out
    assert run("score", "-h").out == common
    assert "--reproducible" in everything
    assert "--reproducible" not in common
    assert run("score", "--summary-only", "--help").out == common


def test_what_argparse_takes_for_no_flag_is_none_here():
    @dataclasses.dataclass
    class Flags:
        n: int = flag(None)
        texts: list[str] = flag([])
        rest: list[str] = flag([], is_positional=True)

    command = app.Command("x", "", options_of(Flags), lambda args: 0)
    words = ["-n4", "--texts", "-1", "--answer in words", "-a b=c", "--", "--no"]
    args = app.values(command, words)
    assert args.n == 4
    assert (args.texts, args.rest) == (["-1", "--answer in words", "-a b=c"], ["--no"])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("sample", "--n", "4"), "--n: no such flag; is it -n?"),
        (("usc-generate", "--n", "4"), "--n: no such flag; is it -n?"),
        (("sample", "--max-tokens", "4"), "is it --max-new-tokens?"),
    ],
)
def test_a_mistyped_flag_gets_a_suggestion(capsys, words, hint):
    with pytest.raises(SystemExit):
        cli.parse(words)
    assert hint in capsys.readouterr().err
