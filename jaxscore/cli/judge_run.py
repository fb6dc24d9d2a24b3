"""One run of `judge`: which folders lack the metric, and what it writes into them."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.cli import execute, messages, outputs, results
from jaxscore.cli.messages import remark
from jaxscore.engine import provenance
from jaxscore.errors import InputError, one_line
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_parts
from jaxscore.io.local_path import distinct_file_name
from jaxscore.models import model_types
from jaxscore.report.counts import counted
from jaxscore.shell.evaluate import evaluate
from jaxscore.shell.report import Report
from jaxscore.shell.system import Record
from jaxscore.systems.rag import bem, experiment_folder, judge, judged, metric_means, pairwise
from jaxscore.systems.rag.experiment_folder import Experiment
from jaxscore.systems.rag.pairwise import Stored

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer

COMPARED = ("evaluator", "evaluator_sha256", "both_orders", "seed")  # settings of the system
NONE_READ = "no answer names exactly one label, so the mean is null"


class JudgeRun:
    """The folders of a run and their results.

    Attributes:
        work: experiments that lack the metric and have a record to judge, see `find_work`.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        system: judge.JudgeSystem,
        settings: judge.Settings | bem.Settings,
        form: str,
        model: str,
        server: str | None,
    ) -> None:
        """Nothing is read yet.

        Args:
            kind: the form of the judge, see `judge.Settings.kind`.
            server: URL of the model, or None if it runs here.
        """
        self._args, self._system, self._settings = args, system, settings
        self._kind, self._model, self._server = form, model, server
        self._metric = settings.metric
        self._names = pairwise.metric_names(settings.metric, form)
        self.work: list[Experiment] = []
        self._n_skipped = 0
        self._failures: list[tuple[str, str]] = []
        self._reports: list[tuple[Path, Report]] = []
        self._files: list[Path] = []

    def find_work(self) -> None:
        """Look at each folder.

        Raises:
            InputError: a folder has the metric, and this run would compute it otherwise; or
                --folder cannot be used.
        """
        refused: list[str] = []

        def look(folder: Path) -> None:
            output = experiment_folder.load(folder, self._args.split, sample=self._args.sample)
            expected = self._expected(output)
            differences = self._differences(output, expected)
            if differences:
                refused.append(f"{folder}: {', '.join(self._names)}: {'; '.join(differences)}")
            elif differences is not None:
                self._n_skipped += 1
            elif not os.access(folder, os.W_OK):
                raise InputError(f"{folder}: cannot be written, and the scores belong there")
            elif expected:
                self.work.append(output)
            else:
                entries = self._system.entries(output)
                self._failures += [(entry.name, entry.error) for entry in entries if entry.error]
                self._failures.append((str(output.path), "no record is left to judge"))

        self._failures += results.each(self._args, look)
        if refused:
            raise InputError(
                f"{' | '.join(refused)}. The stored metric was made with other settings; --force "
                "judges it again, and another short name keeps both"
            )

    def _expected(self, output: Experiment) -> list[Record]:
        """Return the fields `pairwise.JUDGED` of the records that are judged."""
        settings, entries = self._settings, self._system.entries(output)
        items = {k: entry.item for k, entry in enumerate(entries) if entry.error is None}
        if not isinstance(settings, judge.Settings) or settings.read_opponent is None:
            return [{"index": k, **item.repeated()} for k, item in items.items()]
        pairs = pairwise.match(
            items.values(),
            settings.read_opponent,
            seed=settings.seed,
            both=settings.both_orders,
            where=output.where,
        )
        return [
            {"index": k, **pair.repeated()}
            for k, pair in zip(items, pairs, strict=True)
            if pair.error is None
        ]

    def _differences(self, output: Experiment, expected: list[Record]) -> list[str] | None:
        """Return how a folder's metric was made otherwise; None if this run has to compute it."""
        path = output.metrics_path
        values = experiment_folder.read_metrics(path)
        if self._args.force:
            return None
        stored = pairwise.load(self._report_paths(output)[1])
        if not any(
            all(values.get(name) is not None for name in names)
            for names in (self._names, *([] if stored is None else [stored.names]))
        ):
            return None
        existing = f"{path}: {' and '.join(self._names)} exists"
        if stored is None:
            remark(
                self._args,
                f"{existing}, made with settings that are unknown; --force judges it again",
            )
            return []
        settings = {
            **self._reading,
            **_expected_settings(self._args, self._settings, self._model, self._server, stored),
        }
        differences = pairwise.differences(stored, settings, expected)
        if not differences:
            remark(self._args, f"{existing}; --force judges it again")
        return differences

    def _report_paths(self, output: Experiment) -> tuple[Path, Path]:
        """Markdown and JSON of the metric's report."""
        stem = f"eval_{output.split}_judge_{distinct_file_name(self._metric)}"
        return output.folder / f"{stem}.md", output.folder / f"{stem}.json"

    def _pages(self, output: Experiment) -> list[Path]:
        """The file of a folder's page; none with --no-html.

        Raises:
            InputError: --html is a file that the run reads or writes.
        """
        paths = self._report_paths(output)
        inputs = output.path, output.target, output.metrics_path, *paths
        return outputs.page_paths(self._args, paths[0], *inputs)

    def files(self, output: Experiment) -> list[Path]:
        """The files of a folder that judging it writes, without the manifest of the report.

        Raises:
            InputError: --html is a file that the run reads or writes.
        """
        paths = self._report_paths(output)
        return [output.target, output.metrics_path, *paths, *self._pages(output)]

    def judge(self, source: Any, scorer: "Scorer | None") -> None:
        """Judge each folder, write the results and print them in one line.

        Args:
            source: judges, see `jaxscore.evaluate`.
            scorer: the source if it is a local model.

        Raises:
            InputError: the judge cannot be used, or the files of --folder cannot be written.
        """
        for output in self.work:
            if scorer is not None:
                scorer.begin_output()
            about = self._about(output)
            report = evaluate(self._system, source, output, self._settings, about=about)
            try:
                manifest = self._write(output, report, scorer)
            except InputError as problem:  # the folder has changed meanwhile, or is full
                if self._args.folder is not None:
                    raise
                self._failures.append((str(output.folder), str(problem)))
                continue
            self._print_result(output, report)
            self._reports.append((output.folder, report))
            self._files += [*self.files(output), manifest]

    @property
    def _reading(self) -> dict[str, Any]:
        """Return the rules by which answers become scores, by their names in a report."""
        out: dict[str, Any] = {"read_as": self._kind}
        if isinstance(self._settings, judge.Settings) and self._kind in ("text", "pairwise"):
            out["label_match"] = self._settings.question.label_match
        return out

    def _about(self, output: Experiment) -> dict[str, Any]:
        """Return the settings of a report that are neither the model's nor the system's."""
        args, settings = self._args, self._settings
        out = self._reading
        if isinstance(settings, judge.Settings) and self._kind in ("text", "pairwise"):
            out["max_new_tokens"] = settings.read_evaluator.max_new_tokens
        if self._kind == "pairwise":
            out |= {"opponent": args.opponent_name, "opponent_folder": str(args.opponent_folder)}
        if self._server is None:
            out["dtype_flag"] = args.dtype
        return out | {
            "folder": str(output.folder),
            "split": output.split,
            "sample": output.sample,
        }

    def _write(self, output: Experiment, report: Report, scorer: "Scorer | None") -> Path:
        """Write report, column and means; return where the manifest is."""
        page_path, data_path = self._report_paths(output)
        with (
            atomic(page_path) as page,
            atomic(data_path) as data,
            outputs.open_page(self._pages(output)) as browser,
        ):
            page.write(report.markdown())
            data.writelines(json_parts({**report.data(), **self._system.listed(report)}))
            if browser:
                browser.write(report.html())
            scores = {
                record["index"]: record["score"]
                for record in judged(report.records)
                if record["score"] is not None
            }
            output.save({self._metric: scores}, metric_means(self._metric, report.found.details))
        facts = {
            "seconds": round(report.facts.seconds, 3),
            **({} if scorer is None else execute.model_facts(scorer)),
            "failed": len(report.failures),
            execute.FACTS: report.facts.to_json(),
        }
        return outputs.write_own_manifest(self._args, page_path, facts, [data_path])

    def _print_result(self, output: Experiment, report: Report) -> None:
        """Print a folder's result and warnings, and add its failures."""
        separator = ": " if self._kind == "pairwise" else " "
        line = f"{output.folder}: {self._metric}{separator}{report.headline}"
        print(one_line(f"{line}; report {self._report_paths(output)[0].name}"))
        for line in report.remarks:
            remark(self._args, f"{output.folder}: {line}")
        names = [entry.name for entry in self._system.entries(output)]
        failed = (record for record in report.records if "error" in record)
        self._failures += [(names[record["index"]], record["error"]) for record in failed]
        has_answers = any(record["known"] is not None for record in judged(report.records))
        if self._kind == "text" and not report.found.details["summary"]["n"] and has_answers:
            self._failures.append((str(output.folder), NONE_READ))

    def close(self, scorer: "Scorer | None") -> int:
        """Print the closing block of all folders and give the exit code."""
        n = sum(len(report.records) for _, report in self._reports)
        skipped = f", {self._n_skipped} skipped: the metric exists" if self._n_skipped else ""
        seconds = sum(report.facts.seconds for _, report in self._reports)
        return messages.print_closing_block(
            done=f"{counted(n, 'records')} in {counted(len(self._reports), 'folders')}{skipped}",
            failures=self._failures,
            results=_results(self._metric, self._reports),
            files=self._files,
            scorer=scorer,
            seconds=seconds if self._reports else None,
        )


def _expected_settings(
    args: argparse.Namespace,
    settings: judge.Settings | bem.Settings,
    model: str,
    server: str | None,
    stored: Stored,
) -> dict[str, Any]:
    """Settings that decide this run's scores, by the names that a report has for them.

    They are known before a model is loaded. What `--dtype auto` stands for is then not known: it
    is taken to be the stored run's choice if that run chose by itself too.
    """
    out: dict[str, Any] = {"sample": args.sample}
    if args.llm is not None:
        out |= {
            "lora": None if args.lora is None else str(args.lora),
            "quantized": args.quantize,
            "truncate": args.truncate,
            "implementation": model_types.resolve_implementation(args.model_impl),
        }
    out |= {"model": model, "endpoint": server}
    if server is None:
        out |= {
            "revision": provenance.commit(model, args.revision),
            "reproducible": args.reproducible,
        }
        if args.dtype != stored.settings.get("dtype_flag"):
            out["dtype" if args.dtype != "auto" else "dtype_flag"] = args.dtype
    chosen = settings.record()
    if chosen.get("both_orders") is not False:
        del chosen["seed"]  # otherwise it draws which response stands first
    return out | {name: value for name, value in chosen.items() if name in COMPARED}


def _results(metric: str, reports: Sequence[tuple[Path, Report]]) -> list[str]:
    """Return the number of one folder, or the range of several, and their noise."""
    noise = [
        (folder, line)
        for folder, report in reports
        for line in messages.noise_lines(
            report.facts.noise, getattr(report.chosen, "audit_noise", 0) > 0, report.decisions
        )
    ]
    if len(reports) == 1:
        [(_, report)] = reports
        return [f"{metric}: {report.headline}", *(line for _, line in noise)]
    means = [report.found.details["summary"].get("mean") for _, report in reports]
    present = [mean for mean in means if mean is not None]
    if not present:
        return [f"{metric}: no record was judged"] if reports else []
    return [
        f"{metric}: means from {min(present):.5f} to {max(present):.5f} over "
        f"{counted(len(present), 'folders')}",
        *(f"{folder}: {line}" for folder, line in noise),
    ]
