"""Names of items and their messages, read from the prompts that models get."""

# ruff: noqa: RUF001, RUF003 - marks of Chinese and Arabic prompts

import re
from collections.abc import Sequence
from typing import NamedTuple

# The end of a prompt that asks for the answer: "Answer:", "A:", "The answer is", "答案：".
CUE = re.compile(
    r"(?:(?:the|so,? the)\s+)?(?:(?:correct|right|best|final|your)\s+)?"
    r"(?:answer|ans|response|choice|option|completion|solution|output|a|r|antwort|réponse|respuesta"
    r"|risposta|resposta|odpowiedź|ответ|答案|回答|答|答え|정답|답|الجواب|الإجابة|उत्तर)"
    r"(?:\s+is)?\s*[:：]?\s*[(（]?",
    re.IGNORECASE,
)
QUESTION = re.compile(
    r"(?:question|q|query|problem|frage|pregunta|domanda|pergunta|pytanie|вопрос|问题|問題|问|質問|질문|السؤال"
    r"|प्रश्न)(?:\s*\d+)?\s*[:：.]\s*(?=\S)",
    re.IGNORECASE,
)
OPTION = re.compile(r"\(?[A-Za-z0-9]{1,2}[.):：]\s*\S|[-*•]\s+\S")
OPTIONS = re.compile(r"(?:options|choices|选项|選択肢)\s*[:：]", re.IGNORECASE)
ASKS = re.compile(r".*[?？؟]\s*")
SENTENCE_END = re.compile(r"(?<=[.?!。？！؟…\"')\]])\s*(?=\S)")


def question_of(prompt: str) -> str:
    """Return the question of a prompt as one line, or else its last line that says something.

    The question is the text after the last "Question:" or the like, or the last line with a
    question mark. Options and the request for an answer, such as "Answer:", are not part of it.
    """
    if messages := messages_of(prompt):
        prompt = last_of_user(messages)
    stripped = [" ".join(line.split()) for line in prompt.splitlines() if line.strip()]
    lines = [line for line in map(without_cue, stripped) if line]
    for is_question in (QUESTION.match, ASKS.fullmatch):
        for line in reversed(lines):
            if is_question(line):
                label = QUESTION.match(line)
                return line[label.end() :] if label else line
    others = [line for line in lines if not OPTION.match(line) and not OPTIONS.fullmatch(line)]
    return (others or lines or stripped or [""])[-1]


def without_cue(line: str) -> str:
    """Return a line without the request for an answer at its end; empty if that is all of it."""
    if CUE.fullmatch(line):
        return ""
    for match in SENTENCE_END.finditer(line):
        last = line[match.end() :]
        if CUE.fullmatch(last) and re.search(r"[:：]", last):
            return line[: match.start()]
    return line


class Message(NamedTuple):
    """A message of a chat; the role is empty where the prompt does not name it."""

    role: str
    text: str


# `<|im_end|>`, `<｜User｜>`, `<start_of_turn>`, `[/INST]`, `<s>` and the like
TOKEN = re.compile(
    r"(<[|｜][^|｜<>\s]{1,40}[|｜]>|</?s>|<(?:bos|eos|pad|sop|start_of_turn|end_of_turn)>|\[gMASK\]"
    r"|\[/?(?:INST|SYSTEM_PROMPT)\]|<</?SYS>>)"
)
BEFORE_ROLE = re.compile(
    r"im_start|start_header_id|header_start|start_of_turn|start_of_role|start|channel"
)
ROLES = {
    "/inst": "assistant", "/system_prompt": "user", "/sys": "user", "inst": "user", "sys": "system",
    "system": "system", "system_prompt": "system", "developer": "developer", "user": "user",
    "human": "user", "assistant": "assistant", "chatbot": "assistant", "bot": "assistant",
    "model": "assistant", "tool": "tool", "observation": "tool",
}  # fmt: skip
HEADER_END = re.compile(r"end_header_id|header_end|end_of_role|message")
BOUNDARY = re.compile(r"/?s|bos|eos|pad|sop|gmask|.*(?:begin|end|start|eot|eom|return|im_sep).*")


def messages_of(prompt: str) -> list[Message]:
    """Return the messages of a prompt that a chat template wrote; none without its tokens."""
    messages: list[Message] = []
    role, text, is_role_next = "", "", False
    parts = TOKEN.split(prompt)
    names = [_name(piece) if k % 2 else "" for k, piece in enumerate(parts)]
    if not any(names):
        return []
    for piece, name in zip([*parts, ""], [*names, "end"], strict=True):
        if not name:
            text += piece
            continue
        if is_role_next:
            role, _, text = text.partition("\n")
            role = ROLES.get(role.strip(), role.strip())
        if text.strip():
            messages.append(Message(role, text.strip()))
        text, is_role_next = "", bool(BEFORE_ROLE.fullmatch(name))
        if not HEADER_END.fullmatch(name):
            role = ROLES.get(name, "")
    return messages


def _name(token: str) -> str:
    """Return a template's token in letters, or nothing if no template writes it."""
    name = re.sub(r"[^a-z/_]", "", token.lower().replace("▁", "_")).removesuffix("_token")
    is_known = name in ROLES or any(
        pattern.fullmatch(name) for pattern in (BEFORE_ROLE, HEADER_END, BOUNDARY)
    )
    return name if is_known else ""


def last_of_user(messages: Sequence[Message]) -> str:
    """Return the text of the user's last message, or of the last message without one."""
    texts = [message.text for message in messages if message.role == "user"]
    return [*(message.text for message in messages), *texts][-1] if messages else ""
