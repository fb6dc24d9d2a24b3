"""A small decoder in Flax Linen, its scorer, and rows of tokens, which both examples share."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxscore import Scorer, score_tokens
from jaxscore.plan.requests import TokenSequence

WIDTH, HEADS, POSITIONS, TOKENIZER = 32, 4, 64, "demo"


class Decoder(nn.Module):
    """Hidden states [R, L, D] after the last norm, of ids [R, L]."""

    vocab_size: int

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocab_size, WIDTH, name="token")(ids)
        x += nn.Embed(POSITIONS, WIDTH, name="position")(jnp.arange(ids.shape[1]))
        for _ in range(2):
            mask = nn.make_causal_mask(ids)
            x += nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
            x += nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return nn.LayerNorm(name="norm")(x)


def unembed(params):
    """The LM head [V, D], tied to the embedding."""
    return params["params"]["token"]["embedding"]


def mesh_of_all():
    """A mesh over all devices, and the shardings of rows and of parameters."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    return NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())


def scores_of(model, mesh, params, ids, mask):
    """Log-probabilities and entropies [R, L]; split by rows over the devices."""

    def of_device(params, ids, mask):
        terms = ("logprob", "entropy")
        return score_tokens(model.apply, params, ids, mask, unembed=unembed, terms=terms)

    rows = PartitionSpec("data")
    split = jax.shard_map(
        of_device, mesh=mesh, in_specs=(PartitionSpec(), rows, rows), out_specs=rows
    )
    return split(params, ids, mask)


def scorer_of(model, params, vocab_size):
    """A scorer on the devices of training, with a copy of the parameters."""
    return Scorer.from_function(
        model.apply,
        unembed,
        params,
        TOKENIZER,
        vocab_size=vocab_size,
        max_positions=POSITIONS,
        name="decoder",
        mesh=f"data={jax.device_count()}",
    )


def encoded(scorer, pairs):
    """Token ids of each context with its continuation, and where that starts."""
    tokenize = scorer.encoder.tokenizer
    out = []
    for context, continuation in pairs:
        first, second = (tokenize(text)["input_ids"] for text in (context, continuation))
        out.append(TokenSequence(np.array(first + second, np.int32), len(first)))
    return out


def rows_of(sequences):
    """Ids [R, L] of the sequences, padded, and which tokens are of a continuation."""
    ids, mask = (np.zeros((len(sequences), POSITIONS), kind) for kind in (np.int32, bool))
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence.ids)] = sequence.ids
        mask[row, sequence.start : len(sequence.ids)] = True
    return ids, mask
