"""`jaxscore perplexity`: documents of any length."""

import argparse

from jaxscore.cli import closing, html_flags, model_flags, outputs, table_flags
from jaxscore.cli.help_pages import advanced
from jaxscore.cli.report_files import ReportFiles
from jaxscore.evaluate import evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.records import record_writer
from jaxscore.systems.perplexity import documents, records
from jaxscore.systems.perplexity.evaluation import Settings

DESCRIPTION = """\
How well does a model predict whole documents, however long? Each token is
scored once, in windows that the model can read.

input, one of
  JSONL       {"id": "a", "text": "It was the best of times, ..."}, one document
              per line; `id` defaults to the line's number. A JSON array, .csv,
              .tsv, .parquet or a folder of datasets' save_to_disk holds the
              same; --column text=body reads a field from the column `body`
  a .txt file one document
  a folder    each .txt file in it is a document, in the order of their names

windows: each reads up to --max-length tokens and scores those that no window
before it scored: at most --stride, the first one up to --max-length. By default
they are those of lm-evaluation-harness' loglikelihood_rolling. Half the
stride gives tokens more context and takes twice as long.

A document fails if it has more than 2,097,152 characters without a place where
the tokenizer certainly splits a text; of some tokenizers no place is certain.

output, one line per document, in order, log-probabilities in nats:
  id, begin, text_sha256, n_tokens, n_scored, n_bytes (UTF-8), n_words,
  n_windows, sum_logprob, mean_logprob, perplexity (per token), bits_per_byte,
  bits_per_word; other fields of the input line. An OUT that ends in .csv, .tsv
  or .parquet is a table with these columns.
  Beside OUT lie OUT.report.md, OUT.report.json (means over all documents
  together, worst documents first), OUT.report.html, which shows them in a
  browser, and OUT.run.json.

exit code: 0 all scored, 1 some documents failed (their lines hold `error`),
           2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("perplexity", description=DESCRIPTION)
    table_flags.add_input(parser, "documents: .txt, a folder of .txt files,", documents.FIELDS)
    table_flags.add_output(parser, "results")
    model_flags.add_limit_flag(parser, "documents")
    parser.add_argument(
        "--max-length",
        type=model_flags.positive,
        metavar="N",
        help="tokens that a window reads (default: the model's positions)",
    )
    parser.add_argument(
        "--stride",
        type=model_flags.positive,
        metavar="N",
        help="tokens that a window scores (default: --max-length)",
    )
    advanced(
        parser,
        "--prefix-token-id",
        type=int,
        metavar="ID",
        help="a token before each document in place of the tokenizer's BOS; "
        "lm-evaluation-harness takes the EOS where there is no BOS (default: the BOS that the "
        "tokenizer writes; without one the first token has no probability)",
    )
    advanced(
        parser,
        "--n-bootstrap",
        type=model_flags.positive,
        default=1000,
        metavar="N",
        help="draws for the 95%% intervals (default 1000)",
    )
    html_flags.add(parser)
    model_flags.add_model_flags(parser, audited=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    reports = ReportFiles(args, args.input)
    files = [args.output, *reports.paths]
    settings = {
        "truncate": args.truncate,
        "seed": args.seed,
        "max_length": args.max_length,
        "stride": args.stride,
        "prefix_token_id": args.prefix_token_id,
        "n_bootstrap": args.n_bootstrap,
    }
    Settings(**settings)  # what is wrong with them is known before anything is read
    columns = table_flags.columns(args.column, documents.FIELDS)
    documents.check(args.input, args.limit, columns)
    with (
        atomic(args.output) as file,
        reports.opened() as write_reports,
        record_writer(args.output, file, records.TABLE) as write,
    ):
        scorer = model_flags.load_scorer(args, args.model, *files)
        report = evaluate(
            "perplexity",
            scorer,
            documents.load(args.input, args.limit, columns),
            about=outputs.about_input(args),
            **settings,
        )
        for record in report.items:
            write(record)
        write_reports(report)
    manifest = outputs.write_manifest(args, scorer, args.output, report)
    return closing.close(args, report, "documents", [*files, manifest], scorer)
