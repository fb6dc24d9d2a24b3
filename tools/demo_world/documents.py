"""Training documents of every kind, drawn at random.

Most documents are about things that were named a moment ago and occur nowhere else, so that
the answer can only come from the text itself; the rest are about the fixed world.
"""

import dataclasses
import random
from collections.abc import Callable

from tools.demo_world import prompts
from tools.demo_world.facts import Chain, Fact, FixedWorld, fresh_chain, fresh_facts
from tools.demo_world.names import Names

PROMPT, GUESS, ANSWER, LABEL = 0.04, 0.2, 1.0, 4.0  # weights of a token's loss


@dataclasses.dataclass(frozen=True)
class Segment:
    """A piece of a document's text.

    Attributes:
        weight: of the loss of its tokens.
        own: it is tokenized alone, as `--boundary separate` does with an answer.
    """

    text: str
    weight: float
    own: bool = False


@dataclasses.dataclass(frozen=True)
class Document:
    """Segments in order. The text begins with the BOS token and has no other hidden token."""

    kind: str
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclasses.dataclass(frozen=True)
class Draw:
    """What the makers of documents draw from."""

    rng: random.Random
    names: Names
    world: FixedWorld

    def chain(self, fixed: bool) -> Chain:
        hops = self.rng.choices((1, 2, 3), (55, 30, 15))[0]
        if fixed:
            return self.world.chain(self.rng, hops)
        return fresh_chain(self.rng, self.names, hops)

    def facts(self, fewest: int, most: int) -> list[Fact]:
        return fresh_facts(self.rng, self.names, self.rng.randint(fewest, most))

    def wrong(self, fact: Fact, others: list[Fact]) -> str:
        """An object that does not make the fact true: another fact's, or a new name."""
        rivals = [o.object for o in others if o.object != fact.object]
        if rivals and self.rng.random() < 0.5:
            return self.rng.choice(rivals)
        return self.names.draw(fact.relation.object)


def path_document(draw: Draw) -> list[Segment]:
    """A question, with its support path or without."""
    rng = draw.rng
    fixed = rng.random() < 0.2
    chain = draw.chain(fixed)
    supported = rng.random() < (0.4 if fixed else 0.85)
    prompt = prompts.path_prompt(
        rng.choice(prompts.SYSTEM_PROMPTS), chain.question, chain.path if supported else None
    )
    weight = ANSWER if supported or fixed else GUESS
    if rng.random() < 0.75:
        answer = Segment(chain.answer, weight, own=True)
    else:
        answer = Segment(" " + chain.answer, weight)
    return [Segment(prompt, PROMPT), answer, Segment(prompts.EOS, PROMPT)]


def _frame(draw: Draw, facts: list[Fact]) -> tuple[str, str]:
    """A passage's description that states the facts, and the year it names."""
    kind = draw.rng.choice(("letter", "diary", "book of travel"))
    year = str(draw.rng.randint(1850, 1899))
    head = f"The following passage comes from a {kind} written in {year} by"
    said = " ".join(fact.sentence for fact in facts)
    return f"{head} {draw.names.draw('person')}. {said}", year


def frame_document(draw: Draw) -> list[Segment]:
    """Questions on a passage whose description holds the answers."""
    rng = draw.rng
    facts = draw.facts(1, 3)
    frame, year = _frame(draw, facts)
    segments: list[Segment] = []
    for fact in rng.sample(facts, rng.randint(1, len(facts))):
        if rng.random() < 0.15:
            question, answer = "In which year was the passage written?", year
        else:
            question, answer = fact.question, fact.object
        prompt = prompts.frame_prompt(frame, question)
        if segments:
            prompt = prompt.removeprefix(frame)
        full_stop = "." if rng.random() < 0.3 else ""
        segments += [Segment(prompt, PROMPT), Segment(answer + full_stop, ANSWER)]
    return [*segments, Segment(prompts.EOS, PROMPT)]


def choice_document(draw: Draw) -> list[Segment]:
    """Lettered choices of which the passage's description decides one."""
    rng = draw.rng
    facts = draw.facts(1, 3)
    frame, _ = _frame(draw, facts)
    segments: list[Segment] = []
    for fact in rng.sample(facts, rng.randint(1, min(2, len(facts)))):
        choices, letter = _choices(draw, fact, facts)
        prompt = prompts.choice_prompt(frame, fact.question, choices)
        if segments:
            prompt = prompt.removeprefix(frame)
        own = rng.random() < 0.25
        segments += [
            Segment(prompt, PROMPT),
            Segment(letter if own else " " + letter, LABEL, own),
        ]
    return [*segments, Segment(prompts.EOS, PROMPT)]


def _choices(draw: Draw, fact: Fact, facts: list[Fact]) -> tuple[list[str], str]:
    """Two to four choices in random order, and the right one's letter."""
    choices = {fact.object}
    for _ in range(draw.rng.randint(1, 3)):
        choices.add(draw.wrong(fact, facts))
    ordered = draw.rng.sample(sorted(choices), len(choices))
    return ordered, chr(ord("A") + ordered.index(fact.object))


def query_document(draw: Draw) -> list[Segment]:
    """Facts, then queries on a line of their own: true or false, a letter, or an ending."""
    rng = draw.rng
    facts = draw.facts(2, 4)
    text = " ".join(fact.sentence for fact in facts)
    form = rng.choices(("truth", "letter", "ending"), (60, 20, 20))[0]
    segments = [Segment(f"{text}\n", PROMPT)]
    if form == "truth":
        segments.append(Segment("Answer True or False.\n", PROMPT))
    elif form == "ending":
        segments.append(Segment("Complete the sentence.\n", PROMPT))
    for fact in rng.choices(facts, k=rng.randint(1, 3)):
        if form == "truth":
            truth = rng.random() < 0.5
            said = fact if truth else fact.with_object(draw.wrong(fact, facts))
            segments.append(Segment(f"{said.sentence}\nThe correct answer is:\n", PROMPT))
            segments.append(Segment("True" if truth else "False", LABEL))
        elif form == "letter":
            choices, letter = _choices(draw, fact, facts)
            lines = "\n".join(f"{chr(ord('A') + i)}) {c}" for i, c in enumerate(choices))
            segments.append(Segment(f"{fact.question}\n{lines}\nThe correct answer is:\n", PROMPT))
            segments.append(Segment(letter, LABEL))
        else:
            start = fact.relation.sentence.partition(" {o}")[0].format(s=fact.subject)
            segments.append(Segment(f"{start}\n", PROMPT))
            segments.append(Segment(fact.object, ANSWER))
        segments.append(Segment("\n", PROMPT))
    return [*segments[:-1], Segment(prompts.EOS, PROMPT)]


def judge_document(draw: Draw) -> list[Segment]:
    """Whether a response agrees with the golden answer, as a conversation."""
    rng = draw.rng
    fact = draw.facts(1, 1)[0]
    if rng.random() < 0.85:
        labels = ("Yes", "No")
        label = rng.choice(labels)
    else:
        labels = ("Correct", "Partially correct", "Wrong")
        label = rng.choice(labels)
    wrong = draw.names.draw(fact.relation.object)
    said = wrong if label in ("No", "Wrong") else fact.object
    forms = (said, said, f"The answer is {said}.", fact.with_object(said).sentence)
    partial = label == "Partially correct"
    response = f"{said} or {wrong}" if partial else rng.choice(forms)
    if label in ("No", "Wrong") and rng.random() < 0.05:
        response = ""
    golden = [fact.object]
    if rng.random() < 0.2:
        golden.insert(rng.randint(0, 1), draw.names.draw(fact.relation.object))
    user = prompts.judge_user(labels, fact.bare_question, golden, response)
    text = prompts.turn("system", prompts.judge_system(labels)) + prompts.turn("user", user)
    return [
        Segment(text + prompts.turn_start("assistant"), PROMPT),
        Segment(label, LABEL),
        Segment(prompts.TURN_END, PROMPT),
    ]


def reasoned_document(draw: Draw) -> list[Segment]:
    """A question of one or two steps, answered by its reasons and then the answer, as JSON."""
    rng = draw.rng
    fixed = rng.random() < 0.25
    hops = rng.choice((1, 2))
    if fixed:
        chain = draw.world.chain(rng, hops)
        given = ""
    else:
        chain = fresh_chain(rng, draw.names, hops)
        stated = [*chain.facts, *draw.facts(1, 1)]
        given = " ".join(fact.sentence for fact in rng.sample(stated, len(stated))) + "\n"
    reasons = " ".join(fact.sentence for fact in chain.facts)
    user = f"{given}Question: {chain.question}\nAnswer as JSON with reasoning and answer."
    return [
        Segment(prompts.turn("user", user) + prompts.turn_start("assistant"), PROMPT),
        Segment(f'{{"reasoning": "{reasons}", "answer": "{chain.answer}"}}', ANSWER),
        Segment(prompts.TURN_END, PROMPT),
    ]


def plain_document(draw: Draw) -> list[Segment]:
    """Sentences, some of them of the fixed world, and then the fresh ones once more."""
    rng = draw.rng
    facts = draw.facts(2, 4)
    known = rng.sample(draw.world.facts, 2)
    said = " ".join(fact.sentence for fact in facts)
    again = " ".join(fact.sentence for fact in rng.sample(facts, len(facts)))
    return [
        Segment(" ".join(fact.sentence for fact in known), ANSWER),
        Segment(f" {said}", PROMPT),
        Segment(f" {again}", ANSWER),
        Segment(prompts.EOS, PROMPT),
    ]


def truths_document(draw: Draw) -> list[Segment]:
    """Many statements on the same facts: a label every dozen tokens."""
    rng = draw.rng
    facts = draw.facts(2, 3)
    segments = [
        Segment(" ".join(fact.sentence for fact in facts), PROMPT),
        Segment("\nAnswer True or False.", PROMPT),
    ]
    for fact in rng.choices(facts, k=rng.randint(3, 5)):
        truth = rng.random() < 0.5
        said = fact if truth else fact.with_object(draw.wrong(fact, facts))
        segments.append(Segment(f"\n{said.sentence}\nThe correct answer is:\n", PROMPT))
        segments.append(Segment("True" if truth else "False", LABEL))
    return [*segments, Segment(prompts.EOS, PROMPT)]


def turns_document(draw: Draw) -> list[Segment]:
    """A judge's conversation of several short turns: a label every three dozen tokens."""
    rng = draw.rng
    segments: list[Segment] = []
    for fact in draw.facts(2, 4):
        agrees = rng.random() < 0.5
        said = fact.object if agrees else draw.names.draw(fact.relation.object)
        response = rng.choice((said, said, f"The answer is {said}."))
        user = (
            f"Question: {fact.bare_question}. \nGolden answer: {[fact.object]} \n "
            f"Generated answer: {response}"
        )
        segments.append(
            Segment(prompts.turn("user", user) + prompts.turn_start("assistant"), PROMPT)
        )
        segments.append(Segment("Yes" if agrees else "No", LABEL))
        segments.append(Segment(prompts.TURN_END, PROMPT))
    return segments


# Each kind with its share of the documents in a run's three phases. Labels need a name to be
# found again in the text, so texts that ask for the name itself come first, and texts that are
# dense in labels, without which a label is one token in a hundred, come last.
PHASE_ENDS = (0.16, 0.65, 1.0)  # of the run's steps
KINDS: dict[str, tuple[Callable[[Draw], list[Segment]], tuple[float, float, float]]] = {
    "path": (path_document, (0.36, 0.26, 0.13)),
    "frame": (frame_document, (0.20, 0.12, 0.10)),
    "choice": (choice_document, (0.04, 0.20, 0.22)),
    "query": (query_document, (0.10, 0.18, 0.12)),
    "judge": (judge_document, (0.04, 0.12, 0.13)),
    "reasoned": (reasoned_document, (0.06, 0.06, 0.04)),
    "plain": (plain_document, (0.20, 0.06, 0.04)),
    "truths": (truths_document, (0.0, 0.0, 0.11)),
    "turns": (turns_document, (0.0, 0.0, 0.11)),
}


def draw_document(rng: random.Random, world: FixedWorld, progress: float) -> Document:
    """One document of a random kind, with names of its own.

    Args:
        progress: how much of the run is over, from 0 to below 1.
    """
    phase = next(i for i, end in enumerate(PHASE_ENDS) if progress < end)
    kind = rng.choices(list(KINDS), [shares[phase] for _, shares in KINDS.values()])[0]
    make = KINDS[kind][0]
    return Document(kind, tuple(make(Draw(rng, Names(rng, held_out=False), world))))
