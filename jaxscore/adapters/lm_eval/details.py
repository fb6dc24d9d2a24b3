"""`details=FILE`: per-token numbers of every request, a line of JSON each."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from jaxscore.adapters.harness.scoring import Answer
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.json_output import json_line
from jaxscore.text.encoder import TextEncoder


class Details:
    """Writes the file, which is whole after each window.

    What an earlier run wrote stays until the first line: a run whose answers are all in
    `--use_cache` writes none. Of several processes the first one writes.
    """

    def __init__(self, path: Path, encoder: TextEncoder) -> None:
        """Raises:
        InputError: the file cannot be made.
        """
        self._encoder = encoder
        self._begun = False
        if not processes.is_first():
            path = Path(os.devnull)
        try:
            self._file = path.open("ab")
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
        if not self._begun:
            self._file.truncate(0)
            self._begun = True
        self._file.write(json_line(line))

    def flush(self) -> None:
        """See that all lines are in the file."""
        self._file.flush()

    def close(self) -> None:
        """Nothing is written after it; also twice."""
        self._file.close()
