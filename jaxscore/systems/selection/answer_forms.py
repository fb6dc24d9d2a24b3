r"""The forms of a final answer: one table, and one reader for each.

| form | example | read |
|---|---|---|
| tag | <answer>42</answer> | the last one that is closed and not empty; by the next three forms |
| json | {"answer": "42"} | the last complete object with this field, or the last `"answer": ...` |
| boxed | \boxed{42} | the last one that is closed and not empty; also \fbox{}, `\boxed 42` |
| answer | The answer is 42. | after the last `answer:`, `answer is`, heading, in 16 languages |
| number | ... which makes 42. | the last number, if the gold is one |
| sentence | It is Paris. | the last sentence, if the gold is a text; its letter, if it is one |

A type of gold decides what of a form counts: a number, a letter, or the whole of it. Thoughts do
not count: what is before </think>, or after a <think> that is open.

Each reader takes time linear in the length of a response.
"""

import contextlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from jaxscore.systems.selection.equal_answers import first_clause
from jaxscore.systems.selection.numbers_in_text import (
    first_number,
    last_number,
    number_of,
    only_number,
)

TAG, JSON, BOX, ANSWER, NUMBER, SENTENCE = "tag", "json", "boxed", "answer", "number", "sentence"
Gold = Literal["number", "letter", "text"]  # the type of a right answer

MOST_TRIED = 16  # answers of a form, from the last one, until one has the type of the gold
LONGEST = 1000  # characters of an answer in a line
LONGEST_LETTER = 6  # of a sentence that is a letter and nothing else, such as `(a).`

_THOUGHT_END = re.compile(r"</think(?:ing)?>|\[/THINK\]|<\|channel\|>final<\|message\|>", re.I)
_THOUGHT_START = re.compile(r"<think(?:ing)?>|\[THINK\]", re.I)
_TAG = re.compile(r"<(/?)answer>", re.I)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-z])\s*")
_UNBRACED = re.compile(r"[^\s\\$.,;:!?]+(?:[.,][0-9]+)*|\\[dt]?frac[^\s$.,;]*")
_QUOTED = re.compile(r'"answer"\s*:\s*(?:"([^"]*)"|([^,\s}]+))')
_ANSWER_WORDS = (
    r"\b(?:answers?|antwort|antwoord|r\xe9ponse|respuesta|resposta|risposta|odpowied\u017a|svar"
    r"|cevap|jawaban|\u043e\u0442\u0432\u0435\u0442|\u0432\u0456\u0434\u043f\u043e\u0432\u0456\u0434\u044c)\b"
    r"|\u7b54\u6848|\u7b54\u3048|\u6b63\u89e3|\u56de\u7b54|\uc815\ub2f5|\ub2f5|\u0627\u0644\u0625\u062c\u0627\u0628\u0629"
    r"|\u0909\u0924\u094d\u0924\u0930"
)
_MARKS = r"[ \t*_]{0,8}"
# `this answer is long` is not an answer; `the answer to 3 + 4 is 7` and the like are.
_STATEMENT = re.compile(
    rf"(?<!this )(?<!that )(?<!your )(?<!an )(?:{_ANSWER_WORDS})"
    rf"(?:{_MARKS}[:=]|[ ](?:to|for|of)\b[^.:=\n]{{0,80}}?[ ](?:is|are)\b[ \t]?:?"
    rf"|{_MARKS}\b(?:is|are|was|be|would[ ]be|must[ ]be|should[ ]be|est|es|ist|lautet)\b[ \t]?:?"
    rf"|[ ]?(?:\u306f|\u662f|\u4e3a|\u70ba|\ub294|\uc740)[ ]?:?)"
    r"[\s*_`]{0,16}",
    re.IGNORECASE,
)
_HEADING = re.compile(
    rf"^[#>*_ \t]{{0,8}}(?:(?:the|my|final|correct)[ ]){{0,2}}(?:{_ANSWER_WORDS}){_MARKS}\n"
    r"[\s*_`]{0,16}",
    re.IGNORECASE | re.MULTILINE,
)
_MARKUP = " \t\r\n*_`"
_LATIN = r"[A-Za-z0-9_'\u00c0-\u024f\u2019]"  # next to which a letter is part of a word
_LETTER = re.compile(
    r"[\s*_`$({\[\\]*(?:(?:text|textbf|mathrm|mathbf)\{)?\(?"
    rf"(?:([A-Z])(?:\1{{3,}})?(?!{_LATIN})|([a-z])(?=[).\]}}*]|\s*$))"
)
_HEDGED = re.compile(r"[\s)*]*(?:,|/|\bor\b|\band\b|&)\s*\(?[A-Z]\b(?!\w)")
_ARTICLE = re.compile(
    r"[ \t]+(?!(?:is|was|or|and|as|because|since|with|from|would)\b)[a-z]"
)  # A cat
_NAMED_LETTER = re.compile(
    r"(?:\b(?i:is|be|option|choice|choose|select|pick)|\u9009|\u9078)\s*:?\s*[*_(\"'$]{0,4}([A-Z])\b"
)
_ALONE = re.compile(rf"(?<!{_LATIN})([A-Z])(?!{_LATIN})")
_OBJECT_START = re.compile(r"\s*(?:```\w*\s*)?\{\s*\"")
_SENTENCE_END = re.compile(r"[.!?\u2026]+[)\"'\]*_\u201d]*\s+(?![a-z])|[\u3002\uff01\uff1f]+|\n")
_COURTESY = re.compile(
    r"(?:I )?hope |Let me know|Feel free|Please let|If you (?:have|need)|Is there any|Would you",
    re.IGNORECASE,
)
_ABBREVIATION = re.compile(
    r"(?:\b(?:St|Dr|Mr|Mrs|Ms|Prof|No|vs|etc|Mt|Ft|Jr|Sr|approx|ca)|\b\w)$", re.IGNORECASE
)
# Full-width forms, such as those of a colon, of digits and of letters; and fractions.
_PLAIN: dict[int, int | str] = {0xFF01 + k: 0x21 + k for k in range(94)}
_PLAIN |= {0x3000: " ", 0xBC: " 1/4", 0xBD: " 1/2", 0xBE: " 3/4", 0x2153: " 1/3", 0x2154: " 2/3"}


def final_text(response: str) -> str:
    """Return what a response says after its thoughts, with full-width forms in ASCII."""
    *_, end = [0, *(match.end() for match in _THOUGHT_END.finditer(response))]
    text = response[end:]
    if start := _THOUGHT_START.search(text):
        text = text[: start.start()]
    return unicodedata.normalize("NFC", text).translate(_PLAIN)


def has_thoughts(response: str) -> bool:
    """Return True if a response has thoughts before its answer."""
    return any(pattern.search(response) for pattern in (_THOUGHT_START, _THOUGHT_END))


def read_first(
    response: str, forms: Sequence[str], gold: Gold | None = None
) -> tuple[str, str] | None:
    """Return the answer of the first form that the response holds, and that form; None without any.

    Args:
        forms: the keys of `READERS` to try, in order.
        gold: the type of the right answer, or None if unknown.
    """
    text = final_text(response)
    for form in forms:
        for content, _ in zip(READERS[form](text), range(MOST_TRIED), strict=False):
            if (answer := _of_type(content, form, gold)) is not None:
                return answer, form
    return None


def _of_type(answer: str, form: str, gold: Gold | None) -> str | None:
    """Return the part of an answer that has the type of the gold, or None if it has none."""
    if form == TAG and (inner := read_first(answer, (JSON, BOX, ANSWER), gold)) is not None:
        return inner[0]
    if gold == "letter":
        letter = _letter_of_sentence(answer) if form == SENTENCE else None
        is_letter = form != SENTENCE or len(answer) <= LONGEST_LETTER
        return letter or (letter_of(answer) if is_letter else None)
    if gold != "number":
        if form != ANSWER or gold is not None:
            return answer
        clause = first_clause(answer)
        return (only_number(clause) if clause[0] in "0123456789-.$" else None) or clause
    if form == SENTENCE or number_of(answer.rstrip(" .").strip(" $")) is not None:
        return answer.rstrip(" .")
    if form == BOX:
        return only_number(answer) or answer
    clause = first_clause(answer)
    if _LIST.match(clause):
        return clause
    return first_number(clause.rpartition("=")[2]) or first_number(answer)


_LIST = re.compile(
    r"[\s$(\[{\\]*[-\u2212]?[0-9.]+\s*(?:,(?![0-9]{3}(?![0-9]))|;)\s*[-\u2212]?[0-9.]+"
)


def letter_of(answer: str) -> str | None:
    """Return the letter with which an answer begins, as `(B) Paris` does, or None."""
    match = _LETTER.match(answer)
    if match is None:
        return None
    letter, rest = match[1] or match[2], answer[match.end() :]
    if (letter in "AI" and _ARTICLE.match(rest)) or _HEDGED.match(rest):
        return None
    return letter.upper()


def _letter_of_sentence(sentence: str) -> str | None:
    """Return the letter that a sentence names as its choice, or its only one; None without it."""
    names = [m for m in _NAMED_LETTER.finditer(sentence) if not _is_article(sentence, m)]
    if names:
        match = names[-1]
        return None if _HEDGED.match(sentence, match.end()) else match[1]
    alone = {m[1] for m in _ALONE.finditer(sentence) if not _is_article(sentence, m)}
    return alone.pop() if len(alone) == 1 else None


def _is_article(sentence: str, match: re.Match[str]) -> bool:
    return match[1] in "AI" and _ARTICLE.match(sentence, match.end()) is not None


def _tags(text: str) -> Iterator[str]:
    """Iterate over the contents of answer tags from the last; an open one only without others."""
    closed, start = [], None
    for match in _TAG.finditer(text):
        if not match[1]:
            start = match.end()
        elif start is not None:
            closed.append(text[start : match.start()].strip())
            start = None
    if start is not None and not any(closed):
        closed.append(text[start:].strip())
    yield from filter(None, reversed(closed))


def _json(text: str) -> Iterator[str]:
    """Iterate over the answers of JSON objects from the last, or over those of `"answer": ...`."""
    answers = [answer for answer in map(_json_answer, _objects(text)) if answer is not None]
    if not answers:
        answers = [match[1] or match[2] or "" for match in _QUOTED.finditer(text)]
    yield from reversed(answers)


def _objects(text: str) -> Iterator[str]:
    """Iterate over the texts in balanced braces that are not in others."""
    start, depth = 0, 0
    for brace in re.finditer("[{}]", text):
        if brace.group() == "{":
            start = start if depth else brace.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield text[start : brace.end()]


def _json_answer(text: str) -> str | None:
    if '"answer"' not in text:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        # Models break lines inside strings. Numbers keep their digits.
        value: Any = json.loads(text, strict=False, parse_int=str, parse_float=str).get("answer")
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return None if value is None or isinstance(value, dict) else str(value)
    return None


def _boxes(text: str) -> Iterator[str]:
    """Iterate over the contents of boxes from the last; of a box in a box over the inner's."""
    openings: list[int] = []  # of the braces that are open; -1 of one that is not a box
    starts = {match.end(): match for match in _BOX.finditer(text)}
    contents: list[str] = []
    for brace in re.finditer("[{}]", text):
        if brace.group() == "{":
            openings.append(brace.end() if brace.start() in starts else -1)
        elif openings and (start := openings.pop()) >= 0:
            content = text[start : brace.start()].strip()
            if content and not _BOX.match(content):
                contents.append(content)
    if not contents:
        for start in starts:
            if (match := _UNBRACED.match(text, start)) and (
                number_of(match.group()) is not None or len(match.group().strip("{}")) == 1
            ):
                contents.append(match.group())
    yield from reversed(contents)


def _statements(text: str) -> Iterator[str]:
    """Iterate over what follows `answer:` and the like, up to the line's end, from the last."""
    ends = {match.end() for pattern in (_STATEMENT, _HEADING) for match in pattern.finditer(text)}
    for end in sorted(ends, reverse=True):
        lines = text[end : end + LONGEST].split("\n")[:MOST_TRIED]
        line = next((line for line in lines if any(map(str.isalnum, line))), "")
        if line := line.strip(_MARKUP).removesuffix(".").rstrip(_MARKUP):
            yield line


def _numbers(text: str) -> Iterator[str]:
    if (number := last_number(text)) is not None:
        yield number


def last_sentences(text: str) -> Iterator[str]:
    """Iterate over the sentences with a letter or digit from the last, without courtesies.

    JSON that ends before its object does is cut off, and has none.
    """
    end = len(text)
    if _OBJECT_START.match(text) and not text.rstrip("` \n").endswith("}"):
        return
    for match in reversed(list(_SENTENCE_END.finditer(text))):
        if _ABBREVIATION.search(text, max(0, match.start() - 10), match.start()):
            continue
        sentence, end = text[match.end() : end].strip(), match.start()
        if any(map(str.isalnum, sentence)) and not _COURTESY.match(sentence):
            yield sentence[-LONGEST:]
    if any(map(str.isalnum, text[:end])):
        yield text[:end].strip()[-LONGEST:]


READERS: dict[str, Callable[[str], Iterator[str]]] = {
    TAG: _tags,
    JSON: _json,
    BOX: _boxes,
    ANSWER: _statements,
    NUMBER: _numbers,
    SENTENCE: last_sentences,
}
