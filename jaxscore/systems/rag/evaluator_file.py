"""Evaluator files: the judge's prompt, the labels it may answer, and their worth.

    max_new_tokens: 10
    use_logits: true
    output_options: {'Yes': 1, 'No': 0}
    prompt: {system: "...", user: "... {question} ...", user_without_system: "..."}
    output_options_pairwise: {'1': 1, '2': 0, '3': 0.5}
    prompt_pairwise: {system: "...", user: "... {prediction_1} ... {prediction_2} ..."}

Templates are parsed, never evaluated. They are plain text with `{name}`, or Python f-strings
(`f"... {self.rubrik_section} ..."`), which BERGEN's first files have and its scripts evaluated.
In both only the names of `NAMES` are filled; anything else in braces (attribute, call, index,
conversion or format) is refused.
"""

import ast
import dataclasses
import re
import string
import warnings
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as short  # of values that a file may nest without end
from typing import Any, Literal

from jaxscore.errors import InputError, is_valid_unicode, near
from jaxscore.io.yaml_input import read_yaml
from jaxscore.text.chat_template import Message
from jaxscore.text.whole_words import whole_words

LabelMatch = Literal["word", "substring"]  # the rule by which a written answer has a label

# The exact text allowed in braces -> the name of its value. The two calls are in BERGEN's files
# and are matched as text, like names; `preddiction` is its second file's spelling.
NAMES = {
    "rubrik_section": "rubrik_section",
    "self.rubrik_section": "rubrik_section",
    "list(self.options)": "options",
    "list(self.options.keys())": "options",
    "question": "question",
    "answer": "answer",
    "prediction": "prediction",
    "preddiction": "prediction",
    "prediction_1": "prediction_1",
    "prediction_2": "prediction_2",
}
SHOWN_NAMES = 20  # evaluators listed in a message
MOST_WORTH = 1e9  # keeps sums of worths finite
UNKNOWN = -100.0  # the score of a record whose answer names no label, or several
COMMON = frozenset({"rubrik_section", "options", "question", "answer"})
POINTWISE = COMMON | {"prediction"}
PAIRWISE = COMMON | {"prediction_1", "prediction_2"}

PACKAGED = Path(__file__).parent / "evaluators"
PLACES = (Path("configs/evaluator"), Path("config/evaluator"), PACKAGED)
KEYS = (
    "max_new_tokens", "use_logits", "output_options", "prompt", "output_options_pairwise",
    "prompt_pairwise",
)  # fmt: skip
TURNS = ("system", "user", "user_without_system", "assistant")
HALF = "contains a lone surrogate (invalid Unicode); write the character itself"
F_STRING = re.compile(r"""\s*([fF][rR]?|[rR][fF])["']""")


@dataclasses.dataclass(frozen=True)
class Question:
    """The turns of a conversation, and the worth of each label that may answer it.

    The turns are `str.format` templates, see `parse`.

    Attributes:
        options: label -> worth, in the order of the file.
        user_without_system: the user's turn for a model whose template lacks a system turn; if
            None, the system's text and the user's are one turn.
        assistant: the beginning of the answer, as a separate turn; None (usual) leaves it to the
            model.
        label_match: the rule that finds labels in a written answer; see `labels_in`.
    """

    options: dict[str, float]
    system: str
    user: str
    user_without_system: str | None = None
    assistant: str | None = None
    label_match: LabelMatch = "word"

    def messages(self, values: Mapping[str, str], *, system: bool) -> list[Message]:
        """Return the conversation up to the judge's answer.

        Args:
            values: name -> text, for each name of the templates except the labels.
            system: True if the model takes a system turn.
        """
        rubric = {"rubrik_section": ", ".join(self.options), "options": str(list(self.options))}
        values = {**values, **rubric}
        if system:
            turns = [("system", self.system), ("user", self.user)]
        else:
            alone = self.user_without_system
            turns = [("user", f"{self.system}\n\n{self.user}" if alone is None else alone)]
        if self.assistant is not None:
            turns.append(("assistant", self.assistant))
        # `format` does not parse the inserted texts again.
        return [{"role": role, "content": text.format(**values)} for role, text in turns]

    def template(self, *, system: bool) -> list[Message]:
        """Return `messages` with `{question}` and the like in place of a record's texts."""
        return self.messages({name: f"{{{name}}}" for name in NAMES.values()}, system=system)

    def labels_in(self, text: str) -> list[str]:
        """Return the labels in a text, case-sensitive, the longest first.

        By `label_match` "word" they are whole words, and a label inside a longer one does not
        count: "Correct" in "Incorrect", 1 in 10. By "substring", the published rule, each label
        that occurs anywhere counts.
        """
        if self.label_match == "substring":
            return [label for label in self.options if label in text]
        labels = []
        for label in sorted(self.options, key=len, reverse=True):
            text, n_occurrences = whole_words(label).subn("\0", text)
            if n_occurrences:
                labels.append(label)
        return labels

    def worth(self, text: str) -> float:
        """Return the worth of the only label in a text, or `UNKNOWN` for none or several."""
        labels = self.labels_in(text)
        return self.options[labels[0]] if len(labels) == 1 else UNKNOWN


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """One evaluator file.

    Attributes:
        use_logits: True if the answer is read from next-token probabilities instead of text.
        pairwise: the pairwise prompt, or None if the file lacks it.
    """

    path: Path
    max_new_tokens: int
    use_logits: bool
    pointwise: Question
    pairwise: Question | None


def find(name: str) -> Path:
    """Return the file of an evaluator.

    Args:
        name: a path, recognised by its ending .yaml or .yml or by a slash; else the name of a
            file in configs/evaluator, config/evaluator (BERGEN's) or this package.

    Raises:
        InputError: there is no such file; names the searched folders.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    for folder in PLACES:
        path = folder / f"{name}.yaml"
        try:
            if path.is_file():
                return path
        except (OSError, ValueError):  # too long, or a zero byte
            break
    names = sorted({path.stem for folder in PLACES for path in folder.glob("*.yaml")})
    listed, similar = ", ".join(names[:SHOWN_NAMES]), near(name, names)
    raise InputError(
        f"evaluator {name[:80]} (--llm-prompt): no {name[:80]}.yaml in {PLACES[0]}, in {PLACES[1]} "
        f"or among the packaged ones; there are {listed}; give one of these or the path of a file"
        + (f"; is it {similar}?" if similar else "")
    )


def load(path: Path) -> Evaluator:
    """Read and check an evaluator file.

    Raises:
        InputError: the file is unreadable or not YAML, a key is unknown, missing or of another
            type, or a template has a field that is not filled.
    """
    raw, where = read_yaml(path), str(path)
    if not isinstance(raw, dict):
        raise InputError(f"{where}: expected a mapping with the keys {', '.join(KEYS)}")
    _check_keys(raw, KEYS, where)
    tokens, use_logits = _take(raw, "max_new_tokens", where), raw.get("use_logits", True)
    if type(tokens) is not int or tokens < 1:
        raise InputError(
            f"{where}: max_new_tokens is {short(tokens)}, expected a whole number above 0"
        )
    if not isinstance(use_logits, bool):
        raise InputError(f"{where}: use_logits is {short(use_logits)}, expected true or false")
    pairwise = None
    if "prompt_pairwise" in raw or "output_options_pairwise" in raw:
        pairwise = _question(raw, "_pairwise", PAIRWISE, where)
        if others := set(pairwise.options.values()) - {0.0, 0.5, 1.0}:
            raise InputError(
                f"{where}: output_options_pairwise has the value {min(others)}; expected 1 (the "
                "first is better), 0 (the second) or 0.5 (neither)"
            )
    return Evaluator(path, tokens, use_logits, _question(raw, "", POINTWISE, where), pairwise)


def parse(text: str, allowed: frozenset[str], where: str) -> str:
    """Convert a template, plain or an f-string, to one of `str.format`.

    Args:
        allowed: the names of values that the template may use.
        where: file and key, for messages.

    Raises:
        InputError: it does not parse, or braces contain anything else.
    """
    fields = _f_string(text, where) if F_STRING.match(text) else _plain(text, where)
    template = ""
    for literal, field in fields:
        if not is_valid_unicode(literal):
            raise InputError(f"{where}: the template {HALF}")
        name = NAMES.get(field) if field is not None else None
        if field is not None and name not in allowed:
            fillable = ", ".join(sorted(allowed - {"options"}))
            raise InputError(
                f"{where}: the template asks for {{{field[:80]}}}; only {fillable} are filled, "
                "without attribute, call, index, conversion or format. Write {{ and }} for braces"
            )
        template += literal.replace("{", "{{").replace("}", "}}")
        template += "" if name is None else f"{{{name}}}"
    return template


def _plain(text: str, where: str) -> list[tuple[str, str | None]]:
    """Return the (literal, exact text in the braces after it) of a `str.format` template."""
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as problem:
        raise InputError(
            f"{where}: the template does not parse ({problem}); write {{{{ and }}}} for braces"
        ) from None
    return [
        (
            literal,
            None
            if name is None
            else name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else ""),
        )
        for literal, name, spec, conversion in parts
    ]


def _f_string(text: str, where: str) -> list[tuple[str, str | None]]:
    """Return the same for an f-string, from its syntax tree, which is not evaluated."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the invalid escape `\ `, see `_part`
            body = ast.parse(text.strip(), mode="eval").body
        if not isinstance(body, ast.JoinedStr):
            raise SyntaxError("there is more than one f-string in it")
        return [_part(node) for node in body.values]
    except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
        reason = problem.msg if isinstance(problem, SyntaxError) else type(problem).__name__
        raise InputError(f"{where}: the f-string does not parse ({reason})") from None


def _part(node: ast.expr) -> tuple[str, str | None]:
    if isinstance(node, ast.FormattedValue):
        conversion = "" if node.conversion == -1 else f"!{chr(node.conversion)}"
        spec = "" if node.format_spec is None else ":…"
        return "", ast.unparse(node.value) + conversion + spec
    assert isinstance(node, ast.Constant)  # an f-string has no other parts
    # A colon and a space would end a plain YAML scalar, so BERGEN's files have `:\ ` there.
    return str(node.value).replace(":\\ ", ": "), None


def _question(raw: dict[str, Any], ending: str, allowed: frozenset[str], where: str) -> Question:
    key = f"prompt{ending}"
    options = _options(_take(raw, f"output_options{ending}", where), where, ending)
    turns = _take(raw, key, where)
    if not isinstance(turns, dict):
        raise InputError(
            f"{where}: {key} is {short(turns)}, expected a mapping with the keys "
            f"{', '.join(TURNS[:3])}"
        )
    _check_keys(turns, TURNS, f"{where}: {key}")
    if not {"system", "user"} <= turns.keys():
        raise InputError(f"{where}: {key} needs `system` and `user`; it has {', '.join(turns)}")
    templates: dict[str, Any] = {}
    for name, text in turns.items():
        if not isinstance(text, str):
            raise InputError(f"{where}: {key}.{name} is {short(text)}, expected text")
        templates[name] = parse(text, allowed, f"{where}: {key}.{name}")
    return Question(options, **templates)


def _options(value: Any, where: str, ending: str) -> dict[str, float]:
    where = f"{where}: output_options{ending}"
    if not isinstance(value, dict) or len(value) < 2:
        raise InputError(f"{where} is {short(value)}, expected two labels or more")
    for label, worth in value.items():
        if problem := _problem(label, worth):
            raise InputError(f"{where}: {problem}")
    return {label: float(worth) for label, worth in value.items()}


def _problem(label: Any, worth: Any) -> str | None:
    """Return the reason why a label or its worth cannot be used, or None if they can."""
    if not isinstance(label, str):
        return f"label {short(label)} is not text in YAML; put it in quotes, as 'Yes'"
    if not is_valid_unicode(label):
        return f"label {label!a} {HALF}"
    if not label:
        return "an empty label occurs in every answer"
    is_number = isinstance(worth, int | float) and not isinstance(worth, bool)
    if not is_number or not abs(worth) <= MOST_WORTH:  # nor NaN
        return f"{label} is worth {short(worth)}, expected a number up to {MOST_WORTH:.0f}"
    if worth == UNKNOWN:
        return f"{label} is worth {worth}, which marks an answer without a label"
    return None


def _take(raw: dict[str, Any], name: str, where: str) -> Any:
    if name not in raw:
        there = ", ".join(map(str, raw)) or "none"
        raise InputError(f"{where}: no key {name}; there are {there}")
    return raw[name]


def _check_keys(raw: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    if unknown := [str(name) for name in raw if name not in names]:
        raise InputError(f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(names)}")
