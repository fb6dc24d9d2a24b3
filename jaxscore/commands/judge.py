"""`jaxscore judge`: a model judges the responses of RAG experiments."""

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxscore.commands import judge_flags, shared
from jaxscore.endpoints import chat as openai
from jaxscore.endpoints import ollama
from jaxscore.endpoints.http import Limits
from jaxscore.engine.noise import Draw, Noise, OtherLayouts
from jaxscore.engine.platform import use_compilation_cache, use_device
from jaxscore.errors import InputError
from jaxscore.files import run_files
from jaxscore.files.atomic import atomic, json_safe
from jaxscore.metrics.margins import Decisions
from jaxscore.printable import one_line
from jaxscore.reports import provenance
from jaxscore.reports.judge_report import report
from jaxscore.scorer import Scorer
from jaxscore.tasks.rag import (
    bem,
    evaluator_file,
    experiment_folder,
    judge_findings,
    judge_pairwise,
    judge_pointwise,
)
from jaxscore.tasks.rag.evaluator_file import Evaluator
from jaxscore.tasks.rag.experiment_folder import RagOutput
from jaxscore.tasks.rag.judge_findings import Draws, Findings
from jaxscore.tasks.rag.judge_model import EndpointJudge, JudgeModel, LocalJudge
from jaxscore.tasks.rag.judge_pairwise import Pair

ENDINGS = {"pairwise": ("_win", "_tie", "_lose")}  # of the metric's names; else there is one
DESCRIPTION = """\
Let a model judge the responses of RAG experiments (BERGEN): is each right, or which of two is
better?

input, in each folder of --experiments-folder (those named tmp_ are left out), or in --folder:
  eval_<split>_out.json      a list of records:
    {"q_id": "q1", "response": "In Oslo.", "label": ["Oslo"], "question": "Where was Ada born?"}

the judge, one of:
  --llm [MODEL [SHORT]]      a model here. Where the evaluator file says use_logits, the score is
                             the mean worth of the labels by their next-token probabilities; else
                             the worth of the one label in what it writes (-100 where there is
                             none or several, outside the mean)
  --llm-ollama MODEL [SHORT] an ollama server, which writes
  --gpt MODEL                an OpenAI-compatible server (key in OPENAI_API_KEY), which writes
  --bem [MODEL]              a BERT classifier: P(equivalent), the best of the references

with --opponent-folder and --opponent-name it writes which of two responses is better, in an order
drawn by --seed, or in both with --both-orders: a win or a loss is then what both answers say, and
answers that disagree are a tie.

output, merged into what is there:
  eval_<split>_out.json      a column of scores
  eval_<split>_metrics.json  its mean; against an opponent the percentages of win, tie and lose
  eval_<split>_judge_<metric>.md and .json   what it says in detail, worst records first; with
                             --audit-noise, where probabilities are read, whether rounding could
                             turn which label is the likeliest (`within_noise`)
The metric is LLMeval_<short>, with _logits where probabilities are read, or with
_VS_<opponent>_win, _tie and _lose; MODEL itself with --gpt, BEM with --bem; _<N> with --sample N,
whose records are in eval_<split>_out_<N>.json. One that is there is kept unless --force is given.

evaluator files (--llm-prompt) hold prompts, labels and what each is worth. Templates are filled
with rubrik_section (the labels), question, answer, prediction, prediction_1 and prediction_2 in
braces, also in Python f-strings as BERGEN writes them, and refused if they ask for more.

exit code: 0 all judged, 1 some records or folders failed (the others are kept), 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "judge",
        help="a model judges the responses of RAG experiments (BERGEN)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    judge_flags.add(parser)
    shared.add_model_flags(parser, model_required=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    judge_flags.check(args)
    if args.bem is not None:
        unused = [name for name in shared.UNUSED if name not in ("device", "dtype")]
        shared.tell_unused(args, unused, "the classifier is computed whole, and anew each time")
    elif args.llm is None:
        shared.tell_unused(args, [*shared.UNUSED], "the server computes")
    evaluator = None
    if args.bem is None:
        evaluator = evaluator_file.load(evaluator_file.find(args.llm_prompt))
    kind = judge_flags.kind(args, evaluator)
    metric = judge_flags.metric(args, kind)
    wanted, failures = _wanted(args, kind, metric)
    pairs: list[Pair] = []
    if kind == "pairwise" and wanted:
        opponent = experiment_folder.load(args.opponent_folder, args.split)
        pairs, unmatched = judge_pairwise.match(
            wanted[0], opponent, seed=args.seed, both=args.both_orders
        )
        failed = wanted[0].failures + unmatched
        wanted = [dataclasses.replace(wanted[0], failures=failed)]
    for output in wanted:
        failures += output.failures
    judged = [output for output in wanted if output.records and (pairs or kind != "pairwise")]
    failures += [(str(o.path), "no record is left to judge") for o in wanted if o not in judged]
    if judged:
        failures += _judge_all(args, evaluator, kind, metric, judged, pairs)
    return shared.tell_failures(failures)


def _judge_all(
    args: argparse.Namespace,
    evaluator: Evaluator | None,
    kind: str,
    metric: str,
    outputs: Sequence[RagOutput],
    pairs: Sequence[Pair],
) -> list[tuple[str, str]]:
    """Judge each folder and write what is found; returns what failed."""
    failures: list[tuple[str, str]] = []
    find, made_by, scorer = _judge(args, evaluator, kind, pairs)
    layouts = None if scorer is None else OtherLayouts(scorer)
    seconds = 0.0
    for output in outputs:
        name = run_files.distinct(metric)
        stem = f"eval_{args.split}_judge_{name}"
        paths = [output.folder / f"{stem}{suffix}" for suffix in (".md", ".json")]
        draw = Draw(args.audit_noise, args.seed)
        started = time.perf_counter()
        if scorer is not None:
            scorer.begin_output()
        found = find(output, draw)
        own_seconds = time.perf_counter() - started
        seconds += own_seconds
        noise, decisions = _audit(args, layouts, kind, draw, found)
        record = {
            "metric": metric,
            "kind": kind,
            "summary": found.summary,
            "remarks": found.remarks,
            "failures": [
                {"name": name, "error": why} for name, why in output.failures + found.failures
            ],
            "records": found.records,
            **shared.noise_fields(args, noise, decisions),
            "settings": _settings(args, evaluator, kind, output, made_by),
        }
        try:
            with atomic(paths[0]) as page, atomic(paths[1]) as data:
                page.write(report(record))
                # ASCII, since a q_id may hold half a surrogate pair.
                json.dump(json_safe(record), data, allow_nan=False, indent=2)
                data.write("\n")
                output.save(
                    {metric: found.column},
                    {f"{metric}{ending}": value for ending, value in found.means.items()},
                )
        except InputError as problem:  # the folder has changed meanwhile, or is full
            if args.folder is not None:
                raise
            failures.append((str(output.folder), str(problem)))
            continue
        if scorer is not None:
            shared.write_manifest(args, scorer, own_seconds, paths[0], noise)
        print(one_line(f"{output.folder}: {_line(metric, found)}; report {paths[0].name}"))
        shared.tell_noise(args, noise, decisions)
        for remark in found.remarks:
            shared.remark(args, f"{output.folder}: {remark}")
        failures += found.failures
    if scorer is not None:
        shared.tell_run(args, scorer, seconds)
    return failures


def _audit(
    args: argparse.Namespace,
    layouts: OtherLayouts | None,
    kind: str,
    draw: Draw,
    found: Findings,
) -> tuple[Noise | None, list[Decisions]]:
    """The noise of what was drawn; adds marks to the records."""
    if layouts is None or not draw.pairs:
        return None, []
    if kind == "logits":
        noise = layouts.labels(draw.pairs, truncate=args.truncate)
    else:
        boundary = judge_pointwise.SEQUENCE_BOUNDARY
        noise = layouts.scores(draw.pairs, boundary=boundary, truncate=args.truncate)
    return noise, [] if noise is None else judge_findings.mark(found, noise)


def _wanted(
    args: argparse.Namespace, kind: str, metric: str
) -> tuple[list[RagOutput], list[tuple[str, str]]]:
    """The records of the folders that lack the metric, and which folders cannot be used."""
    if args.folder is not None:
        return _lacking(args, kind, metric, args.folder), []
    outputs, failures = [], []
    for folder in experiment_folder.folders(args.experiments_folder, args.split):
        try:
            outputs += _lacking(args, kind, metric, folder)
        except InputError as problem:
            failures.append((str(folder), str(problem)))
    return outputs, failures


def _lacking(args: argparse.Namespace, kind: str, metric: str, folder: Path) -> list[RagOutput]:
    """The records of one folder, or nothing where it has the metric."""
    output = experiment_folder.load(folder, args.split, sample=args.sample, question=True)
    if not _lacks(args, kind, metric, output):
        return []
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder}: cannot be written, and the scores belong there")
    return [output]


def _lacks(args: argparse.Namespace, kind: str, metric: str, output: RagOutput) -> bool:
    path = experiment_folder.metrics_path(output.folder, output.split)
    there = experiment_folder.read_metrics(path)
    names = [f"{metric}{ending}" for ending in ENDINGS.get(kind, ("",))]
    if args.force or any(there.get(name) is None for name in names):
        return True
    shared.remark(args, f"{path}: {' and '.join(names)} there; --force judges anew")
    return False


def _judge(
    args: argparse.Namespace,
    evaluator: Evaluator | None,
    kind: str,
    pairs: Sequence[Pair],
) -> tuple[Callable[[RagOutput, Draw], Findings], dict[str, Any], Scorer | None]:
    """What judges a folder, what it is made of, and its scorer if it has one.

    Where probabilities are read, the requests for them pass the draw.
    """
    draws = Draws(args.n_bootstrap, args.seed)
    if evaluator is None:
        use_device(args.device)
        use_compilation_cache()
        classifier = bem.load(
            args.bem, args.revision, dtype=args.dtype, reproducible=args.reproducible
        )
        made_by = {"model": args.bem, "revision": provenance.commit(args.bem, args.revision)}

        def match(output: RagOutput, _: Draw) -> Findings:
            return judge_findings.bem(classifier.match(output.records), output, draws)

        return match, made_by, None
    place = args.folder or args.experiments_folder
    model, made_by, scorer = _model(args, place)
    tokens = evaluator.max_new_tokens
    question = evaluator.pointwise

    def told(found: Findings) -> Findings:
        return dataclasses.replace(found, remarks=[*found.remarks, *model.remarks])

    def compare(output: RagOutput, _: Draw) -> Findings:
        assert evaluator.pairwise is not None  # `judge_flags.kind` has seen to it
        asked = judge_pairwise.conversations(evaluator.pairwise, pairs, system=model.system)
        verdicts = judge_pairwise.evaluate(evaluator.pairwise, pairs, model.write(asked, tokens))
        return told(judge_findings.pairwise(verdicts, output, draws))

    def read(output: RagOutput, _: Draw) -> Findings:
        asked = judge_pointwise.conversations(question, output.records, system=model.system)
        verdicts = judge_pointwise.by_texts(question, output.records, model.write(asked, tokens))
        return told(judge_findings.pointwise(kind, question, verdicts, output, draws))

    if kind == "pairwise":
        return compare, made_by, scorer
    if kind == "text":
        return read, made_by, scorer
    assert isinstance(model, LocalJudge)  # probabilities are read of `--llm` alone
    ids = model.label_ids(evaluator) if kind == "logits" else None

    def weigh(output: RagOutput, draw: Draw) -> Findings:
        verdicts = model.weigh(evaluator, output.records, ids, draw)
        return judge_findings.pointwise(kind, question, verdicts, output, draws)

    return weigh, made_by, scorer


def _model(
    args: argparse.Namespace, folder: Path
) -> tuple[JudgeModel, dict[str, Any], Scorer | None]:
    if args.llm is not None:
        name = args.llm[0] if args.llm else judge_flags.DEFAULT_MODEL
        scorer = shared.load_scorer(args, name, folder)
        made_by = shared.made_by(args, scorer, name)
        return LocalJudge(scorer, args.truncate), made_by, scorer
    limits = Limits() if args.llm_batch_size is None else Limits(in_flight=args.llm_batch_size)
    if args.gpt is not None:
        served = openai.ChatEndpoint(
            args.gpt, args.api_base, limits=limits, progress=not args.quiet
        )
        return EndpointJudge(served), provenance.of_endpoint(args.gpt, args.api_base), None
    name, url = args.llm_ollama[0], args.ollama_url
    local = ollama.OllamaEndpoint(name, url, limits=limits, progress=not args.quiet)
    return EndpointJudge(local), provenance.of_endpoint(name, url), None


def _settings(
    args: argparse.Namespace,
    evaluator: Evaluator | None,
    kind: str,
    output: RagOutput,
    made_by: dict[str, Any],
) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if evaluator is not None:
        own = {
            "evaluator": str(evaluator.path),
            "evaluator_sha256": provenance.digest(evaluator.path),
            "read_as": kind,
        }
        if kind in ("text", "pairwise"):
            own["max_new_tokens"] = evaluator.max_new_tokens
    if kind == "pairwise":
        own |= {
            "opponent": args.opponent_name,
            "opponent_folder": str(args.opponent_folder),
            "both_orders": args.both_orders,
        }
    return provenance.of_run(
        {
            **made_by,
            **own,
            "truncate": args.truncate,
            "seed": args.seed,
            "n_bootstrap": args.n_bootstrap,
            "folder": str(output.folder),
            "split": output.split,
            "sample": output.sample,
        }
    )


def _line(metric: str, found: Findings) -> str:
    """The result in one line, for people."""
    summary = found.summary
    if found.kind == "pairwise":
        rates = {name: one["percent"] for name, one in summary["rates"].items()}
        if None in rates.values():
            return f"{metric}: no pair was judged"
        told = ", ".join(f"{name} {rate:.1f} %" for name, rate in rates.items())
        return f"{metric}: {told} over {summary['n']} records"
    if summary["mean"] is None:
        return f"{metric}: no record was judged"
    low, high = summary["interval"]
    span = "" if low is None else f" [{low:.5f}, {high:.5f}]"
    outside = summary.get("outside")
    rest = "" if outside is None else f", {outside:.4f} of the probability outside the labels"
    return f"{metric} {summary['mean']:.5f}{span} over {summary['n']} records{rest}"
