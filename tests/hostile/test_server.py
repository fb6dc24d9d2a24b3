"""Arbitrary requests to the server: a named refusal or an answer, and never status 500."""

import asyncio
import threading

import numpy as np
import pytest

from tests.server.conftest import refused, scorer, served  # noqa: F401
from tests.server.hostile_requests import hostile_request

TOGETHER = 50


def ask_all(served, seeds):  # noqa: F811
    async def one(client, seed):
        path, raw, headers = hostile_request(seed)
        return await client.post(path, content=raw, headers=headers)

    async def every():
        async with served.client() as client:
            answers = await asyncio.gather(*(one(client, seed) for seed in seeds))
        left = asyncio.all_tasks() - {asyncio.current_task()}
        return answers, left

    return asyncio.run(every())


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("block", range(200))
def test_any_request(served, block):  # noqa: F811
    seeds = range(block * TOGETHER, (block + 1) * TOGETHER)
    answers, left = ask_all(served, seeds)
    assert left == set()
    for seed, answer in zip(seeds, answers, strict=True):
        assert answer.status_code in (200, 400, 404, 415), (seed, answer.status_code, answer.text)
        if answer.status_code != 200:
            refused(answer, answer.status_code, type="invalid_request_error")
    backlog = served.service.worker.scheduler
    assert (backlog.n_prompts, backlog.n_tokens) == (0, 0)
    assert threading.active_count() < 60
    body = {"prompt": "Oslo is in Norway", "max_tokens": 0, "echo": True, "logprobs": 0}
    found = served.ask("/v1/completions", body).json()["choices"][0]["logprobs"]
    [wanted] = served.scorer.score(["Oslo is in Norway"])
    np.testing.assert_allclose(found["token_logprobs"][1:], wanted.logprob, atol=1e-5)
