"""The process that runs what a checkpoint brings: `checkpoint_process.py` starts and ends it.

Run by path with the seconds that a question may take and what it is for, "render" or "read". A
question is a line of JSON on stdin, its answer a line on stdout:

    {"template": TEXT, "messages": [...], "more": {...}}   {"text": TEXT} or {"error": WHY}
    {"tokenizer": PATH}                                    {"error": null or WHY}

An error has `"why": "refused"` if the template raised it, and `"why": "limit"` if it takes too much
memory. One line, {}, is written when the imports are done.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

MEMORY = 2 << 30  # bytes of address space
LONGEST = 1 << 26  # characters of a rendered text
# Texts on which a pattern that backtracks, or a part that multiplies text, shows itself.
PROBES = ("a" * 500 + "!", " " * 500 + "a", "1" * 500, "aA1 .,\n" * 100, "\u00e9\u4e2d" * 200)


def main() -> None:
    limit, task = float(sys.argv[1]), sys.argv[2]
    # What a library prints must not come between our lines.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    shared = runpy.run_path(str(Path(__file__).parents[1] / "io" / "child_process.py"))
    if task == "render":
        _rendered({"template": "", "messages": [], "more": {}})  # imports what it needs
    else:
        import tokenizers  # noqa: F401
    print("{}", file=replies, flush=True)
    shared["confine"](MEMORY)  # after the imports, which may write compiled modules
    for line in sys.stdin:
        with shared["alarm"](shared["ORPHANED"] * limit):
            answer = _answer(json.loads(line))
        print(json.dumps(answer), file=replies, flush=True)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        return _read(question["tokenizer"]) if "tokenizer" in question else _rendered(question)
    except MemoryError:
        return {"error": f"more than {MEMORY >> 30} GB of memory", "why": "limit"}
    except BaseException as problem:  # a panic is no Exception
        return {"error": str(problem).strip() or type(problem).__name__}


def _rendered(question: dict[str, Any]) -> dict[str, Any]:
    import jinja2
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        [text], _ = render_jinja_template(
            conversations=[question["messages"]],
            chat_template=question["template"],
            **question["more"],
        )
    except jinja2.TemplateError as problem:
        return {"error": str(problem), "why": "refused"}
    if len(text) > LONGEST:
        return {"error": f"a text of more than {LONGEST} characters", "why": "limit"}
    return {"text": text}


def _read(path: str) -> dict[str, Any]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    for probe in PROBES:
        try:
            ids = tokenizer.encode(probe, add_special_tokens=False).ids
            tokenizer.decode(ids)
        except MemoryError:
            raise
        except BaseException:  # a text that it cannot read is that text's error
            continue
    return {"error": None}


if __name__ == "__main__":
    main()
