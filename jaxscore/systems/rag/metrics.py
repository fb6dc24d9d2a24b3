"""Lexical overlap of responses with their references (the lexical metrics of BERGEN)."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from jaxscore.analysis import lexical
from jaxscore.errors import InputError
from jaxscore.io.json_output import where
from jaxscore.report.counts import counted
from jaxscore.shell.fields import PAIRED, Decision, Metric
from jaxscore.shell.flags import flag
from jaxscore.shell.settings import Settings as BaseSettings
from jaxscore.shell.system import Summary
from jaxscore.systems.rag import FIELDS, Item, RecordSystem, list_failures, mean_of
from jaxscore.systems.rag.evaluator_file import UNKNOWN

METRICS = (
    "M", "EM", "F1", "Precision", "Recall", "Recall_char3gram", "Rouge-1", "Rouge-2", "Rouge-L",
)  # fmt: skip
HITS = ("M", "EM")  # 0 or 1 per record; their means are shares


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(BaseSettings):
    """Settings of `metrics`."""

    names: tuple[str, ...] = flag(METRICS, is_flag=False)
    seed: int = flag(0, is_flag=False)
    n_bootstrap: int = flag(1000, least=1, is_flag=False)

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        expected = f"expected some of {', '.join(METRICS)}"
        if not self.names:
            raise InputError(f"setting names is empty, {expected}")
        if unknown := [name for name in self.names if name not in METRICS]:
            raise InputError(f"setting names has {unknown[0]!r}, {expected}")


def scores(response: str, label: Sequence[str]) -> dict[str, float]:
    """Return each of METRICS, from 0 to 1: its maximum over the references."""
    words, rouge = lexical.word_overlap(response, label), lexical.rouge(response, label)
    return {
        "M": lexical.match(response, label),
        "EM": lexical.exact_match(response, label),
        "F1": words.f1,
        "Precision": words.precision,
        "Recall": words.recall,
        "Recall_char3gram": lexical.trigram_recall(response, label),
        "Rouge-1": rouge.one,
        "Rouge-2": rouge.two,
        "Rouge-L": rouge.longest,
    }


def _hit(name: str) -> Callable[[Mapping[str, Any]], bool | None]:
    """Return a function of a stored record: its hit as a bool, or None if it is not 0 or 1."""
    return lambda record: record[name] == 1 if record[name] in (0, 1) else None


def stored_numbers(record: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numeric columns of a stored record, judges' scores included, without hits."""
    return {
        name: None if value == UNKNOWN else value
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
        if name not in (*FIELDS, "index") and not (name in HITS and value in (0, 1))
    }


Record = TypedDict(
    "Record",
    {
        "index": int,
        "q_id": Annotated[str | int, Metric("number of a column", value=stored_numbers)],
        "question": Annotated[str, PAIRED],
        "label": Annotated[list[str], PAIRED],
        "response": str,
        "M": Annotated[float, Decision("match", is_right=True, value=_hit("M"))],
        "EM": Annotated[float, Decision("exact match", is_right=True, value=_hit("EM"))],
        "F1": float,
        "Precision": float,
        "Recall": float,
        "Recall_char3gram": float,
        "Rouge-1": float,
        "Rouge-2": float,
        "Rouge-L": float,
    },
    total=False,
)


class Metrics(RecordSystem):
    """Compare the responses of RAG experiments with their references, without a model.

    input, in each folder of --experiments-folder (except tmp_...), or in --folder:
      eval_<split>_out.json   a list of records:
        {"q_id": "q1", "response": "In Oslo.", "label": ["Oslo"],
         "question": "...", "instruction": "...", "ranking_label": [["12"], ["7"]]}
        `question`, `instruction` and `ranking_label` may be absent.
    or with --output such objects in files (--input, JSONL and tables; `label` may
    be one string, `q_id` absent); --column label=gold_answers names a field
    in folders also
      eval_<split>_ranking_run.trec, else run.retrieve.top_<k>...<split>...trec
                              optional
      config.yaml             optional; its generation_top_k is the k of recall_k,
                              else the one in the file name

    output of files: --output, as JSONL or a table; merge and compare read it
    output of folders, merged into what the files hold:
      eval_<split>_out.json      a column for each of M, EM, F1, Precision, Recall,
                                 Recall_char3gram, Rouge-1, Rouge-2, Rouge-L (best
                                 of the references)
      eval_<split>_metrics.json  their means
      eval_<split>_ranking_metrics.json   P_1 and recall_k as trec_eval counts them,
                                 where a run and ranking labels exist; likewise for
                                 reranking
      Metrics that exist are kept. If the records, or the run of a ranking, have
      changed since they were computed, they are refused unless --force is given;
      <the metrics file>.run.json holds the digests.
      --limit N compares the first N records: the names of the metrics then end in
      _N, and their columns are in eval_<split>_out_<N>.json, whose .run.json has
      the digests. Rankings are left out.

    exit code: 0 all done, 1 some records, lines or folders could not be used (the
    others are kept), 2 unusable input.
    """

    name = "metrics"
    settings, record = Settings, Record

    def needs(self, settings: Settings) -> tuple[str, ...]:
        """Return nothing: the metrics need no model."""
        return ()

    def score(
        self, lm: None, items: Sequence[Item], settings: Settings
    ) -> Iterator[dict[str, Any]]:
        """Compare each response with its references."""
        for item in items:
            values = scores(item.response, item.label)
            yield {**item.repeated(), **{name: values[name] for name in settings.names}}

    def summarize(self, records: Sequence[Any], settings: Settings) -> Summary:
        """Return the mean of each metric."""
        evaluated = where(records, lambda record: "error" not in record)
        numbers = {
            name: mean_of(
                [record[name] for record in evaluated],
                settings.n_bootstrap,
                settings.seed,
                is_share=name in HITS,
            )
            for name in settings.names
        }
        means = ", ".join(f"{name} {mean.mean:.4f}" for name, mean in numbers.items() if evaluated)
        return Summary(
            headline=f"{means} over {counted(len(evaluated), 'records')}"
            if evaluated
            else "no record is left to evaluate",
            numbers=numbers,
            failures=list_failures(records),
        )


SYSTEM = Metrics()
