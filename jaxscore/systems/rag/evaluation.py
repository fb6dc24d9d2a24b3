"""Judging RAG responses as one call: records and settings in, an `Evaluation` out."""

import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.run_files import file_digest
from jaxscore.lm import require
from jaxscore.systems.evaluation import Evaluation, Failure, check_found
from jaxscore.systems.rag import (
    evaluator_file,
    judge_findings,
    judge_pairwise,
    judge_pointwise,
    records,
)
from jaxscore.systems.rag.evaluator_file import Evaluator
from jaxscore.systems.rag.judge_findings import Draws, Findings
from jaxscore.systems.rag.judge_model import Judge
from jaxscore.systems.rag.records import Records
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import IntervalSettings, check_setting
from jaxscore.text.chat_template import Message

LABEL_SCORES = ("first", "sequence")
READS_PROBABILITIES = ("logits", "sequence")
# of a summary and of a record: what says something in a flat table
SHARES = ("outside", "agree", "first")
FLAT = ("index", "q_id", "question", "response", "opponent", "score", "known", "outside", "best")
NEEDED = (
    "needs a model that runs here (--llm), an evaluator file with use_logits: true, and no opponent"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(IntervalSettings):
    """Settings of `judge`.

    Attributes:
        evaluator: what is asked and which labels may answer: an `Evaluator`, the path of an
            evaluator file, or a name such as "default_qa".
        label_score: a label's probability is that of its "first" token or of its whole
            "sequence".
        opponent: records of the same questions; the judge then says which response is better.
        both_orders: ask twice, each response first once.
        metric: what the score is called.
    """

    evaluator: Evaluator | Path | str = "default_qa"
    label_score: str = "first"
    opponent: Iterable[Any] | None = None
    both_orders: bool = False
    metric: str = "LLMeval"

    def __post_init__(self) -> None:
        """Check all values and read the evaluator file; see `IntervalSettings`."""
        super().__post_init__()
        check_setting("label_score", self.label_score, LABEL_SCORES)
        check_setting("both_orders", self.both_orders, (False, True))
        if not isinstance(self.evaluator, Evaluator):
            read = evaluator_file.load(evaluator_file.find(str(self.evaluator)))
            object.__setattr__(self, "evaluator", read)
        if self.opponent is not None:
            object.__setattr__(self, "opponent", records.read(self.opponent, question=False))
        elif self.both_orders:
            raise InputError("both orders (--both-orders) are of a comparison; give an opponent")

    @property
    def asked(self) -> Evaluator:
        """The evaluator, read."""
        assert isinstance(self.evaluator, Evaluator)
        return self.evaluator

    @property
    def rival(self) -> Records | None:
        """The opponent's records, read."""
        assert self.opponent is None or isinstance(self.opponent, Records)
        return self.opponent

    def record(self) -> dict[str, Any]:
        """The settings that decide the result."""
        out: dict[str, Any] = {
            "evaluator": str(self.asked.path),
            "evaluator_sha256": file_digest(self.asked.path),
        }
        if self.label_score != "first":
            out["label_score"] = self.label_score
        if self.rival is not None:
            out |= {"opponent": self.rival.where or None, "both_orders": self.both_orders}
        common = ("truncate", "seed", "n_bootstrap")
        return out | {name: getattr(self, name) for name in common}


def evaluate(lm: Any, items: Iterable[Any], settings: Settings) -> Evaluation:
    """Judge each response.

    Args:
        lm: an `LM` that takes messages.
        items: `Records`, or objects as `eval_<split>_out.json` has them.

    Raises:
        InputError: the model takes no messages, settings that it cannot do, or no records.
    """
    lm = require("judge", lm, "takes_messages")
    model, is_local = Judge(lm), lm.capabilities.is_local
    kind = kind_of(settings, local=is_local)
    given = records.read(items, question=True)
    check_found(len(given.rows), "records")
    evaluator, draws = settings.asked, Draws(settings.n_bootstrap, settings.seed)
    run = ScoringRun(
        lm,
        settings,
        boundary=judge_pointwise.SEQUENCE_BOUNDARY,
        policies={judge_pointwise.SEQUENCE_BOUNDARY: judge_pointwise.SEQUENCE_BOUNDARY},
    )
    started = time.perf_counter()
    if kind == "pairwise":
        assert settings.rival is not None
        assert evaluator.pairwise is not None  # `kind_of` checks it
        pairs, unmatched = judge_pairwise.match(
            given, settings.rival, seed=settings.seed, both=settings.both_orders
        )
        given = dataclasses.replace(given, failures=given.failures + unmatched)
        asked = judge_pairwise.conversations(evaluator.pairwise, pairs, system=model.system)
        answers = model.write(asked, evaluator.max_new_tokens)
        question = evaluator.pairwise
        compared = judge_pairwise.evaluate(question, pairs, answers)
        found = judge_findings.pairwise(compared, given)
    else:
        question = evaluator.pointwise
        if is_local and kind in READS_PROBABILITIES:
            ids = model.label_ids(evaluator) if kind == "logits" else None
            verdicts = model.weigh(evaluator, given.records, ids, run)
        else:
            asked = judge_pointwise.conversations(question, given.records, system=model.system)
            answers = model.write(asked, evaluator.max_new_tokens)
            verdicts = judge_pointwise.by_texts(question, given.records, answers)
        found = judge_findings.pointwise(kind, question, verdicts, given, draws)
    seconds = time.perf_counter() - started
    found = dataclasses.replace(found, remarks=[*found.remarks, *lm.remarks])
    noise = run.noise
    return evaluation(
        found,
        given,
        metric=settings.metric,
        noise=noise,
        asked=question.template(system=model.system),
        decisions=[] if noise is None else judge_findings.mark(found, noise),
        audited=settings.audit_noise > 0,
        seconds=seconds,
    )


def kind_of(settings: Settings, *, local: bool) -> str:
    """How the score comes about, see `judge_findings.Findings`.

    Args:
        local: whether the model runs here, so that its probabilities can be read.

    Raises:
        InputError: a setting has no effect there, or the evaluator file lacks the prompt.
    """
    if settings.opponent is not None:
        found = "pairwise"
        if settings.asked.pairwise is None:
            raise InputError(
                f"{settings.asked.path}: it has no prompt_pairwise, which an opponent needs"
            )
    elif local and settings.asked.use_logits:
        found = "logits" if settings.label_score == "first" else "sequence"
    else:
        found = "text"
    if settings.truncate and found not in READS_PROBABILITIES:
        raise InputError(
            "truncate (--truncate) is for prompts whose labels are scored; an answer is written "
            "to a whole prompt, so leave it out here"
        )
    if settings.audit_noise and found not in READS_PROBABILITIES:
        raise InputError(
            f"audit_noise (--audit-noise) audits probabilities, which {NEEDED}; leave it out here"
        )
    if settings.label_score == "sequence" and found != "sequence":
        raise InputError(
            f"label_score sequence (--label-score) reads probabilities, which {NEEDED}"
        )
    return found


def evaluation(
    found: Findings,
    given: Records,
    *,
    metric: str,
    asked: Sequence[Message] = (),
    **more: Any,
) -> Evaluation:
    """Findings in the shape of every system.

    Args:
        asked: the judge's prompt, see `Question.template`; empty of BEM, which has none.
    """
    details = {"metric": metric, "kind": found.kind, "summary": found.summary}
    return Evaluation(
        summary={
            **found.estimates,
            **{k: v for k, v in found.summary.items() if k.startswith("n_") or k in SHARES},
        },
        items=found.records,
        n_items=len(given.rows),
        rows=[{k: v for k, v in one.items() if k in FLAT} for one in found.records],
        details={**details, "asked": [*asked]} if asked else details,
        long={"records": found.records},
        headline=judge_findings.headline(found),
        failures=[Failure(*one) for one in (*given.failures, *found.failures)],
        remarks=found.remarks,
        **more,
    )
