"""One number that makes probabilities as sure as they are right (temperature scaling)."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

LOWEST, HIGHEST = 0.01, 100.0
N_STARTS = 41  # from bound to bound, a factor of 1.26 between them
N_STEPS = 200
LARGEST_STEP = 0.02  # of the temperature's logarithm: a dozen lead from one start to the next


def cross_entropy(
    log_temperature: Float[Array, ""],
    scores_NK: Float[Array, "N K"],
    truth_NK: Float[Array, "N K"],
    asked_NK: Bool[Array, "N K"],
) -> Float[Array, ""]:
    """Mean over the questions of -Σ truth·ln softmax(score / T), in nats.

    Args:
        scores_NK: of K answers to N questions.
        truth_NK: sums to 1 over the answers of a question.
        asked_NK: False for what pads a question to K answers.
    """
    scaled_NK = jnp.where(asked_NK, scores_NK * jnp.exp(-log_temperature), -1e30)
    logprob_NK = jax.nn.log_softmax(scaled_NK)
    return -jnp.where(asked_NK, truth_NK * logprob_NK, 0.0).sum(-1).mean()


@jax.jit
def fit_temperature(
    scores_NK: Float[Array, "N K"],
    truth_NK: Float[Array, "N K"],
    asked_NK: Bool[Array, "N K"],
) -> Float[Array, ""]:
    """The T from LOWEST to HIGHEST with the least cross-entropy (Guo et al. 2017).

    Above 1 the model was too sure of itself. The cross-entropy is convex in 1 / T, so there is
    one minimum; where it lies beyond a bound (all right, or worse than chance) T is that bound.
    It is flat far from 1, so the best of a few starts is refined.
    """
    starts = jnp.linspace(jnp.log(LOWEST), jnp.log(HIGHEST), N_STARTS)
    found = jax.lax.map(lambda start: cross_entropy(start, scores_NK, truth_NK, asked_NK), starts)
    start = starts[jnp.argmin(found)]
    optimizer = optax.adam(optax.cosine_decay_schedule(LARGEST_STEP, N_STEPS))

    def step(carry, _):
        log_temperature, state = carry
        slope = jax.grad(cross_entropy)(log_temperature, scores_NK, truth_NK, asked_NK)
        update, state = optimizer.update(slope, state)
        log_temperature = jnp.clip(
            optax.apply_updates(log_temperature, update), jnp.log(LOWEST), jnp.log(HIGHEST)
        )
        return (log_temperature, state), None

    (log_temperature, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=N_STEPS)
    return jnp.exp(log_temperature)
