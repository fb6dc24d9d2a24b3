"""`judge`: a language model rates a response, or decides which of two is better (BERGEN)."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from jaxscore.analysis import margins
from jaxscore.errors import InputError
from jaxscore.io.manifest import file_digest
from jaxscore.report.document import Document
from jaxscore.shell.fields import Decision, Metric
from jaxscore.shell.flags import flag
from jaxscore.shell.prompts import note_answer_start
from jaxscore.shell.report import Report
from jaxscore.shell.settings import IntervalSettings
from jaxscore.shell.system import Summary
from jaxscore.systems import rag
from jaxscore.systems.rag import (
    AskedItem,
    Item,
    RecordBase,
    Records,
    RecordSystem,
    evaluator_file,
    pairwise,
    pointwise,
)
from jaxscore.systems.rag.evaluator_file import Evaluator, Question
from jaxscore.systems.rag.report import report
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message
from jaxscore.types.requests import ChatRequest, LabelRequest

READS_PROBABILITIES = ("logits", "sequence")
NEEDED = (
    "needs a model that runs here (--llm), an evaluator file with use_logits: true, and no opponent"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(IntervalSettings):
    """Settings of `judge`.

    Attributes:
        evaluator: the judge's prompt and labels: an `Evaluator`, the path of an evaluator file,
            or a name such as "default_qa".
        label_score: the definition of a label's probability; None is "first".
        label_match: the rule that finds labels in a written answer; None is "word".
        metric: the name of the score.
    """

    fixed = ("read_as", "label_score")
    evaluator: Evaluator | Path | str = flag(
        "default_qa",
        name="llm-prompt",
        metavar="NAME",
        help="evaluator file: a path, or a name in configs/evaluator, config/evaluator or this "
        "package, which has default_qa (default) and default_multi_qa",
    )
    label_score: Literal["first", "sequence"] | None = flag(
        None,
        help="what a label's probability is: its first token's (default), or the whole label's, "
        "for labels that share their first token",
    )
    label_match: evaluator_file.LabelMatch | None = flag(
        None,
        help="which labels a written answer has: whole words, of which the longest wins (word, "
        "default), or each one that occurs anywhere, as in the published scripts (substring)",
    )
    opponent: Any = flag(
        None,
        is_flag=False,
        help="records of the same questions; the judge then says which response is better",
    )
    both_orders: bool = flag(False, help="judge twice, each response first once")
    metric: str = flag("LLMeval", is_flag=False)

    def __post_init__(self) -> None:
        """Check all values and read the evaluator file; see `IntervalSettings`."""
        super().__post_init__()
        if not isinstance(self.evaluator, Evaluator):
            evaluator = evaluator_file.load(evaluator_file.find(str(self.evaluator)))
            object.__setattr__(self, "evaluator", evaluator)
        if self.opponent is not None:
            object.__setattr__(self, "opponent", rag.read_records(self.opponent))
            if self.read_evaluator.pairwise is None:
                path = self.read_evaluator.path
                raise InputError(f"{path}: a comparison with an opponent needs prompt_pairwise")
        elif self.both_orders:
            raise InputError("both orders (--both-orders) need a comparison; give an opponent")

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
        """Return the settings that decide the result."""
        path = self.read_evaluator.path
        out: dict[str, Any] = {"evaluator": str(path), "evaluator_sha256": file_digest(path)}
        if self.label_score == "sequence":
            out["label_score"] = self.label_score
        if self.opponent is not None:
            out["both_orders"] = self.both_orders
        if self.label_match is not None or self.local_kind not in READS_PROBABILITIES:
            out["label_match"] = self.question.label_match
        return out | {name: getattr(self, name) for name in ("truncate", "seed", "n_bootstrap")}

    @property
    def question(self) -> Question:
        """The prompt of the judge, and its labels."""
        evaluator = self.read_evaluator
        question = evaluator.pointwise if self.opponent is None else evaluator.pairwise
        assert question is not None  # see `__post_init__`
        return dataclasses.replace(question, label_match=self.label_match or "word")

    @property
    def local_kind(self) -> str:
        """The `kind` of the judgements of a model that runs here; see `systems.rag`."""
        if self.opponent is not None:
            return "pairwise"
        if not self.read_evaluator.use_logits:
            return "text"
        return "sequence" if self.label_score == "sequence" else "logits"

    def kind(self, *, is_local: bool) -> str:
        """Return the `kind` of the judgements; see `systems.rag`.

        Args:
            is_local: True if the model runs here, so that its probabilities can be read.

        Raises:
            InputError: a setting is without effect for that kind.
        """
        score_source = self.local_kind
        if score_source in READS_PROBABILITIES and not is_local:
            score_source = "text"
        if score_source in READS_PROBABILITIES:
            return score_source
        if self.truncate:
            raise InputError(
                "truncate (--truncate) is for prompts whose labels are scored; a written answer "
                "needs the whole prompt, so leave it out here"
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
        return score_source


def _score(record: Mapping[str, Any]) -> float | None:
    return record["score"] if record["known"] else None


def _verdict(record: Mapping[str, Any]) -> str | None:
    score = _score(record)
    names = {value: name for name, value in pairwise.OUTCOMES.items()}
    return None if score is None else names.get(score, str(score))


def _likeliest(record: Mapping[str, Any]) -> str | None:
    return pointwise.likeliest(record["probability"]) if record["probability"] else None


def _lead(record: Mapping[str, Any]) -> float | None:
    """Return the lead of the likeliest label; normalising over the labels does not change it."""
    values = record["probability"].values()
    return margins.lead([math.log(p) if p else -math.inf for p in values]) if values else None


LABEL = Decision(
    "likeliest label", False, "log-probability of a label", _likeliest, _lead, "within_noise",
    "label", "label_logprob",
)  # fmt: skip
WHOLE_LABEL = dataclasses.replace(LABEL, spread="sum_logprob")


class Record(RecordBase, total=False):
    """One record of the report's JSON file."""

    opponent: str
    score: Annotated[float | None, Metric("score of the judge", value=_score)]
    known: bool | None
    probability: Annotated[dict[str, float], LABEL, WHOLE_LABEL]
    outside: float | None
    switched: Annotated[list[bool], Decision("win, tie or lose", value=_verdict, name="verdict")]
    answers: list[float]
    texts: list[str]
    by_reference: list[float]
    best: str
    truncated: int
    trimmed: int
    within_noise: bool


class JudgeSystem(RecordSystem):
    """A system that gives a score to each response."""

    item, record = AskedItem, Record

    def listed(self, run: Report) -> dict[str, Any]:
        """Return the fields that the report's JSON file, the run's output, has besides numbers."""
        return {"records": rag.judged(run.records)}

    def report(self, run: Report) -> Document:
        """Return the report, worst records first; see `rag.report`."""
        return report(run.source(**self.listed(run)))


class Judge(JudgeSystem):
    """Let a model judge the responses of RAG experiments (BERGEN): is each one right,
    or which of two is better?

    input, in each folder of --experiments-folder (except tmp_...), or in --folder:
      eval_<split>_out.json   a list of records:
        {"q_id": "q1", "response": "In Oslo.", "label": ["Oslo"],
         "question": "Where was Ada born?"}
    or with --output such objects in files (--input, JSONL and tables; `label` may
    be one string, `q_id` absent); --column label=gold_answers names a field

    the judge, one of:
      --llm [MODEL [SHORT]]   a model on this machine; --model MODEL is the same.
                              With use_logits in the evaluator file the score is
                              the mean value of the labels, weighted by their
                              next-token probabilities. Without it the model
                              writes an answer, and the score is the value of the
                              one label in it
                              (-100, outside the mean, for no label or several).
                              Labels are whole words, and the longest wins:
                              Incorrect is not Correct; --label-match substring is
                              the published rule
                              A prompt has the special tokens of the model's chat
                              template; no BOS is added
      --llm-ollama MODEL [SHORT]   an ollama server, which writes an answer
      --gpt MODEL             an OpenAI-compatible server (key in OPENAI_API_KEY),
                              which writes an answer
      --bem [MODEL]           a BERT classifier: P(equivalent), best reference

    With --opponent-folder and --opponent-name the judge writes which of two
    responses is better. --seed draws their order; --both-orders judges both: a win
    or a loss is what both answers say, and answers that disagree are a tie.

    output of files: --output, as JSONL or a table, with a report and a page;
    merge, report and compare read it
    output of folders, merged into what the files hold:
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

    Evaluator files (--llm-prompt) hold prompts, labels and their values.
    Templates are filled with rubrik_section (the labels), question, answer,
    prediction, prediction_1 and prediction_2 in braces, also in Python f-strings as
    BERGEN writes them. Templates with other fields are refused.

    exit code: 0 all judged; 1 some records or folders failed, or no written answer
    of a folder names a label (the others are kept; a comparison without a readable
    answer has null rates and exits 0); 2 unusable input, or other settings than
    those of a metric that exists.
    """

    name = "judge"
    settings = Settings

    def needs(self, settings: Settings) -> tuple[str, ...]:
        """Return the capability to read a conversation."""
        return ("takes_messages",)

    def score(self, lm: Any, items: Sequence[Item], settings: Settings) -> Iterator[dict[str, Any]]:
        """Judge each response.

        Raises:
            InputError: the model lacks a chat template or support for a setting.
        """
        is_local = lm.capabilities.is_local
        score_source = settings.kind(is_local=is_local)
        takes_system = not is_local or chat_template.takes_system(lm.encoder.tokenizer)
        lm.about["takes_system"] = takes_system
        evaluator = settings.read_evaluator
        if settings.read_opponent is not None:
            pairs = pairwise.match(
                items, settings.read_opponent, seed=settings.seed, both=settings.both_orders
            )
            question = settings.question
            asked = pairwise.render_conversations(question, pairs, system=takes_system)
            yield from pairwise.by_texts(
                question, pairs, lm.generate(_chat_requests(asked, evaluator))
            )
            return
        asked = pointwise.render_conversations(settings.question, items, system=takes_system)
        if score_source in READS_PROBABILITIES:
            verdicts = weigh(lm, settings, asked)
        else:
            answers = lm.generate(_chat_requests(asked, evaluator))
            verdicts = pointwise.by_texts(settings.question, answers)
        is_cut = any(verdict["truncated"] for verdict in verdicts)
        for item, verdict in zip(items, verdicts, strict=True):
            if not is_cut:
                del verdict["truncated"]
            yield {**item.repeated(), **verdict}

    def summarize(self, records: Sequence[Any], settings: Settings) -> Summary:
        """Return the mean score, or in a comparison the rates of winning."""
        judged = rag.judged(records)
        if settings.opponent is not None:
            findings = pairwise.compute_findings(judged)
        else:
            findings = pointwise.compute_findings(
                settings.question, judged, settings, settings.local_kind
            )
        return rag.summary_of_findings(findings, records, settings.metric)

    def listed(self, run: Report) -> dict[str, Any]:
        """See `JudgeSystem.listed`; also the prompt of the judge."""
        settings: Any = run.chosen
        asked = settings.question.template(system=run.about["takes_system"])
        return {"asked": asked, **super().listed(run)}


def _chat_requests(asked: Sequence[list[Message]], evaluator: Evaluator) -> list[ChatRequest]:
    """Return requests for greedy answers."""
    return [ChatRequest(k, messages, evaluator.max_new_tokens) for k, messages in enumerate(asked)]


def weigh(lm: Any, settings: Settings, asked: Sequence[list[Message]]) -> list[dict[str, Any]]:
    """Return verdicts from the probabilities of whole labels or of their first tokens.

    Raises:
        InputError: two labels share their first token, and first tokens are scored.
    """
    note_answer_start(lm, lm.encoder.tokenizer)
    question, truncate = settings.question, settings.truncate
    has_whole_labels = settings.label_score == "sequence"
    label_ids = () if has_whole_labels else _label_ids(lm, settings.read_evaluator)
    prompts = [chat_template.render(lm.encoder.tokenizer, messages) for messages in asked]
    if has_whole_labels:
        requests = pointwise.sequence_requests(prompts, question)
        scored = lm.score(requests, boundary="separate", truncate=truncate, special_tokens=False)
        return pointwise.by_sequences(question, scored)
    labels = [
        LabelRequest(k, prompt, label_ids, special_tokens=False) for k, prompt in enumerate(prompts)
    ]
    return pointwise.by_labels(question, lm.label(labels, truncate=truncate))


def _label_ids(lm: Any, evaluator: Evaluator) -> tuple[int, ...]:
    """Return the first token of each label."""
    try:
        return lm.encoder.first_ids(list(evaluator.pointwise.options))
    except InputError as problem:
        raise InputError(
            f"{evaluator.path}: {problem}; give --label-score sequence "
            "(label_score='sequence'), or other labels"
        ) from None


SYSTEM = Judge()
