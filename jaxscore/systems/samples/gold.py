"""The gold of an item: the right answer, several acceptable ones, or a verdict on each response."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import STRICT, json_kind
from jaxscore.systems.samples.answer_rules import AnswerRules

FORMS = "an answer, a list of acceptable answers, or a list of true or false for each response"
NO_EQUALITY = "expected a list of true or false for each response: texts of code are not compared"


@dataclasses.dataclass(frozen=True, slots=True)
class Gold:
    """Attributes:
    answers: those that are acceptable, as texts; empty where there are verdicts.
    verdicts: whether each response is right; None where answers are compared.
    """

    answers: tuple[str, ...] = ()
    verdicts: tuple[bool, ...] | None = None

    def right(
        self,
        rules: AnswerRules,
        answers: Sequence[str | None],
        same: Callable[[str, str], bool] | None = None,
    ) -> list[bool]:
        """Whether each of the first responses is right; one without an answer is not.

        Args:
            rules: by which `answers` were read.
            answers: of these responses, as `AnswerRules.answer` gives them.
            same: whether two unequal answers are the same after all.
        """
        if self.verdicts is not None:
            return [*self.verdicts[: len(answers)]]
        accepted = [rules.form(one) for one in self.answers]

        def fits(answer: str) -> bool:
            if answer in accepted:
                return True
            return same is not None and any(same(answer, one) for one in accepted)

        return [answer is not None and fits(answer) for answer in answers]


def read(
    fields: Mapping[str, Any],
    field: str,
    n_responses: int,
    *,
    answers: bool = True,
    code: bool = False,
) -> Gold | None:
    """The gold of an item; None where its field is absent, null or blank.

    A table's cell is text: an empty one is blank, and a list of verdicts or of texts is JSON text.

    Args:
        field: its name.
        n_responses: of the item, all of them.
        answers: whether responses have answers to compare; else verdicts alone are taken.
        code: whether answers are Python literals: a text that is a list of texts is then one
            answer.

    Raises:
        InputError: the field holds something else, or another number of verdicts.
    """
    value = fields.get(field)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        value = _listed(value, str if answers and not code else bool)
    where = f'field "{field}", the gold, '
    given = value if isinstance(value, list) else [value]
    if isinstance(value, list) and given and all(isinstance(one, bool) for one in given):
        if len(given) != n_responses:
            raise InputError(
                f"{where}has {len(given)} verdicts for {n_responses} responses, expected one for "
                "each"
            )
        return Gold(verdicts=tuple(given))
    if not answers:
        raise InputError(f"{where}is {json_kind(value)}, {NO_EQUALITY}")
    if not given:
        raise InputError(f"{where}is an empty list, expected {FORMS}")
    for one in given:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            among = "has " if isinstance(value, list) else "is "
            raise InputError(f"{where}{among}{json_kind(one)}, expected {FORMS}")
        if isinstance(one, str) and not one.strip():
            raise InputError(f"{where}has an empty answer, expected {FORMS}")
    return Gold(tuple(map(str, given)))


def _listed(text: str, kind: type) -> Any:
    """A list of verdicts, or of values of another kind, in place of JSON text that holds one."""
    with contextlib.suppress(ValueError, RecursionError):
        value = STRICT.decode(text)
        if isinstance(value, list) and any(
            value and all(isinstance(one, wanted) for one in value) for wanted in (bool, kind)
        ):
            return value
    return text
