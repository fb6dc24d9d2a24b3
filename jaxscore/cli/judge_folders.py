"""Which folders `judge` has to judge: those that lack the metric, and none that differs."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.cli import experiments, judge_flags
from jaxscore.cli.messages import remark
from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.io import run_files
from jaxscore.io.run_files import file_digest
from jaxscore.models import choices
from jaxscore.systems.rag import experiment_folder, judge_pairwise, stored_judgement
from jaxscore.systems.rag.experiment_folder import RagOutput
from jaxscore.systems.rag.stored_judgement import Stored, metric_names


class Metric(NamedTuple):
    """What a run computes.

    Attributes:
        name: without the endings of a comparison.
        chosen: the system's settings, see `judge_flags.settings`.
    """

    name: str
    kind: str
    chosen: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """In the metrics file."""
        return metric_names(self.name, self.kind)


class Work(NamedTuple):
    """What there is to do.

    Attributes:
        outputs: of the folders that lack the metric and have a record to judge.
        skipped: the folders that have it.
        failures: (name, why) of folders and records that cannot be used.
    """

    outputs: list[RagOutput]
    skipped: list[Path]
    failures: list[tuple[str, str]]


def report_paths(output: RagOutput, metric: str) -> tuple[Path, Path]:
    """Where the page of a metric and its JSON file lie."""
    stem = f"eval_{output.split}_judge_{run_files.distinct_file_name(metric)}"
    return output.folder / f"{stem}.md", output.folder / f"{stem}.json"


def written(output: RagOutput, metric: Metric) -> list[Path]:
    """The files of a folder that judging it writes, without the manifest of the report."""
    means = experiment_folder.metrics_path(output.folder, output.split)
    return [output.target, means, *report_paths(output, metric.name)]


def work(args: argparse.Namespace, metric: Metric) -> Work:
    """Look at each folder.

    Raises:
        InputError: a folder has the metric, and this run would compute it otherwise; or --folder
            cannot be used.
    """
    found = Work([], [], [])
    refused: list[str] = []

    def look(folder: Path) -> None:
        output = experiment_folder.load(folder, args.split, sample=args.sample, question=True)
        judged = _judged(metric, output)
        if (differs := _differs(args, metric, output, judged)) is None:
            if not os.access(folder, os.W_OK):
                raise InputError(f"{folder}: cannot be written, and the scores belong there")
            if judged:
                found.outputs.append(output)
            else:
                found.failures.extend(output.failures)
                found.failures.append((str(output.path), "no record is left to judge"))
        elif differs:
            refused.append(f"{folder}: {', '.join(metric.names)}: {'; '.join(differs)}")
        else:
            found.skipped.append(folder)

    found.failures.extend(experiments.each(args, look))
    if refused:
        raise InputError(
            f"{' | '.join(refused)}. The stored metric was made with other settings; --force "
            "judges it again, and another short name keeps both"
        )
    return found


def _judged(metric: Metric, output: RagOutput) -> list[Any]:
    """The records, or in a comparison the pairs."""
    if metric.kind != "pairwise":
        return [*output.records]
    pairs, _ = judge_pairwise.match(
        output,
        metric.chosen["opponent"],
        seed=metric.chosen["seed"],
        both=metric.chosen["both_orders"],
    )
    return [*pairs]


def _differs(
    args: argparse.Namespace, metric: Metric, output: RagOutput, judged: list[Any]
) -> list[str] | None:
    """What a folder's metric was made of otherwise, nothing where equal, None where it lacks it."""
    path = experiment_folder.metrics_path(output.folder, output.split)
    values = experiment_folder.read_metrics(path)
    if args.force:
        return None
    exists = all(values.get(name) is not None for name in metric.names)
    stored = stored_judgement.load(report_paths(output, metric.name)[1])
    if stored is not None and not exists and not _stands(stored, values):
        return None
    if stored is None and not exists:
        return None
    told = " and ".join(metric.names)
    if stored is None:
        remark(
            args,
            f"{path}: {told} exists, made with settings that are unknown; --force judges it again",
        )
        return []
    found = stored_judgement.differences(stored, settings(args, metric, stored), judged)
    if not found:
        remark(args, f"{path}: {told} exists; --force judges it again")
    return found


def _stands(stored: Stored, values: Mapping[str, Any]) -> bool:
    """Whether the metrics file has what a report, of the same file name, is about."""
    return all(values.get(name) is not None for name in stored.names)


def settings(args: argparse.Namespace, metric: Metric, stored: Stored) -> dict[str, Any]:
    """Those that decide this run's scores, by the names that a report has for them.

    They are known before a model is loaded. What `--dtype auto` stands for is then not known: it
    is taken to be the stored run's choice where that run chose by itself too.
    """
    chosen = metric.chosen
    out: dict[str, Any] = {"read_as": metric.kind, "sample": args.sample}
    if args.bem is not None:
        name: str = args.bem
    elif args.llm is not None:
        name = judge_flags.model_name(args)
        out |= {
            "lora": None if args.lora is None else str(args.lora),
            "quantized": args.quantize,
            "truncate": args.truncate,
            "implementation": choices.resolve_implementation(args.model_impl),
        }
    else:
        name = args.gpt or args.llm_ollama[0]
    out |= {"model": name, "endpoint": judge_flags.server(args)}
    if args.bem is not None or args.llm is not None:
        out |= {
            "revision": provenance.commit(name, args.revision),
            "reproducible": args.reproducible,
        }
        if args.dtype != stored.settings.get("dtype_flag"):
            out["dtype" if args.dtype != "auto" else "dtype_flag"] = args.dtype
    if args.bem is None:
        out["evaluator"] = str(chosen["evaluator"].path)
        out["evaluator_sha256"] = file_digest(chosen["evaluator"].path)
    if metric.kind == "pairwise":
        out["both_orders"] = chosen["both_orders"]
        if not chosen["both_orders"]:
            out["seed"] = args.seed  # it draws which response stands first
    return out
