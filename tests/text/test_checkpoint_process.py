"""Chat templates and tokenizers made to take all memory or for ever, and how ordinary ones fare."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tokenizers import normalizers

from jaxscore.errors import InputError
from jaxscore.io.child_process import ChildProcess, RestartedProcess
from jaxscore.text import chat_template, checkpoint_process, tokenizer_limits
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES, MODELS

pytestmark = pytest.mark.lines

HELLO = [{"role": "user", "content": "Hello"}]
TALK = [
    {"role": "system", "content": "Be brief.\ud83d"},
    {"role": "user", "content": "Who's <there>? \u00e9"},
    {"role": "assistant", "content": " It is I. "},
]


@pytest.fixture
def tokenizer():
    return copy.copy(load_tokenizer(CASES / "models/tiny-qwen2"))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "more", [{}, {"add_generation_prompt": True}, {"continue_final_message": True}, {"x": [1]}]
)
def test_the_text_is_that_of_transformers(name, more):
    tokenizer = load_tokenizer(CASES / "models" / name)
    want = tokenizer.apply_chat_template(TALK, tokenize=False, **more)
    variables = {**tokenizer.special_tokens_map, **more}
    assert checkpoint_process.render(tokenizer.get_chat_template(), TALK, variables) == want


NESTED = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 'a' * 4000000000 }}", "more than 2 GB of memory"),
        ("{{ 'a' * messages[0]['content'] | length * 1000000000 }}", "more than 2 GB of memory"),
        ("{{ messages[0]['content'] * 20000000 }}", "a text of more than 67108864 characters"),
        (NESTED, "it takes more than 0.5 seconds or 2 GB of memory"),
    ],
)
def test_a_template_that_never_ends_is_refused_by_name(tokenizer, monkeypatch, template, why):
    chat_template.render(tokenizer, HELLO)  # starts the process
    monkeypatch.setattr(checkpoint_process, "RENDER_LIMIT", 0.5 if template is NESTED else 20.0)
    tokenizer.chat_template = template
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        chat_template.render(tokenizer, HELLO)
    assert time.monotonic() - started < 15
    assert str(caught.value).startswith(str(CASES / "models/tiny-qwen2"))
    assert why in str(caught.value)
    monkeypatch.undo()
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    assert chat_template.render(tokenizer, HELLO) == "Hello"


def test_imports_are_no_part_of_a_conversations_time(tokenizer, monkeypatch, tmp_path):
    (tmp_path / "jinja2.py").write_text("raise ImportError('imported')")
    monkeypatch.setitem(checkpoint_process.ENVIRONMENT, "PYTHONPATH", str(tmp_path))
    renderer = RestartedProcess(lambda: checkpoint_process._start("render", 10))
    with pytest.raises(InputError, match="does not start"):
        renderer.ask({"template": "", "messages": [], "more": {}}, 10)
    assert renderer.process is None


def interrupt_next_reply(monkeypatch):
    def interrupted(self, seconds):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(ChildProcess, "_reply", interrupted)


def test_a_render_after_an_interrupt_has_its_own_text(tokenizer, monkeypatch):
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    chat_template.render(tokenizer, HELLO)  # starts the process
    interrupt_next_reply(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        chat_template.render(tokenizer, [{"role": "user", "content": "interrupted"}])
    assert chat_template.render(tokenizer, HELLO) == "Hello"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer")
def test_a_signal_while_a_reply_is_awaited_ends_the_process():
    def interrupt(number, frame):
        raise KeyboardInterrupt

    process = ChildProcess(checkpoint_process.WORKER, ["60", "read"], {})
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            process._reply(60)  # to no question
        assert process._process.wait(10) != 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        process.end()


def test_no_process_is_left_at_the_end():
    code = (
        "from jaxscore.text import checkpoint_process as c;"
        "c.render('{{ messages[0].content }}', [{'role': 'user', 'content': 'a'}], {});"
        "print(c._RENDERER.process._process.pid)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(run.stdout), 0)


@pytest.fixture
def changed(tmp_path):
    """Copies a tokenizer with another tokenizer.json."""

    def changed(change):
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            shutil.copy(CASES / "models/tiny-qwen2" / name, tmp_path)
        path = tmp_path / "tokenizer.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        change(found)
        path.write_text(json.dumps(found), encoding="utf-8")
        return tmp_path

    return changed


def pattern(regex):
    def change(found):
        found["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": regex}

    return change


def replaces(*pairs):
    parts = [{"type": "Replace", "pattern": {"String": a}, "content": b} for a, b in pairs]
    return {"type": "Sequence", "normalizers": parts}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.update(normalizer=replaces(*[("a", "aa")] * 30)), "its normalizer can make a"),
        (lambda t: t.update(normalizer=replaces(("", "a" * 99))), "its normalizer can make a text"),
        (
            lambda t: t.update(
                decoder={"type": "Replace", "pattern": {"Regex": "x?"}, "content": "b" * 99}
            ),
            "its decoder can make a text 100 times longer",
        ),
        (
            lambda t: t.update(normalizer={"type": "Prepend", "prepend": "b" * 100_000}),
            "its normalizer can make a text 100000 times longer",
        ),
        (
            lambda t: t.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            "no usable tokenizer (Precompiled: Error",  # a panic
        ),
        (pattern("(("), "tokenizer.json: cannot be read (Oniguruma error"),
        (
            lambda t: t.update(
                model={
                    "type": "BPE",
                    "vocab": {"a": 0, "\u00e9": 1, "ab": 2},
                    "merges": ["a \u00e9"],
                    "continuing_subword_prefix": "x",
                }
            ),
            "tokenizer.json: cannot be read (",  # it aborts; tokenizers 0.22 panics
        ),
    ],
)
def test_a_tokenizer_made_to_do_harm_is_refused_by_name(changed, change, why):
    folder = changed(change)
    with pytest.raises(InputError) as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)
    assert why in str(caught.value)


def test_a_pattern_that_takes_for_ever_is_refused(changed, monkeypatch):
    monkeypatch.setattr(checkpoint_process, "READ_LIMIT", 0.5)
    folder = changed(pattern(r"(?:[ab]|[ac]){19}(?=\d)"))
    with pytest.raises(InputError, match=r"json: cannot be read \(it takes more than 0.5"):
        load_tokenizer(folder)


def test_known_tokenizers_are_read_in_this_process_alone(changed, monkeypatch):
    asked = []
    monkeypatch.setattr(checkpoint_process, "check_tokenizer", asked.append)
    for name in MODELS:
        load_tokenizer(CASES / "models" / name)
    assert asked == []
    load_tokenizer(changed(pattern("[a-z]+|[^a-z]")))
    assert [path.name for path in asked] == ["tokenizer.json"]


def test_replacements_of_published_tokenizers_are_within_the_limit():
    parts = [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.Lowercase()]
    assert tokenizer_limits.growth(normalizers.Sequence(parts)) == 1
    assert tokenizer_limits.growth(normalizers.Replace(" ", "\u2581")) == 1
    assert tokenizer_limits.growth(normalizers.Replace("\u2026", "...")) == 3
    assert tokenizer_limits.growth(None) == 1


def test_padding_of_a_file_is_not_applied(changed):
    padding = {
        "strategy": {"Fixed": 1_000_000_000},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    tokenizer = load_tokenizer(changed(lambda found: found.update(padding=padding)))
    assert len(tokenizer.backend_tokenizer.encode("a").ids) == 1
