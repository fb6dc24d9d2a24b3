"""Text that is written: PyTorch's greedy tokens, and the same text however it is batched."""

import dataclasses
import hashlib
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from jaxscore import Scorer
from jaxscore.device import reference
from jaxscore.device.dots import as_integers
from jaxscore.device.init_params import init_params
from jaxscore.device.rows import ScoredPositions
from jaxscore.engine.generation import Generator, slots, state
from jaxscore.engine.programs import Programs
from jaxscore.models import native
from jaxscore.models.model import CheckpointFacts
from jaxscore.plan import decode_slots
from jaxscore.text.bounded_tokenizer import TextError
from jaxscore.text.decoder import TokenBytes
from jaxscore.types.requests import GenerationRequest
from tests.conftest import CASES, MODELS
from tests.device.configs import gpt2like, llamalike
from tests.releases import flax_classes, native_and_transformers

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

SHARED = "Arlen moved from Dunmere to Merrow in 1856. Ines moved from Tellany to Merrow. " * 5
PROMPTS = (
    "The cat",
    "Question: how many days did Marek travel?\n",
    "a",
    "The cat",
    "word " * 90 + "then",
    *(f"{SHARED}Where did {name} go?" for name in ("Arlen", "Ines", "Tova")),
)


@pytest.fixture(scope="session")
def torch_greedy():
    """`torch_greedy(name, ids, n)`: what PyTorch's generate writes, the EOS left out."""
    import torch
    from transformers import AutoModelForCausalLM

    models = {}

    def run(name, ids, n):
        if name not in models:
            models[name] = AutoModelForCausalLM.from_pretrained(
                CASES / "models" / name, dtype=torch.float32
            ).eval()
        model = models[name]
        prompt = torch.from_numpy(ids.astype(np.int64))[None]
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=n,
            do_sample=False,
            pad_token_id=0,
        )[0, len(ids) :].tolist()
        eos = model.generation_config.eos_token_id
        return out[: out.index(eos)] if eos in out else out

    return run


def requests(prompts, n=24, **options):
    return [GenerationRequest(k, prompt, n, **options) for k, prompt in enumerate(prompts)]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_is_pytorchs_token_for_token(monkeypatch, scorers, torch_greedy, name):
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 2))
    writer = Generator(scorers(name))
    alone = requests([SHARED + "So", SHARED + "Then", SHARED + "And so"])  # has a prefix
    for batch in (requests(PROMPTS), alone):
        got = writer.generate(batch)
        assert [one.id for one in got] == list(range(len(batch)))
        for request, one in zip(batch, got, strict=True):
            [ids] = writer.encoder.prompt_ids([request.prompt])
            assert one.token_ids.tolist() == torch_greedy(name, ids, 24), request.prompt[-20:]
            assert one.text == writer.encoder.tokenizer.decode(
                one.token_ids, skip_special_tokens=True
            )
            assert one.finish == ("length" if len(one.token_ids) == 24 else "eos")
    assert any(program.name[0] == "prefix" for program in writer.scorer.engine.programs.compiled)


CONFIGS = {
    "gpt2like": gpt2like(max_positions=96),
    "llamalike": llamalike(max_positions=96),
    "windows": llamalike(max_positions=96, windows=(0, 9)),
}


class OfIds:
    """An encoder whose text k is the k-th list of ids, and a tokenizer of numbers."""

    eos_token_id = None
    all_special_ids = ()

    def __init__(self, ids):
        self.ids, self.tokenizer = ids, self
        self.backend_tokenizer = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        self.backend_tokenizer.decoder = decoders.Fuse()

    def request_ids(self, requests, max_positions=None):
        return [self.ids[int(request.prompt)] for request in requests]

    def convert_ids_to_tokens(self, id):
        return f" {id}"


def random_model(config, dtype):
    """Our decoder with random parameters of visible size."""
    draw = np.random.default_rng(5)
    kinds = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

    def fill(path, leaf):
        values = draw.normal(path[-1].key == "scale", 0.3, leaf.shape)
        is_vector = len(leaf.shape) - (path[0].key == "layers") < 2
        return jnp.asarray(values, jnp.float32 if is_vector else kinds[dtype])

    shapes = jax.eval_shape(lambda: init_params(jax.random.key(0), config))
    params = as_integers(jax.tree_util.tree_map_with_path(fill, shapes))
    return native.from_params(config, params, dtype, "random")


def gaps(model, prompt, written):
    """How far below the most probable token each one that was written is, in nats.

    All of it is computed again, in one row without a cache, from all logits.
    """
    ids = np.concatenate([prompt, written])[:-1]
    padded = np.zeros((1, 96), np.int32)
    padded[0, : len(ids)] = ids
    at = np.arange(96, dtype=np.int32)[None]
    states = jax.jit(model.functions.hidden_states)
    hidden = states(model.params, padded, at, np.full_like(at, 96))
    before = hidden[0, len(prompt) - 1 : len(ids)]
    every, count = jnp.arange(len(written)), len(written)
    head = model.functions.unembedding(model.params)
    found = reference.score_positions(
        before, ScoredPositions(every, count, every, written, count), head
    )
    best = ScoredPositions(every, count, every, found.greedy_id, count)
    return np.asarray(reference.score_positions(before, best, head).logprob - found.logprob)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_is_what_no_cache_finds(monkeypatch, name, dtype):
    """Groups and rows are small, so that prompts are cut, groups differ, and looks are many."""
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 4))
    monkeypatch.setattr(decode_slots, "SHORTEST_PREFIX", 8)
    monkeypatch.setattr(slots, "STEPS", 5)
    model = random_model(CONFIGS[name], dtype)
    draw = np.random.default_rng(6)
    shared, own = draw.integers(0, 50, 12), draw.integers(0, 50, 96)
    prompts = [
        *(np.r_[shared, draw.integers(0, 50, n)] for n in (1, 2, 7, 30, 60)),
        *(np.r_[shared, own[:20], k] for k in range(3)),  # alike but for the last token
        np.r_[shared, own[:20], 0],
        np.r_[shared, own][:95],
        np.r_[shared, own][:96],  # as many as the model has positions
    ]
    for with_prefix in (True, False):
        if not with_prefix:
            prompts = [*prompts, own[:1]]
        ids = [prompt.astype(np.int32) for prompt in prompts]
        writer = Generator(Scorer(model, OfIds(ids), batch_tokens=128))
        n_new = [int(n) for n in draw.integers(1, 24, len(ids))]
        asked = [GenerationRequest(k, str(k), n) for k, n in enumerate(n_new)]
        found = []
        for one, prompt, n in zip(writer.generate(asked), ids, n_new, strict=True):
            assert one.finish == "length"
            assert len(one.token_ids) == min(n, 96 - len(prompt) + 1)
            found.append(gaps(model, prompt, one.token_ids))
        kinds = {program.name[0] for program in writer.scorer.engine.programs.compiled}
        assert ("prefix" in kinds) == with_prefix
        gap = np.concatenate(found)
        if dtype == "float32":
            assert gap.max() == 0
        else:  # attention's weights are rounded to 8 bits, elsewhere where there is a cache
            assert gap.max() < 0.1
            assert (gap > 0).mean() < 0.1


@pytest.mark.slow
@flax_classes
def test_transformers_own_generate_is_pytorchs_too(scorers, torch_greedy):
    writer = Generator(scorers("tiny-gpt2", implementation="transformers"))
    for request, one in zip(
        requests(PROMPTS[:5]), writer.generate(requests(PROMPTS[:5])), strict=True
    ):
        [ids] = writer.encoder.prompt_ids([request.prompt])
        assert one.token_ids.tolist() == torch_greedy("tiny-gpt2", ids, 24)
    sampled = requests(["The cat", "a"], 12, temperature=1.0, top_p=0.9, seed=3)
    first, again = writer.generate(sampled), writer.generate(sampled[::-1])[::-1]
    assert [one.token_ids.tolist() for one in first] == [one.token_ids.tolist() for one in again]


@pytest.mark.slow_after(1)
@native_and_transformers
def test_an_eos_ends_the_text_and_is_not_in_it(scorers, implementation):
    base = scorers("tiny-gpt2", implementation=implementation)
    [plain] = Generator(base).generate(requests(["Question: how many"]))
    ids = plain.token_ids.tolist()
    at = next(k for k in range(1, len(ids)) if ids[k] not in ids[:k])
    model = dataclasses.replace(base.model, checkpoint=CheckpointFacts(eos_ids=(1199, ids[at])))
    [cut] = Generator(Scorer(model, base.encoder)).generate(requests(["Question: how many"]))
    assert (cut.token_ids.tolist(), cut.finish) == (ids[:at], "eos")


@pytest.mark.slow_after(1)
@native_and_transformers
def test_an_eos_at_once_is_an_empty_text(scorers, implementation):
    base = scorers("tiny-gpt2", implementation=implementation)
    [plain] = Generator(base).generate(requests(["The cat"], 3))
    facts = CheckpointFacts(eos_ids=(1199, int(plain.token_ids[0])))
    model = dataclasses.replace(base.model, checkpoint=facts)
    [none] = Generator(Scorer(model, base.encoder)).generate(requests(["The cat"], 3))
    assert (none.text, none.token_ids.tolist(), none.finish) == ("", [], "eos")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@native_and_transformers
def test_logits_that_are_no_numbers_fail_their_request_alone(scorers, implementation, temperature):
    """The argmax of NaN would be some token, and the text would look like one."""
    base = scorers("tiny-gpt2", implementation=implementation)

    def writer(broken):
        params = jax.tree_util.tree_map_with_path(broken, base.model.params)
        return Generator(Scorer(dataclasses.replace(base.model, params=params), base.encoder))

    def far_positions(path, leaf):
        """Of positions 30 to 99, which only one of the prompts has."""
        is_table = {"position", "wpe"} & {key.key for key in path}
        return leaf.at[30:100].set(jnp.nan) if is_table else leaf

    asked = [
        GenerationRequest(k, prompt, 5, temperature=temperature)
        for k, prompt in enumerate(["The cat", "word " * 40, "a"])
    ]
    want = Generator(base).generate(asked)
    good, failed, too = writer(far_positions).generate(asked)
    assert "not finite" in failed.error
    assert (failed.text, len(failed.token_ids), failed.finish) == ("", 0, None)
    assert good.token_ids.tolist() == want[0].token_ids.tolist()
    assert too.token_ids.tolist() == want[2].token_ids.tolist()
    nothing = writer(lambda path, leaf: jnp.full_like(leaf, jnp.inf))
    assert all("not finite" in one.error for one in nothing.generate(asked))


def test_the_tokenizers_eos_stands_in_for_a_checkpoints(scorers):
    base = scorers("tiny-qwen2")
    assert Generator(base).eos_ids == base.model.checkpoint.eos_ids == (2,)
    model = dataclasses.replace(base.model, checkpoint=CheckpointFacts(eos_ids=()))
    own = base.encoder.tokenizer.eos_token_id
    assert Generator(Scorer(model, base.encoder)).eos_ids == (own,)


@pytest.mark.parametrize("setting", [False, True])
def test_the_text_is_the_bytes_of_its_tokens(scorers, setting, monkeypatch):
    """A checkpoint may ask for spaces before punctuation to be removed, as Llama 3's do."""
    writer = Generator(scorers("tiny-gpt2"))
    tokenizer = writer.encoder.tokenizer
    monkeypatch.setattr(tokenizer, "clean_up_tokenization_spaces", setting)
    asked = [GenerationRequest(k, "The cat", 40, temperature=1.0, seed=k) for k in range(32)]
    texts = writer.generate(asked)
    raw = TokenBytes(tokenizer).raw
    for one in texts:
        assert one.text == b"".join(map(raw, one.token_ids.tolist())).decode("utf-8", "replace")
    assert any(mark in one.text for one in texts for mark in (" .", " ,", " ?", " !"))


def test_a_stop_string_ends_the_text_before_it(scorers):
    writer = Generator(scorers("tiny-llama3"))
    [plain] = writer.generate(requests(["The cat"], 60))
    stop = plain.text[37:41]
    at = plain.text.index(stop)
    [cut, other] = writer.generate(
        [
            GenerationRequest("a", "The cat", 60, stop=("never there", stop)),
            GenerationRequest("b", "The cat", 60),
        ]
    )
    assert (cut.text, cut.finish) == (plain.text[:at], "stop")
    assert (other.text, other.finish) == (plain.text, "length")
    # A text of several looks at the device stops at the first one after the string.
    assert len(cut.token_ids) <= -(-60 // slots.STEPS) * slots.STEPS


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-qwen2"])
def test_a_seed_gives_the_same_text_in_any_company(scorers, name):
    writer = Generator(scorers(name))
    batch = [
        GenerationRequest(k, PROMPTS[k % 3], 16, temperature=0.9, top_p=0.95, seed=k)
        for k in range(9)
    ]
    got = writer.generate(batch)
    assert len({one.text for one in got}) > 5
    assert [one.text for one in writer.generate(batch[::-1])[::-1]] == [one.text for one in got]
    for k in (0, 4):
        assert writer.generate([batch[k]])[0].text == got[k].text
    greedy = GenerationRequest("greedy", PROMPTS[0], 16)
    [mixed, *_] = writer.generate([greedy, *batch])
    assert mixed.token_ids.tolist() == writer.generate([greedy])[0].token_ids.tolist()


def test_requests_that_cannot_be_written_are_named_and_the_others_kept(scorers):
    scorer = scorers("tiny-gpt2")
    got = Generator(scorer).generate(
        [
            GenerationRequest("good", "The cat", 4),
            GenerationRequest("empty", "", 4),
            GenerationRequest("half", "\ud800", 4),
            GenerationRequest("long", "word " * 2000, 4),
            GenerationRequest("none", "The cat", 0),
            GenerationRequest("hot", "The cat", 4, temperature=-1.0),
            GenerationRequest("nan", "The cat", 4, temperature=float("nan")),
            GenerationRequest("inf", "The cat", 4, temperature=float("inf")),
            GenerationRequest("half a token", "The cat", 2.5),
            GenerationRequest("nucleus", "The cat", 4, top_p=float("nan")),
            GenerationRequest("stop", "The cat", 4, stop=("cat", "")),
        ]
    )
    assert got[0].error is None
    assert got[0].finish == "length"
    wanted = ["no tokens", "surrogate", "shorten it", "at least 1", "temperature -1.0"]
    wanted += [
        "temperature nan",
        "temperature inf",
        "max_new_tokens is of type float",
        "top_p nan",
        "stop str",
    ]
    for one, part in zip(got[1:], wanted, strict=True):
        assert part in (one.error or ""), one
        assert (one.text, len(one.token_ids), one.finish) == ("", 0, None)


@pytest.mark.slow
@native_and_transformers
def test_a_text_ends_where_the_positions_do(scorers, implementation):
    scorer = scorers("tiny-gpt2", implementation=implementation)
    most = scorer.model.max_positions
    [ids] = scorer.encoder.prompt_ids(["word " * 600])
    n = most - 5
    prompt = scorer.encoder.tokenizer.decode(ids[:n])
    [again] = scorer.encoder.prompt_ids([prompt])
    assert len(again) == n
    [one] = Generator(scorer).generate([GenerationRequest(0, prompt, 100)])
    # The last token that is written is never fed, so it needs no position of its own.
    assert (len(one.token_ids), one.finish) == (6 if implementation == "native" else 5, "length")


@pytest.mark.slow
def test_prompts_of_all_lengths_need_few_programs(monkeypatch, scorers):
    base = scorers("tiny-llama3")
    writer = Generator(Scorer(base.model, base.encoder))
    draw = np.random.default_rng(8)
    prompts = ["".join(draw.choice(list("abcdef "), n)) for n in draw.integers(1, 900, 45)]
    want = writer.generate(requests(prompts, 3))
    assert len(writer.scorer.engine.programs.compiled) <= 8
    # Where a cache may hold little, fewer are written side by side, and the same.
    slot = 2 * 2 * 2 * 16 * 4  # keys and values of two layers, two heads of 16 channels, float32
    monkeypatch.setattr(slots, "MOST_CACHE_CPU", 8 * 512 * slot)
    tight = Generator(Scorer(base.model, base.encoder))
    got = tight.generate(requests(prompts, 3))
    assert [one.token_ids.tolist() for one in got] == [one.token_ids.tolist() for one in want]
    sizes = {c.name[1:3] for c in tight.scorer.engine.programs.compiled if c.name[0] == "decode"}
    assert {rows for rows, _ in sizes} == {1, 8, 32}
    assert all(rows == 1 or rows * slots <= 8 * 512 for rows, slots in sizes)


def test_a_second_run_compiles_nothing(scorers):
    writer = Generator(Scorer(scorers("tiny-llama3").model, scorers("tiny-llama3").encoder))
    writer.generate(requests(PROMPTS[:3], 8))
    compiled = list(writer.scorer.engine.programs.compiled)
    assert compiled
    writer.generate(requests(PROMPTS[1:4], 5))
    assert writer.scorer.engine.programs.compiled == compiled


def test_nothing_to_write(scorers):
    assert Generator(scorers("tiny-gpt2")).generate([]) == []


@pytest.mark.slow
@flax_classes
@pytest.mark.parametrize("eos", [None, [1199, 1198]])
def test_transformers_generate_takes_a_checkpoint_without_one_eos(tmp_path, torch_greedy, eos):
    folder = tmp_path / "model"
    shutil.copytree(CASES / "models/tiny-gpt2", folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    writer = Generator(
        Scorer.from_pretrained(str(folder), dtype="float32", implementation="transformers")
    )
    [one] = writer.generate(requests(["The cat"]))
    [ids] = writer.encoder.prompt_ids(["The cat"])
    assert one.token_ids.tolist() == torch_greedy("tiny-gpt2", ids, 24)


def recorded(monkeypatch):
    """What every program gives from now on, by name and bits: caches, prompts' keys, tokens."""
    seen = []
    real = Programs.run

    def run(self, name, *args, **options):
        out = real(self, name, *args, **options)
        bits = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(out)]
        seen.append((name, hashlib.sha256(b"".join(bits)).hexdigest()))
        return out

    monkeypatch.setattr(Programs, "run", run)
    return seen


@pytest.mark.slow
def test_reproducible_a_request_is_written_as_if_it_were_alone(monkeypatch, scorers):
    """Every bit of its keys and values, and so of the logits that they come from."""
    base, seen = scorers("tiny-llama3"), recorded(monkeypatch)
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 4))  # so that they would have a prefix
    prompts = ["a", "The cat", "word " * 90, *(f"{SHARED}Where did {k} go?" for k in range(4))]
    batch = [
        GenerationRequest(k, prompt, 5 + 30 * (k % 2), temperature=0.8 * (k % 3 > 0), seed=k)
        for k, prompt in enumerate(prompts)
    ]

    def written(requests, scorer, batch_tokens=4096):
        seen.clear()
        scorer.engine.planner.batch_tokens = batch_tokens
        got = Generator(scorer).generate(requests)
        return [(one.text, one.token_ids.tolist(), one.finish) for one in got], list(seen)

    scorer = Scorer(base.model, base.encoder, reproducible=True)
    alone = [written([one], scorer) for one in batch]
    for order in (range(7), (6, 2, 0, 5, 1, 4, 3), (3, 2)):
        for batch_tokens in (64, 4096):
            texts, bits = written([batch[k] for k in order], scorer, batch_tokens)
            assert texts == [text for k in order for text in alone[k][0]]
            assert bits == [one for k in order for one in alone[k][1]]
    # Without it neighbours are in the same programs.
    assert not set(written(batch, Scorer(base.model, base.encoder))[1]) & set(alone[2][1])


@pytest.mark.slow
@flax_classes
def test_reproducible_transformers_write_the_same_in_any_company(scorers):
    base = scorers("tiny-gpt2", implementation="transformers")
    batch = [
        GenerationRequest(k, prompt, 5, temperature=0.8 * (k % 2), seed=k)
        for k, prompt in enumerate(["a", "The cat", "word " * 30])
    ]
    for batch_tokens in (64, 4096):
        scorer = Scorer(base.model, base.encoder, batch_tokens=batch_tokens, reproducible=True)
        writer = Generator(scorer)
        alone = [writer.generate([one])[0].token_ids.tolist() for one in batch]
        got = writer.generate(batch[::-1])[::-1]
        assert [one.token_ids.tolist() for one in got] == alone


@pytest.mark.slow
@native_and_transformers
def test_equal_requests_are_written_once(monkeypatch, scorers, implementation):
    base = scorers("tiny-gpt2", implementation=implementation)
    writer = Generator(Scorer(base.model, base.encoder))
    one = GenerationRequest("one", "The cat", 6, temperature=0.9, seed=1)
    batch = [one, dataclasses.replace(one, seed=2), dataclasses.replace(one, id="again")]
    written = []
    take = state.TextState.append
    monkeypatch.setattr(
        state.TextState,
        "append",
        lambda self, ids, decode: (written.append(self), take(self, ids, decode)),
    )
    got = writer.generate(batch)
    assert [text.id for text in got] == ["one", "one", "again"]
    assert got[0].token_ids.tolist() == got[2].token_ids.tolist() != got[1].token_ids.tolist()
    assert len(written) == 2


def test_a_text_that_the_tokenizer_cannot_decode_fails_alone(scorers, monkeypatch):
    generator = Generator(scorers("tiny-gpt2"))
    requests = [GenerationRequest(k, text, 3) for k, text in enumerate(["The cat", "A dog"])]
    bad = generator.generate(requests)[0].token_ids.tolist()
    join = TokenBytes.join

    def panics(self, ids):
        if [*ids] == bad:
            raise TextError("no such byte")
        return join(self, ids)

    monkeypatch.setattr(TokenBytes, "join", panics)
    failed, written = generator.generate(requests)
    assert failed.error == "no such byte"
    assert written.error is None
