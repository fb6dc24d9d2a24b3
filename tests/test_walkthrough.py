"""From two texts to their numbers, one step after the other. Read it from top to bottom.

The two texts share their first words. Nothing that they share is computed twice:

    "The cat" + " sat down"            The ── cat ─┬─ ran ·· down
    "The cat" + " ran down"                        └─ sat ·· down

The solid words go through the model. A dotted one is only asked about: its probability is read
after the word before it. The model is small enough to check with a pencil: it knows six words,
and its logits are sums of the table PULL.
"""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jaxscore import Request, Scorer
from jaxscore.device.attention.interval import attention
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.backends import BACKENDS
from jaxscore.device.lm_head import score_positions
from jaxscore.device.rows import Rows, ScoredPositions, Unembedding
from jaxscore.models.model import Devices, Model, ModelFunctions
from jaxscore.plan import packing, tries
from jaxscore.text.encoder import TextEncoder

pytestmark = pytest.mark.numeric

PAD, THE, CAT, RAN, SAT, DOWN = range(6)
WORDS = ["[PAD]", "The", "cat", "ran", "sat", "down"]
REQUESTS = [Request("a", "The cat", " sat down"), Request("b", "The cat", " ran down")]

# PULL[next, seen]: what each word that has been seen adds to the logit of the next word.
PULL = np.zeros((6, 6), np.float32)
PULL[SAT, CAT], PULL[RAN, CAT] = math.log(8), math.log(4)  # a cat sits, or runs,
PULL[SAT, SAT], PULL[RAN, SAT] = -math.log(8), -math.log(4)  # and does neither twice:
PULL[SAT, RAN], PULL[RAN, RAN] = -math.log(8), -math.log(4)
PULL[DOWN, SAT], PULL[DOWN, RAN] = math.log(5), math.log(5 / 3)  # it sits or runs down.

# So e^logit of the six words, and of each text's tokens the probability, are
AFTER_CAT = np.array([1, 1, 1, 4, 8, 1]) / 16  # P(sat) = 1/2, P(ran) = 1/4
AFTER_RAN = np.array([1, 1, 1, 1, 1, 5 / 3]) / (20 / 3)  # P(down) = 1/4
AFTER_SAT = np.array([1, 1, 1, 1, 1, 5]) / 10  # P(down) = 1/2


def hidden_states(params, ids, position, subtree_end):
    """How often each word has been seen, [R, L, 6]: attention with equal weights, times the count.

    The attention is the one that every model here uses. Its queries are zero, so each token
    takes the mean of the tokens that it may look at.
    """
    seen = jnp.eye(6)[ids][:, :, None, :]
    window, rule = jnp.int32(0), ScoreRule(1.0)
    given = 0 * seen, 0 * seen, seen, position, subtree_end, window
    mean = attention(*given, rule=rule, dtype=jnp.float32, backend=BACKENDS["cpu"])
    return mean[:, :, 0, :] * (position[:, :, None] + 1)


def unembedding(params):
    """The table as the matrix that turns a hidden state into logits."""
    return Unembedding(jnp.asarray(params), bias=None, scale=1.0, softcap=None)


def encoder() -> TextEncoder:
    """One token a word."""
    backend = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, "[PAD]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextEncoder(PreTrainedTokenizerFast(tokenizer_object=backend))


def test_from_two_texts_to_their_numbers():
    # 1. Text to token ids, and where the continuation starts.
    [sat], [ran] = encoder().encode(REQUESTS)
    assert sat.ids.tolist() == [THE, CAT, SAT, DOWN]
    assert ran.ids.tolist() == [THE, CAT, RAN, DOWN]
    assert (sat.start, ran.start) == (2, 2)

    # 2. Token ids to a forest: tries in depth-first order. `subtree_end` is the index after the
    #    last node below a node. "down" is asked about and nothing comes after it: no node.
    trees = tries.build_forest([sat, ran])
    #                                0    1    2    3
    assert trees.ids.tolist() == [THE, CAT, RAN, SAT]
    assert trees.depth.tolist() == [0, 1, 2, 2]
    assert trees.subtree_end.tolist() == [4, 4, 3, 4]
    # An edge is a question: how probable is this word after that node?
    assert trees.edge_node.tolist() == [1, 1, 2, 3]
    assert trees.edge_target.tolist() == [RAN, SAT, DOWN, DOWN]
    # The edges of "sat", "down" and of "ran", "down": these put the answers back in order.
    assert trees.edge_of.tolist() == [1, 3, 0, 2]
    assert (trees.n_input_tokens, trees.n_nodes) == (8, 4)

    # 3. The forest to rows of a fixed length, here one row of 64. Padding is a tree of one node.
    plan = packing.pack_rows(trees, max_positions=64, width=6, batch_tokens=64)
    [batch] = plan.batches()
    assert batch.ids.shape == (1, 64)
    assert batch.ids[0].tolist() == [THE, CAT, RAN, SAT] + [PAD] * 60
    assert batch.position[0].tolist() == [0, 1, 2, 2] + [0] * 60
    assert batch.subtree_end[0].tolist() == [4, 4, 3, 4, *range(5, 65)]
    # Three nodes are asked, the first one for two words. `edge` says whose answers these are.
    asked, n_answers = batch.scored, len(batch.edge)
    assert (asked.n_queries, asked.query[:3].tolist()) == (3, [1, 2, 3])
    assert asked.slot[:n_answers].tolist() == [0, 0, 1, 2]
    assert asked.answer[:n_answers].tolist() == [RAN, SAT, DOWN, DOWN]
    assert batch.edge.tolist() == [0, 1, 2, 3]

    # 4. On the device. Token i looks at token j if j <= i < subtree_end[j]: "sat" (3) looks at
    #    "The" and "cat" and not at "ran" (2), whose subtree ends at 3.
    i, end = np.arange(4)[:, None], batch.subtree_end[0, :4]
    assert ((np.arange(4) <= i) & (i < end)).astype(int).tolist() == [
        [1, 0, 0, 0],  # The
        [1, 1, 0, 0],  # cat
        [1, 1, 1, 0],  # ran
        [1, 1, 0, 1],  # sat
    ]
    rows = Rows(
        *map(jnp.asarray, (batch.ids, batch.position, batch.subtree_end)),
        ScoredPositions(
            jnp.asarray(asked.query),
            jnp.int32(asked.n_queries),
            *map(jnp.asarray, (asked.slot, asked.answer)),
            jnp.int32(n_answers),
        ),
    )
    hidden = hidden_states(PULL, rows.ids, rows.position, rows.subtree_end)
    #          pad The cat ran sat down
    np.testing.assert_allclose(
        hidden[0, :4],
        [
            [0, 1, 0, 0, 0, 0],
            [0, 1, 1, 0, 0, 0],
            [0, 1, 1, 1, 0, 0],
            [0, 1, 1, 0, 1, 0],
        ],
        atol=1e-6,
    )

    # 5. The LM head, at the three scored positions and no others.
    scores = score_positions(hidden.reshape(64, 6), rows.scored, unembedding(PULL))
    np.testing.assert_allclose(np.exp(scores.logprob[:4]), [1 / 4, 1 / 2, 1 / 4, 1 / 2], rtol=1e-6)
    for k, p in enumerate([AFTER_CAT, AFTER_RAN, AFTER_SAT]):
        assert p.sum() == pytest.approx(1)
        # How unsure the model is, and how far it is from knowing nothing: KL(uniform || p).
        assert scores.entropy[k] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-6)
        assert scores.self_certainty[k] == pytest.approx(-np.log(6 * p).mean(), rel=1e-6)
    assert scores.entropy[0] == pytest.approx(2 * math.log(2), rel=1e-6)
    # Is the word the most probable one?
    assert scores.greedy[:4].tolist() == [False, True, True, True]

    # 6. From edges back to the requests.
    logprob = np.zeros(trees.n_edges, np.float32)
    logprob[batch.edge] = scores.logprob[:n_answers]
    [of_sat, of_ran] = np.split(logprob[trees.edge_of], trees.offsets[1:-1])
    np.testing.assert_allclose(np.exp(of_sat), [1 / 2, 1 / 2], rtol=1e-6)
    np.testing.assert_allclose(np.exp(of_ran), [1 / 4, 1 / 4], rtol=1e-6)


def test_the_scorer_does_all_of_it():
    model = Model(
        functions=ModelFunctions(hidden_states, unembedding),
        params=jnp.asarray(PULL),
        vocab_size=6,
        max_positions=64,
        width=6,
        shares_text=True,
        implementation="native",
        dtype="float32",
        model_type="by hand",
        devices=Devices("cpu"),
    )
    sat, ran = Scorer(model, encoder()).score(REQUESTS)
    assert (sat.id, sat.tokens) == ("a", ["sat", "down"])
    assert (ran.id, ran.tokens) == ("b", ["ran", "down"])
    np.testing.assert_allclose(np.exp(sat.logprob), [1 / 2, 1 / 2], rtol=1e-6)
    np.testing.assert_allclose(np.exp(ran.logprob), [1 / 4, 1 / 4], rtol=1e-6)
    assert sat.greedy.tolist() == [True, True]
    assert ran.greedy.tolist() == [False, True]
    assert sat.sum_logprob == pytest.approx(math.log(1 / 4), rel=1e-6)
    assert ran.perplexity == pytest.approx(4, rel=1e-6)
