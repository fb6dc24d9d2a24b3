"""`details=FILE`: per-token numbers of every request, a line of JSON each."""

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from jaxscore.engine import processes
from jaxscore.errors import InputError
from jaxscore.files.json_lines import json_line
from jaxscore.lm_eval.scoring import Answer
from jaxscore.text.encoder import TextEncoder


class Details:
    """Writes the file, which is there with its first line, and whole after each window.

    Of several processes the first one writes.
    """

    def __init__(self, path: Path, encoder: TextEncoder) -> None:
        """Raises:
        InputError: the file cannot be made.
        """
        self._encoder = encoder
        if not processes.first():
            path = Path(os.devnull)
        try:
            self._file = path.open("wb")
        except OSError as problem:
            raise InputError(f"details={path}: cannot be written ({problem.strerror})") from None

    def write(self, request: Instance, answers: list[Answer]) -> None:
        """One request: of a text in several windows the answers are one after another."""
        ids = np.concatenate([one.sequence.targets for one in answers])
        columns = {
            name: np.concatenate([getattr(one.scores, name) for one in answers])
            for name in ("logprob", "entropy", "self_certainty", "greedy")
        }
        line: dict[str, Any] = {
            "task": request.task_name,
            "doc_id": request.doc_id,
            "choice": request.idx,
            "request_type": request.request_type,
            "token_ids": ids,
            "tokens": self._encoder.tokens(ids),
            **columns,
            "sum_logprob": float(columns["logprob"].sum(dtype=np.float64)),
        }
        if cut := max(one.cut for one in answers):
            line["truncated"] = cut
        self._file.write(json_line(line))

    def flush(self) -> None:
        """See that all lines are in the file."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Details":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
