"""`judge`: a language model says how right a response is, or which of two is better (BERGEN)."""

import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from jaxscore.analysis import margins
from jaxscore.errors import InputError
from jaxscore.io.run_files import file_digest
from jaxscore.lm import LM, require_local
from jaxscore.systems import rag
from jaxscore.systems.entries import Entry, usable
from jaxscore.systems.evaluation import Evaluation, check_found, mark_noise, unusable
from jaxscore.systems.rag import (
    Item,
    Records,
    evaluator_file,
    pairwise,
    pointwise,
    record_name,
)
from jaxscore.systems.rag.evaluator_file import Evaluator
from jaxscore.systems.rag.pointwise import Verdict
from jaxscore.systems.rag.report import report
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import IntervalSettings, setting
from jaxscore.systems.system import Compared, Decision, Metric, System
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import ChatRequest, LabelRequest

HELP = """\
Let a model judge the responses of RAG experiments (BERGEN): is each one right,
or which of two is better?

input, in each folder of --experiments-folder (except tmp_...), or in --folder:
  eval_<split>_out.json   a list of records:
    {"q_id": "q1", "response": "In Oslo.", "label": ["Oslo"],
     "question": "Where was Ada born?"}

the judge, one of:
  --llm [MODEL [SHORT]]   a model on this machine; --model MODEL is the same.
                          With use_logits in the evaluator file the score is
                          the mean worth of the labels by their next-token
                          probabilities. Without it the model writes an answer,
                          and the score is the worth of the one label in it
                          (-100, outside the mean, for no label or several)
                          A prompt has the special tokens of the model's chat
                          template; no BOS is added
  --llm-ollama MODEL [SHORT]   an ollama server, which writes an answer
  --gpt MODEL             an OpenAI-compatible server (key in OPENAI_API_KEY),
                          which writes an answer
  --bem [MODEL]           a BERT classifier: P(equivalent), best reference

With --opponent-folder and --opponent-name the judge writes which of two
responses is better. --seed draws their order; --both-orders judges both: a win
or a loss is what both answers say, and answers that disagree are a tie.

output, merged into what the files hold:
  eval_<split>_out.json       a column of scores
  eval_<split>_metrics.json   its mean, null where no answer could be read;
                              against an opponent the percentages of win, tie
                              and lose
  eval_<split>_judge_<metric>.md, .json and .html   the details, worst records
                              first, and the settings; .html is for a browser.
                              --audit-noise adds `within_noise` where
                              probabilities are read: could rounding change the
                              most probable label?

The metric is LLMeval_<short>; _logits follows where probabilities are read, and
_VS_<opponent>_win, _tie and _lose against an opponent. --gpt uses MODEL itself,
--bem uses BEM. --sample N adds _<N>; its records are in
eval_<split>_out_<N>.json. A metric that exists is kept. One that was made with
other settings or records is refused, unless --force is given.

Evaluator files (--llm-prompt) hold prompts, labels and what each is worth.
Templates are filled with rubrik_section (the labels), question, answer,
prediction, prediction_1 and prediction_2 in braces, also in Python f-strings as
BERGEN writes them. Templates with other fields are refused.

exit code: 0 all judged; 1 some records or folders failed, or no written answer
of a folder names a label (the others are kept; a comparison without a readable
answer has null rates and exits 0); 2 unusable input, or other settings than
those of a metric that exists.
"""
BOUNDARY: Boundary = "separate"  # of whole labels, see `jaxscore.text.encoder`
READS_PROBABILITIES = ("logits", "sequence")
NEEDED = (
    "needs a model that runs here (--llm), an evaluator file with use_logits: true, and no opponent"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(IntervalSettings):
    """Settings of `judge`.

    Attributes:
        evaluator: prompt and labels of the judge: an `Evaluator`, the path of an
            evaluator file, or a name such as "default_qa".
        label_score: None is "first".
        metric: what the score is called.
    """

    evaluator: Evaluator | Path | str = setting(
        "default_qa",
        name="llm-prompt",
        metavar="NAME",
        help="evaluator file: a path, or a name in configs/evaluator, config/evaluator or this "
        "package, which has default_qa (default) and default_multi_qa",
    )
    label_score: Literal["first", "sequence"] | None = setting(
        None,
        help="what a label's probability is: its first token's (default), or the whole label's, "
        "for labels that share their first token",
    )
    opponent: Any = setting(
        None,
        is_flag=False,
        help="records of the same questions; the judge then says which response is better",
    )
    both_orders: bool = setting(False, help="judge twice, each response first once")
    metric: str = setting("LLMeval", is_flag=False)

    def __post_init__(self) -> None:
        """Check all values and read the evaluator file; see `IntervalSettings`."""
        super().__post_init__()
        if not isinstance(self.evaluator, Evaluator):
            read = evaluator_file.load(evaluator_file.find(str(self.evaluator)))
            object.__setattr__(self, "evaluator", read)
        if self.opponent is not None:
            object.__setattr__(self, "opponent", rag.read(self.opponent, question=False))
        elif self.both_orders:
            raise InputError("both orders (--both-orders) are of a comparison; give an opponent")

    @property
    def read_evaluator(self) -> Evaluator:
        """The evaluator, read."""
        assert isinstance(self.evaluator, Evaluator)
        return self.evaluator

    @property
    def read_opponent(self) -> Records | None:
        """The opponent's records, read."""
        assert self.opponent is None or isinstance(self.opponent, Records)
        return self.opponent

    def record(self) -> dict[str, Any]:
        """The settings that decide the result."""
        path = self.read_evaluator.path
        out: dict[str, Any] = {"evaluator": str(path), "evaluator_sha256": file_digest(path)}
        if self.label_score == "sequence":
            out["label_score"] = self.label_score
        if self.read_opponent is not None:
            where = self.read_opponent.where or None
            out |= {"opponent": where, "both_orders": self.both_orders}
        return out | {name: getattr(self, name) for name in ("truncate", "seed", "n_bootstrap")}

    def kind(self, *, is_local: bool) -> str:
        """How the scores come about, see `records`.

        Args:
            is_local: the model runs here, so that its probabilities can be read.

        Raises:
            InputError: a setting has no effect there, or the evaluator file lacks the prompt.
        """
        evaluator = self.read_evaluator
        if self.opponent is not None:
            found = "pairwise"
            if evaluator.pairwise is None:
                raise InputError(
                    f"{evaluator.path}: it has no prompt_pairwise, which an opponent needs"
                )
        elif is_local and evaluator.use_logits:
            found = "sequence" if self.label_score == "sequence" else "logits"
        else:
            found = "text"
        if found in READS_PROBABILITIES:
            return found
        if self.truncate:
            raise InputError(
                "truncate (--truncate) is for prompts whose labels are scored; an answer is "
                "written to a whole prompt, so leave it out here"
            )
        if self.audit_noise:
            raise InputError(
                f"audit_noise (--audit-noise) audits probabilities, which {NEEDED}; leave it out "
                "here"
            )
        if self.label_score == "sequence":
            raise InputError(
                f"label_score sequence (--label-score) reads probabilities, which {NEEDED}"
            )
        return found


def _score(record: Mapping[str, Any]) -> float | None:
    return record["score"] if record["known"] else None


def _verdict(record: Mapping[str, Any]) -> str | None:
    score = _score(record)
    names = {value: name for name, value in pairwise.OUTCOMES.items()}
    return None if score is None else names.get(score, str(score))


def _likeliest(record: Mapping[str, Any]) -> str | None:
    found = record["probability"]
    return max(found, key=lambda label: found[label]) if found else None


def _lead(record: Mapping[str, Any]) -> float | None:
    """The log-probabilities of labels are as far apart as those over the labels alone."""
    found = record["probability"].values()
    return margins.lead([math.log(p) if p > 0 else -math.inf for p in found]) if found else None


class Record(TypedDict, total=False):
    """One record of the report's JSON file."""

    index: int
    q_id: str | int
    question: str
    label: list[str]
    response: str
    opponent: str
    score: Annotated[float | None, Metric("score of the judge", value=_score)]
    known: bool | None
    probability: Annotated[
        dict[str, float],
        Decision(
            "likeliest label", False, "log-probability of a label", _likeliest, _lead,
            "within_noise", name="label",
        ),
    ]  # fmt: skip
    outside: float | None
    switched: Annotated[list[bool], Decision("win, tie or lose", value=_verdict, name="verdict")]
    answers: list[float]
    texts: list[str]
    by_reference: list[float]
    best: str
    truncated: int
    within_noise: bool


COMPARED = Compared(
    text=("question", "label"),
    signature=("q_id",),
    id=("q_id",),
    name=record_name,
    answer="response",
    error=lambda record: None if record.get("known") is not None else "the judge did not answer",
    fixed=("read_as", "label_score"),
    name_of_runs="judge",
    list_in="records",
    file="eval_…_judge_….json",
)


def evaluate(lm: LM, entries: Iterable[Entry[Item]], settings: Settings) -> Evaluation:
    """Judge each response.

    Raises:
        InputError: the model has no chat template, settings that it cannot do, or no records.
    """
    entries = list(entries)
    check_found(len(entries), "records")
    kind = settings.kind(is_local=lm.capabilities.is_local)
    takes_system = not lm.capabilities.is_local or chat_template.takes_system(_tokenizer(lm))
    evaluator, judged = settings.read_evaluator, usable(entries)
    failures = unusable(entries)
    policies: dict[str, Boundary] = {BOUNDARY: BOUNDARY}
    run = ScoringRun(lm, settings, boundary=BOUNDARY, policies=policies, special_tokens=False)
    started = time.perf_counter()
    if settings.read_opponent is not None:
        assert evaluator.pairwise is not None  # `kind` checks it
        question = evaluator.pairwise
        pairs, unmatched = pairwise.match(
            judged, settings.read_opponent, seed=settings.seed, both=settings.both_orders
        )
        judged, failures = [pair.entry for pair in pairs], failures + unmatched
        asked = pairwise.conversations(question, pairs, system=takes_system)
        answers = lm.generate(_chat_requests(asked, evaluator))
        found = pairwise.findings(pairwise.by_texts(question, pairs, answers))
    else:
        question = evaluator.pointwise
        items = [entry.item for entry in judged if entry.item is not None]
        asked = pointwise.conversations(question, items, system=takes_system)
        if kind in READS_PROBABILITIES:
            verdicts = weigh(lm, evaluator, asked, run, whole_labels=kind == "sequence")
        else:
            answers = lm.generate(_chat_requests(asked, evaluator))
            verdicts = pointwise.by_texts(question, answers)
        found = pointwise.findings(kind, question, verdicts, settings)
    seconds = time.perf_counter() - started
    decisions = mark_noise(
        [fields for fields in found.fields if fields.get("probability")],
        Record,
        run.noise,
        "label_logprob" if kind == "logits" else "sum_logprob",
        {"within_noise": "likeliest label"},
    )
    return rag.evaluation(
        found,
        judged,
        failures,
        metric=settings.metric,
        n_items=len(entries),
        asked=question.template(system=takes_system),
        noise=run.noise,
        decisions=decisions,
        audited=settings.audit_noise > 0,
        seconds=seconds,
    )


def _tokenizer(lm: LM) -> Any:
    return require_local("judge", lm).encoder.tokenizer


def _chat_requests(asked: Sequence[list[Message]], evaluator: Evaluator) -> list[ChatRequest]:
    """Requests for greedy answers."""
    return [ChatRequest(k, messages, evaluator.max_new_tokens) for k, messages in enumerate(asked)]


def weigh(
    lm: LM,
    evaluator: Evaluator,
    asked: Sequence[list[Message]],
    run: ScoringRun,
    *,
    whole_labels: bool,
) -> list[Verdict]:
    """Verdicts from the probabilities of the labels, by whole labels or by their first tokens.

    Args:
        run: scores the requests, with the boundary `BOUNDARY`.

    Raises:
        InputError: two labels share their first token, which decides.
    """
    question = evaluator.pointwise
    label_ids = () if whole_labels else _label_ids(lm, evaluator)
    prompts = [chat_template.render(_tokenizer(lm), messages) for messages in asked]
    if whole_labels:
        scored = run.score(pointwise.sequence_requests(prompts, question))
        return pointwise.by_sequences(question, scored)
    requests = [
        LabelRequest(k, prompt, label_ids, special_tokens=False) for k, prompt in enumerate(prompts)
    ]
    return pointwise.by_labels(question, run.label(requests))


def _label_ids(lm: LM, evaluator: Evaluator) -> tuple[int, ...]:
    """The first token of each label."""
    try:
        return require_local("judge", lm).encoder.first_ids(list(evaluator.pointwise.options))
    except InputError as problem:
        raise InputError(
            f"{evaluator.path}: {problem}; give --label-score sequence "
            "(label_score='sequence'), or other labels"
        ) from None


SYSTEM = System(
    name="judge",
    what="records",
    help=HELP,
    item=Item,
    settings=Settings,
    record=Record,
    evaluate=evaluate,
    report=report,
    is_lazy=True,
    read_objects=functools.partial(rag.read_entries, question=True),
    needs=("takes_messages",),
    compared=(COMPARED,),
)
