"""Worker that runs a checkpoint's template or tokenizer; `checkpoint_process.py` manages it.

Run it by path with two arguments: the time limit per request in seconds, and the task, "render" or
"read". A request is a line of JSON on stdin; its reply is a line on stdout:

    {"template": TEXT, "messages": [...], "more": {...}}   {"text": TEXT} or {"error": WHY}
    {"questions": [QUESTION, ...]}                         {"replies": [REPLY, ...]}
    {"tokenizer": PATH}                                    {"error": null or WHY}

With "return_assistant_tokens_mask" in "more" a reply also has "marks", [start, end] of each part of
the text between the template's generation marks, in characters.

An error has `"why": "refused"` if the template raised it, and `"why": "limit"` if it takes too much
memory. The worker writes one line, {}, when its imports are done.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

MEMORY = 2 << 30  # bytes of address space
LONGEST = 1 << 26  # maximum number of characters of a rendered text
# Texts that expose patterns with catastrophic backtracking and components that multiply text.
PROBES = ("a" * 500 + "!", " " * 500 + "a", "1" * 500, "aA1 .,\n" * 100, "\u00e9\u4e2d" * 200)


def main() -> None:
    limit, task = float(sys.argv[1]), sys.argv[2]
    # Libraries may print: keep their output out of the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    shared = runpy.run_path(str(Path(__file__).parents[1] / "io" / "child_process.py"))
    if task == "render":
        _render({"template": "", "messages": [], "more": {}})  # triggers the imports
    else:
        import tokenizers  # noqa: F401
    print("{}", file=replies, flush=True)
    shared["confine"](MEMORY)  # after the imports, which may write compiled modules
    for line in sys.stdin:
        with shared["alarm"](shared["ORPHANED"] * limit):
            reply = _reply_to(json.loads(line))
        print(json.dumps(reply), file=replies, flush=True)


def _reply_to(request: dict[str, Any]) -> dict[str, Any]:
    if "questions" in request:
        return {"replies": [_reply_to(question) for question in request["questions"]]}
    try:
        return _read(request["tokenizer"]) if "tokenizer" in request else _render(request)
    except MemoryError:
        return {"error": f"more than {MEMORY >> 30} GB of memory", "why": "limit"}
    except BaseException as problem:  # a Rust panic is not an `Exception`
        return {"error": str(problem).strip() or type(problem).__name__}


def _render(request: dict[str, Any]) -> dict[str, Any]:
    import jinja2
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        [text], marks = render_jinja_template(
            conversations=[request["messages"]],
            chat_template=request["template"],
            **request["more"],
        )
    except jinja2.TemplateError as problem:
        return {"error": str(problem), "why": "refused"}
    if len(text) > LONGEST:
        return {"error": f"a text of more than {LONGEST} characters", "why": "limit"}
    return {"text": text, **({"marks": marks[0]} if marks else {})}


def _read(path: str) -> dict[str, Any]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    for probe in PROBES:
        try:
            ids = tokenizer.encode(probe, add_special_tokens=False).ids
            tokenizer.decode(ids)
        except MemoryError:
            raise
        except BaseException:  # unreadable text is an error of its request, not of the file
            continue
    return {"error": None}


if __name__ == "__main__":
    main()
