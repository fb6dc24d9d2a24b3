"""Qwen2.5-0.5B's shape in PyTorch (transformers, sdpa) and in jaxscore, on the same device.

The first process writes a random checkpoint, PyTorch's scores of some texts in float32, and its
time for a batch in bfloat16: one pass over the rows, then log-softmax of the logits of all
positions, some rows at a time, so that they fit in memory. The second reads the checkpoint,
compares the scores to 1e-4, and takes its own time for batches of the same sizes.
"""

import importlib.util
import json

import numpy as np

from jaxscore.engine.engine import Engine
from jaxscore.models.load import load
from jaxscore.plan.requests import TokenSequence
from tools.device_check import shapes, speed
from tools.device_check.checks import NOTE, SKIPPED, Options, largest_difference, record, report
from tools.device_check.timing import median_seconds

NAME = "Qwen2.5-0.5B"
DEVICES = {"gpu": "cuda", "cpu": "cpu"}  # JAX's backend -> PyTorch's device
FILE = "torch.json"
N_TEXTS, LENGTH = 4, 128  # of the compared scores
ROWS_AT_ONCE = 4  # of the logits
BATCHES = {"gpu": 16384, "cpu": 4096}  # tokens


def run_torch(options: Options) -> None:
    """Write the checkpoint and PyTorch's results; `options.subject` is JAX's backend."""
    device = DEVICES.get(options.subject)
    if importlib.util.find_spec("torch") is None:
        return record(SKIPPED, "PyTorch is not installed: no comparison with it")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if device is None or (device == "cuda" and not torch.cuda.is_available()):
        return record(
            SKIPPED, f"PyTorch {torch.__version__} does not run on {options.subject} here"
        )
    raw = shapes.raw_config(NAME, small=options.small)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    with torch.device(device):
        drawn = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw))
    drawn.to(torch.bfloat16).save_pretrained(options.folder)
    del drawn

    def read(dtype: str) -> torch.nn.Module:
        """Read the saved model: a conversion in memory would round the rotary frequencies, too."""
        model = AutoModelForCausalLM.from_pretrained(
            options.folder, dtype=dtype, attn_implementation="sdpa"
        )
        return model.to(device).eval().requires_grad_(False)

    def scores(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        hidden = model.model(ids, use_cache=False).last_hidden_state
        parts = []
        for first in range(0, len(ids), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            logits = model.lm_head(hidden[rows, :-1]).float()
            parts.append(logits.log_softmax(-1).gather(-1, ids[rows, 1:, None])[..., 0])
        return torch.cat(parts).cpu()

    rows, length = batch(options)
    draw = np.random.default_rng(0)
    ids = draw.integers(0, raw["vocab_size"], (rows, length + 1))
    many = torch.from_numpy(ids).to(device)
    model = read("bfloat16")
    scores(model, many)
    seconds = median_seconds(lambda: scores(model, many).numpy())
    few = draw.integers(0, raw["vocab_size"], (N_TEXTS, LENGTH + 1))
    logprobs = scores(read("float32"), torch.from_numpy(few).to(device)).tolist()
    result = {"ids": few.tolist(), "logprobs": logprobs, "tokens_per_s": rows * length / seconds}
    (options.folder / FILE).write_text(json.dumps(result), encoding="utf-8")
    record(
        NOTE,
        f"{label(options)}: PyTorch {torch.__version__} takes {1e3 * seconds:.1f} ms for a batch",
        model=f"{label(options)}, PyTorch {torch.__version__} with sdpa",
        batch=f"{rows} x {length}",
        tokens_per_s=rows * length / seconds,
    )


def run_jaxscore(options: Options) -> None:
    """Compare jaxscore's scores and time with those of `run_torch`."""
    if not (options.folder / FILE).exists():
        return
    result = json.loads((options.folder / FILE).read_text(encoding="utf-8"))
    sequences = [TokenSequence(np.array(ids, np.int32), 0) for ids in result["ids"]]
    scores = Engine(load(options.folder, dtype="float32")).score_sequences(sequences)
    worst = largest_difference(
        zip((columns.logprob for columns in scores), result["logprobs"], strict=True)
    )
    report(worst < 1e-4, f"{label(options)}: scores against PyTorch, float32 {worst:.1e}")
    if not options.has_time(f"{label(options)}: time against PyTorch"):
        return
    model = load(options.folder, dtype="bfloat16")
    config = shapes.decoder_config(NAME, small=options.small)
    rows, length = batch(options)
    rate = speed.measure(label(options), config, model, rows * length, length)
    ratio = rate / result["tokens_per_s"]
    record(NOTE, f"{label(options)}: jaxscore is {ratio:.2f} times as fast as PyTorch")


def label(options: Options) -> str:
    """Name the measured model."""
    return f"{NAME}{', narrow' if options.small else ''}, against PyTorch"


def batch(options: Options) -> tuple[int, int]:
    """Return rows and tokens of each."""
    length = speed.SMALL_LENGTHS[0] if options.small else speed.LENGTHS[0]
    tokens = speed.BATCH_SMALL if options.small else BATCHES[options.subject]
    return tokens // length, length
