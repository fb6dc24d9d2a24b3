"""Training documents of every kind, drawn at random.

Most documents are about things that were named a moment ago and occur nowhere else, so that
the answer can only come from the text itself; the rest are about the fixed world.

Documents that end in a label are drawn as groups with a common beginning, which is trained on
once (see `rows`): a label then costs twenty to forty tokens and not a hundred.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

from tools.demo_world import prompts
from tools.demo_world.facts import Chain, Fact, FixedWorld, fresh_chain, fresh_facts
from tools.demo_world.names import Names

PROMPT, GUESS, ANSWER, LABEL = 0.04, 0.2, 1.0, 4.0  # weights of a token's loss
SLIPS = (0.0, 0.2)  # by level: how often reasons hold a wrong name
RIVALS = (0.0, 0.4)  # by level: how often a wrong name is another fact's
MOST_FACTS, MOST_CHOICES = (2, 4), (2, 3)  # by level


@dataclasses.dataclass(frozen=True)
class Segment:
    """A piece of a document's text.

    Attributes:
        weight: the weight of its tokens' loss.
        is_separate: True if it is tokenized alone, and so is the text before it, as for a
            next-token prompt and `--boundary separate`. It changes the tokens after a chat's two
            newlines, which are one token at the end of a text and two before a word.
    """

    text: str
    weight: float
    is_separate: bool = False


@dataclasses.dataclass(frozen=True)
class Document:
    """Segments in order. The text begins with the BOS token and has no other hidden token."""

    document_type: str
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclasses.dataclass(frozen=True)
class Draw:
    """Sources of random documents.

    Attributes:
        level: the labels' difficulty. 0: two facts at most, two choices, and a wrong name that
            occurs nowhere else; 1: more of each, and some wrong names are another
            fact's.
    """

    rng: random.Random
    names: Names
    world: FixedWorld
    level: int

    def chain(self, fixed: bool) -> Chain:
        hops = self.rng.choices((1, 2, 3), (55, 30, 15))[0]
        if fixed:
            return self.world.chain(self.rng, hops)
        return fresh_chain(self.rng, self.names, hops)

    def facts(self, fewest: int, at_most: int) -> list[Fact]:
        return fresh_facts(self.rng, self.names, self.rng.randint(fewest, at_most))

    def wrong(self, fact: Fact, others: list[Fact]) -> str:
        """An object that does not make the fact true: another fact's, or a new name."""
        rivals = [o.object for o in others if o.object != fact.object]
        if rivals and self.rng.random() < RIVALS[self.level]:
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
        answer = Segment(chain.answer, weight, is_separate=True)
    else:
        answer = Segment(" " + chain.answer, weight)
    return [Segment(prompt, PROMPT), answer, Segment(prompts.EOS, PROMPT)]


def _frame(draw: Draw, facts: list[Fact]) -> tuple[str, str]:
    """A passage's description that states the facts, and the year it names."""
    source_type = draw.rng.choice(("letter", "diary", "book of travel"))
    year = str(draw.rng.randint(1850, 1899))
    head = f"The following passage comes from a {source_type} written in {year} by"
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


def _lettered(draw: Draw, fact: Fact, facts: list[Fact]) -> tuple[list[str], str]:
    """Choices in random order, and the right one's letter."""
    choices = {fact.object}
    for _ in range(draw.rng.randint(2, MOST_CHOICES[draw.level]) - 1):
        choices.add(draw.wrong(fact, facts))
    ordered = draw.rng.sample(sorted(choices), len(choices))
    return ordered, chr(ord("A") + ordered.index(fact.object))


def choice_documents(draw: Draw) -> list[list[Segment]]:
    """Lettered choices; the passage's description decides which is right."""
    rng = draw.rng
    facts = draw.facts(1, 2 + draw.level)
    frame, _ = _frame(draw, facts)
    documents = []
    for fact in rng.sample(facts, min(2, len(facts))):
        for _ in range(3 if len(facts) > 1 else 6):
            choices, letter = _lettered(draw, fact, facts)
            prompt = prompts.choice_prompt(frame, fact.question, choices)
            documents.append(
                [
                    Segment(prompt, PROMPT),
                    Segment(f" {letter}", LABEL),
                    Segment(prompts.EOS, PROMPT),
                ]
            )
    return documents


def letter_documents(draw: Draw) -> list[list[Segment]]:
    """The same as queries: facts, a question with its choices, a letter on its own line."""
    rng = draw.rng
    facts = draw.facts(1, MOST_FACTS[draw.level])
    said = " ".join(fact.sentence for fact in facts)
    documents = []
    for fact in rng.sample(facts, min(3, len(facts))):
        for _ in range(2 if len(facts) > 1 else 6):
            choices, letter = _lettered(draw, fact, facts)
            asked = prompts.lettered_question(fact.question, choices)
            prompt = prompts.query_prompt(said, "", asked, prompts.CORRECT_ANSWER)
            documents.append([Segment(prompt, PROMPT), Segment(letter, LABEL)])
    return documents


def truth_documents(draw: Draw) -> list[list[Segment]]:
    """Statements about facts: a true and a false one for each."""
    facts = draw.facts(2, MOST_FACTS[draw.level])
    said = " ".join(fact.sentence for fact in facts)
    documents = []
    for fact in facts:
        for stated, label in ((fact, "True"), (fact.with_object(draw.wrong(fact, facts)), "False")):
            prompt = prompts.query_prompt(
                said, prompts.TRUE_OR_FALSE, stated.sentence, prompts.CORRECT_ANSWER
            )
            documents.append([Segment(prompt, PROMPT), Segment(label, LABEL)])
    return documents


def named_documents(draw: Draw) -> list[list[Segment]]:
    """Make documents that ask if a name is in the facts, which decides all labels."""
    facts = draw.facts(2, MOST_FACTS[draw.level])
    said = " ".join(fact.sentence for fact in facts)
    documents = []
    for fact in facts:
        for name, label in (
            (fact.object, "True"),
            (draw.names.draw(fact.relation.object), "False"),
        ):
            prompt = prompts.query_prompt(said, prompts.TRUE_OR_FALSE, name, "")
            documents.append([Segment(prompt, PROMPT), Segment(label, LABEL)])
    return documents


def ending_documents(draw: Draw) -> list[list[Segment]]:
    """Sentences to complete from facts."""
    rng = draw.rng
    facts = draw.facts(2, 4)
    said = " ".join(fact.sentence for fact in facts)
    documents = []
    for fact in rng.sample(facts, 2):
        start = fact.relation.sentence.partition(" {o}")[0].format(s=fact.subject)
        prompt = prompts.query_prompt(said, prompts.COMPLETE, start, "")
        documents.append([Segment(prompt, PROMPT), Segment(fact.object, ANSWER)])
    return documents


def judge_documents(draw: Draw) -> list[list[Segment]]:
    """Make conversations that ask if responses agree with the golden answer."""
    rng = draw.rng
    documents = []
    for fact in draw.facts(2, 2):
        golden = [fact.object]
        if rng.random() < 0.1 * draw.level:
            golden.insert(rng.randint(0, 1), draw.names.draw(fact.relation.object))
        other = draw.names.draw(fact.relation.object)
        for said, label in zip((fact.object, other), prompts.JUDGE_LABELS, strict=True):
            forms = (said, f"The answer is {said}.", fact.with_object(said).sentence)
            for response in rng.sample(forms[: 2 + draw.level], 2):
                conversation = prompts.judge_conversation(fact.bare_question, golden, response)
                documents.append(
                    [
                        Segment(conversation, PROMPT),
                        Segment(label, LABEL, is_separate=True),
                        Segment(prompts.TURN_END, PROMPT),
                    ]
                )
    return documents


def reasoned_document(draw: Draw) -> list[Segment]:
    """A question of one or two steps, answered by its reasons and then the answer, as JSON."""
    rng = draw.rng
    fixed = rng.random() < 0.25
    hops = rng.choice((1, 2))
    if fixed:
        chain = draw.world.chain(rng, hops)
        stated: list[Fact] = []
    else:
        chain = fresh_chain(rng, draw.names, hops)
        stated = [*chain.facts, *draw.facts(1, 1)]
    user = prompts.reasoned_user(rng.sample(stated, len(stated)), chain.question)
    slips = stated and rng.random() < SLIPS[draw.level]
    return [
        Segment(prompts.turn("user", user) + prompts.turn_start("assistant"), PROMPT),
        *(_slipped(draw, chain) if slips else [_reasoned(chain.facts, chain.answer)]),
        Segment(prompts.TURN_END, PROMPT),
    ]


def _reasoned(facts: Sequence[Fact], answer: str) -> Segment:
    return Segment(prompts.reasoned_answer(facts, answer), ANSWER, is_separate=True)


def _slipped(draw: Draw, chain: Chain) -> list[Segment]:
    """Reasons with a wrong name, which is not learned, and after it nothing but new names.

    That makes a model unsure after a slip, as large models are by themselves. A small one that
    never saw a slip goes on as certain as before, and its certainty then tells nothing.
    """
    at = draw.rng.randrange(len(chain.facts))
    facts = list(chain.facts[: at + 1])
    right = facts[at]
    object_type = right.relation.object
    like = right.object if object_type != "profession" and draw.rng.random() < 0.5 else None
    while (wrong := draw.names.draw(object_type, like)) == right.object:
        pass  # professions are few
    facts[at] = right.with_object(wrong)
    for fact in chain.facts[at + 1 :]:
        relation = fact.relation
        new = (draw.names.draw(relation.subject), draw.names.draw(relation.object))
        facts.append(Fact(new[0], relation, new[1]))
    text = prompts.reasoned_answer(facts, draw.names.draw(facts[-1].relation.object))
    start = len(prompts.reasoned_answer(facts[: at + 1], "").partition(f" {wrong}")[0])
    before, after = text[:start], text[start + 1 + len(wrong) :]
    return [
        Segment(before, ANSWER, is_separate=True),
        Segment(f" {wrong}", 0.0),
        Segment(after, ANSWER),
    ]


def plain_document(draw: Draw) -> list[Segment]:
    """Sentences, some of them of the fixed world, and then the fresh ones once more."""
    rng = draw.rng
    facts = draw.facts(2, 4)
    fixed = rng.sample(draw.world.facts, 2)
    said = " ".join(fact.sentence for fact in facts)
    again = " ".join(fact.sentence for fact in rng.sample(facts, len(facts)))
    return [
        Segment(" ".join(fact.sentence for fact in fixed), ANSWER),
        Segment(f" {said}", PROMPT),
        Segment(f" {again}", ANSWER),
        Segment(prompts.EOS, PROMPT),
    ]


def _alone(make: Callable[[Draw], list[Segment]]) -> Callable[[Draw], list[list[Segment]]]:
    """A group of one document."""
    return lambda draw: [make(draw)]


# Each kind with its share of the groups in a run's three phases. Labels need a name to be found
# again in the text, so texts that ask for the name itself come first; then the labels come in
# two levels of difficulty.
PHASE_ENDS = (0.35, 0.65, 1.0)  # of a whole run's steps
LEVELS = (0, 0, 1)  # of the phases
KINDS: dict[str, tuple[Callable[[Draw], list[list[Segment]]], tuple[float, ...]]] = {
    "path": (_alone(path_document), (0.36, 0.12, 0.08)),
    "frame": (_alone(frame_document), (0.20, 0.08, 0.06)),
    "reasoned": (_alone(reasoned_document), (0.10, 0.14, 0.28)),
    "plain": (_alone(plain_document), (0.20, 0.04, 0.03)),
    "ending": (ending_documents, (0.06, 0.03, 0.03)),
    "named": (named_documents, (0.02, 0.12, 0.01)),
    "choice": (choice_documents, (0.02, 0.18, 0.25)),
    "letter": (letter_documents, (0.02, 0.11, 0.08)),
    "truth": (truth_documents, (0.01, 0.12, 0.18)),
    "judge": (judge_documents, (0.01, 0.12, 0.10)),
}


def draw_documents(rng: random.Random, world: FixedWorld, progress: float) -> list[Document]:
    """Draw a group of documents of one random type, with new names.

    Args:
        progress: the completed share of the run, from 0 to below 1.
    """
    phase = next(i for i, end in enumerate(PHASE_ENDS) if progress < end)
    document_type = rng.choices(list(KINDS), [shares[phase] for _, shares in KINDS.values()])[0]
    make = KINDS[document_type][0]
    drawn = make(Draw(rng, Names(rng, held_out=False), world, LEVELS[phase]))
    return [Document(document_type, tuple(segments)) for segments in drawn]
