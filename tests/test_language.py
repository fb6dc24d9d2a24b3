"""The language of code, messages and pages: docstring openings, phrases and variable names.

`python -m tests.test_language` prints each occurrence.
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A docstring is an imperative, a noun phrase, or "Return True if ...".
OPENINGS = re.compile(r"(What|Whether|Where|How|Of|As|That|If)\b")

# The description of an argument or attribute is a noun phrase: "length: tokens of the longest row".
DESCRIPTIONS = re.compile(
    r"^ +\*{0,2}\w+(?:, \*{0,2}\w+)*: (what|whether|where|how|of|as|that)\b", re.MULTILINE
)

# Variables are named for what they hold.
VAGUE_NAMES = frozenset(
    "found one own place kind part given known ours theirs made most what some whole".split()
)

PHRASES = {
    "negated noun": re.compile(
        r"\b(?:is|are|was|were|has) no (?!longer\b|more\b|less\b|such\b|other\b|different\b|"
        r"better\b|slower\b|faster\b|larger\b|smaller\b|shorter\b|worse\b)\w+",
    ),
    "verb of place": re.compile(
        r"\b(?:stands?|stood|lies|lay) (?:in|at|beside|behind|before|on)\b"
    ),
    "beside": re.compile(r"\b(?:beside|behind) (?:it|them|the|each|an?|its|their|this|that)\b"),
    "remark": re.compile(r"\bremarks?\b", re.IGNORECASE),
    "own": re.compile(r"\bof (?:its|their|his|our|your|her) own\b"),
    "as of": re.compile(r"\b[Aa]s of `|\bthe same as of\b"),
    "turned channels": re.compile(r"\bun?turned (?:channels?|part)\b|\bunturned\b"),
    "old words": re.compile(
        r"\b(?:worth telling|dear(?:er)?|the house|half-finished|made alike|likewise bears?|"
        r"no character|line ends?|all the same)\b"
    ),
    "see that": re.compile(r"(?:^|[.\"] )See that\b"),
}

# Occurrences that say what they mean in these words: (file, phrase or variable) -> reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("jaxscore/systems/compare/__init__.py", "remark"): "field of the JSON report",
    ("jaxscore/systems/compare/table.py", "remark"): "field of the JSON report",
    ("jaxscore/systems/rag/judge.py", "known"): "field of the published records",
    **{
        (f"jaxscore/systems/{name}.py", "what"): "attribute of `System`"
        for name in (
            "choose/__init__",
            "chronologic/__init__",
            "divergence/__init__",
            "perplexity/__init__",
            "preferences",
            "probsem/__init__",
            "rag/__init__",
            "sample",
            "score/__init__",
        )
    },
    ("jaxscore/shell/system.py", "what"): "attribute of `System`",
    ("jaxscore/cli/compare.py", "remark"): "a JSON key",
    ("jaxscore/cli/schema.py", "part"): "a positional argument and a key of config files",
    ("jaxscore/shell/report.py", "remark"): "a JSON key",
    (".github/CHANGELOG.md", "old words"): "the words that help and messages replaced",
    (".github/CHANGELOG.md", "remark"): "the name of an attribute and a JSON key",
    ("jaxscore/__init__.py", "negated noun"): "the message of Python's AttributeError",
    ("jaxscore/analysis/lexical.py", "one"): "ROUGE-1",
    ("jaxscore/analysis/margins.py", "what"): "a JSON key of reports",
    ("jaxscore/device/decoder_config.py", "kind"): "a key of converted configs",
    ("jaxscore/device/decoder_config.py", "place"): "a key of converted configs",
    ("jaxscore/io/manifest.py", "made"): "the name of a manifest's field",
    ("jaxscore/models/families/family.py", "part"): "a `Part` of a fused tensor",
    ("jaxscore/models/model_types.py", "kind"): "a JSON key of `families`",
    ("jaxscore/report/README.md", "remark"): "a JSON key",
    ("jaxscore/report/sections.py", "remark"): "a JSON key",
    ("tools/benchmarks/pages.py", "remark"): "a JSON key",
    ("tools/demo_world/facts.py", "verb of place"): "texts of the embedded model's training",
    ("tools/golden_cases.py", "verb of place"): "texts of the recorded outputs",
}


def sources():
    """Return the Python files and pages that the rules hold for, by folder."""
    for top in ("jaxscore", "tools", "configs", "tests"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix == ".md" or (path.suffix == ".py" and top in ("jaxscore", "tools")):
                yield path
    yield from (ROOT / "README.md", *sorted((ROOT / ".github").glob("*.md")))


def prose_of(text):
    """Return (line, text) of each comment and string of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (
            tokenize.COMMENT,
            tokenize.STRING,
            getattr(tokenize, "FSTRING_MIDDLE", -1),  # since 3.12,
        ):
            yield token.start[0], token.string


def occurrences(path):
    """Return (rule, line, text) of everything in a file that the style page replaces."""
    text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    prose = [(1, text)]
    if path.suffix == ".py":
        prose = list(prose_of(text))
        in_code = _in_code(ast.parse(text))
        yield from (match for match in in_code if (name, match[2]) not in EXCEPTIONS)
    for first_line, passage in prose:
        for phrase, pattern in PHRASES.items():
            if (name, phrase) in EXCEPTIONS:
                continue
            for match in pattern.finditer(passage):
                line = first_line + passage.count("\n", 0, match.start())
                yield "phrases", line, f"{phrase}: {match.group()!r}"


def _in_code(tree):
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        docstring = ast.get_docstring(node) if isinstance(node, documented) else None
        if docstring is not None:
            line = getattr(node, "lineno", 1)
            if OPENINGS.match(docstring):
                yield "openings", line, docstring.splitlines()[0]
            for match in DESCRIPTIONS.finditer(docstring):
                yield "descriptions", line, match.group().strip()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name in VAGUE_NAMES:
            yield "names", node.lineno, name


def listed():
    """Yield a line for each occurrence."""
    for path in sources():
        for rule, line, text in occurrences(path):
            yield f"{path.relative_to(ROOT)}:{line}: {rule}: {text}"


def test_code_and_pages_are_written_in_the_words_of_the_field():
    assert list(listed()) == []


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ('"""What a plan may cut."""', ["openings"]),
        (
            '"""Return the plan.\n\n    Args:\n        size: whether it is large.\n"""',
            ["descriptions"],
        ),
        ("found = 1", ["names"]),
        ("# x is no method\n", ["phrases"]),
        ('"""Return True if the plan fits."""', []),
    ],
)
def test_rules_find_what_the_style_page_replaces(tmp_path, monkeypatch, text, rules):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "module.py").write_text(text, encoding="utf-8")
    assert [rule for rule, _, _ in occurrences(tmp_path / "module.py")] == rules


if __name__ == "__main__":
    print(*listed(), sep="\n")
