"""`jaxscore chronologic`: ChronoLogic."""

import argparse
import datetime
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.commands import shared
from jaxscore.endpoints.completions import BOUNDARIES as ENDPOINT_BOUNDARIES
from jaxscore.endpoints.completions import DEFAULT_URL, CompletionsEndpoint
from jaxscore.engine.noise import Draw, Noise, OtherLayouts
from jaxscore.errors import InputError
from jaxscore.files import run_files
from jaxscore.files.json_output import json_text
from jaxscore.generator import Generator
from jaxscore.metrics.margins import Decisions
from jaxscore.reports import provenance
from jaxscore.reports.chronologic_report import mcq_report, scored_report
from jaxscore.scorer import Scorer
from jaxscore.tasks.chronologic import answer_scores, by_category, calibrate, multiple_choice

DESCRIPTION = """\
How probable does a model find the answers that a text of that time would give? (ChronoLogic)

questions, one object a line:
  {"metadata_frame": "The following passage comes from a book of 1887.", "main_question":
   "Which city ...?", "question_category": "topic_sentence", "answer_strings": ["Vael", "Osk"],
   "answer_types": ["ground_truth", "negation"], "answer_probabilities": [1.0, 0.0]}

modes:
  (none)       score the answers of 5 questions drawn by --seed: Brier scores
  --full-eval  score the answers of every question
  --mcq        lettered options, the letter is generated: accuracy, skill scores, and the
               probability that the model gives each letter

context of an answer:  {metadata_frame}\\nQUESTION: {main_question}\\nANSWER: {answer}

The order of a question's options follows from the seed and its own texts, whatever else is in the
file. A question without a correct answer is scored with a remark; with --mcq it fails.

output, in --output-dir (default: beside the questions):
  eval_report_<model>_<time>.md, eval_report_full_..., eval_report_mcq_...    for people
  eval_results_<model>_<time>.json and so on                                  the same as JSON
  With --audit-noise a question also holds `within_noise` and `correct_within_noise` (--mcq:
  `letter_correct_within_noise`): whether rounding could turn which answer, or letter, is the most
  probable, and whether that one is correct. What --mcq lets the model write is not audited.

exit code: 0 all evaluated, 1 some questions failed (they are listed), 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "chronologic",
        help="Brier, accuracy and skill scores of questions about a text's time (ChronoLogic)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a local Hugging Face folder, a hub id, or `demo`; with an endpoint, its model's name",
    )
    parser.add_argument("questions", metavar="QUESTIONS.jsonl", type=Path)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--full-eval", action="store_true", help="score every question")
    mode.add_argument("--mcq", action="store_true", help="multiple choice on every question")
    parser.add_argument(
        "--samples",
        type=shared.positive,
        default=5,
        metavar="N",
        help="questions drawn where neither --full-eval nor --mcq is given (default 5)",
    )
    parser.add_argument(
        "--output-dir", type=Path, metavar="DIR", help="default: the folder of the questions"
    )
    parser.add_argument(
        "--no-metadata", action="store_true", help="leave the metadata frame out of the prompts"
    )
    parser.add_argument(
        "--boundary",
        choices=tuple(answer_scores.BOUNDARIES),
        default="joint",
        help="where an answer starts. joint: encoded as one text with what is before it "
        "(default); separate: encoded apart; upstream: as many tokens are skipped as the "
        "context has alone, as the published script does",
    )
    parser.add_argument(
        "--include-negation",
        action="store_true",
        help="--mcq: keep the options of type negation",
    )
    parser.add_argument(
        "--no-shuffle", action="store_true", help="--mcq: keep the options in the file's order"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="fit a softmax temperature on half of the questions, drawn by the seed, and show "
        "what it does on the others",
    )
    parser.add_argument(
        "--n-bootstrap",
        type=shared.positive,
        default=1000,
        metavar="N",
        help="draws for the 95%% intervals (default 1000)",
    )
    parser.add_argument(
        "--vllm",
        action="store_true",
        help=f"use the server at {DEFAULT_URL} instead of a local model",
    )
    parser.add_argument(
        "--api-base",
        metavar="URL",
        help="use this OpenAI-compatible server: its /completions with echo and logprobs",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    shared.add_lora_flag(parser)
    shared.add_model_flags(parser, model_required=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    url = DEFAULT_URL if args.vllm and args.api_base is None else args.api_base
    _check_flags(args, url)
    questions, failures = answer_scores.load(args.questions)
    folder = args.output_dir or args.questions.parent
    kind = "mcq_" if args.mcq else "full_" if args.full_eval else ""
    if not kind:
        questions = answer_scores.sample(questions, args.samples, args.seed)
    if args.calibrate:
        calibrate.check_enough(len(questions))
    remarks = answer_scores.repeated(questions)
    if not args.mcq:  # there it fails the question
        remarks += answer_scores.without_truth(questions)
    run_files.check_folder(folder)
    source: Scorer | CompletionsEndpoint
    if url is None:
        source = shared.load_scorer(args, args.model, folder)
    else:
        source = CompletionsEndpoint(args.model, url, progress=not args.quiet)
    evaluate = _choose if args.mcq else _score
    draw = Draw(args.audit_noise, args.seed)
    started = time.perf_counter()
    record = evaluate(args, source, questions, failures, draw)
    seconds = time.perf_counter() - started
    noise, decisions = _audit(args, source, draw, record["questions"])
    if isinstance(source, Scorer):
        shared.tell_run(args, source, seconds)
    for remark in remarks:
        shared.remark(args, f"remark: {remark}")
    record |= {
        "remarks": remarks,
        "failures": [{"name": name, "error": why} for name, why in failures],
        **shared.noise_fields(args, noise, decisions),
        "settings": _settings(args, source, url),
        "questions": record.pop("questions"),  # last, since they are long
    }
    report = (mcq_report if args.mcq else scored_report)(record)
    paths = _write(folder, kind, args.model, report, record)
    if isinstance(source, Scorer):
        shared.write_manifest(args, source, seconds, paths[0], noise)
    print(f"{(_mcq_line if args.mcq else _scored_line)(record)}; report {paths[0]}")
    shared.tell_noise(args, noise, decisions)
    return shared.tell_failures(failures)


def _check_flags(args: argparse.Namespace, url: str | None) -> None:
    if args.mcq and args.calibrate:
        raise InputError(
            "--calibrate scales the scores of answers, which --mcq does not take; give --full-eval"
        )
    if args.mcq and args.truncate:
        raise InputError("--truncate: the prompts of --mcq are shown whole; leave it out")
    if url is None:
        return
    policy = answer_scores.BOUNDARIES[args.boundary]
    if not args.mcq and policy not in ENDPOINT_BOUNDARIES:
        raise InputError(
            f"--boundary {args.boundary}: an endpoint encodes context and answer as one text; "
            "give joint or upstream, or take a local model"
        )
    if args.truncate:
        raise InputError("--truncate: an endpoint takes texts as they are; take a local model")
    if args.lora or args.quantize:
        raise InputError(
            "--lora and --quantize: an endpoint has weights of its own; take a local model"
        )
    shared.tell_unused(args, [*shared.UNUSED], "the endpoint computes")
    if args.reproducible:
        raise InputError("--reproducible: an endpoint does not promise it; take a local model")
    if args.distributed:
        raise InputError("--distributed: one process asks an endpoint; leave it out")
    if args.audit_noise:
        raise InputError(
            "--audit-noise: an endpoint's layouts are its own; take a local model, or leave it out"
        )


def _audit(
    args: argparse.Namespace,
    source: Scorer | CompletionsEndpoint,
    draw: Draw,
    results: Sequence[dict[str, Any]],
) -> tuple[Noise | None, list[Decisions]]:
    """The noise of what was drawn; adds marks to the results."""
    if not draw.pairs or not isinstance(source, Scorer):
        return None, []
    layouts = OtherLayouts(source)
    if args.mcq:
        noise = layouts.labels(draw.pairs)
        return noise, [] if noise is None else multiple_choice.mark(results, noise)
    policy = answer_scores.BOUNDARIES[args.boundary]
    noise = layouts.scores(draw.pairs, boundary=policy, truncate=args.truncate)
    return noise, [] if noise is None else answer_scores.mark(results, noise)


def _score(
    args: argparse.Namespace,
    source: Scorer | CompletionsEndpoint,
    questions: Sequence[answer_scores.Question],
    failures: list[tuple[str, str]],
    draw: Draw,
) -> dict[str, Any]:
    """The record of a run that scores answers; adds to `failures`."""
    requests = answer_scores.requests(questions, metadata=not args.no_metadata)
    policy = answer_scores.BOUNDARIES[args.boundary]
    audit = None
    if isinstance(source, Scorer):
        others = [name for name in answer_scores.BOUNDARIES if name != args.boundary]
        counted = shared.Audit(source, policy, [answer_scores.BOUNDARIES[name] for name in others])
        requests = list(counted.watch(requests))
        shared.remark(args, counted.text(args.boundary, others))
        changed = dict(zip(others, counted.changed.values(), strict=True))
        audit = {"n_answers": counted.n_requests, "changed": changed}
    asked = list(draw.watch(requests))
    scored = list(draw.results(source.score(asked, boundary=policy, truncate=args.truncate)))
    results = answer_scores.evaluate(questions, scored, args.boundary)
    failures += answer_scores.failures(questions, results)
    good = [result for result in results if "error" not in result]
    record = {
        "summary": by_category.summarise(
            results, answer_scores.COLUMNS, args.n_bootstrap, args.seed
        ),
        "boundary_audit": audit,
        "calibration": calibrate.calibration(
            [result["probabilities"] for result in good], [result["truth"] for result in good]
        ),
        "questions": results,
    }
    if args.calibrate:
        record["temperature_scaling"] = calibrate.rescale(results, args.seed)
    return record


def _choose(
    args: argparse.Namespace,
    source: Scorer | CompletionsEndpoint,
    questions: Sequence[answer_scores.Question],
    failures: list[tuple[str, str]],
    draw: Draw,
) -> dict[str, Any]:
    """The record of a multiple-choice run; adds to `failures`."""
    quizzes, unusable = multiple_choice.quizzes(
        questions,
        seed=args.seed,
        metadata=not args.no_metadata,
        include_negation=args.include_negation,
        shuffle=not args.no_shuffle,
    )
    failures += unusable
    requests = multiple_choice.generation_requests(quizzes)
    if isinstance(source, Scorer):
        written = Generator(source).generate(requests)
        masses = _local_masses(source, quizzes, draw)
    else:
        written = source.generate(requests)
        listed = source.label(multiple_choice.text_label_requests(quizzes))
        masses = [
            multiple_choice.listed_letter_mass(quiz, one)
            for quiz, one in zip(quizzes, listed, strict=True)
        ]
    results = multiple_choice.evaluate(quizzes, written, masses)
    failures += answer_scores.failures([quiz.question for quiz in quizzes], results)
    lettered = [result for result in results if result.get("letter_probabilities") is not None]
    return {
        "summary": by_category.summarise(
            results, multiple_choice.COLUMNS, args.n_bootstrap, args.seed
        ),
        "responses": multiple_choice.responses(results),
        "calibration": calibrate.calibration(
            [result["letter_probabilities"] for result in lettered],
            [result["truth"] for result in lettered],
        ),
        "questions": results,
    }


def _local_masses(
    scorer: Scorer, quizzes: Sequence[multiple_choice.Quiz], draw: Draw
) -> list[multiple_choice.LetterMass]:
    most = max((len(quiz.choices) for quiz in quizzes), default=0)
    try:
        ids = multiple_choice.letter_ids(scorer.encoder, most)
    except InputError as problem:  # the letters that are written can be read all the same
        return [multiple_choice.unknown_mass(str(problem)) for _ in quizzes]
    asked = draw.watch(multiple_choice.label_requests(quizzes, ids))
    scores = list(draw.results(scorer.label(asked)))
    return [
        multiple_choice.letter_mass(quiz, one, ids)
        for quiz, one in zip(quizzes, scores, strict=True)
    ]


def _settings(
    args: argparse.Namespace, source: Scorer | CompletionsEndpoint, url: str | None
) -> dict[str, Any]:
    if isinstance(source, Scorer):
        model = shared.made_by(args, source, args.model)
    else:
        model = provenance.of_endpoint(args.model, str(url))
    own: dict[str, Any] = {"mode": "mcq" if args.mcq else "full" if args.full_eval else "sample"}
    if args.mcq:
        own |= {"include_negation": args.include_negation, "shuffle": not args.no_shuffle}
    else:
        own |= {"boundary": args.boundary, "calibrate": args.calibrate}
        if not args.full_eval:
            own["samples"] = args.samples
    return provenance.of_run(
        {
            **model,
            **own,
            "metadata": not args.no_metadata,
            "truncate": args.truncate,
            "seed": args.seed,
            "n_bootstrap": args.n_bootstrap,
            "questions": str(args.questions),
            "questions_sha256": provenance.digest(args.questions),
        }
    )


def _write(folder: Path, kind: str, model: str, report: str, record: dict[str, Any]) -> list[Path]:
    ending = f"{run_files.model_part(model)}_{datetime.datetime.now():%Y%m%d_%H%M%S}"
    return run_files.write_new(
        folder,
        [
            run_files.Part(f"eval_report_{kind}{ending}", ".md", report),
            run_files.Part(f"eval_results_{kind}{ending}", ".json", json_text(record)),
        ],
    )


def _scored_line(record: dict[str, Any]) -> str:
    means = record["summary"]["overall"]
    brier, uniform = means["brier"], means["uniform_brier"]
    if brier.mean is None:
        return "No question was scored"
    return (
        f"Overall Brier {brier.mean:.5f} [{brier.low:.5f}, {brier.high:.5f}] over {brier.n} "
        f"questions (equal probabilities would get {uniform.mean:.5f})"
    )


def _mcq_line(record: dict[str, Any]) -> str:
    means = record["summary"]["overall"]
    accuracy, skill = means["accuracy"], means["skill"]
    if accuracy.mean is None:
        return "No question was answered"
    return (
        f"Overall accuracy {accuracy.mean:.4f} [{accuracy.low:.4f}, {accuracy.high:.4f}], skill "
        f"{skill.mean:.4f} [{skill.low:.4f}, {skill.high:.4f}] over {accuracy.n} questions, "
        f"{record['responses']['no_letter']} responses without a letter"
    )
