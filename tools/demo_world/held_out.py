"""Questions about things whose names are in no training document."""

import dataclasses
import random

from tools.demo_world import prompts
from tools.demo_world.facts import Chain, Fact, fresh_chain, fresh_facts
from tools.demo_world.names import Names


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
        object_type = chain.facts[-1].relation.object
        if object_type != "profession":
            items.append(PathItem(chain, tuple(names.draw(object_type) for _ in range(n_wrong))))
    return items


@dataclasses.dataclass(frozen=True)
class Passage:
    """A description of a passage that states facts of one relation, and a question on the first.

    Attributes:
        other: a name of the right kind that the description does not hold.
    """

    frame: str
    facts: tuple[Fact, ...]
    other: str

    @property
    def asked(self) -> Fact:
        return self.facts[0]


def passages(seed: int, count: int, n_facts: int) -> list[Passage]:
    """Passages; the fact in question stands anywhere among the others."""
    rng = random.Random(f"held out passages {seed}")
    names = Names(rng, held_out=True)
    documents = []
    for _ in range(count):
        facts, author = fresh_facts(rng, names, n_facts), names.draw("person")
        said = " ".join(fact.sentence for fact in rng.sample(facts, n_facts))
        year = rng.randint(1850, 1899)
        frame = f"The following passage comes from a letter written in {year} by {author}. {said}"
        documents.append(Passage(frame, tuple(facts), names.draw(facts[0].relation.object)))
    return documents


def choice_items(seed: int, count: int, n_facts: int) -> list[LabelItem]:
    """Lettered choices: what each fact names, and one name that stands nowhere else."""
    rng = random.Random(f"held out choices {seed}")
    items = []
    for passage in passages(seed, count, n_facts):
        choices = [*(fact.object for fact in passage.facts), passage.other]
        rng.shuffle(choices)
        prompt = prompts.choice_prompt(passage.frame, passage.asked.question, choices)
        letters = tuple(f" {chr(ord('A') + i)}" for i in range(len(choices)))
        items.append(LabelItem(prompt, letters, choices.index(passage.asked.object)))
    return items


def truth_items(seed: int, count: int, swapped: bool) -> list[LabelItem]:
    """Statements on three facts; a false one has another fact's object or a new name."""
    items = []
    for i, passage in enumerate(passages(seed, count, 3)):
        fact = passage.asked
        said = " ".join(each.sentence for each in sorted(passage.facts, key=lambda f: f.subject))
        false = passage.facts[1].object if swapped else passage.other
        stated = fact.with_object(false) if i % 2 else fact
        prompt = prompts.query_prompt(
            said, prompts.TRUE_OR_FALSE, stated.sentence, prompts.CORRECT_ANSWER
        )
        items.append(LabelItem(prompt, ("True", "False"), i % 2))
    return items


@dataclasses.dataclass(frozen=True)
class JudgedItem:
    """A question with its golden answer, and two responses in the same words."""

    question: str
    golden: str
    right: str
    wrong: str


def judged_items(seed: int, count: int) -> list[JudgedItem]:
    """Responses that are the golden answer or another name, alone or in a sentence."""
    rng = random.Random(f"held out judge {seed}")
    names = Names(rng, held_out=True)
    items = []
    for i in range(count):
        fact = fresh_facts(rng, names, 1)[0]
        right, wrong = (
            (said, f"The answer is {said}.", fact.with_object(said).sentence)[i % 3]
            for said in (fact.object, names.draw(fact.relation.object))
        )
        items.append(JudgedItem(fact.bare_question, fact.object, right, wrong))
    return items


def judge_items(seed: int, count: int) -> list[LabelItem]:
    """Right and wrong responses in turn, as the judge reads them."""
    return [
        LabelItem(
            prompts.judge_conversation(item.question, [item.golden], (item.right, item.wrong)[i]),
            prompts.JUDGE_LABELS,
            i,
        )
        for item in judged_items(seed, count // 2)
        for i in (0, 1)
    ]


@dataclasses.dataclass(frozen=True)
class ReasonedItem:
    """A question of several steps, to be answered with reasons from the facts that it gives.

    `user` is what is asked, `prompt` the conversation that the model continues.
    """

    user: str
    prompt: str
    answer: str


def reasoned_items(seed: int, count: int) -> list[ReasonedItem]:
    """Questions of two steps, with a fact among theirs that does not belong there."""
    rng = random.Random(f"held out reasons {seed}")
    names = Names(rng, held_out=True)
    items: list[ReasonedItem] = []
    while len(items) < count:
        chain = fresh_chain(rng, names, 2)
        stated = [*chain.facts, *fresh_facts(rng, names, 1)]
        user = prompts.reasoned_user(rng.sample(stated, len(stated)), chain.question)
        prompt = prompts.BOS + prompts.turn("user", user) + prompts.turn_start("assistant")
        if chain.facts[-1].relation.object != "profession":
            items.append(ReasonedItem(user, prompt, chain.answer))
    return items
