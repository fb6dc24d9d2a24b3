"""Help pages: 80 columns, common flags and all flags, and printed without JAX."""

import argparse
import re
import subprocess
import sys

import pytest

from jaxscore.cli import help_pages, listing
from jaxscore.cli import main as cli

LIGHT = """
import sys
from jaxscore.cli import listing
listing.parser(sys.argv[1]).page(everything=True)
print(*sorted({"jax", "flax", "transformers", "pandas"} & set(sys.modules)))
"""


@pytest.mark.parametrize("name", listing.NAMES)
def test_pages_are_of_80_columns(name):
    parser = listing.parser(name)
    for everything in (False, True):
        page = parser.page(everything=everything)
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
    parser = listing.parser(name)
    common, everything = parser.page(everything=False), parser.page(everything=True)
    flags = [one for one in parser._option_string_actions if one.startswith("--")]
    assert all(flag in everything for flag in flags)
    few = {flag for flag in flags if hasattr(parser._option_string_actions[flag], "advanced")}
    assert "--help-all" in few
    assert not listed(common) & few
    assert listed(common) < listed(everything)
    assert f"{len(few)} more flags: jaxscore {name} --help-all" in common


@pytest.mark.parametrize("name", ["score", "paths"])
def test_a_page_shows_input_output_and_common_flags(name):
    page = listing.parser(name).page(everything=False)
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
    assert "several processes" in listing.parser(name).page(everything=True)


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
    parser = help_pages.Parser(prog="x")
    parser.add_argument("-n", type=int)
    parser.add_argument("--texts", nargs="*")
    parser.add_argument("rest", nargs="*")
    args = parser.parse_args(["-n4", "--texts", "-1", "--answer in words", "-a b=c", "--", "--no"])
    assert args == argparse.Namespace(
        n=4, texts=["-1", "--answer in words", "-a b=c"], rest=["--no"]
    )


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
