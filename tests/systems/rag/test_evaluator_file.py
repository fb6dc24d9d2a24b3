"""Evaluator files: published ones are read without running them, ours give the cases' prompts."""

import itertools
import json
import textwrap
import types

import pytest
import yaml

from jaxscore.errors import InputError
from jaxscore.systems.rag import experiment_folder, pointwise
from jaxscore.systems.rag.evaluator_file import (
    PACKAGED,
    PAIRWISE,
    POINTWISE,
    Question,
    find,
    load,
    parse,
)
from jaxscore.text import chat_template
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES

VALUES = {
    "rubrik_section": "Yes, No",
    "options": "['Yes', 'No']",
    "question": "who {question}?",
    "answer": "['Ada']",
    "prediction": 'f"{answer}"',
}
# As BERGEN wrote them at first: plain YAML text, so that backslashes are the f-string's and a
# line end is a blank.
PUBLISHED = r"""
max_new_tokens: 1
use_logits: True
output_options:
    'Yes': 1
    'No': 0
prompt:
  system: f"You judge. Answer with one of {self.rubrik_section}."
  user: f"One of {list(self.options)}.\n Asked:\ {question}. \nGold:\ {answer}
    \n Said:\ {prediction}"
  assistant: f"Response:\ {{"
  user_without_system: f"{{{self.rubrik_section}}}, of
    {list(self.options.keys())}.\nSaid:\ {prediction}"
"""


def write(folder, text):
    path = folder / "own.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_an_f_string_file_is_read_as_python_would_have_evaluated_it(tmp_path):
    evaluator = load(write(tmp_path, PUBLISHED))
    assert (evaluator.max_new_tokens, evaluator.use_logits, evaluator.pairwise) == (1, True, None)
    assert evaluator.pointwise.options == {"Yes": 1.0, "No": 0.0}
    values = {name: VALUES[name] for name in ("question", "answer", "prediction")}
    assert evaluator.pointwise.messages(values, system=True) == [
        {"role": "system", "content": "You judge. Answer with one of Yes, No."},
        {
            "role": "user",
            "content": "One of ['Yes', 'No'].\n Asked: who {question}?. \nGold: ['Ada'] \n "
            'Said: f"{answer}"',
        },
        {"role": "assistant", "content": "Response: {"},
    ]
    assert evaluator.pointwise.messages(values, system=False) == [
        {
            "role": "user",
            "content": "{Yes, No}, of ['Yes', 'No'].\nSaid: f\"{answer}\"",
        },
        {"role": "assistant", "content": "Response: {"},
    ]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{question}", "who {question}?"),
        ("a {{b}} {answer}", "a {b} ['Ada']"),
        ('f"{question}"', "who {question}?"),
        ("f'{ question }'", "who {question}?"),
        ('F"a" "b {{" f"{answer}"', "ab {{['Ada']"),
        ('rf"\\n{answer}"', "\\n['Ada']"),
        (r'f"\n\t\u00e9{answer}"', "\n\té['Ada']"),
        ("{self.rubrik_section} {preddiction}", 'Yes, No f"{answer}"'),
        ("", ""),
        ("no name", "no name"),
        ("f is a letter: {answer}", "f is a letter: ['Ada']"),
    ],
)
def test_templates(template, text):
    assert parse(template, POINTWISE, "f").format(**VALUES) == text


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@pytest.mark.parametrize("key", ["system", "user", "user_without_system", "assistant"])
def test_python_itself_agrees(key):
    """What the published script did with these texts, which are our own here."""
    text = yaml.safe_load(PUBLISHED)["prompt"][key]
    judge = types.SimpleNamespace(options={"Yes": 1, "No": 0}, rubrik_section="Yes, No")
    want = eval(text, {**VALUES, "self": judge}).replace(":\\ ", ": ")
    assert parse(text, POINTWISE, key).format(**VALUES) == want


EXPRESSIONS = (
    "question.upper()", "question.upper", "question[0]", "self.options", "self", "open('x')",
    "__import__('os').system('x')", "question + answer", "[q for q in question]",
    "list(self.llm)", "list(self.options.values())", "(lambda: 1)()", "self.rubrik_section.x",
    "'text'", "1", "prediction_1", "unknown",
)  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_an_f_string_asks_for_beyond_the_names_is_refused(expression):
    quoted = 'f"""{' + expression + '}"""'
    with pytest.raises(InputError) as caught:
        parse(quoted, POINTWISE, "x.yaml: prompt.user")
    assert f"x.yaml: prompt.user: the template asks for {{{expression}}}" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{question.upper}", "{question.upper}"),
        ("{question.__class__.__mro__[1]}", "{question.__class__.__mro__[1]}"),
        ("{0}", "{0}"),
        ("{}", "{}"),
        ("{question!r}", "{question!r}"),
        ("{question:>10}", "{question:>10}"),
        ("{question:{answer}}", "{question:{answer}}"),
        ('f"{question!r}"', "{question!r}"),
        ('f"{question:>10}"', "{question:…}"),
        ('f"{question=}"', "{question!r}"),
        ("{prediction_2}", "{prediction_2}"),
    ],
)
def test_plain_templates_are_refused_alike(template, named):
    with pytest.raises(InputError, match="the template asks for") as caught:
        parse(template, POINTWISE, "f")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ('f"{question', "unterminated|never closed"),  # Python 3.11, and 3.12
        ('f"{}"', "empty|valid expression required"),
        ('f"a" + f"b"', "more than one"),
        ('f"a", f"b"', "more than one"),
        ("{question", "expected '}'"),
        ("question}", "Single '}'"),
        ('f"{' + "(" * 5000 + '}"', "parenthes"),
        ('f"{' + "-" * 90000 + '1}"', "MemoryError|RecursionError|too"),
        ('f"{' + "+".join(["1"] * 30000) + '}"', "Error|too|asks for"),
        ('f"\0"', "null|does not parse"),
    ],
)
def test_what_does_not_parse(template, reason):
    with pytest.raises(InputError, match=reason):
        parse(template, POINTWISE, "f")


def test_nothing_is_evaluated(tmp_path):
    trace = tmp_path / "trace"
    path = write(tmp_path, PUBLISHED.replace("question}", f"open({str(trace)!r}, 'w')}}"))
    with pytest.raises(InputError, match=r"the template asks for \{open"):
        load(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("max_new_tokens: 1", "max_new_tokens: 0"), "max_new_tokens is 0"),
        (("max_new_tokens: 1", ""), "no key max_new_tokens; there are use_logits"),
        (("max_new_tokens: 1", "max_new_tokens: true"), "max_new_tokens is True"),
        (("use_logits: True", "use_logits: 1"), "use_logits is 1"),
        (("use_logits: True", "use_logit: True"), "unknown key use_logit; known are"),
        (("'Yes': 1", "Yes: 1"), "label True is not text in YAML; put it in quotes"),
        (("'Yes': 1", "'Yes': one"), "Yes is worth 'one'"),
        (("'Yes': 1", "'Yes': .nan"), "Yes is worth nan"),
        (("'Yes': 1", "'Yes': true"), "Yes is worth True"),
        (("'Yes': 1", "'Yes': 1" + "0" * 400), "expected a number up to 1000000000"),
        (("'Yes': 1", "'Yes': -1.0e+10"), "Yes is worth -10000000000.0"),
        (("'Yes': 1", "'Yes': .inf"), "Yes is worth inf"),
        (("'Yes': 1", '"Y\\uD800": 1'), "label 'Y\\ud800' contains a lone surrogate"),
        (('  assistant: f"Response', '  assistant: "\\uD800'), "prompt.assistant: the template"),
        (("'Yes': 1", "'Yes': -100"), "which marks an answer without a label"),
        (("'Yes': 1", "'': 1"), "an empty label"),
        (("'Yes': 1", "'No': 1"), "key 'No' is there twice"),
        (("    'No': 0\n", ""), "expected two labels or more"),
        (("  system: f", "  sistem: f"), "prompt: unknown key sistem"),
        (('  assistant: f"Response:\\ {{"', "  assistant: 3"), "prompt.assistant is 3"),
        (("prompt:\n", "prompt: !!python/object/apply:os.getcwd []\nx:\n"), ":7: not usable YAML"),
        (("prompt:\n", "prompt: !!python/name:os.system\nx:\n"), "not usable YAML"),
        (("prompt:\n", "prompt: &a [*a]\nx:\n"), ":7: not usable YAML (nested more than"),
        (("use_logits: True", "use_logits: \t True\n  x"), "not usable YAML"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, change, message):
    assert PUBLISHED.count(change[0]) == 1
    with pytest.raises(InputError) as caught:
        load(write(tmp_path, PUBLISHED.replace(*change)))
    assert message in str(caught.value)
    assert str(tmp_path / "own.yaml") in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "- a\n", "a", "{" * 3000, "a: \xff".encode("latin-1"), "a: '\0'", "? [a]\n: b\n"],
)
def test_what_is_no_mapping(tmp_path, text):
    path = tmp_path / "own.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=r"own\.yaml"):
        load(path)


def test_a_nest_of_references_is_not_printed(tmp_path):
    """Each line is ten of the one before: written out it would have 10^9 entries."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 10)]
    text = PUBLISHED.replace("'Yes': 1", "'Yes': *a9")
    path = write(tmp_path, "\n".join(lines) + text)
    with pytest.raises(InputError, match=r"own\.yaml:\d: not usable YAML \(more than 100000"):
        load(path)
    anchors = "[" * 12 + "x" + "]" * 12
    path = write(tmp_path, text.replace("*a9", anchors))
    with pytest.raises(InputError) as caught:
        load(path)
    assert len(str(caught.value)) < 300


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"no\.yaml: No such file"):
        load(tmp_path / "no.yaml")


def test_values_of_a_comparison(tmp_path):
    pairwise = """
        output_options_pairwise: {'1': 1, '2': 2}
        prompt_pairwise: {system: a, user: '{prediction_1} {prediction_2}'}
    """
    with pytest.raises(InputError, match=r"value 2\.0; expected 1"):
        load(write(tmp_path, PUBLISHED + textwrap.dedent(pairwise)))
    with pytest.raises(InputError, match="no key output_options_pairwise"):
        load(write(tmp_path, PUBLISHED + "prompt_pairwise: {system: a, user: b}\n"))
    pairwise = pairwise.replace("'2': 2", "'2': 0").replace("prediction_1", "prediction")
    with pytest.raises(InputError, match=r"prompt_pairwise\.user: the template asks for {pred"):
        load(write(tmp_path, PUBLISHED + textwrap.dedent(pairwise)))


def test_without_a_system_turn_and_a_text_for_that_the_two_are_one():
    system, user = parse("S {rubrik_section}", PAIRWISE, ""), parse("U", PAIRWISE, "")
    question = Question({"1": 1.0, "2": 0.0}, system, user)
    assert question.messages({}, system=False) == [{"role": "user", "content": "S 1, 2\n\nU"}]


@pytest.mark.parametrize(
    ("name", "side", "model"),
    list(
        itertools.product(
            ("default_qa", "default_multi_qa"), ("ours", "theirs"), ("tiny-gpt2", "tiny-qwen2")
        )
    ),
)
def test_our_files_give_the_prompts_of_the_cases_to_the_letter(name, side, model):
    want = json.loads((CASES / f"expected/{model}/judge.json").read_text(encoding="utf-8"))
    question = load(find(name)).pointwise
    items = experiment_folder.load(CASES / "judge" / side, "dev").usable
    tokenizer = load_tokenizer(CASES / "models" / model)
    system = chat_template.takes_system(tokenizer)
    [first] = pointwise.render_conversations(question, items[:1], system=system)
    assert chat_template.render(tokenizer, first) == want[f"{name} {side}"]["first_prompt"]


def test_our_two_files_differ_in_labels_and_prompts_alone():
    one, other = load(find("default_qa")), load(find("default_multi_qa"))
    assert one.pairwise == other.pairwise
    assert one.pairwise.options == {"1": 1.0, "2": 0.0, "3": 0.5}
    assert one.pointwise.options == {"Yes": 1.0, "No": 0.0}
    assert other.pointwise.options == {"Correct": 1.0, "Partially correct": 0.5, "Wrong": 0.0}
    assert (one.max_new_tokens, one.use_logits) == (other.max_new_tokens, other.use_logits)
    for each in (one, other):
        text = each.path.read_text(encoding="utf-8").splitlines()[0]
        assert text == (
            "# python -m jaxscore judge --folder experiments/NAME --llm MODEL "
            f"--llm-prompt {each.path.stem}"
        )


def test_where_names_are_looked_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find("default_qa") == PACKAGED / "default_qa.yaml"
    for folder in ("config/evaluator", "configs/evaluator"):  # the later one comes first
        own = tmp_path / folder / "default_qa.yaml"
        own.parent.mkdir(parents=True)
        own.write_text(PUBLISHED, encoding="utf-8")
        assert find("default_qa").resolve() == own
    assert find("default_multi_qa") == PACKAGED / "default_multi_qa.yaml"
    assert str(find("own.yaml")) == "own.yaml"
    assert str(find("a/b")) == "a/b"
    for name in ("none", "x" * 5000, "a\0b", ""):
        with pytest.raises(InputError, match="default_multi_qa, default_qa") as caught:
            find(name)
        assert len(str(caught.value)) < 500
