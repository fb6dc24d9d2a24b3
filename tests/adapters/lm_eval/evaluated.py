"""Evaluations of the tasks, and how far two of them are apart."""

import copy
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from tests.adapters.lm_eval.tasks import TASKS

# Without the thousands of its own tasks, which take seconds to list.
TASK_MANAGER = TaskManager(include_defaults=False)


def evaluated(model: Any, args: Any = None, *names: str, **settings: Any) -> dict[str, Any]:
    """What `simple_evaluate` gives, without the bootstrap's own draws."""
    return lm_eval.simple_evaluate(
        model=model,
        model_args=args,
        tasks=[copy.deepcopy(TASKS[name]) for name in names],
        bootstrap_iters=0,
        task_manager=TASK_MANAGER,
        **settings,
    )


def by_hf(folder: Path, args: dict[str, Any], *names: str, **settings: Any) -> dict[str, Any]:
    """The reference: float32, eager attention, one request a batch, no cache of logits."""
    own = {"dtype": "float32", "attn_implementation": "eager", "logits_cache": False}
    return evaluated(
        "hf", {"pretrained": str(folder), **own, **args}, *names,
        batch_size=1, device="cpu", **settings,
    )  # fmt: skip


def responses(found: dict[str, Any], name: str) -> list[Any]:
    """Of each document, in order, what the model answered."""
    samples = sorted(found["samples"][name], key=lambda one: one["doc_id"])
    return [answer for one in samples for answer in one["resps"]]


def assert_same(
    ours: dict[str, Any], theirs: dict[str, Any], *names: str, tied: tuple[str, ...] = ()
) -> None:
    """Every log-likelihood, greedy flag, text and metric.

    Args:
        tied: tasks whose accuracies are left out: documents of theirs have equal answers, and
            which of them wins depends on the last bit where each is asked by itself.
    """
    for name in names:
        pairs = zip(responses(ours, name), responses(theirs, name), strict=True)
        for got, want in ((a, b) for one, other in pairs for a, b in zip(one, other, strict=True)):
            if isinstance(want, str):
                assert got == want
                continue
            got, want = (
                one if isinstance(one, tuple | list) else (one, None) for one in (got, want)
            )
            total = float(want[0])
            assert np.isclose(float(got[0]), total, rtol=1e-6, atol=1e-3), name
            assert got[1] == want[1], name
        for metric, value in theirs["results"][name].items():
            if isinstance(value, float) and not (name in tied and metric.startswith("acc")):
                assert ours["results"][name][metric] == pytest.approx(value, rel=1e-3), metric


def request(context: str, kwargs: dict[str, Any]) -> Instance:
    """One for text."""
    return Instance("generate_until", {}, (context, kwargs), 0, ("task", 0, 1))
