"""Child processes that run a checkpoint's chat template and tokenizer within limits.

A template is a program, and a tokenizer's pattern may run forever. A process cannot stop either
from the inside, so child processes with time and memory limits run them. The renderer starts with
the first conversation and renders all of them. A second process reads a tokenizer before this
process does.
"""

import atexit
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.io.child_process import ChildProcess, RestartedProcess
from jaxscore.text.checkpoint_worker import MEMORY

WORKER = Path(__file__).with_name("checkpoint_worker.py")
RENDER_LIMIT, READ_LIMIT = 10.0, 30.0  # seconds per conversation and per tokenizer
# Do not import torch, which takes seconds, and use one NumPy thread.
ENVIRONMENT = {"USE_TORCH": "0", "USE_TF": "0", "USE_FLAX": "0", "OPENBLAS_NUM_THREADS": "1"}


class TemplateError(InputError):
    """A chat template fails on a conversation."""


class RefusedError(TemplateError):
    """A chat template raises an error, for example for an unknown role."""


class LimitError(TemplateError):
    """A chat template takes too much time or memory."""


_RENDERER = RestartedProcess(lambda: _start("render", RENDER_LIMIT))
atexit.register(_RENDERER.end)


class Rendered(NamedTuple):
    """A rendered conversation.

    Attributes:
        text: the text.
        marks: [start, end) in characters of each part between the template's generation marks;
            empty if they were not requested.
    """

    text: str
    marks: Sequence[Sequence[int]] = ()


class Rendering(NamedTuple):
    """A conversation to render like `apply_chat_template(messages, tokenize=False)` does.

    Attributes:
        template: the chat template.
        variables: the template's variables, including special tokens, and arguments of
            transformers.
    """

    template: str
    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]

    def question(self) -> dict[str, Any]:
        """Return the line of the worker."""
        values = {"template": self.template, "messages": list(self.messages)}
        return values | {"more": dict(self.variables)}


def render(
    template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> str:
    """Render a conversation; see `Rendering` for arguments.

    Raises:
        RefusedError: the template raises an error.
        LimitError: the template takes too much time or memory.
        TemplateError: the template fails in another way.
    """
    [rendered] = render_each([Rendering(template, messages, variables)])
    if isinstance(rendered, TemplateError):
        raise rendered
    return rendered.text


def render_each(renderings: Sequence[Rendering]) -> list[Rendered | TemplateError]:
    """Render conversations within the limits of one; see `render` for the errors.

    Raises:
        LimitError: they take too much time, or more memory than there is.
    """
    questions = [rendering.question() for rendering in renderings]
    reply = _RENDERER.ask({"questions": questions}, RENDER_LIMIT)
    if reply is None:
        raise LimitError(
            f"it takes more than {RENDER_LIMIT:g} seconds or {MEMORY >> 30} GB of memory"
        )
    errors = {"refused": RefusedError, "limit": LimitError}
    return [
        Rendered(each["text"], each.get("marks", ()))
        if "text" in each
        else errors.get(each.get("why", ""), TemplateError)(each["error"])
        for each in reply["replies"]
    ]


def check_tokenizer(path: Path) -> None:
    """Read a tokenizer.json and encode a few texts with it, within the limits.

    Raises:
        InputError: reading or encoding fails or exceeds the limits.
    """
    process = _start("read", READ_LIMIT)
    try:
        reply = process.ask({"tokenizer": str(path)}, READ_LIMIT)
    finally:
        process.end()
    why = f"it takes more than {READ_LIMIT:g} seconds or {MEMORY >> 30} GB, or crashes the library"
    if reply is None or reply["error"] is not None:
        raise InputError(f"{path}: cannot be read ({why if reply is None else reply['error']})")


def _start(task: str, limit: float) -> ChildProcess:
    process = ChildProcess(WORKER, [str(limit), task], ENVIRONMENT)
    if process.started is None:
        process.end()
        raise InputError(
            "the process that reads a checkpoint's chat template or tokenizer does not start; to "
            f"see why, run: python -P {WORKER} {limit:g} {task}"
        )
    return process
