"""`jaxscore metrics`: lexical and ranking metrics of RAG experiments."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from jaxscore.cli import experiments, messages, metrics_made_of, model_flags, outputs
from jaxscore.errors import InputError
from jaxscore.evaluate import Report, evaluate
from jaxscore.io.printable import one_line
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.rag import experiment_folder, lexical_columns, retrieval_runs
from jaxscore.systems.rag.experiment_folder import RagOutput
from jaxscore.systems.rag.retrieval_runs import Run

DESCRIPTION = """\
Compare the responses of RAG experiments with their references, without a model.

input, in each folder of --experiments-folder (except tmp_...), or in --folder:
  eval_<split>_out.json   a list of records:
    {"q_id": "q1", "response": "In Oslo.", "label": ["Oslo"],
     "question": "...", "instruction": "...", "ranking_label": [["12"], ["7"]]}
    `question`, `instruction` and `ranking_label` may be absent.
  eval_<split>_ranking_run.trec, else run.retrieve.top_<k>...<split>...trec
                          optional
  config.yaml             optional; its generation_top_k is the k of recall_k,
                          else the one in the file name

output, merged into what the files hold:
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

SUMMED_UP = ("EM", "F1")  # metrics whose range over several folders is told


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "metrics",
        description=DESCRIPTION,
    )
    experiments.add_folder_flags(parser, "evaluate")
    parser.add_argument(
        "--force", action="store_true", help="compute metrics again that exist already"
    )
    model_flags.add_limit_flag(parser, "records; the metrics' names end in _N")
    experiments.add_quiet_flag(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    done = _Done(args)
    refused = experiments.each(args, done.folder)
    return messages.print_closing_block(
        done=f"{done.n_records} records in {done.n_folders} folders{done.skipped}",
        failures=refused + done.failures,
        results=done.results,
        files=done.files,
    )


class _Done:
    """Evaluates folders, and adds up what the closing block says.

    Attributes:
        n_records: that were compared with their references.
        n_folders: in which a metric was computed.
        n_skipped: folders that had all metrics.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.n_records = self.n_folders = self.n_skipped = 0
        self.failures: list[tuple[str, str]] = []
        self.files: list[Path] = []
        self._headlines: list[str] = []
        self._means: dict[str, list[float]] = {name: [] for name in SUMMED_UP}

    @property
    def results(self) -> list[str]:
        """Of the folder, where it is one; the ranges of several, which have a line each."""
        if self.n_folders == 1:
            return self._headlines
        return [
            f"{name}: means from {min(means):.4f} to {max(means):.4f} over {len(means)} folders"
            for name, means in self._means.items()
            if means
        ]

    @property
    def skipped(self) -> str:
        """How many folders had all metrics, for the closing block."""
        return f", {self.n_skipped} skipped: the metrics exist" if self.n_skipped else ""

    def folder(self, folder: Path) -> None:
        """Evaluate one folder.

        Raises:
            InputError: its records or metrics cannot be read or written.
        """
        output = experiment_folder.load(folder, self.args.split, sample=self.args.limit)
        before, failed = len(self.files), len(self.failures)
        self._lexical(output)
        if self.args.limit is None and retrieval_runs.labelled(output):
            for stage in retrieval_runs.STAGES:
                try:
                    self._ranking(output, stage)
                except InputError as problem:  # the lexical metrics stand without it
                    self.failures.append((f"{folder}: {stage}", str(problem)))
        computed = len(self.files) > before
        self.n_folders += computed
        self.n_skipped += not computed and len(self.failures) == failed

    def _lexical(self, output: RagOutput) -> None:
        path = experiment_folder.metrics_path(output.folder, output.split)
        files = [output.target, path]
        ending = ""
        if output.sample is not None:  # the manifest beside the means is that of all records
            files, ending = [path, output.target], f"_{output.sample}"
        known = experiment_folder.read_metrics(path)
        names = [
            name
            for name in lexical_columns.METRICS
            if self.args.force or known.get(f"{name}{ending}") is None
        ]
        made_of = metrics_made_of.digests(output)
        if len(names) < len(lexical_columns.METRICS):
            metrics_made_of.check(files[-1], made_of)
        if not names:
            self._tell_kept(path)
            return
        if not output.records:
            self.failures += [*output.failures, (str(output.path), "no record is left to evaluate")]
            return
        report = evaluate(
            "metrics",
            None,
            output,
            names=tuple(names),
            about={"folder": str(output.folder), "split": output.split},
        )
        output.save(
            {
                f"{name}{ending}": {one["index"]: one[name] for one in report.items}
                for name in names
            },
            {f"{name}{ending}": one.mean for name, one in report.summary.items()},
        )
        self.n_records += len(output.records)
        for name in report.summary.keys() & self._means.keys():
            self._means[name].append(report.summary[name].mean)
        self._add(output, report, report.headline, files, made_of)

    def _ranking(self, output: RagOutput, stage: str) -> None:
        found = retrieval_runs.find(output.folder, output.split, stage)
        if found is None:
            return
        known = experiment_folder.read_metrics(found.metrics_path)
        kept = [name for name in found.names if known.get(name) is not None]
        made_of = metrics_made_of.digests(output, found.path)
        if kept and not self.args.force:
            metrics_made_of.check(found.metrics_path, made_of)
        if len(kept) == len(found.names) and not self.args.force:
            self._tell_kept(found.metrics_path)
            return
        summary = retrieval_runs.evaluate(found, retrieval_runs.load(found.path), output)
        if not summary.n_questions:
            why = "no question of the run has a record with ranking labels"
            self.failures += [*summary.failures, (str(found.path), why)]
            return
        if not summary.n_found:
            messages.remark(
                self.args,
                f"{found.path}: none of its documents is a ranking label; "
                "are both ids of the same kind (pages, or passages)?",
            )
        experiment_folder.merge_metrics(found.metrics_path, summary.means)
        report = _of_run(found, summary)
        line = f"{stage}: {report.headline}"
        self._add(output, report, line, [found.metrics_path], made_of)

    def _add(
        self,
        output: RagOutput,
        report: Report,
        line: str,
        files: list[Path],
        made_of: Mapping[str, str | None],
    ) -> None:
        """Tell what was found, and keep it; the last of the files gets the manifest."""
        print(one_line(f"{output.folder}: {line}"))
        self._headlines.append(line)
        self.failures += [(one.name, one.error) for one in report.failures]
        self.files += [
            *files,
            outputs.write_manifest(self.args, None, files[-1], report, **made_of),
        ]

    def _tell_kept(self, path: Path) -> None:
        messages.remark(self.args, f"{path}: the metrics exist; --force computes them again")


def _of_run(run: Run, summary: retrieval_runs.Summary) -> Report:
    """A run's means as a report."""
    n = summary.n_questions
    found = Evaluation(
        summary=summary.means,
        items=(),
        n_items=n,
        rows=(),
        details={"summary": summary.means},
        long={},
        headline=f"{_text(summary.means)} over {n} questions",
        failures=[Failure(*one) for one in summary.failures],
    )
    return Report("metrics", found, {"run": str(run.path)})


def _text(means: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in means.items())
