"""Direct preference optimisation (arXiv 2305.18290) in a plain Optax loop, on all devices.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python configs/training/dpo.py

The scorer computes the reference's log-probabilities once, before the first step; afterwards it
has the weights of the policy, for an evaluation every few steps. `score_tokens` computes the
policy's log-probabilities inside the training step, without logits in memory, and an entropy bonus.
"""

import argparse
import functools
import json

import jax
import jax.numpy as jnp
import optax
from decoder import Decoder, encoded, mesh_of_all, rows_of, scorer_of, scores_of

from jaxscore import evaluate

BETA, BONUS, RATE = 0.5, 0.01, 3e-3
PAIRS = [  # context, chosen, rejected
    ("Question: Is Oslo in Norway? Answer:", " Yes, it is.", " No, it is not."),
    ("Question: Is Rome in France? Answer:", " No, it is not.", " Yes, it is."),
    ("Question: Do cats purr? Answer:", " Yes, they do.", " No, never."),
    ("Question: Do dogs purr? Answer:", " No, never.", " Yes, they do."),
]
HELD_OUT = [{"text": "Question: Is Bergen in Norway? Answer: Yes, it is."}]


def loss_of(model, mesh, params, ids, mask, reference):
    """DPO's loss less an entropy bonus; rows are the chosen texts, then the rejected ones."""
    terms = scores_of(model, mesh, params, ids, mask)
    gain = terms["logprob"].sum(axis=1) - reference  # nats, over the continuation
    chosen, rejected = jnp.split(gain, 2)
    bonus = BONUS * terms["entropy"].sum() / mask.sum()
    return -jax.nn.log_sigmoid(BETA * (chosen - rejected)).mean() - bonus, (chosen - rejected)


def lm_eval_accuracy(scorer):
    """A task of lm-evaluation-harness under the weights that the scorer has now."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from jaxscore.adapters.lm_eval import JaxscoreLM

    found = simple_evaluate(
        model=JaxscoreLM(scorer),
        tasks=["demo_choices"],
        task_manager=TaskManager(include_path="configs/lm-eval", include_defaults=False),
        bootstrap_iters=0,
    )
    return found["results"]["demo_choices"]["acc,none"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--every", type=int, default=10, help="steps between two evaluations")
    parser.add_argument(
        "--lm-eval",
        action="store_true",
        help="evaluate a task of it, too; from the repository root, where its data is",
    )
    args = parser.parse_args()

    by_row, whole = mesh_of_all()
    vocab_size = 896  # of the embedded model, whose tokenizer this is
    model = Decoder(vocab_size)
    params = model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    params = jax.device_put(params, whole)
    scorer = scorer_of(model, params, vocab_size)

    chosen = [(context, good) for context, good, _ in PAIRS]
    rejected = [(context, bad) for context, _, bad in PAIRS]
    sequences = encoded(scorer, chosen + rejected)
    reference = jnp.array([scores.logprob.sum() for scores in scorer.score_sequences(sequences)])
    batch = jax.device_put((*rows_of(sequences), reference), by_row)

    optimizer = optax.adam(RATE)
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, ids, mask, reference):
        compute = jax.value_and_grad(functools.partial(loss_of, model, by_row.mesh), has_aux=True)
        (loss, margin), gradients = compute(params, ids, mask, reference)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss, margin

    for k in range(args.steps):
        params, state, loss, margin = step(params, state, *batch)
        record = {"step": k, "loss": float(loss), "margin": float(margin.mean())}
        if (k + 1) % args.every == 0:
            scorer.update(params)  # a copy: the next step may donate them
            report = evaluate("perplexity", scorer, HELD_OUT)
            record["bits_per_byte"] = report.summary["bits_per_byte"].mean
            record["programs"] = len(scorer.engine.programs.compiled)
            if args.lm_eval:
                record["accuracy"] = lm_eval_accuracy(scorer)
        print(json.dumps(record))


if __name__ == "__main__":
    main()
