"""YAML: plain values or a refusal, whatever aliases, tags and scalars ask for."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.cli import app
from jaxscore.cli.config import Config
from jaxscore.io import yaml_input
from jaxscore.systems.rag import evaluator_file, experiment_folder
from tests.hostile.inputs import FILES, HOSTILE, contents, outcome, put, refused

EVALUATOR = b"""max_new_tokens: 1
use_logits: True
output_options: {'Yes': 1, 'No': 0}
prompt:
  system: "You are {rubrik_section}."
  user: f"{question} {answer}"
"""
EXPERIMENT = b"retriever: {init_args: {model_name: a}}\ngeneration_top_k: 5\ndataset: &d {dev: 1}\n"
FLAGS = b"command: paths\nmodel: demo\ninput: in.jsonl\nsystem-prompts: [a, b]\nquiet: true\n"


def read_flags(path):
    config = Config.read(path)
    return app.values(app.command(config.command(None)), ["--output", "o"], config)


READERS = {
    "evaluator": (EVALUATOR, evaluator_file.load),
    "experiment": (EXPERIMENT, lambda path: experiment_folder.read_config(path.parent, "dev")),
    "flags": (FLAGS, read_flags),
}


def nested_aliases(levels, link):
    """Each line is ten of the one before: written out, 10^levels values."""
    lines = [f"a0: &a0 {link('x', 'x')}"]
    lines += [f"a{k}: &a{k} {link(f'*a{k - 1}', f'*a{k - 1}')}" for k in range(1, levels)]
    return "\n".join(lines).encode()


def trees(name):
    """A tree of 2^20 equal leaves, written in 20 lines."""
    lines = [f"{name}0: &{name}0 [x, x]"]
    lines += [f"{name}{k}: &{name}{k} [*{name}{k - 1}, *{name}{k - 1}]" for k in range(1, 20)]
    return "\n".join(lines).encode()


BOMBS = {
    "lists": nested_aliases(12, lambda one, other: f"[{', '.join([one] * 9 + [other])}]"),
    "mappings": nested_aliases(12, lambda one, other: f"{{a: {one}, b: {other}, c: {one}}}"),
    "merges": b"a0: &a0 {x: 1}\n"
    + b"".join(
        b"a%d: &a%d {<<: [%s]}\n" % (k, k, b", ".join([b"*a%d" % (k - 1)] * 10))
        for k in range(1, 12)
    ),
    "equal keys": trees("a") + b"\n" + trees("b") + b"\n? *a19\n: 1\n? *b19\n: 2",
    "itself": b"a: &a [*a, *a]\n",
    "itself as a key": b"&a {*a : 1}\n",
}
LARGE = {
    "sixties": b"a: 1" + b":59" * 40_000,
    "keys": b"\n".join(b"k%d: 1" % k for k in range(3000)),
    "long": b"a: '" + b"x" * 300_000 + b"'",
    "deep": b"[" * 500,
    "blocks": b"\n".join(b" " * k + b"a:" for k in range(150)),
    "anchors": b"[" + b", ".join(b"&a%d x" % k for k in range(1000)) + b"]",
}
SCALARS = (
    "!!int", "!!int 'x'", "!!float", "!!bool 'x'", "!!timestamp 'x'", "2024-99-99", "!!null x",
    "!!binary '//'", "!!set {a}", "!!omap [a: 1]", "!!pairs [a]", "=", "<<", "!!str [a]",
    "!!seq a", "!!map a", "!x y", "0b", "0x_", "1_", "!!int 9e9", "!!python/none",
    "!!python/name:os.system", "!!python/object/new:os.system [x]", "!!python/tuple [a]",
    "!!python/object/apply:os.mkdir [made]", "!!python/module:this", ".nan", "-.inf", "9" * 5000,
    "0o777", "1e400", "'\\x00'", '"\\ud800"', '"\\uD83D\\uDE00"', "\x07", "@x", "`x`", "%x",
    "*gone", "&a", "|", ">9", "|-99999999", "? ", "- - - a",
)  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_any_bytes(name, tmp_path):
    good, read = READERS[name]
    path = tmp_path / "config.yaml"

    @HOSTILE
    @given(contents(good) | st.sampled_from(SCALARS).map(str.encode))
    def check(content):
        outcome(lambda: read(put(path, content)), path)

    check()
    for content in (one for one in FILES if len(one) < 1000):  # for others see LARGE
        outcome(lambda content=content: read(put(path, content)), path)


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("name", READERS)
def test_any_scalar_in_any_place(name, scalar, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good, read = READERS[name]
    path = tmp_path / "config.yaml"
    for line in good.splitlines()[1:4:2]:
        key = line.partition(b":")[0]
        for new in (
            key + b": " + scalar.encode(),
            scalar.encode() + b": 1",
            b"- " + scalar.encode(),
        ):
            changed = good.replace(line, new, 1)
            outcome(lambda changed=changed: read(put(path, changed)), path)
    assert [one.name for one in tmp_path.iterdir()] == ["config.yaml"]  # nothing was run


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_multiplies_is_refused_in_little_memory(bomb, tmp_path):
    path = put(tmp_path / "config.yaml", BOMBS[bomb])
    tracemalloc.start()
    assert f"{path}:" in refused(lambda: yaml_input.read_yaml(path))
    refused(lambda: read_flags(path), path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 << 20


@pytest.mark.parametrize("name", READERS)
def test_what_is_large_ends(name, tmp_path):
    good, read = READERS[name]
    path = tmp_path / "config.yaml"
    for large in LARGE.values():
        outcome(lambda large=large: read(put(path, large)), path)
        outcome(lambda large=large: read(put(path, good + b"\n" + large)), path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nb: !!python/name:os.system", ":2: not usable YAML (tag tag:yaml.org,2002:python"),
        ("a: 1\nb: {c: 1, c: 2}", ":2: not usable YAML (key 'c' is there twice)"),
        ("a: 1\n? [b]\n: 2", ":2: not usable YAML (a key is a list or a mapping)"),
        ("\na: &a [*a]", ":2: not usable YAML (nested more than 100 deep)"),
        ("a: 1\nb: !!int x", ":2: not usable YAML ('x' is not a valid int)"),
        ("a: " + "9" * 5000, ":1: not usable YAML ('999"),
        ("<<: {a: 1}", ":1: not usable YAML (tag tag:yaml.org,2002:merge"),
        ("a: '", ":1: not usable YAML (found unexpected end of stream"),
    ],
)
def test_why_and_where(text, why, tmp_path):
    path = put(tmp_path / "a.yaml", text.encode())
    assert refused(lambda: yaml_input.read_yaml(path)).startswith(f"{path}{why}")


def test_plain_values_are_what_they_say(tmp_path):
    text = "a: [1, 0x10, 1:30, -2.5, .inf, yes, ~, '3', =]\nb: &b {c: x}\nd: [*b, *b]\n1: e\n"
    assert yaml_input.read_yaml(put(tmp_path / "a.yaml", text.encode())) == {
        "a": [1, 16, 90, -2.5, float("inf"), True, None, "3", "="],
        "b": {"c": "x"},
        "d": [{"c": "x"}, {"c": "x"}],
        1: "e",
    }
    assert yaml_input.read_yaml(put(tmp_path / "a.yaml", b"# nothing\n")) is None
