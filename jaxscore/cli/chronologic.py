"""`jaxscore chronologic`: ChronoLogic."""

import argparse
import datetime
from pathlib import Path

from jaxscore.cli import (
    chronologic_flags,
    endpoint_flags,
    messages,
    model_flags,
    outputs,
    settings_flags,
    table_flags,
)
from jaxscore.evaluate import Report, evaluate
from jaxscore.io import run_files, streams
from jaxscore.io.run_files import file_digest
from jaxscore.systems.chronologic import answer_scores, fewshot
from jaxscore.systems.chronologic.evaluation import chosen
from jaxscore.systems.chronologic.settings import Settings

KINDS = {"sample": "", "full": "full_", "mcq": "mcq_"}  # mode -> part of a file's name

DESCRIPTION = """\
How probable does a model find the answers that a text of that time would give?
(ChronoLogic)

questions, one object per line:
  {"metadata_frame": "The following passage comes from a book of 1887.",
   "main_question": "Which city ...?", "question_category": "topic_sentence",
   "answer_strings": ["Vael", "Osk"], "answer_probabilities": [1.0, 0.0],
   "answer_types": ["ground_truth", "negation"]}
  In .csv and .tsv the three lists are JSON text.

modes:
  (none)       score the answers of 5 questions drawn by --seed: Brier scores
  --full-eval  score the answers of every question
  --mcq        lettered options, the model writes a letter: accuracy, skill
               scores, and the probability that it gives each letter

context of an answer:
  {metadata_frame}\\nQUESTION: {main_question}\\nANSWER: {answer}

MODEL and QUESTIONS.jsonl may be given by --model and --input. The order of a
question's options follows from the seed and its own texts, whatever else is in
the file. A question without a right answer is scored with a remark, and top
accuracy leaves it out; with --mcq it fails. Flags without effect in a mode are
named on stderr.

output, in --output-dir (default: beside the questions); no file is replaced:
  eval_report_<model>_<time>.md     for people, the worst 50 questions
  eval_report_<model>_<time>.html   for a browser, with all questions
  eval_results_<model>_<time>.json  the same as JSON, with all questions
  <the report>.run.json             what the result was made of and with
  The names begin eval_report_full_ and eval_report_mcq_ in those modes.
  With --audit-noise a question also holds `within_noise` and
  `correct_within_noise` (--mcq: `letter_correct_within_noise`): whether
  rounding could change which answer, or letter, is the most probable, and
  whether that one is correct. What the model writes with --mcq is not audited.

exit code: 0 all evaluated, 1 some questions failed (they are listed),
           2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("chronologic", description=DESCRIPTION)
    chronologic_flags.add(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.output_dir is not None:
        streams.refuse_stream(args.output_dir, "--output-dir")
    chronologic_flags.check(args)
    given = chronologic_flags.settings(args)
    settings = Settings(**given).with_examples(fewshot.read)
    columns = table_flags.columns(args.column, answer_scores.FIELDS)
    endpoint = endpoint_flags.endpoint(args, chronologic_flags.url(args), settings)
    questions, failures = answer_scores.load(args.questions, args.limit, columns)
    chosen(questions, settings)  # refused before the model is loaded
    folder = args.output_dir or args.questions.parent
    run_files.check_writable_folder(folder)
    pages = [] if args.html is None else outputs.page_paths(args, folder, args.questions)
    about = settings_flags.about_files(args, Settings)
    with outputs.open_page(pages) as browser:
        scorer = None if endpoint else model_flags.load_scorer(args, args.model, folder)
        report = evaluate(
            "chronologic",
            endpoint or scorer,
            [*failures, *questions],
            about={
                "limit": args.limit,
                "questions": str(args.questions),
                "questions_sha256": file_digest(args.questions),
                **about,
            },
            **given,
        )
        if browser:
            browser.write(report.html())
    paths = _write(folder, KINDS[settings.mode], args, report)
    manifest = outputs.write_manifest(args, scorer, paths[0], report, **about)
    messages.print_findings(report)
    return messages.close_run(args, report, "questions", [*paths, *pages, manifest], scorer)


def _write(folder: Path, kind: str, args: argparse.Namespace, report: Report) -> list[Path]:
    ending = f"{run_files.model_file_name(args.model)}_{datetime.datetime.now():%Y%m%d_%H%M%S}"
    parts = [
        run_files.RunFile(f"eval_report_{kind}{ending}", ".md", report.markdown()),
        run_files.RunFile(f"eval_results_{kind}{ending}", ".json", report.json()),
    ]
    if args.html is None and not args.no_html:
        parts.append(run_files.RunFile(f"eval_report_{kind}{ending}", ".html", report.html()))
    return run_files.write_new_files(folder, parts)
