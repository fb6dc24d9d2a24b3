"""The optimizer, its steps and its checkpoints."""

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from tokenizers import Tokenizer

from jaxscore.device import decoder
from jaxscore.device.init_params import init_params
from tools.demo_world import fast
from tools.demo_world.documents import KINDS, PHASE_ENDS
from tools.demo_world.rows import TrainingRows, step_rows


@dataclasses.dataclass(frozen=True)
class Plan:
    """Length and learning rate of a training run.

    Attributes:
        steps: the number of batches; `documents.PHASE_ENDS` decides their contents.
        begin: the progress of a complete run at which this one begins; above 0 it continues from
            trained parameters.
        rows, row_length: the rows of a batch, and the tokens of a row.
        learning_rate: the maximum, reached after `warmup` steps; the minimum is a twentieth.
        save_every, report_every: the steps between checkpoints and between lines of progress.
    """

    steps: int
    seed: int = 0
    begin: float = 0.0
    rows: int = 12
    row_length: int = 256
    learning_rate: float = 2.5e-3
    warmup: int = 60
    weight_decay: float = 0.05
    save_every: int = 250
    report_every: int = 25

    def progress(self, step: int) -> float:
        """Return the progress of a complete run at a step of this one, from `begin` to below 1."""
        return self.begin + (1 - self.begin) * step / self.steps


class State(NamedTuple):
    params: decoder.Params
    moments: Any


def optimizer(plan: Plan) -> optax.GradientTransformation:
    """AdamW after a clip of the gradient; vectors (norms) do not decay.

    The learning rate falls along a cosine twice (warm restarts, arXiv 1608.03983): once while
    names are learned to be copied, and once more while labels are.
    """
    copying = round(plan.steps * max(0.0, PHASE_ENDS[0] - plan.begin) / (1 - plan.begin))
    rate = optax.sgdr_schedule(
        [
            {
                "init_value": 0.0,
                "peak_value": plan.learning_rate,
                "warmup_steps": min(plan.warmup, steps // 2),
                "decay_steps": steps,
                "end_value": plan.learning_rate / 20,
            }
            for steps in (copying, plan.steps - copying)
            if steps
        ]
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            rate, b2=0.98, weight_decay=plan.weight_decay, mask=lambda p: jax.tree.map(_decays, p)
        ),
    )


def _decays(param: jax.Array) -> bool:
    """Return True if a parameter is a matrix: its last two axes are wider than 1."""
    return param.ndim == 3 or (param.ndim == 2 and param.shape[0] > 64)


def loss(
    params: decoder.Params, config: decoder.DecoderConfig, rows: TrainingRows
) -> tuple[jax.Array, jax.Array]:
    """Weighted mean of the next tokens' negative log-probability, in nats.

    Returns:
        The mean, and float32 [kinds, 2]: the sum over labels of each kind, and their number.
    """
    hidden = fast.hidden_states(params, config, rows.ids, rows.position, rows.subtree_end)
    logits = fast.dot_last(hidden, decoder.unembedding(params, config).weight)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, rows.target)
    of_kind = jax.nn.one_hot(rows.label, len(KINDS))  # all zeros for -1
    labels = jnp.einsum("rlk,rlm->km", of_kind, jnp.stack([each, jnp.ones_like(each)], -1))
    return jnp.sum(each * rows.weight) / jnp.sum(rows.weight), labels


@functools.cache
def make_step(
    config: decoder.DecoderConfig, plan: Plan
) -> Callable[[State, TrainingRows], tuple[State, jax.Array, jax.Array]]:
    """One update, compiled once a process; the old state's memory is used for the new one."""
    transform = optimizer(plan)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: State, rows: TrainingRows) -> tuple[State, jax.Array, jax.Array]:
        (value, labels), gradient = jax.value_and_grad(loss, has_aux=True)(
            state.params, config, rows
        )
        updates, moments = transform.update(gradient, state.moments, state.params)
        return State(optax.apply_updates(state.params, updates), moments), value, labels

    return step


def first_state(
    config: decoder.DecoderConfig, plan: Plan, start: decoder.Params | None = None
) -> State:
    """The parameters to start from, or random ones of the plan's seed."""
    if start is None:
        start = init_params(jax.random.key(plan.seed), config)
    params = jax.tree.map(lambda x: jnp.array(x, jnp.float32), start)
    return State(params, optimizer(plan).init(params))


def train(
    config: decoder.DecoderConfig,
    tokenizer: Tokenizer,
    plan: Plan,
    checkpoints: Path,
    *,
    start: decoder.Params | None = None,
    say: Callable[[str], None] = print,
    stop_after: int | None = None,
) -> decoder.Params:
    """Train from the newest checkpoint, or from the start if there is none.

    A step's documents depend on the seed and the step alone, so a run that was killed and
    started again ends with the parameters of a run that was not.

    Args:
        checkpoints: an absolute folder for this plan alone; the newest two are kept.
        start: parameters of the first step; random ones by default.
        stop_after: leave, with a checkpoint, once that many steps are done.

    Returns:
        The float32 parameters.
    """
    step_function = make_step(config, plan)
    state, done = first_state(config, plan, start), 0
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(checkpoints, options=options) as manager:
        if (newest := manager.latest_step()) is not None:
            state = manager.restore(newest, args=ocp.args.StandardRestore(state))
            done = newest
            say(f"resumed after step {done} from {checkpoints}")
        last = plan.steps if stop_after is None else min(stop_after, plan.steps)
        began, first = time.monotonic(), done
        labels: list[jax.Array] = []
        while done < last:
            rows = step_rows(
                tokenizer, plan.seed, done, plan.progress(done), plan.rows, plan.row_length
            )
            state, value, of_labels = step_function(state, rows)
            labels.append(of_labels)
            done += 1
            if done % plan.report_every == 0 or done == last:
                say(_progress(plan, done, float(value), time.monotonic() - began, done - first))
                say(f"      label loss: {_label_losses(np.sum(labels, axis=0))}")
                labels.clear()
            if done % plan.save_every == 0 or done == last:
                manager.save(done, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    return state.params


def _progress(plan: Plan, done: int, value: float, seconds: float, steps: int) -> str:
    """A line of progress; slots of padding count as tokens."""
    rate = steps * plan.rows * plan.row_length / seconds
    left = (plan.steps - done) * seconds / steps
    return (
        f"step {done:5d} of {plan.steps}   loss {value:.3f}   {rate:,.0f} tokens/s   "
        f"{left / 60:.1f} min left"
    )


def _label_losses(labels: np.ndarray) -> str:
    """Format mean nats per label by document type: ln 2 is chance for two labels."""
    means = {name: total / n for name, (total, n) in zip(KINDS, labels, strict=True) if n}
    return "   ".join(f"{name} {mean:.3f}" for name, mean in means.items())
