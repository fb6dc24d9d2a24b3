"""The prompts, to the letter as the evaluations write them."""

from collections.abc import Iterable, Sequence

from tools.demo_world.facts import Fact

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
HEADER, HEADER_END, TURN_END = "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
SPECIAL_TOKENS = [BOS, EOS, HEADER, HEADER_END, TURN_END]

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant that answers questions accurately based on the given information."
)
SYSTEM_PROMPTS = (
    DEFAULT_SYSTEM_PROMPT,
    DEFAULT_SYSTEM_PROMPT,
    "You are a helpful assistant.",
    "Answer the question.",
    "Answer briefly and correctly.",
)

TRUE_OR_FALSE, COMPLETE = "Answer True or False.", "Complete the sentence."
CORRECT_ANSWER = "The correct answer is:"
JUDGE_LABELS = ("Yes", "No")

# Turns begin with the role's name; a first turn of role `system` is like any other.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def path_prompt(system: str, question: str, path: Sequence[str] | None) -> str:
    """Return the prompt of an answer; `path` None is the baseline without support."""
    support = "" if path is None else f"Support Path: {' -> '.join(path)}\n"
    return f"{system}\n{support}Question: {question} Answer:"


def frame_prompt(frame: str, question: str) -> str:
    """The context of a question on a passage; a blank ends it."""
    return f"{frame}\nQUESTION: {question}\nANSWER: "


def choice_prompt(frame: str, question: str, choices: Sequence[str]) -> str:
    """Lettered choices, to be answered by a letter."""
    return "\n".join(
        [
            frame,
            f"QUESTION: {question}",
            *_lines(choices),
            "Respond only with the letter of the correct answer:",
        ]
    )


def _lines(choices: Sequence[str]) -> list[str]:
    return [f"{chr(ord('A') + i)}) {choice}" for i, choice in enumerate(choices)]


def lettered_question(question: str, choices: Sequence[str]) -> str:
    """A question and its choices, a line each."""
    return "\n".join([question, *_lines(choices)])


def query_prompt(facts: str, pretext: str, context: str, posttext: str) -> str:
    """Return the prompt of a query, which is on a separate line, without empty parts."""
    return "\n".join([*filter(None, (facts, pretext, context, posttext)), ""])


def judge_conversation(question: str, golden: Sequence[str], answer: str) -> str:
    """Return the prompt of the label, without the BOS token that the chat template writes."""
    return (
        turn("system", judge_system(JUDGE_LABELS))
        + turn("user", judge_user(JUDGE_LABELS, question, golden, answer))
        + turn_start("assistant")
    )


def judge_system(labels: Sequence[str]) -> str:
    return f"You are an evaluation tool. Answer with one of {', '.join(labels)}."


def judge_user(labels: Sequence[str], question: str, golden: Sequence[str], answer: str) -> str:
    """Golden answers are printed as Python prints a list, as published scores had them."""
    return (
        "Here is a question, a golden answer and an AI-generated answer. Can you judge whether "
        "the AI-generated answer is correct according to the question and golden answer, simply "
        f"answer with one of {', '.join(labels)}.\n Question: {question}. \n"
        f"Golden answer: {list(golden)} \n Generated answer: {answer}"
    )


def reasoned_user(facts: Iterable[Fact], question: str) -> str:
    """A question on facts, to be answered as JSON."""
    passage = " ".join(fact.sentence for fact in facts)
    return f"{passage}\nQuestion: {question}\nAnswer as JSON with reasoning and answer.".lstrip()


def reasoned_answer(facts: Iterable[Fact], answer: str) -> str:
    """The requested JSON."""
    reasons = " ".join(fact.sentence for fact in facts)
    return f'{{"reasoning": "{reasons}", "answer": "{answer}"}}'


def turn(role: str, content: str) -> str:
    """A whole turn of a conversation, as `CHAT_TEMPLATE` renders it."""
    return f"{turn_start(role)}{content.strip()}{TURN_END}"


def turn_start(role: str) -> str:
    """The head of a turn, after which its content is written."""
    return f"{HEADER}{role}{HEADER_END}\n\n"
