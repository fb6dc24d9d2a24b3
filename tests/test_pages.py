"""Pages beside the code: their links lead somewhere, and their commands and flags exist."""

import functools
import re
import shlex
from pathlib import Path

import pytest

from jaxscore.cli import app, config, help_pages, listing
from jaxscore.cli import main as cli

ROOT = Path(__file__).parents[1]
# Listed by folder: a virtual environment has pages of its own.
PAGES = [ROOT / "README.md", *sorted((ROOT / ".github").glob("*.md"))]
PAGES += [
    page
    for folder in ("configs", "jaxscore", "tests", "tools")
    for page in sorted((ROOT / folder).rglob("README.md"))
]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"""\[[^\]\n]*\]\(([^)\s]+)\)|\b(?:src|href)=["']([^"']+)""")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
CALL = re.compile(r"(['\"]?)python3? -m jaxscore(?: +(.*))?$")
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_]*(?:[.:/].*)?|\.\.\.|…")
GENERAL = {config.FLAG, "--version", *help_pages.HELP}  # before, or without, a command


@functools.cache
def parser(name):
    """A command's flags, of one that is passed on those of the program that reads them."""
    if name not in listing.PASSED_ON:
        found = app.command(name)
        return {
            **found.by_name,
            **dict.fromkeys([*help_pages.HELP, *listing.REFUSED.get(name, ())]),
        }
    from lm_eval._cli import HarnessCLI

    return HarnessCLI()._subparsers.choices["run"]._option_string_actions


def paths(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page):
    """What GitHub makes of the headings of a page."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one) for one in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in plain}


def broken_links(page):
    """Relative links of a page that lead to no file, no folder or no heading."""
    text = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    found = []
    for link in (one or other for one, other in LINK.findall(text)):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        inside = target.resolve().is_relative_to(ROOT)
        if not inside or not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


def calls(text):
    """(words, whether it is a whole command) of each `python -m jaxscore …` in a page's code."""
    blocks = (block.replace("\\\n", " ") for block in FENCE.findall(text))
    fenced = [line for block in blocks for line in block.splitlines()[1:-1]]
    inline = [code.replace(r"\|", "|") for code in CODE.findall(FENCE.sub("", text))]
    for whole, lines in ((True, fenced), (False, inline)):
        for line in lines:
            for part in re.split(r" && | \| |; ", line):
                if match := CALL.search(part):
                    quote, words = match.group(1), match.group(2) or ""
                    if quote:  # the command is a word of another one
                        words = words.partition(quote)[0]
                    yield shlex.split(words, comments=True), whole


def problem(words, whole):
    """What is wrong with a command as a page shows it; or None if it parses."""
    if words and words[0] in listing.PASSED_ON:
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        own = {*parser(words[0]), *GENERAL}
        return next((f"{words[0]} has no flag {flag}" for flag in sorted(given - own)), None)
    if config.FLAG in words:
        place = words.index(config.FLAG) + 1
        if PLACEHOLDER.fullmatch(words[place]):
            return None
        shown = refused([*words[:place], str(ROOT / words[place]), *words[place + 1 :]])
        return shown and shown.replace(f"{ROOT}/", "")
    if not words or words[0].startswith("--"):
        return next((f"no flag {word}" for word in words if word not in GENERAL), None)
    name, *rest = words
    shown = app.hyphenate([one.strip("[]") for one in rest])
    if PLACEHOLDER.fullmatch(name):
        parsers = [parser(one) for one in listing.NAMES]
    elif name in listing.NAMES:
        parsers = [parser(name)]
    else:
        return f"no command {name}"
    known = {flag for one in parsers for flag in one}
    for word in shown:
        flag = word.partition("=")[0]
        if re.match(r"--?[a-zA-Z]", flag) and flag not in known:
            return f"{name} has no flag {flag}"
    if whole and len(parsers) == 1 and not {"...", "…"} & set(shown):
        return refused([name, *filled(shown, parsers[0])])
    return None


def filled(words, command):
    """The words, with a number in place of each placeholder of a flag that takes one."""
    out, flag = [], None
    for word in words:
        option = command.get(flag)
        number = option is not None and (option.type.base in (int, float) or option.read)
        out.append("1" if number and PLACEHOLDER.fullmatch(word) else word)
        flag = word if word.startswith("-") else None
    return out


def refused(words):
    """What argparse says against a whole command."""
    try:
        cli.parse(words)
    except SystemExit as end:  # 0 for --help
        return f"{shlex.join(words)} does not parse" if end.code else None
    return None


def strange_flags(text):
    """Flags, alone in code with their values, that no command has."""
    names = (*listing.NAMES, *listing.PASSED_ON)
    known = {flag for one in names for flag in parser(one)}
    known |= GENERAL
    for code in CODE.findall(FENCE.sub("", text)):
        if re.match(r"--[a-zA-Z]", code):
            flags = [word.partition("=")[0] for word in code.replace(r"\|", "|").split()]
            yield from (
                one
                for one in flags
                if one.startswith("--") and not {one, *app.hyphenate([one])} & known
            )


@paths(PAGES)
def test_links_lead_somewhere(page):
    assert broken_links(page) == []


@paths(PAGES)
def test_commands_parse(page):
    text = page.read_text(encoding="utf-8")
    found = [(words, problem(words, whole)) for words, whole in calls(text)]
    assert [one for one in found if one[1]] == []


@paths([page for page in PAGES if ROOT / "jaxscore" in page.parents])
def test_flags_exist(page):
    assert list(strange_flags(page.read_text(encoding="utf-8"))) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# A heading, with `code`\n")
    page = tmp_path / "README.md"
    page.write_text(
        "[a](other.md) [b](other.md#a-heading-with-code) [c](https://example.org) [d](none.md)\n"
        "[e](other.md#b) [f](#g) [h](../out.md) `[i](code.md)`\n"
        '<img src="j.png">\n\n```\n[k](fence.md)\n```\n'
    )
    assert broken_links(page) == ["none.md", "other.md#b", "#g", "../out.md", "j.png"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`python -m jaxscore scores --model M`", ["no command scores"]),
        ("`python -m jaxscore score --modle M`", ["score has no flag --modle"]),
        ("`python -m jaxscore score --model M`", [None]),  # a part of a command
        ("`python -m jaxscore COMMAND --help`", [None]),
        ("`python -m jaxscore --conf`", ["no flag --conf"]),
        ("`python -m jaxscore --config FILE`, `python -m jaxscore --version`", [None, None]),
        ("`python -m jaxscore --config configs/paths.yaml --batch-tokens 64`", [None]),
        ("`python -m jaxscore paths --config configs/paths.yaml --limit 2`", [None]),
        (
            "`python -m jaxscore paths --config configs/paths.yaml --lmit 2`",
            ["paths --config configs/paths.yaml --lmit 2 does not parse"],
        ),
        ("`python -m jaxscore --help-all`", [None]),
        ("`python -m jaxscore convert --model NAME [--lora DIR]`", [None]),
        ("```sh\npython -m jaxscore score --model ...  # on a GPU\n```", [None]),
        (
            "```sh\npython -m jaxscore score --model M\n```",
            ["score --model M does not parse"],
        ),
        (
            "```sh\npython -m jaxscore score \\\n  --model M --input i\n```",
            ["score --model M --input i does not parse"],
        ),
        ("```sh\npython -m jaxscore score --help\n```", [None]),
        (
            "```sh\nssh --command='python -m jaxscore score --model M --input i --seed N "
            "--output o'\n```",
            [None],
        ),
        (
            "```sh\npip install . && python -m jaxscore demo\n```",
            [None],
        ),
    ],
)
def test_a_command_that_does_not_exist_is_found(text, expected):
    assert [problem(words, whole) for words, whole in calls(text)] == expected


def test_a_flag_that_does_not_exist_is_found():
    text = "`--audit-noise N`, `--audit_noise 3`, `--nosie`, `--dtype auto\\|float32`"
    assert list(strange_flags(text)) == ["--nosie"]
