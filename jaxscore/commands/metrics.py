"""`jaxscore metrics`: lexical and ranking metrics of RAG experiments."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from jaxscore.commands import shared
from jaxscore.errors import InputError
from jaxscore.printable import one_line
from jaxscore.tasks.rag import experiment_folder, lexical_columns, retrieval_runs
from jaxscore.tasks.rag.experiment_folder import RagOutput

DESCRIPTION = """\
Compare the responses of RAG experiments with their references, without a model.

input, in each folder of --experiments-folder (those named tmp_ are left out), or in --folder:
  eval_<split>_out.json      a list of records:
    {"q_id": "q1", "response": "In Oslo.", "label": ["Oslo"], "question": "...",
     "instruction": "...", "ranking_label": [["12"], ["7"]]}
    `question`, `instruction` and `ranking_label` may be absent.
  eval_<split>_ranking_run.trec, else run.retrieve.top_<k>...<split>...trec      optional
  config.yaml                optional; its generation_top_k is the k of recall_k, else the
                             file name's

output, merged into what is there:
  eval_<split>_out.json      a column for each of M, EM, F1, Precision, Recall,
                             Recall_char3gram, Rouge-1, Rouge-2, Rouge-L (best of the references)
  eval_<split>_metrics.json  their means
  eval_<split>_ranking_metrics.json   P_1 and recall_k, as trec_eval counts them, where there is a
                             run and records have ranking labels; likewise reranking

exit code: 0 all done, 1 some records, lines or folders could not be used (the others are kept),
2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "metrics",
        help="EM, match, F1, ROUGE and ranking metrics of RAG experiments (BERGEN)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--experiments-folder",
        type=Path,
        default=Path("experiments"),
        metavar="FOLDER",
        help="evaluate each folder in it (default: experiments/)",
    )
    parser.add_argument("--folder", type=Path, help="evaluate this one instead")
    parser.add_argument("--split", default="dev", help="default: dev")
    parser.add_argument(
        "--force", action="store_true", help="compute metrics anew that are there already"
    )
    parser.add_argument("--quiet", action="store_true", help="no remarks on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.folder is not None:
        return shared.tell_failures(_evaluate(args, args.folder))
    failures: list[tuple[str, str]] = []
    for folder in experiment_folder.folders(args.experiments_folder, args.split):
        try:
            failures += _evaluate(args, folder)
        except InputError as problem:
            failures.append((str(folder), str(problem)))
    return shared.tell_failures(failures)


def _evaluate(args: argparse.Namespace, folder: Path) -> list[tuple[str, str]]:
    """Evaluate one folder and return what failed in it."""
    output = experiment_folder.load(folder, args.split)
    failures = _lexical(args, output)
    if retrieval_runs.labelled(output):
        for stage in retrieval_runs.STAGES:
            try:
                failures += _ranking(args, output, stage)
            except InputError as problem:  # the lexical metrics stand without it
                failures.append((f"{folder}: {stage}", str(problem)))
    return failures


def _lexical(args: argparse.Namespace, output: RagOutput) -> list[tuple[str, str]]:
    path = experiment_folder.metrics_path(output.folder, output.split)
    there = experiment_folder.read_metrics(path)
    names = [name for name in lexical_columns.METRICS if args.force or there.get(name) is None]
    if not names:
        shared.remark(args, f"{path}: the metrics are there; --force computes them anew")
        return []
    if not output.records:
        return [*output.failures, (str(output.path), "no record is left to evaluate")]
    values = lexical_columns.evaluate(output.records)
    columns = {name: values[name] for name in names}
    means = lexical_columns.summarise(columns)
    output.save(columns, means)
    print(one_line(f"{output.folder}: {_text(means)} over {len(output.records)} records"))
    return output.failures


def _ranking(args: argparse.Namespace, output: RagOutput, stage: str) -> list[tuple[str, str]]:
    found = retrieval_runs.find(output.folder, output.split, stage)
    if found is None:
        return []
    there = experiment_folder.read_metrics(found.metrics_path)
    if not args.force and all(there.get(name) is not None for name in found.names):
        shared.remark(
            args, f"{found.metrics_path}: the metrics are there; --force computes them anew"
        )
        return []
    summary = retrieval_runs.evaluate(found, retrieval_runs.load(found.path), output)
    if not summary.n_questions:
        why = "no question of the run has a record with ranking labels"
        return [*summary.failures, (str(found.path), why)]
    if not summary.n_found:
        shared.remark(
            args,
            f"{found.path}: none of its documents is a ranking label; "
            "are both ids of the same kind (pages, or passages)?",
        )
    experiment_folder.merge_metrics(found.metrics_path, summary.means)
    line = f"{output.folder}: {stage}: {_text(summary.means)} over {summary.n_questions} questions"
    print(one_line(line))
    return summary.failures


def _text(means: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in means.items())
