"""Random tiny checkpoints of every family: every token of ragged text agrees with torch.

The texts are longer than the sliding windows and than the lengths that rope scalings begin at.
"""

import inspect
import re
import sys

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.activations import ACT2FN

from jaxscore import Scorer
from jaxscore.device.feed_forward import ACTIVATIONS
from jaxscore.models.config import table
from jaxscore.models.config.rope_parameters import names_of
from jaxscore.models.families import FAMILIES, fields
from jaxscore.plan.requests import TokenSequence
from tests.models.case_parts import NOT_READ, TRAINING, VOCABULARY
from tests.models.checkpoints import (
    FIFTH,
    assert_agree,
    distance,
    distances,
    from_folder,
    loaded,
    ragged,
    saved,
    scorer,
    torch_model,
    torch_scores,
)
from tests.models.families import ALIKE, BASE, CASES, REFUSED, STRUCTURES, WITHOUT_EFFECT
from tests.models.llamalike_families import CASES_OF_4, CASES_OF_5
from tests.releases import of_4

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

TOLERANCE = 1e-4
# A class that fails in float64. Beside bfloat16's errors float32 is as good.
NOT_IN_FLOAT64 = set() if FIFTH else {"deepseek_v3"}


def assert_parity(folder, torch_answers, model):
    """As tries, and with one request a row.

    Torch's float32 of olmo_hybrid is 9e-5 from its float64, and so is ours: where the two round in
    opposite directions, float64 decides.
    """
    sequences = ragged()
    own = scorer(loaded(folder))

    def agrees(found):
        want = torch_answers
        if distance(found, want) > TOLERANCE:
            want = torch_scores(model.double(), sequences)
        assert_agree(found, want, TOLERANCE)

    agrees(own.score_sequences(sequences))
    shared = own.statistics.tokens_laid_out
    agrees([own.score_sequences([one])[0] for one in sequences])
    laid_out_alone = own.statistics.tokens_laid_out - shared
    assert laid_out_alone == sum(len(s.ids) - 1 for s in sequences) > shared
    assert [program.name for program in own.engine.programs.compiled] == [("score", 1, 64)]


def without(kind, config, one):
    """Torch's model less what `one` of a case's last entries names."""
    if isinstance(one, dict):
        return torch_model(kind, **config | one)
    if one in config:
        return torch_model(kind, **{name: config[name] for name in config if name != one})
    return torch_model(kind, left_out=one, **config)


def names(apart):
    """The attributes of one of a case's last entries."""
    return {apart} if isinstance(apart, str) else set(apart)


@pytest.mark.slow_after(1, of_each="kind")
@pytest.mark.parametrize(("kind", "config", "apart"), CASES, ids=str)
def test_every_token_agrees_with_torch(tmp_path, kind, config, apart):
    assert_case(tmp_path, kind, config, apart)


# One family of each mechanism: all programs get their settings in one place.
MECHANISMS = (
    "mixtral", "qwen3_next", "bloom", "deepseek_v3", "falcon_h1", "gemma3_text", "gpt2", "gpt_oss",
    "kimi_linear", "llama", "mamba2", "minimax", "recurrent_gemma",
)  # fmt: skip


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("kind", [kind for kind in MECHANISMS if kind in FAMILIES])
def test_strict_and_64_bit_modes_of_jax_change_no_bit(kind, originals):
    sequences = ragged()
    want = scorer(loaded(originals[kind])).score_sequences(sequences)
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
    ):
        got = scorer(loaded(originals[kind])).score_sequences(sequences)
    for one, other in zip(got, want, strict=True):
        assert one.logprob.tobytes() == other.logprob.tobytes()
        assert one.entropy.tobytes() == other.entropy.tobytes()


@pytest.mark.skipif(not FIFTH, reason="transformers 4.57 computes something else")
@pytest.mark.parametrize(("kind", "config", "apart"), CASES_OF_5, ids=str)
def test_what_only_the_classes_of_5_compute(tmp_path, kind, config, apart):
    assert_case(tmp_path, kind, config, apart)


@of_4
@pytest.mark.parametrize(("kind", "config", "apart"), CASES_OF_4, ids=str)
def test_what_only_the_classes_of_4_compute(tmp_path, kind, config, apart):
    assert_case(tmp_path, kind, config, apart)


def assert_case(tmp_path, kind, config, apart):
    """Every token agrees, and torch answers to each of the last entries."""
    model = saved(tmp_path, kind, **config)
    want = torch_scores(model, ragged())
    for one in apart:
        other = without(kind, config, one)
        other.load_state_dict(model.state_dict())
        moved = distance(torch_scores(other, ragged()), want)
        assert moved > 3 * TOLERANCE, f"torch does not answer to {one}"
    assert_parity(tmp_path, want, model)


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_no_case_sees_torch_answer_to_decides_which_tensors_there_are(kind):
    def tensors(config):
        named = torch_model(kind, **config).named_parameters()
        return {name: value.shape for name, value in named}

    cases = [one for one in CASES if one.kind == kind]
    left = {name for one in cases for name in one.config} - {"hidden_size", "num_hidden_layers"}
    left -= {name for one in cases for apart in one.without for name in names(apart)}
    for one in cases:
        for name in left & set(one.config):
            less = {key: value for key, value in one.config.items() if key != name}
            if tensors(less) != tensors(one.config):
                left.remove(name)
    assert left == ALIKE.get(kind, set())


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_attribute_that_a_family_reads_is_accounted_for(kind):
    seen = set(BASE[kind]) | set(WITHOUT_EFFECT.get(kind, ()))
    for one in CASES:
        if one.kind == kind:
            seen |= set(one.config).union(*map(names, one.without))
    seen |= {name for one, attributes, _ in REFUSED if one == kind for name in attributes}
    if table()[kind].rope is not None and seen & names_of(kind, table()[kind].rope):
        seen.add("rope_parameters")
    assert FAMILIES[kind].reads <= seen


@pytest.mark.parametrize("kind", FAMILIES)
def test_both_values_of_every_switch_are_compared_or_one_is_refused(kind):
    options = [BASE[kind] | one.config for one in CASES if one.kind == kind]
    options += [BASE[kind] | attributes for one, attributes, _ in REFUSED if one == kind]
    configs = [table()[kind].values | some for some in options]
    for name in FAMILIES[kind].reads - set(WITHOUT_EFFECT.get(kind, ())):
        if any(isinstance(config.get(name), bool) for config in configs):
            # An attribute that no class reads is there only where it is refused.
            values = {config.get(name) for config in configs}
            assert values >= {True, False} or None in values, name


def test_the_tables_name_nothing_else():
    assert set(BASE) == set(FAMILIES) == {one.kind for one in CASES}
    for kind, attributes in WITHOUT_EFFECT.items():
        assert set(attributes) <= FAMILIES[kind].reads


@pytest.mark.parametrize("kind", WITHOUT_EFFECT)
def test_what_is_said_to_be_without_effect_is(kind):
    model = torch_model(kind)
    source = inspect.getsource(sys.modules[type(model).__module__])
    want = torch_scores(model, ragged())
    for name, reason in WITHOUT_EFFECT[kind].items():
        if reason == NOT_READ:
            assert not re.search(rf"config\.{name}\b", source), name
        if reason == TRAINING:
            switch = isinstance(table()[kind].values[name], bool)
            other = torch_model(kind, **{name: True if switch else 0.5})
            assert distance(torch_scores(other, ragged()), want) == 0, name


@pytest.mark.parametrize("name", fields.ACTIVATIONS)
def test_activations_are_torchs(name):
    x = np.linspace(-12, 12, 4001, dtype=np.float32)
    theirs = ACT2FN[name](torch.from_numpy(x)).numpy()
    ours = jax.jit(ACTIVATIONS[fields.ACTIVATIONS[name]])(x)
    np.testing.assert_allclose(ours, theirs, atol=2e-6, rtol=0)


@of_4
def test_gemmas_gelu_is_the_exact_one(tmp_path):
    """transformers 5 takes the name for the tanh form; a folder's numbers do not depend on it."""
    model = saved(tmp_path, "gemma", hidden_act="gelu")
    assert_parity(tmp_path, torch_scores(model, ragged()), model)


SIX_HEADS = {"hidden_size": 48, "num_attention_heads": 6}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config"),
    [("bloom", {}), ("falcon", {"alibi": True, "max_position_embeddings": 512} | SIX_HEADS)],
    ids=["bloom", "falcon"],
)
def test_alibi_where_positions_have_more_than_eight_bits(tmp_path, kind, config):
    """Falcon rounds positions and penalties to bfloat16, which tells 256 from 257 no more."""
    model = saved(tmp_path, kind, **config)
    draw = np.random.default_rng(4)
    longest = draw.integers(0, VOCABULARY, 500).astype(np.int32)
    texts = [
        longest,
        np.r_[longest[:300], draw.integers(0, VOCABULARY, 9)].astype(np.int32),
        longest[:70],
    ]
    sequences = [TokenSequence(ids, 0) for ids in texts]
    want = torch_scores(model, sequences)
    own = Scorer(loaded(tmp_path), None, batch_tokens=1024)
    assert_agree(own.score_sequences(sequences), want, TOLERANCE)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_bfloat16_is_no_further_from_float64_than_torch_is(tmp_path, kind):
    """Both start from weights rounded to bfloat16; torch rounds the activations too.

    Torch's model is the one that it loads, whose rotary tables stay float32.
    """
    # A rounding may choose another expert, which moves all that follows: several models tell more.
    mixture = "num_experts_per_tok" in BASE[kind]
    found = [in_bfloat16(tmp_path, kind, seed) for seed in ((7, 8, 9) if mixture else (7,))]
    got, theirs = (np.concatenate(some) for some in zip(*found, strict=True))
    assert got.max() > TOLERANCE  # bfloat16 is what ran
    assert np.median(got) < np.median(theirs) < 0.01
    if not mixture:
        assert got.mean() < theirs.mean() < 0.02


def in_bfloat16(folder, kind, seed):
    """How far our numbers and torch's are from float64's, all from weights rounded to bfloat16."""
    saved(folder, kind, torch_seed=seed).to(torch.bfloat16).save_pretrained(folder)
    model = torch_model(kind, torch_seed=seed)
    with torch.no_grad():
        for value in model.state_dict().values():  # of buffers those that are stored
            value.copy_(value.to(torch.bfloat16))
    exact = torch_scores(model if kind in NOT_IN_FLOAT64 else model.double(), ragged())
    theirs = torch_scores(from_folder(folder, torch.bfloat16), ragged())
    own = scorer(loaded(folder, dtype="bfloat16")).score_sequences(ragged())
    return distances(own, exact), distances(theirs, exact)


@pytest.mark.parametrize("stored", [torch.float16, torch.float64])
def test_other_stored_types_are_converted_exactly(tmp_path, stored):
    """float16 to float32 is exact, and so is float64 where the values came from float32."""
    model = saved(tmp_path, "llama")
    file = tmp_path / "model.safetensors"
    halves = {name: value.half() for name, value in load_file(file).items()}
    save_file({name: value.to(stored) for name, value in halves.items()}, file)
    model.load_state_dict({name: value.float() for name, value in halves.items()})
    got = scorer(loaded(tmp_path)).score_sequences(ragged())
    assert_agree(got, torch_scores(model, ragged()))
    assert np.isfinite(got[0].logprob).all()
