"""Group-relative policy optimisation (arXiv 2402.03300) in a plain Optax loop, on all devices.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python configs/training/grpo.py

Responses of a group come with rewards. One scorer has the reference's weights and one those of the
policy that the responses are of: its log-probabilities are the denominator of the ratio, and it is
updated after each round. `score_tokens` computes the policy's inside the training step.
"""

import argparse
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from decoder import Decoder, encoded, mesh_of_all, rows_of, scorer_of, scores_of

CLIP, KL, BONUS, RATE = 0.2, 0.05, 0.001, 3e-3
PROMPT = "Question: Name a city in Norway. Answer:"
RESPONSES = [" Oslo.", " Bergen.", " Rome.", " Paris.", " Madrid.", " Berlin.", " Nice.", " Cork."]
REWARDS = np.array([1, 1, 0, 0, 0, 0, 0, 0], np.float32)


def logprobs_of(scorer, sequences):
    """Log-probabilities [R, L] at the places of their tokens, 0 elsewhere."""
    ids, mask = rows_of(sequences)
    out = np.zeros(ids.shape, np.float32)
    for row, scores in enumerate(scorer.score_sequences(sequences)):
        out[row, mask[row]] = scores.logprob
    return out


def loss_of(model, mesh, params, ids, mask, advantage, old, reference):
    """The clipped objective with a penalty of the divergence from the reference, and entropy."""
    terms = scores_of(model, mesh, params, ids, mask)
    ratio = jnp.exp(terms["logprob"] - old)
    gain = jnp.minimum(
        ratio * advantage[:, None], jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage[:, None]
    )
    less = reference - terms["logprob"]
    divergence = jnp.exp(less) - less - 1  # nats, an unbiased estimate that is not negative
    value = gain - KL * divergence + BONUS * terms["entropy"]
    return -(value * mask).sum() / mask.sum()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    args = parser.parse_args()

    by_row, whole = mesh_of_all()
    vocab_size = 896  # of the embedded model, whose tokenizer this is
    model = Decoder(vocab_size)
    params = model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    params = jax.device_put(params, whole)
    reference, policy = (scorer_of(model, params, vocab_size) for _ in range(2))
    sequences = encoded(reference, [(PROMPT, response) for response in RESPONSES])
    advantage = (REWARDS - REWARDS.mean()) / REWARDS.std()
    fixed = *rows_of(sequences), advantage, logprobs_of(reference, sequences)
    ids, mask, advantage, of_reference = jax.device_put(fixed, by_row)

    optimizer = optax.adam(RATE)
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, old):
        of_model = functools.partial(loss_of, model, by_row.mesh)
        loss, gradients = jax.value_and_grad(of_model)(
            params, ids, mask, advantage, old, of_reference
        )
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    for k in range(args.rounds):
        of_policy = logprobs_of(policy, sequences)
        good = float(np.exp(of_policy.sum(axis=1))[REWARDS > 0].sum())
        old = jax.device_put(of_policy, by_row)
        for _ in range(args.steps):
            params, state, loss = step(params, state, old)
        policy.update(params)  # a copy: the next step may donate them
        programs = len(policy.engine.programs.compiled)
        record = {"round": k, "loss": float(loss), "rewarded": good, "programs": programs}
        print(json.dumps(record))


if __name__ == "__main__":
    main()
