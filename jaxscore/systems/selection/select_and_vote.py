"""`select` and `vote`: choose between sampled responses by their self-certainty.

N counts in each item, and so do `generator` and `dataset`. The published scripts take all three
from the first item, which is the same if the items have the same form.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from jaxscore.errors import InputError
from jaxscore.shell.fields import Metric
from jaxscore.shell.flags import flag
from jaxscore.shell.items import Items
from jaxscore.shell.system import Layout
from jaxscore.systems import selection
from jaxscore.systems.drawn_tokens import with_chosen_ids, without_ids
from jaxscore.systems.selection import AnswerSettings, CertainRecord, first_n
from jaxscore.systems.selection.choosing import (
    Candidates,
    Context,
    Selection,
    answer_form,
    certain_candidates,
    repeated,
)
from jaxscore.systems.selection.grading import Chooser
from jaxscore.systems.selection.ranking import (
    NO_CONFIDENCE,
    NOTHING_EXTRACTABLE,
    Choice,
    select,
    vote,
)
from jaxscore.systems.selection.symbolic import MOST_LIMITS, MOST_TIMEOUTS, TIME_LIMIT

DAY = 86400.0  # seconds
POWERS = (0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)  # graded in addition to the run's power
TAKEN = {
    NOTHING_EXTRACTABLE: "so the first is taken",
    NO_CONFIDENCE: "so their order in the list decides",
}


def _read(fields: Mapping[str, Any], best_n: int) -> Candidates:
    """Read candidates without their answers, which cost more."""
    candidates = certain_candidates(fields, best_n)
    return dataclasses.replace(candidates, noise=selection.read_noise(fields))


class RankedSelection(Selection):
    """Chooses one of the first N responses by their confidences."""

    fallbacks: ClassVar[Mapping[str, str]] = {
        NOTHING_EXTRACTABLE: "no response has an extractable answer",
        NO_CONFIDENCE: "no response with an extractable answer has a confidence",
    }

    def candidates(self, fields: Mapping[str, Any], context: Context) -> Candidates:
        candidates = _read(fields, context.settings.best_n)
        answers = self.read_answers(fields, candidates.responses, context)
        return dataclasses.replace(candidates, answers=answers)

    @abc.abstractmethod
    def rank(self, candidates: Candidates, context: Context) -> Choice:
        """Return the choice, without notes."""

    def choose(self, candidates: Candidates, context: Context) -> Choice:
        """Choose a response, and note irregularities and the reason of a fallback."""
        choice = self.rank(candidates, context)
        notes = selection.list_oddities(candidates.responses, candidates.confidences)
        if choice.fallback is not None:
            notes.insert(0, f"{self.fallbacks[choice.fallback]}, {TAKEN[choice.fallback]}")
        return dataclasses.replace(choice, notes=notes)

    def chosen_record(self, candidates: Candidates, choice: Choice) -> dict[str, Any]:
        return {
            **repeated(with_chosen_ids(candidates.fields, choice.index), "output"),
            "output": [candidates.responses[choice.index]],
            "confidence": choice.confidence,
            **answer_form(candidates.answers, choice),
            **({} if choice.within_noise is None else {"within_noise": choice.within_noise}),
        }

    def failed_record(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {**repeated(without_ids(fields), "output"), "output": [], "confidence": None}


def _n_responses(items: Items, best_n: int) -> int:
    """Return the most responses that an item has of the first N; N if no item has any."""
    lengths = []
    for fields in items:
        with contextlib.suppress(InputError):
            lengths.append(len(_read(fields, best_n).responses))
    return max(lengths, default=best_n)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectSettings(AnswerSettings):
    """Settings of `select`; N is 4 as in the published script."""

    best_n: int = first_n(4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteSettings(AnswerSettings):
    """Settings of `vote`; N is 64 and the power 0.5 as in the published script."""

    best_n: int = first_n(64)
    power: float = flag(0.5, metavar="P", help="of the ranks' votes (default 0.5)")
    time_limit: float = flag(
        TIME_LIMIT,
        metavar="SECONDS",
        help=f"for SymPy to read or compare two answers (default {TIME_LIMIT:g}); after "
        f"{MOST_TIMEOUTS} that took longer, or {MOST_LIMITS} times that limit in all, the rest of "
        "an item's answers compare as text",
        is_advanced=True,
    )

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        if not 0 < self.time_limit <= DAY:
            raise InputError(
                f"setting time_limit is {self.time_limit}, expected seconds above 0 and at most a "
                "day"
            )


class VoteRecord(CertainRecord, total=False):
    """The record of `select`, with votes in place of the confidence."""

    confidence: Annotated[float | None, Metric("votes of the chosen response", "votes")]


def _ending_of_select(items: Items, settings: SelectSettings) -> str:
    """Return the end of the output's name: the number of responses, and a rule if not default."""
    return f"-confidence-{_n_responses(items, settings.best_n)}{settings.rule_ending}"


def _ending_of_vote(items: Items, settings: VoteSettings) -> str:
    """Return an end with the power, the number of responses, and what is not the default."""
    limit = "" if settings.time_limit == TIME_LIMIT else f"-time{settings.time_limit:g}"
    n = _n_responses(items, settings.best_n)
    return f"-confidence-borda-power-{settings.power}-{n}-kl{limit}{settings.rule_ending}"


class Select(RankedSelection):
    """For each question keep one of the first N responses: the one with the highest
    self-certainty among those with an extractable answer (best-of-N selection,
    arXiv 2502.18581).

    input, a JSON array as `self-certainty` writes it:
      [{"id": 0, "generator": "meta-llama/Llama-3.1-8B-Instruct", "dataset": "gsm",
        "output": ["{\\"reasoning\\": \\"…\\", \\"answer\\": \\"42\\"}", "I do not know"],
        "confidence_list": [12.3, 19.8]}]

    The answer of a response is the first of: the last <answer>…</answer> (tag), the
    last JSON object with an `answer` (json), the last \\boxed{…} (boxed), what
    follows the last `answer:` or `answer is` (answer) and, with --gold, the last
    number if the gold is one (number), or the last sentence if it is a letter or a
    text (sentence). So --gold can change the choice, and not its grade alone.
    Thoughts before </think> do not count.
    The dataset crux is read as published and, without --gold, so are items of a
    Llama-3.1 generator or with a response that holds "answer":. The answer is then
    the first of: `answer` of the first JSON object; the text after "answer":; for
    Llama-3.1 generators a \\boxed{…} near the end.
    --answer-rule names one way for all items.

    output, the same items with
      output        the chosen response, in a list
      confidence    its self-certainty
      within_noise  where `confidence_settings` hold `noise` (`self-certainty
                    --audit-noise`): whether a response with another answer is less
                    certain by no more than twice that
      answer_form   of an item that is not read as published: tag, json, boxed,
                    answer, number, sentence, or null without a readable answer
      fallback      why confidences did not decide: no_answer, no_confidence
      choice_notes  irregularities of the item, such as a response that is null
      considered    what reports are made from: `forms` of all considered answers,
                    if the item is not read as published; with --gold `right` of
                    each, `n_unreadable`, how many have no readable answer, and
                    `taken`, what each way takes of the first 1, 2, 4, ... and of
                    all of them
      Where no response has an answer, the first one is kept, at -1e9 as published;
      where none with an answer has a confidence, the first of them, at null. These
      fallbacks are counted apart. A response that is null counts as unanswered;
      a confidence that is null ranks last.
      N and what it leaves out are printed. Next to OUT are OUT.run.json
      and the report: OUT_report.md, OUT_report.json and, for a browser,
      OUT_report.html (OUT.report.md where OUT does not end in .json). The default
      name has -firstN with --limit N.

    --gold FIELD grades the choices. FIELD of each item holds the right answer, a
    list of acceptable answers, or a list of true or false for each response. Items
    get `right` (null without gold); the share of right choices among the first 1,
    2, 4, ... N responses is printed next to the first sample's, a majority vote's
    and an oracle's, and is in the report. Answers are compared as `vote` does; the
    last sentence has to hold the gold as whole words. Responses without a readable
    answer count as wrong, and are counted next to the shares. If no response has
    one, shares are undefined, and the exit code is 1.

    exit code: 0 all decided or by fallback, 1 some items failed (they hold
               `error`) or nothing could be graded, 2 unusable input or no usable
               item; nothing is written.
    """

    name = "select"
    settings, record = SelectSettings, CertainRecord
    layout = Layout(is_ascii=True, ending="-confidence-N[-firstN]", ending_of=_ending_of_select)
    way = "most certain"
    decided_by = "confidence"

    def rank(self, candidates: Candidates, context: Context) -> Choice:
        """Take the highest confidence among the responses with an answer."""
        return select(candidates.confidences, candidates.texts, candidates.noise)

    def ways(self, candidates: Candidates, choice: Choice, context: Context) -> dict[str, Chooser]:
        confidences, texts = candidates.confidences, candidates.texts
        return {self.way: lambda n: select(confidences[:n], texts[:n]).index}


class Vote(RankedSelection):
    """For each question keep the answer with the most votes among the first N
    responses. Responses are ranked by self-certainty; rank r, from 0, of n gives
    (n - r)^power votes to its answer (Borda voting, arXiv 2502.18581). Power 0 is
    the majority vote; a high power approximates `select`.

    input, a JSON array as `self-certainty` writes it:
      [{"id": 0, "generator": "meta-llama/Llama-3.1-8B-Instruct", "dataset": "math",
        "output": ["{\\"answer\\": \\"1/2\\"}", "{\\"answer\\": \\"0.5\\"}",
                   "{\\"answer\\": 3}"],
        "confidence_list": [12.3, 11.0, 19.8]}]

    Answers are read as `select` reads them, so --gold can change the choice.
    Numbers are equal if their values are: 1/2, .5 and \\frac{1}{2}; 1,000 and 1000;
    lists if their entries are, words without case. Math-Verify, if it is installed,
    compares expressions: x+1 and 1+x. Answers that are read as published are equal
    if they are the same after the published normalization, which drops commas; of
    the dataset crux, without the quotes around them. If `task` or `subtask`
    contains amps_hard, SymPy also compares published answers that differ: they are
    equal if their difference is below 0.001.

    output, the same items with
      output        the first response of the winning answer, in a list
      confidence    the answer's votes
      within_noise  where `confidence_settings` hold `noise` (`self-certainty
                    --audit-noise`): whether rounding could change ranks so that
                    another answer wins
      answer_form, fallback, choice_notes, considered   as in `select`
      Where no response has an answer, the first one is kept, with 0 votes; where
      none with an answer has a confidence, they rank as they stand. These
      fallbacks are counted apart.
      N and what it leaves out are printed. Next to OUT are OUT.run.json
      and the report: OUT_report.md, OUT_report.json and, for a browser,
      OUT_report.html (OUT.report.md where OUT does not end in .json). The default
      name has -timeS with --time-limit S and -firstN with --limit N.

    --gold FIELD grades the choices. FIELD of each item holds the right answer, a
    list of acceptable answers, or a list of true or false for each response. Items
    get `right` (null without gold); the share of right choices among the first 1,
    2, 4, ... N responses is printed next to the first sample's, a majority vote's,
    an oracle's and votes of other powers, and is in the report. Responses without a
    readable answer count as wrong, and are counted next to the shares. If no
    response has one, shares are undefined, and the exit code is 1.

    exit code: 0 all decided or by fallback, 1 some items failed (they hold
               `error`) or nothing could be graded, 2 unusable input or no usable
               item; nothing is written.
    """

    name = "vote"
    settings, record = VoteSettings, VoteRecord
    layout = Layout(
        is_ascii=True,
        ending="-confidence-borda-power-P-N-kl[-timeS][-firstN]",
        ending_of=_ending_of_vote,
    )
    way = "Borda vote"
    decided_by = "votes"

    def further_ways(self, settings: VoteSettings) -> Sequence[str]:
        return [*_powers(settings)]

    def rank(self, candidates: Candidates, context: Context) -> Choice:
        """Take the first response of the answer with the most votes."""
        power, same = context.settings.power, context.same(candidates)
        try:
            return vote(candidates.confidences, candidates.texts, power, same, candidates.noise)
        except OverflowError:
            raise InputError(
                f"setting power is {power}: the votes of {len(candidates.responses)} responses are "
                "more than a number holds; give a smaller one"
            ) from None

    def ways(self, candidates: Candidates, choice: Choice, context: Context) -> dict[str, Chooser]:
        confidences, texts = candidates.confidences, candidates.texts
        same = context.same(candidates)

        def vote_with(power: float) -> Chooser:
            return lambda n: vote(confidences[:n], texts[:n], power, same).index

        powers = _powers(context.settings)
        return {self.way: vote_with(context.settings.power)} | {
            w: vote_with(p) for w, p in powers.items()
        }


def _powers(settings: VoteSettings) -> dict[str, float]:
    """Return the ways of voting and their powers."""
    return {f"power {p:g}": p for p in sorted({*POWERS, settings.power})}


SELECT, VOTE = Select(), Vote()
