"""`jaxscore metrics`: lexical and ranking metrics of RAG experiments."""

import argparse
import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import execute, messages, outputs, results, shards
from jaxscore.cli.app import Command
from jaxscore.cli.messages import remark
from jaxscore.errors import InputError, one_line
from jaxscore.io.input_files import InputFiles
from jaxscore.io.manifest import read_manifest
from jaxscore.report.counts import counted
from jaxscore.shell.evaluate import evaluate
from jaxscore.shell.flags import flag, options_of
from jaxscore.systems.rag import experiment_folder, metrics, retrieval_runs
from jaxscore.systems.rag.experiment_folder import Experiment

SUMMED_UP = ("EM", "F1")  # metrics whose range over several folders is printed
INPUTS = {"records_sha256": "the records", "run_sha256": "the run"}  # digest -> of what


@dataclasses.dataclass(kw_only=True)
class Flags(messages.Quiet):
    """The flags of `metrics` after those of folders."""

    force: bool = flag(False, help="compute metrics again that exist already")
    limit: int | None = flag(
        None, least=1, metavar="N", help="only the first N records; the metrics' names end in _N"
    )


def run(args: argparse.Namespace) -> int:
    """Evaluate each folder, or the records of files."""
    if results.takes_files(args):
        return shards.run(args)
    metrics_run = _MetricsRun(args)
    refused = results.each(args, metrics_run.evaluate)
    return metrics_run.close(refused)


class _MetricsRun:
    """Evaluates folders, and counts for the closing block."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._n_records = self._n_folders = self._n_skipped = 0
        self._failures: list[tuple[str, str]] = []
        self._files: list[Path] = []
        self._headlines: list[str] = []
        self._means: dict[str, list[float]] = {name: [] for name in SUMMED_UP}

    def evaluate(self, folder: Path) -> None:
        """Evaluate one folder.

        Raises:
            InputError: its records or metrics cannot be read or written.
        """
        output = experiment_folder.load(folder, self._args.split, sample=self._args.limit)
        n_files, n_failed = len(self._files), len(self._failures)
        self._compare_words(output)
        if self._args.limit is None and retrieval_runs.has_labels(output):
            for stage in retrieval_runs.STAGES:
                try:
                    self._rank(output, stage)
                except InputError as problem:  # the lexical metrics stand without it
                    self._failures.append((f"{folder}: {stage}", str(problem)))
        computed = len(self._files) > n_files
        self._n_folders += computed
        self._n_skipped += not computed and len(self._failures) == n_failed

    def _compare_words(self, output: Experiment) -> None:
        files, ending = [output.target, output.metrics_path], ""
        if output.sample is not None:  # the manifest next to the means is for all records
            files, ending = files[::-1], f"_{output.sample}"
        made_of = _digests(output)
        names = tuple(name + ending for name in metrics.METRICS)
        missing = self._missing(output.metrics_path, names, made_of, files[-1])
        if not missing:
            return
        if not output.usable:
            none_left = (str(output.path), "no record is left to evaluate")
            self._failures += [*output.failures, none_left]
            return
        report = evaluate(
            metrics.SYSTEM,
            None,
            output,
            metrics.Settings(names=tuple(name.removesuffix(ending) for name in missing)),
            about={"folder": str(output.folder), "split": output.split},
        )
        output.save(
            {
                f"{name}{ending}": {
                    record["index"]: record[name]
                    for record in report.records
                    if "error" not in record
                }
                for name in report.summary
            },
            {f"{name}{ending}": record.mean for name, record in report.summary.items()},
        )
        self._n_records += len(output.usable)
        for name in report.summary.keys() & self._means.keys():
            self._means[name].append(report.summary[name].mean)
        self._add(output, output.failures, report.headline, files, made_of)

    def _rank(self, output: Experiment, stage: str) -> None:
        ranked = retrieval_runs.find(output.folder, output.split, stage)
        if ranked is None:
            return
        files_read = InputFiles([ranked.path])
        path = ranked.metrics_path
        made_of = {**_digests(output), "run_sha256": files_read.digest(ranked.path)}
        if not self._missing(path, ranked.names, made_of, path):
            return
        ranking = retrieval_runs.evaluate(ranked, retrieval_runs.load(ranked.path), output)
        files_read.check_unchanged()
        if not ranking.numbers:
            why = "no question of the run has a record with ranking labels"
            self._failures += [*ranking.failures, (str(ranked.path), why)]
            return
        if not ranking.details["n_found"]:
            remark(
                self._args,
                f"{ranked.path}: none of its documents is a ranking label; "
                "are both ids of the same kind (pages, or passages)?",
            )
        experiment_folder.merge_metrics(path, ranking.numbers)
        self._add(output, ranking.failures, f"{stage}: {ranking.headline}", [path], made_of)

    def _missing(
        self,
        path: Path,
        names: Sequence[str],
        made_of: Mapping[str, str | None],
        described: Path,
    ) -> list[str]:
        """Metrics that a file lacks, or all with --force.

        Args:
            made_of: digests of this run's inputs.
            described: the file beside whose manifest the digests of the earlier run are.

        Raises:
            InputError: an input has changed since the metrics that exist were computed.
        """
        stored = experiment_folder.read_metrics(path)
        missing = [name for name in names if self._args.force or stored.get(name) is None]
        if len(missing) < len(names):
            _check_unchanged(described, made_of)
        if not missing:
            remark(self._args, f"{path}: the metrics exist; --force computes them again")
        return missing

    def _add(
        self,
        output: Experiment,
        failures: Sequence[tuple[str, str]],
        line: str,
        files: list[Path],
        made_of: Mapping[str, Any],
    ) -> None:
        """Print what was found, and write a manifest for the last of the files."""
        print(one_line(f"{output.folder}: {line}"))
        self._headlines.append(line)
        self._failures += failures
        facts = {**made_of, "failed": len(failures)}
        self._files += [*files, outputs.write_own_manifest(self._args, files[-1], facts, ())]

    def close(self, refused: Sequence[tuple[str, str]]) -> int:
        """Print the closing block and give the exit code."""
        skipped = f", {self._n_skipped} skipped: the metrics exist" if self._n_skipped else ""
        ranges = [
            f"{name}: means from {min(means):.4f} to {max(means):.4f} over "
            f"{counted(len(means), 'folders')}"
            for name, means in self._means.items()
            if means
        ]
        return messages.print_closing_block(
            done=f"{counted(self._n_records, 'records')} in "
            f"{counted(self._n_folders, 'folders')}{skipped}",
            failures=[*refused, *self._failures],
            results=self._headlines if self._n_folders == 1 else ranges,
            files=self._files,
        )


def _digests(output: Experiment) -> dict[str, str | None]:
    """Return the digest of the fields of all rows, whatever columns they have."""
    rows = json.dumps(experiment_folder.fields_of(output.rows)).encode()
    return {"records_sha256": hashlib.sha256(rows).hexdigest()}


def _check_unchanged(path: Path, made_of: Mapping[str, str | None]) -> None:
    """Refuse to keep means of other inputs; a manifest without digests says nothing of them.

    Raises:
        InputError: an input has changed since the means were computed.
    """
    stored = read_manifest(path) or {}
    changed = [INPUTS[name] for name, value in made_of.items() if stored.get(name, value) != value]
    if changed:
        raise InputError(
            f"{path}: the metrics exist and were made of other inputs ({' and '.join(changed)} "
            "changed since); --force computes them again"
        )


COMMAND = Command(
    "metrics",
    f"{inspect.getdoc(metrics.SYSTEM)}\n",
    [
        *results.folder_options(metrics.SYSTEM, "evaluate"),
        *options_of(Flags),
        *options_of(shards.ShardFlags, omitted=("force",)),
    ],
    run,
    {"run_file": functools.partial(execute.run, metrics.SYSTEM)},
)
