"""Benchmarks: speed against PyTorch, the cost of devices, the journal, many requests and most
probable tokens, and the savings of rows that go to the next text.

    python tools/bench.py                     against PyTorch, medians of 3 turns, about 30 minutes
    python tools/bench.py --turns 5 answers   one workload, more turns
    python tools/bench.py prefix --contenders cd
    python tools/bench.py devices divergence host html journal measures replace serve stream top
    python tools/bench.py token-scores update
    python tools/bench.py recurrent           models with recurrent layers, against PyTorch
    python tools/bench.py --small WORKLOAD    a small model, to see that it works

Against PyTorch (the `test` extra), on a GPT-2-124M-shaped random checkpoint made on the spot:
`answers`, `prompt`, `paths`, `plain`, `write` and `prefix`. Contenders, each in a process of its
own, in turns, so that no one's threads or memory disturb another and a slow minute of the machine
hits all:

    a  the published way: PyTorch, one forward a request, log-softmax of all logits
    b  PyTorch, length-sorted padded batches of 16
    c  jaxscore float32
    d  jaxscore bfloat16
    e  jaxscore with int8 weights and bfloat16 products; only on request

`write` generates 32 tokens for each of 48 prompts, greedily. `prefix` is 2,000 questions with two
answers each on one prompt of 1,500 tokens, which would take PyTorch hours: it is compared with
jaxscore's own cost of a token in texts as long that share nothing, scored as densely, so 1.0 means
that only unique tokens cost anything.

Of jaxscore alone, on the CPU, only on request:

    devices  the same requests on 1, 2, 4 and 8 forced host devices, which share this machine's
             cores: tokens a second, and whether every bit is that of one device, else exit code 1
    divergence  two models at once against one after the other, in turns: the ratio of time
    host     the host's own speed, against a device that computes nothing and answers after a
             simulated time; with --against FOLDER another checkout in turns, and the ratio
    html     pages of 10,000 and 100,000 requests: bytes, CPU seconds, and the time until Chromium
             has the table, where it and playwright are installed
    journal  the same requests without a journal and with a fresh one, in turns: what it costs
    measures  scoring the texts of `plain` with further measures against without, in turns
    lm-eval  five-shot multiple choice through lm-evaluation-harness, in turns with its `hf`
    real     pretrained models (--models) on plain texts, answers behind contexts, and labels
             behind one prompt, against PyTorch with sdpa and, if llama-cpp-python is installed,
             llama.cpp on the file's own blocks, both dtypes, in turns
    recurrent  a model with Qwen3.5-0.8B's sizes and 4 layers: answers behind contexts,
             continuations of one prompt and plain texts, by CPU seconds, against one text per row
             and against PyTorch's padded batches, in turns
    replace  160 texts of uneven lengths in 32 rows, which go to the next text when one ends,
             against groups that wait for their longest, in turns: use of the rows, ratio of time
    serve    requests of one prompt, as lm-eval asks them, by one client and by 32: requests and
             tokens a second, and tokens given for each computed
    shards   1,000,000 short lines over 100 files by a device that answers at once: lines a
             second against one file of a tenth, memory in the first and the last tenth of the
             time (more than 1.1 times: exit code 1), share of listing (above 1 %: exit code 1)
    startup  ten short texts with --models, CPU seconds of whole processes with an empty cache
             folder and a filled one, against a ten-line script of transformers
    stream   100,000 requests of 200 tokens through `jaxscore score`: requests a second and the
             most memory that the process ever held, above 1.5 GB exit code 1
    token-scores  value and gradient against log_softmax with autodiff: ratios of time and memory
    top      the LM head with the 1, 5 and 20 most probable tokens against the pass
             without: ratios of time, and whether the ids are those of full logits, else exit code 1
    update   new weights of a scorer from device arrays, 0.5B parameters: milliseconds of the call,
             until the weights can be used, and of a plain copy of their bytes

Run it on a quiet machine.
"""

import argparse
import os
import sys
from pathlib import Path

# As a script Python finds this folder and not the repository, where `tools` is.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.benchmarks import (
    against_torch,
    devices,
    divergence,
    host,
    journal,
    lm_eval,
    measures,
    pages,
    real,
    recurrent,
    replace,
    serve,
    shards,
    startup,
    stream,
    token_scores,
    top,
    update,
)
from tools.benchmarks.contenders import CONTENDERS
from tools.requirements import require

NEEDED = {  # workload -> a package that the package itself does not require, and its extra
    **dict.fromkeys(
        [*against_torch.NAMES, "divergence", "measures", "real", "recurrent", "startup"],
        ("torch", "test"),
    ),
    "lm-eval": ("lm_eval", "test"),
    "serve": ("starlette", "serve"),
}

ALONE = (
    "devices",
    "divergence",
    "host",
    "html",
    "journal",
    "lm-eval",
    "measures",
    "real",
    "recurrent",
    "replace",
    "serve",
    "shards",
    "startup",
    "stream",
    "token-scores",
    "top",
    "update",
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = (*against_torch.NAMES, *ALONE)
    parser.add_argument(
        "workloads",
        nargs="*",
        help=f"{', '.join(names)} (default: those against PyTorch)",
    )
    parser.add_argument("--turns", type=int, default=3, help="timed turns of each (default 3)")
    parser.add_argument("--small", action="store_true", help="a small model, and less of it all")
    parser.add_argument(
        "--contenders", default="abcd", help="letters of those to run (default abcd)"
    )
    parser.add_argument(
        "--devices", nargs="+", type=int, default=[1, 2, 4, 8], metavar="N", help="of `devices`"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="of `host` and `startup`: another checkout"
    )
    parser.add_argument(
        "--models", nargs="+", type=Path, metavar="PATH", help="of `real`, `startup`: GGUF, folders"
    )
    parser.add_argument("--requests", type=int, metavar="N", help="of `stream`, `shards`")
    parser.add_argument("--documents", type=int, metavar="N", help="of `lm-eval` (default 16)")
    args = parser.parse_args(arguments)
    if strange := sorted(set(args.contenders) - set(CONTENDERS)):
        parser.error(f"no contender {strange}; there are {', '.join(CONTENDERS)}")
    if unknown := sorted(set(args.workloads) - set(names)):
        parser.error(f"no workload {unknown}; there are {', '.join(names)}")
    needing = [name for name in ("real", "startup") if name in args.workloads]
    if needing and not args.models:
        parser.error(
            f"{needing[0]} needs --models; configs/real/requirements.txt names packages with two"
        )
    if min([*args.devices, args.turns, args.requests or 1, args.documents or 1]) < 1:
        parser.error("--devices, --turns, --requests and --documents take whole numbers from 1")
    chosen = args.workloads or list(against_torch.NAMES)
    for name in chosen:
        if name in NEEDED:
            require(*NEEDED[name])
    print(f"system load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores", flush=True)
    if held := [name for name in chosen if name in against_torch.NAMES]:
        against_torch.run(held, args.turns, args.contenders, args.small)
    good = True
    if "devices" in chosen:
        good &= devices.run(args.devices, small=args.small)
    if "divergence" in chosen:
        divergence.run(args.turns, small=args.small)
    if "host" in chosen:
        host.run(args.turns, args.against, small=args.small)
    if "html" in chosen:
        pages.run(args.turns, small=args.small)
    if "journal" in chosen:
        journal.run(args.turns, small=args.small)
    if "lm-eval" in chosen:
        lm_eval.run(args.turns, small=args.small, documents=args.documents)
    if "measures" in chosen:
        measures.run(args.turns, small=args.small)
    if "real" in chosen:
        real.run(args.models, args.turns, small=args.small)
    if "recurrent" in chosen:
        recurrent.run(args.turns, small=args.small)
    if "replace" in chosen:
        replace.run(args.turns, small=args.small)
    if "serve" in chosen:
        serve.run(args.turns, small=args.small)
    if "shards" in chosen:
        good &= shards.run(args.requests, small=args.small)
    if "startup" in chosen:
        startup.run(args.models, args.turns, args.against)
    if "stream" in chosen:
        good &= stream.run(args.requests, small=args.small)
    if "token-scores" in chosen:
        token_scores.run(args.turns, small=args.small)
    if "top" in chosen:
        good &= top.run(args.turns, small=args.small)
    if "update" in chosen:
        update.run(args.turns, small=args.small)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
