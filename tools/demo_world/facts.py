"""Relations between named things, in every form that a text states or asks them."""

import dataclasses
import functools
import random

from tools.demo_world.names import Names


@dataclasses.dataclass(frozen=True)
class Relation:
    """A relation; `{s}` is the subject and `{o}` the object.

    Attributes:
        label: the relation's name in paths.
        sentence, question: the statement and question in texts.
        phrase: a description of the object by the subject, for nested questions.
    """

    subject: str
    object: str
    label: str
    sentence: str
    question: str
    phrase: str


RELATIONS = (
    Relation(
        "person",
        "city",
        "born in",
        "{s} was born in {o}.",
        "Where was {s} born?",
        "the city where {s} was born",
    ),
    Relation(
        "person",
        "city",
        "lives in",
        "{s} lives in {o}.",
        "Where does {s} live?",
        "the city where {s} lives",
    ),
    Relation(
        "person",
        "company",
        "works for",
        "{s} works for {o}.",
        "Which company does {s} work for?",
        "the company that {s} works for",
    ),
    Relation(
        "person",
        "company",
        "founded",
        "{s} founded {o}.",
        "Which company did {s} found?",
        "the company that {s} founded",
    ),
    Relation(
        "person",
        "person",
        "married to",
        "{s} is married to {o}.",
        "Who is {s} married to?",
        "the person married to {s}",
    ),
    Relation(
        "person",
        "profession",
        "works as",
        "{s} works as a {o}.",
        "What does {s} work as?",
        "the work of {s}",
    ),
    Relation(
        "city",
        "river",
        "lies on",
        "{s} lies on the {o}.",
        "Which river does {s} lie on?",
        "the river on which {s} lies",
    ),
    Relation(
        "city",
        "city",
        "borders",
        "{s} borders {o}.",
        "Which city does {s} border?",
        "the city that {s} borders",
    ),
    Relation(
        "company",
        "city",
        "based in",
        "{s} is based in {o}.",
        "Where is {s} based?",
        "the city where {s} is based",
    ),
    Relation(
        "river",
        "river",
        "flows into",
        "{s} flows into the {o}.",
        "Which river does {s} flow into?",
        "the river that {s} flows into",
    ),
)


@dataclasses.dataclass(frozen=True)
class Fact:
    subject: str
    relation: Relation
    object: str

    @property
    def sentence(self) -> str:
        return self.relation.sentence.format(s=self.subject, o=self.object)

    @property
    def question(self) -> str:
        return self.relation.question.format(s=self.subject)

    @property
    def bare_question(self) -> str:
        """The question as in data sets of questions, without capital and question mark."""
        return self.question[0].lower() + self.question[1:].rstrip("?")

    def with_object(self, other: str) -> "Fact":
        """The same statement about another object."""
        return dataclasses.replace(self, object=other)


@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain of facts: each starts with the entity that ends the one before."""

    facts: tuple[Fact, ...]

    @property
    def answer(self) -> str:
        return self.facts[-1].object

    @property
    def path(self) -> list[str]:
        """Entities and relations in turn; the last entity is the answer."""
        parts = [self.facts[0].subject]
        for fact in self.facts:
            parts += [fact.relation.label, fact.object]
        return parts

    @property
    def question(self) -> str:
        """Asks for the answer by the first entity alone."""
        named = self.facts[0].subject
        for fact in self.facts[:-1]:
            named = fact.relation.phrase.format(s=named)
        return self.facts[-1].relation.question.format(s=named)


def fresh_chain(rng: random.Random, names: Names, hops: int) -> Chain:
    """A chain of newly named things."""
    relation = rng.choice([r for r in RELATIONS if hops == 1 or r.object != "profession"])
    facts = [Fact(names.draw(relation.subject), relation, names.draw(relation.object))]
    while len(facts) < hops:
        last = hops == len(facts) + 1
        relation = rng.choice(
            [
                r
                for r in RELATIONS
                if r.subject == facts[-1].relation.object and (last or r.object != "profession")
            ]
        )
        facts.append(Fact(facts[-1].object, relation, names.draw(relation.object)))
    return Chain(tuple(facts))


def fresh_facts(rng: random.Random, names: Names, count: int) -> list[Fact]:
    """Facts of one relation about different things: only the subject tells them apart."""
    relation = rng.choice([r for r in RELATIONS if r.object != "profession"])
    return [
        Fact(names.draw(relation.subject), relation, names.draw(relation.object))
        for _ in range(count)
    ]


class FixedWorld:
    """The things that training texts return to, so that the model can know them by heart."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"fixed {seed}")
        names = Names(rng, held_out=False)
        sizes = {"person": 24, "city": 12, "company": 10, "river": 6}
        things = {
            object_type: [names.draw(object_type) for _ in range(n)]
            for object_type, n in sizes.items()
        }
        self._facts: dict[str, list[Fact]] = {}
        for relation in RELATIONS:
            for subject in things[relation.subject]:
                if relation.object == "profession":
                    other = names.draw("profession")
                else:
                    other = rng.choice([t for t in things[relation.object] if t != subject])
                self._facts.setdefault(subject, []).append(Fact(subject, relation, other))
        self.facts = [fact for facts in self._facts.values() for fact in facts]

    def chain(self, rng: random.Random, hops: int) -> Chain:
        """A chain of known facts, at most `hops` long."""
        facts = [rng.choice(self.facts)]
        while len(facts) < hops and (following := self._facts.get(facts[-1].object)):
            facts.append(rng.choice(following))
        return Chain(tuple(facts))


@functools.cache
def fixed_world(seed: int) -> FixedWorld:
    """The fixed world of a seed, made once."""
    return FixedWorld(seed)
