"""Is jaxscore right and fast on this machine's accelerator? One call, no PyTorch needed.

    python tools/check_device.py                  the best device there is
    python tools/check_device.py --device gpu     exit code 2 where there is none

1. Every token of the expected values in tests/cases, in float32: 1e-4, else exit code 1. In
   bfloat16 the worst difference is printed.
2. The same requests as a forest and one a batch: how far layouts move a score.
3. Texts that share long prefixes with trunks and without; and greedy texts, of which scoring must
   find every token the most probable one. Both in float32.
4. What only some families have (experts, ALiBi, soft caps, norms of queries and keys, int8):
   random decoders in float32 against the same on the CPU of this machine, 1e-4.
5. Tokens a second and share of the measured matmul peak, with random weights of GPT-2 124M and
   Llama-3.2-1B shape, on texts without and with a shared prompt.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
CASES = ROOT / "tests" / "cases"
sys.path.insert(0, str(ROOT))  # for tests.on_eight_devices, which needs neither pytest nor PyTorch
NAMES = ("tiny-gpt2", "tiny-llama3", "tiny-qwen2")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "gpu", "cuda", "tpu"))
    parser.add_argument("--batch-tokens", type=int, default=16384, help="for part 5")
    parser.add_argument("--no-speed", action="store_true", help="parts 1 to 4 alone")
    parser.add_argument(
        "--reference", type=Path, metavar="FILE", help="write part 4's numbers and nothing else"
    )
    args = parser.parse_args()

    import jax

    from jaxscore import InputError
    from jaxscore.platform import use_device

    try:
        use_device(args.device)
    except InputError as problem:
        print(problem, file=sys.stderr)
        return 2
    if args.reference is not None:
        np.savez(args.reference, **random_decoders())
        return 0
    print(f"jax {jax.__version__} on {jax.devices()}")
    # All of them, also after a wrong one.
    verdicts = [check(name) for name in NAMES for check in (agrees, trunks_agree, greedy_is_best)]
    verdicts.append(decoders_agree())
    if not args.no_speed:
        for shape in SHAPES:
            speed(shape, args.batch_tokens)
    return 0 if all(verdicts) else 1


def random_decoders() -> dict[str, np.ndarray]:
    """Log-probability, entropy and self-certainty of every token, by decoder."""
    from tests.on_eight_devices import CONFIGS, model_on, parameters, scored

    out = {}
    for name, config in CONFIGS.items():
        scores, _ = scored(model_on(config, parameters(config), None))
        out[name] = np.concatenate([np.stack(one[:3]) for one in scores], axis=1)
    return out


def decoders_agree() -> bool:
    """Part 4."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reference.npz"
        command = [sys.executable, __file__, "--device", "cpu", "--reference", str(file)]
        subprocess.run(command, check=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
        with np.load(file) as reference:
            want = dict(reference)
    verdicts = []
    for name, got in random_decoders().items():
        worst = float(np.abs(got - want[name]).max())
        verdicts.append(worst < 1e-4)
        print(f"{'ok   ' if verdicts[-1] else 'WRONG'} random decoder, {name}: {worst:.1e}")
    return all(verdicts)


def agrees(name: str) -> bool:
    """Parts 1 and 2 for one checkpoint."""
    from jaxscore import Request, Scorer

    text = (CASES / "expected" / name / "tokens.json").read_text(encoding="utf-8")
    want = [item for item in json.loads(text) if item.get("logprob")]
    requests = [Request(k, "", item["text"]) for k, item in enumerate(want)]
    worst = {}
    for dtype in ("float32", "bfloat16"):
        scorer = Scorer.from_pretrained(str(CASES / "models" / name), dtype=dtype)
        together = scorer.score(requests)
        worst[dtype] = max(
            float(np.abs(getattr(got, column)[-len(item[column]) :] - item[column]).max())
            for got, item in zip(together, want, strict=True)
            for column in ("logprob", "entropy", "self_certainty")
        )
        if dtype == "float32":
            alone = [scorer.score([request])[0] for request in requests]
            layout = max(
                float(np.nanmax(np.abs(a.logprob - b.logprob)))
                for a, b in zip(together, alone, strict=True)
            )
    good = worst["float32"] < 1e-4 and layout < 1e-5
    print(
        f"{'ok   ' if good else 'WRONG'} {name}: float32 {worst['float32']:.1e}, "
        f"bfloat16 {worst['bfloat16']:.1e}, layouts {layout:.1e}"
    )
    return good


def trunks_agree(name: str) -> bool:
    """Part 3: the same scores whether a shared prefix is computed once or in each row."""
    from jaxscore import Scorer, sequence_scorer
    from jaxscore.forest import TokenSequence

    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 900, n) for n in (300, 420)]
    asked = [
        TokenSequence(np.concatenate([prompt, rng.integers(5, 900, 20)]).astype(np.int32), 310)
        for prompt in prompts
        for _ in range(60)
    ]
    found, trunks = [], 0
    kept = sequence_scorer.LEAST_SAVED_CPU, sequence_scorer.LEAST_SAVED_ACCELERATOR
    for least in (0.0, 1e30):
        sequence_scorer.LEAST_SAVED_CPU = sequence_scorer.LEAST_SAVED_ACCELERATOR = least
        one = Scorer.from_pretrained(str(CASES / "models" / name), dtype="float32")
        found.append(one.score_sequences(asked))
        trunks += sum(program.name[0] == "trunk" for program in one.programs.compiled)
    sequence_scorer.LEAST_SAVED_CPU, sequence_scorer.LEAST_SAVED_ACCELERATOR = kept
    worst = max(float(np.abs(a.logprob - b.logprob).max()) for a, b in zip(*found, strict=True))
    good = worst < 1e-5 and trunks > 0
    print(f"{'ok   ' if good else 'WRONG'} {name}: with {trunks} trunks {worst:.1e}")
    return good


def greedy_is_best(name: str) -> bool:
    """Part 3: each token that is written greedily has the highest score after those before it."""
    from jaxscore import Scorer
    from jaxscore.forest import TokenSequence
    from jaxscore.generator import Generator
    from jaxscore.requests import GenerationRequest

    scorer = Scorer.from_pretrained(str(CASES / "models" / name), dtype="float32")
    shared = "The next section is a test about the towns of Tellany. " * 12
    prompts = ["The cat", "Arlen moved from", *(f"{shared}Question {k}:" for k in range(40))]
    written = Generator(scorer).generate(
        [GenerationRequest(k, prompt, 24) for k, prompt in enumerate(prompts)]
    )
    sequences = [
        TokenSequence(np.concatenate([ids, one.token_ids]), len(ids))
        for ids, one in zip(scorer.encoder.prompt_ids(prompts), written, strict=True)
    ]
    scored = scorer.score_sequences(sequences)
    tokens = sum(len(one.greedy) for one in scored)
    other = sum(int((~one.greedy).sum()) for one in scored)
    good = not other and tokens > 100
    print(f"{'ok   ' if good else 'WRONG'} {name}: {other} of {tokens} written tokens not the best")
    return good


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    gated: bool


SHAPES = (
    Shape("GPT-2 124M", 50257, 768, 12, 12, 12, 3072, False),
    Shape("Llama-3.2 1B", 128256, 2048, 16, 32, 8, 8192, True),
)


def speed(shape: Shape, batch_tokens: int) -> None:
    """Part 4 for one shape, in bfloat16."""
    import jax
    import jax.numpy as jnp

    from jaxscore.device import decoder
    from jaxscore.device.decoder_config import DecoderConfig, Rotary
    from jaxscore.device.dots import to_storage
    from jaxscore.forest import TokenSequence
    from jaxscore.models import native
    from jaxscore.scorer import Scorer

    head = shape.width // shape.heads
    config = DecoderConfig(
        vocab_size=shape.vocab,
        width=shape.width,
        n_layers=shape.layers,
        n_heads=shape.heads,
        n_kv_heads=shape.kv_heads,
        head_width=head,
        mlp_width=shape.mlp,
        max_positions=2048,
        windows=(0,) * shape.layers,
        norm="rms",
        norm_eps=1e-5,
        activation="silu",
        gated=shape.gated,
        rotary=(Rotary(tuple(float(10000.0 ** (-2 * k / head)) for k in range(head // 2))),),
        rotary_of=(0,) * shape.layers,
        attention_scale=head**-0.5,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        tied=True,
    )

    @jax.jit
    def weights(key):
        params = decoder.init_params(key, config)
        return to_storage(jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))

    model = native.from_params(config, weights(jax.random.key(0)), "bfloat16", "random")
    peak = matmul_peak()
    rng = np.random.default_rng(0)

    def text(n):
        return rng.integers(0, shape.vocab, n).astype(np.int32)

    prompt = text(300)
    jobs = {
        "plain": [TokenSequence(text(int(n)), 0) for n in rng.integers(60, 500, 400)],
        "prompt": [TokenSequence(np.concatenate([prompt, text(20)]), 315) for _ in range(1000)],
    }
    per_token = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(model.params["layers"]))
    for name, sequences in jobs.items():
        # Sequences of ids need no encoder, and there is no tokenizer to make one of.
        scorer = Scorer(model, None, batch_tokens=batch_tokens)  # type: ignore[arg-type]
        scorer.score_sequences(sequences)
        seconds = []
        for _ in range(3):
            scorer.tokens_given = scorer.tokens_unique = scorer.tokens_scored = 0
            started = time.perf_counter()
            scorer.score_sequences(sequences)
            seconds.append(time.perf_counter() - started)
        median = sorted(seconds)[1]
        flops = 2.0 * (
            scorer.tokens_unique * per_token + scorer.tokens_scored * shape.width * shape.vocab
        )
        temporary = max(c.temporary_bytes for c in scorer.programs.compiled) / 1e6
        print(
            f"{shape.name}, {name}: {scorer.tokens_given / median:.0f} given tokens/s, "
            f"{scorer.tokens_unique / median:.0f} unique tokens/s, "
            f"{flops / median / 1e12:.1f} TFLOP/s = {flops / median / peak:.0%} of the matmul "
            f"peak, {len(scorer.programs.compiled)} programs, {temporary:.0f} MB temporary"
        )


def matmul_peak() -> float:
    """FLOP/s of a large bfloat16 product."""
    import jax
    import jax.numpy as jnp

    n = 8192 if jax.default_backend() != "cpu" else 2048
    x = jnp.ones((n, n), jnp.bfloat16)
    product = jax.jit(lambda a: a @ a)
    product(x).block_until_ready()
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        product(x).block_until_ready()
        seconds.append(time.perf_counter() - started)
    return 2 * n**3 / min(seconds)


if __name__ == "__main__":
    sys.exit(main())
