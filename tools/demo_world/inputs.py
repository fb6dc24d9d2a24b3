"""The input files of `jaxscore demo`, about held-out names, in the forms the commands read."""

import json
from pathlib import Path
from typing import Any

from tools.demo_world import held_out, prompts

PATHS, QUESTIONS, FACTS, RESPONSES = 24, 24, 4, 20  # of each system
PROMPTS = 12  # of `sample`
CATEGORIES = {"city": "place", "river": "place", "person": "person", "company": "company"}
CHOICES = ("A", "B", "C")


def write(folder: Path, seed: int) -> list[Path]:
    """Write every file that needs no model, and say which."""
    return [
        _lines(folder / "paths.jsonl", _paths(seed)),
        _lines(folder / "chronologic.jsonl", _questions(seed)),
        _lines(folder / "choose.jsonl", _choices(seed)),
        _lines(folder / "prompts.jsonl", _prompts(seed)),
        *_probsem(folder / "probsem", seed),
        *_judge(folder / "judge", seed),
    ]


def _paths(seed: int) -> list[dict[str, Any]]:
    return [
        {"id": f"demo-{i:02d}", "question": item.chain.question, "paths": [item.chain.path]}
        for i, item in enumerate(held_out.path_items(seed, PATHS))
    ]


def _prompts(seed: int) -> list[dict[str, Any]]:
    return [
        {"id": f"demo-{i:02d}", "prompt": item.user, "answer": item.answer}
        for i, item in enumerate(held_out.reasoned_items(seed, PROMPTS))
    ]


def _questions(seed: int) -> list[dict[str, Any]]:
    """Two answers or three, one of them about another subject; every third has a negation."""
    questions = []
    for i, passage in enumerate(held_out.passages(seed, QUESTIONS, 2)):
        fact, other = passage.facts
        answers = [(fact.object, "ground_truth"), (passage.other, "manual")]
        if i % 2:
            answers.append((other.object, "same_book"))
        if i % 3 == 0:
            answers.append((f"not {fact.object}", "negation"))
        questions.append(
            {
                "metadata_frame": passage.frame,
                "main_question": fact.question,
                "question_category": CATEGORIES[fact.relation.object],
                "answer_strings": [answer for answer, _ in answers],
                "answer_types": [answer_type for _, answer_type in answers],
                "answer_probabilities": [
                    float(answer_type == "ground_truth") for _, answer_type in answers
                ],
            }
        )
    return questions


def _choices(seed: int) -> list[dict[str, Any]]:
    """The questions with their answers as options; the right one has each place in turn."""
    items = []
    for i, question in enumerate(_questions(seed)):
        pairs = zip(question["answer_strings"], question["answer_types"], strict=True)
        right, *others = [
            f" {answer}" for answer, answer_type in pairs if answer_type != "negation"
        ]
        gold = i % (len(others) + 1)
        items.append(
            {
                "id": f"demo-{i:02d}",
                "context": f"{question['metadata_frame']}\nQUESTION: {question['main_question']}"
                "\nANSWER:",
                "options": [*others[:gold], right, *others[gold:]],
                "gold": gold,
                "category": question["question_category"],
            }
        )
    return items


def _probsem(folder: Path, seed: int) -> list[Path]:
    """A prompt of facts, with a suite of true and false statements and one of choices."""
    [passage] = held_out.passages(seed + 2, 1, FACTS)
    facts = passage.facts
    said = " ".join(fact.sentence for fact in sorted(facts, key=lambda fact: fact.subject))
    statements, questions = [], []
    for i, fact in enumerate(facts):
        others = [facts[(i + step) % FACTS].object for step in (1, 2)]
        statements += [
            {"text": fact.sentence, "expected": 0},
            {"text": fact.with_object(others[0]).sentence, "expected": 1},
        ]
        choices = [*others[: i % 3], fact.object, *others[i % 3 :]]
        questions.append(
            {"text": prompts.lettered_question(fact.question, choices), "expected": i % 3}
        )
    truth = {
        "pretext": prompts.TRUE_OR_FALSE,
        "context": statements,
        "posttext": prompts.CORRECT_ANSWER,
        "queries": ["True", "False"],
    }
    letter = {
        "pretext": "",
        "context": questions,
        "posttext": prompts.CORRECT_ANSWER,
        "queries": list(CHOICES),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.txt").write_text(said, encoding="utf-8")
    return [
        folder / "demo.txt",
        _whole(folder / "demo_truth.json", truth),
        _whole(folder / "demo_letter.json", letter),
    ]


def _judge(folder: Path, seed: int) -> list[Path]:
    """Two folders that answer the same questions, one rightly and one wrongly."""
    items = held_out.judged_items(seed, RESPONSES)
    return [
        _whole(
            folder / side / "eval_dev_out.json",
            [
                {
                    "q_id": f"demo-{i:02d}",
                    "response": getattr(item, side),
                    "instruction": f"Question: {item.question}?",
                    "label": [item.golden],
                    "question": item.question,
                    "ranking_label": [],
                }
                for i, item in enumerate(items)
            ],
        )
        for side in ("right", "wrong")
    ]


def _lines(path: Path, items: list[dict[str, Any]]) -> Path:
    lines = [json.dumps(item, ensure_ascii=False) for item in items]
    return _text(path, "\n".join(lines) + "\n")


def _whole(path: Path, content: Any) -> Path:
    return _text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def _text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
