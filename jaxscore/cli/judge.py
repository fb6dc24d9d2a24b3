"""`jaxscore judge`: a model judges the responses of RAG experiments."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.cli import judge_flags, judge_folders, judge_output, messages, model_flags
from jaxscore.cli.judge_folders import Metric, Work
from jaxscore.cli.judge_output import Judged
from jaxscore.endpoints.chat import ChatEndpoint, OllamaEndpoint
from jaxscore.endpoints.http import Limits
from jaxscore.errors import InputError
from jaxscore.models.weights import checkpoint
from jaxscore.systems.rag import bem

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer

DESCRIPTION = """\
Let a model judge the responses of RAG experiments (BERGEN): is each one right,
or which of two is better?

input, in each folder of --experiments-folder (except tmp_...), or in --folder:
  eval_<split>_out.json   a list of records:
    {"q_id": "q1", "response": "In Oslo.", "label": ["Oslo"],
     "question": "Where was Ada born?"}

the judge, one of:
  --llm [MODEL [SHORT]]   a model on this machine; --model MODEL is the same.
                          With use_logits in the evaluator file the score is
                          the mean worth of the labels by their next-token
                          probabilities. Without it the model writes an answer,
                          and the score is the worth of the one label in it
                          (-100, outside the mean, for no label or several)
  --llm-ollama MODEL [SHORT]   an ollama server, which writes an answer
  --gpt MODEL             an OpenAI-compatible server (key in OPENAI_API_KEY),
                          which writes an answer
  --bem [MODEL]           a BERT classifier: P(equivalent), best reference

With --opponent-folder and --opponent-name the judge writes which of two
responses is better. --seed draws their order; --both-orders asks in both: a win
or a loss is what both answers say, and answers that disagree are a tie.

output, merged into what the files hold:
  eval_<split>_out.json       a column of scores
  eval_<split>_metrics.json   its mean, null where no answer could be read;
                              against an opponent the percentages of win, tie
                              and lose
  eval_<split>_judge_<metric>.md, .json and .html   the details, worst records
                              first, and the settings; .html is for a browser.
                              --audit-noise adds `within_noise` where
                              probabilities are read: could rounding change the
                              most probable label?

The metric is LLMeval_<short>; _logits follows where probabilities are read, and
_VS_<opponent>_win, _tie and _lose against an opponent. --gpt uses MODEL itself,
--bem uses BEM. --sample N adds _<N>; its records are in
eval_<split>_out_<N>.json. A metric that exists is kept. One that was made with
other settings or records is refused, unless --force is given.

Evaluator files (--llm-prompt) hold prompts, labels and what each is worth.
Templates are filled with rubrik_section (the labels), question, answer,
prediction, prediction_1 and prediction_2 in braces, also in Python f-strings as
BERGEN writes them. Templates that ask for more are refused.

exit code: 0 all judged; 1 some records or folders failed, or no written answer
of a folder names a label (the others are kept; a comparison without a readable
answer has null rates and exits 0); 2 unusable input, or other settings than
those of a metric that exists.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "judge",
        description=DESCRIPTION,
    )
    judge_flags.add(parser)
    model_flags.add_model_flags(parser, model_required=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    judge_flags.check(args)
    chosen = judge_flags.settings(args)
    kind = judge_flags.kind(args, chosen)
    judge_flags.warn_unused_flags(args, kind)
    metric = Metric(judge_flags.metric(args, kind), kind, chosen)
    work = judge_folders.work(args, metric)
    judged: list[Judged] = []
    scorer = None
    if work.outputs:
        written = [path for one in work.outputs for path in judge_folders.written(one, metric)]
        for one in work.outputs:
            written += judge_output.browser_pages(args, metric, one)
        scorer = _scorer(args, *written)
        source = scorer or _other_source(args)
        for output in work.outputs:
            try:
                judged.append(judge_output.judge(args, metric, source, scorer, output))
            except judge_output.NotKept as problem:
                if args.folder is not None:
                    raise InputError(str(problem)) from None
                work.failures.append((str(output.folder), str(problem)))
    return _close(metric, work, judged, scorer)


def _close(metric: Metric, work: Work, judged: Sequence[Judged], scorer: "Scorer | None") -> int:
    """The closing block of all folders."""
    n = sum(one.report.evaluation.n_items for one in judged)
    skipped = f", {len(work.skipped)} skipped: the metric exists" if work.skipped else ""
    return messages.print_closing_block(
        done=f"{n} records in {len(judged)} folders{skipped}",
        failures=work.failures + [failure for one in judged for failure in one.failures],
        results=judge_output.results(metric.name, judged),
        files=[path for one in judged for path in one.files],
        scorer=scorer,
        seconds=sum(one.report.evaluation.seconds for one in judged) if judged else None,
    )


def _scorer(args: argparse.Namespace, *written: Path) -> "Scorer | None":
    """The local model that judges, or None; `written` are the files that the run writes."""
    if args.llm is None:
        return None
    place = args.folder or args.experiments_folder
    return model_flags.load_scorer(args, judge_flags.model_name(args), place, *written)


def _other_source(args: argparse.Namespace) -> Any:
    """The classifier or endpoint that judges."""
    if args.bem is not None:
        checkpoint.resolve(args.bem, args.revision)  # a missing one is refused before JAX loads
        from jaxscore.engine.devices import use_compilation_cache, use_device

        use_device(args.device)
        use_compilation_cache()
        return bem.load(args.bem, args.revision, dtype=args.dtype, reproducible=args.reproducible)
    limits = Limits() if args.llm_batch_size is None else Limits(in_flight=args.llm_batch_size)
    url, progress = str(judge_flags.server(args)), not args.quiet
    if args.gpt is not None:
        return ChatEndpoint(args.gpt, url, limits=limits, progress=progress)
    return OllamaEndpoint(args.llm_ollama[0], url, limits=limits, progress=progress)
