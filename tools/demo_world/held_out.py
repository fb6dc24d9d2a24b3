"""Questions about things whose names are in no training document."""

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path

from tools.demo_world import prompts
from tools.demo_world.facts import Chain, Fact, fresh_chain, fresh_facts
from tools.demo_world.names import Names

INPUT_ITEMS = 24


@dataclasses.dataclass(frozen=True)
class PathItem:
    """A question with its support path, and answers of the right kind that are wrong."""

    chain: Chain
    wrong: tuple[str, ...]

    def prompt(self, supported: bool) -> str:
        path = self.chain.path if supported else None
        return prompts.path_prompt(prompts.DEFAULT_SYSTEM_PROMPT, self.chain.question, path)


@dataclasses.dataclass(frozen=True)
class LabelItem:
    """A prompt to be answered by one of a few labels."""

    prompt: str
    labels: tuple[str, ...]
    right: int


def path_items(seed: int, count: int, n_wrong: int = 3) -> list[PathItem]:
    """Items in turn of one, two and three steps, the answers never a common noun."""
    rng = random.Random(f"held out paths {seed}")
    names = Names(rng, held_out=True)
    items: list[PathItem] = []
    while len(items) < count:
        chain = fresh_chain(rng, names, 1 + len(items) % 3)
        kind = chain.facts[-1].relation.object
        if kind != "profession":
            items.append(PathItem(chain, tuple(names.draw(kind) for _ in range(n_wrong))))
    return items


def choice_items(seed: int, count: int) -> list[LabelItem]:
    """Three lettered choices, one of which the passage's description names."""
    rng = random.Random(f"held out choices {seed}")
    names = Names(rng, held_out=True)
    items = []
    for _ in range(count):
        facts, author = fresh_facts(rng, names, 2), names.draw("person")
        said = " ".join(fact.sentence for fact in facts)
        frame = f"The following passage comes from a letter written in 1871 by {author}. {said}"
        choices = [*(fact.object for fact in facts), names.draw(facts[0].relation.object)]
        rng.shuffle(choices)
        prompt = prompts.choice_prompt(frame, facts[0].question, choices)
        items.append(LabelItem(prompt, (" A", " B", " C"), choices.index(facts[0].object)))
    return items


def truth_items(seed: int, count: int) -> list[LabelItem]:
    """Statements on two given facts, each object of them told of either subject."""
    rng = random.Random(f"held out truth {seed}")
    names = Names(rng, held_out=True)
    items = []
    for i in range(count):
        facts = fresh_facts(rng, names, 2)
        said = " ".join(fact.sentence for fact in facts)
        stated: Fact = facts[0].with_object(facts[i % 2].object)
        prompt = f"{said}\nAnswer True or False.\n{stated.sentence}\nThe correct answer is:\n"
        items.append(LabelItem(prompt, ("True", "False"), i % 2))
    return items


def judge_items(seed: int, count: int) -> list[LabelItem]:
    """Responses that are the golden answer, alone or in a sentence, or are another name."""
    rng = random.Random(f"held out judge {seed}")
    names = Names(rng, held_out=True)
    labels = ("Yes", "No")
    items = []
    for i in range(count):
        fact = fresh_facts(rng, names, 1)[0]
        said = names.draw(fact.relation.object) if i % 2 else fact.object
        response = rng.choice((said, f"The answer is {said}."))
        user = prompts.judge_user(labels, fact.bare_question, [fact.object], response)
        prompt = (
            prompts.turn("system", prompts.judge_system(labels))
            + prompts.turn("user", user)
            + prompts.turn_start("assistant")
        )
        items.append(LabelItem(prompt, labels, i % 2))
    return items


def write_inputs(folder: Path, seed: int) -> Path:
    """`paths.jsonl`: questions and support paths in the input form of `paths`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "paths.jsonl"
    lines = [
        json.dumps(_input_item(i, item.chain.question, [item.chain.path]), ensure_ascii=False)
        for i, item in enumerate(path_items(seed, INPUT_ITEMS))
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _input_item(i: int, question: str, paths: Sequence[Sequence[str]]) -> dict[str, object]:
    return {"id": f"demo-{i:02d}", "question": question, "paths": paths}
