"""Benchmark of loading a checkpoint, against only reading the same bytes.

    python tools/bench_load.py [--gigabytes 2] [--kind llama] [--stored bfloat16] [--dtype auto]

Writes a sharded checkpoint of random weights to a temporary folder, then takes turns: reads of its
files into one reused buffer a thread, as `dd` does; reads into fresh memory, where all of them
stay; and `load`. All with the same number of threads, on files that the system holds in memory.
Prints the medians in GB/s of stored bytes and how many times as long as each the load takes. The
reused buffer never leaves the processor's cache, so that what keeps the bytes cannot come near it:
the second is what a load can reach that casts and transposes nothing.
"""

import argparse
import concurrent.futures
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from jaxscore.models.load import load
from jaxscore.models.model_types import DTYPES
from jaxscore.models.weights import filling

BLOCK = 8 << 20  # bytes read at a time
SHARD = 400 << 20  # bytes, about, of each file
STORED = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}
WIDTH, VOCABULARY = 2048, 32000


def llama(n_layers: int) -> tuple[dict, dict[str, tuple[int, ...]]]:
    """A config and the shapes of its tensors."""
    inner, kv = 5632, 512
    layer = {
        "input_layernorm": (WIDTH,),
        "post_attention_layernorm": (WIDTH,),
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (kv, WIDTH),
        "self_attn.v_proj": (kv, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (inner, WIDTH),
        "mlp.up_proj": (inner, WIDTH),
        "mlp.down_proj": (WIDTH, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{i}.{name}.weight": shape
        for i in range(n_layers)
        for name, shape in layer.items()
    }
    shapes |= {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "lm_head.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    config = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": inner,
        "num_hidden_layers": n_layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
    return config, shapes


def gpt2(n_layers: int) -> tuple[dict, dict[str, tuple[int, ...]]]:
    """Every matrix but the embeddings is stored transposed, and q, k and v as one."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (VOCABULARY, WIDTH)}
    shapes["wpe.weight"] = (1024, WIDTH)
    for i in range(n_layers):
        for name, n_in, n_out in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            shapes[f"h.{i}.{name}.weight"] = (n_in, n_out)
            shapes[f"h.{i}.{name}.bias"] = (n_out,)
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{name}.{half}": (WIDTH,) for half in ("weight", "bias")}
    shapes |= {f"ln_f.{half}": (WIDTH,) for half in ("weight", "bias")}
    config = {
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_embd": WIDTH,
        "n_layer": n_layers,
        "n_head": 32,
        "n_positions": 1024,
    }
    return config, shapes


KINDS = {"llama": llama, "gpt2": gpt2}


def write(folder: Path, family: str, gigabytes: float, stored: str) -> list[Path]:
    """Write a checkpoint with as many layers as come nearest to the size; return its files."""

    def size(n_layers: int) -> int:
        shapes = KINDS[family](n_layers)[1].values()
        return sum(int(np.prod(shape)) for shape in shapes) * STORED[stored].itemsize

    layer_size = size(2) - size(1)
    config, shapes = KINDS[family](max(1, round((gigabytes * 1e9 - size(0)) / layer_size)))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    draw = np.random.default_rng(0)
    noise = draw.standard_normal(1 << 24, np.float32).astype(STORED[stored])
    weight_map: dict[str, str] = {}
    shard: dict[str, np.ndarray] = {}
    files: list[Path] = []

    def flush() -> None:
        files.append(folder / f"model-{len(files) + 1:05d}.safetensors")
        save_file(shard, files[-1])
        weight_map.update(dict.fromkeys(shard, files[-1].name))
        shard.clear()

    for name, shape in shapes.items():
        n = int(np.prod(shape))
        shard[name] = np.resize(np.roll(noise, len(weight_map) + len(shard)), n).reshape(shape)
        if sum(array.nbytes for array in shard.values()) > SHARD:
            flush()
    flush()
    index = {"weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return files


def read_plainly(files: list[Path], n_threads: int, *, kept: bool) -> float:
    """Seconds to read every byte once, into memory that is reused or kept."""
    step = SHARD // n_threads
    spans = [
        (file, at, min(file.stat().st_size, at + step))
        for file in files
        for at in range(0, file.stat().st_size, step)
    ]
    per_thread = threading.local()

    def ready() -> None:
        per_thread.buffer = memoryview(bytearray(BLOCK))

    def read(span: tuple[Path, int, int]) -> np.ndarray | None:
        file, start, stop = span
        fresh = np.empty(stop - start, np.uint8) if kept else None
        at = start
        with open(file, "rb", buffering=0) as opened:
            opened.seek(at)
            while at < stop:
                end = min(at + BLOCK, stop)
                into = per_thread.buffer if fresh is None else memoryview(fresh)[at - start :]
                at += opened.readinto(into[: end - at]) or 0
        return fresh

    with concurrent.futures.ThreadPoolExecutor(n_threads, initializer=ready) as pool:
        started = time.perf_counter()
        held = list(pool.map(read, spans))
        seconds = time.perf_counter() - started
    del held
    return seconds


def load_whole(folder: Path, dtype: str) -> float:
    """Seconds until every parameter is on the device."""
    started = time.perf_counter()
    model = load(folder, dtype=dtype, implementation="native")
    jax.block_until_ready(model.params)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--kind", choices=KINDS, default="llama")
    parser.add_argument("--stored", choices=STORED, default="bfloat16")
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="default: the system's temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder, n_threads = Path(name), filling.n_threads()
        files = write(folder, args.kind, args.gigabytes, args.stored)
        size = sum(file.stat().st_size for file in files)
        print(
            f"{args.kind}, {size / 1e9:.2f} GB of {args.stored} in {len(files)} files, "
            f"{n_threads} threads; system load {os.getloadavg()[0]:.2f}"
        )
        turns: dict[str, Callable[[], float]] = {
            "reads, reused buffer": lambda: read_plainly(files, n_threads, kept=False),
            "reads, all kept": lambda: read_plainly(files, n_threads, kept=True),
            "load": lambda: load_whole(folder, args.dtype),
        }
        seconds: dict[str, list[float]] = {name: [] for name in turns}
        for turn in range(args.turns + 1):
            for name, run in turns.items():
                took = run()
                if turn:  # the first includes imports and first uses of memory pages
                    seconds[name].append(took)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        for name, values in seconds.items():
            print(
                f"{name:20} {medians[name]:6.3f} s  {size / medians[name] / 1e9:6.2f} GB/s  "
                f"({min(values):.3f} to {max(values):.3f} s)  "
                f"load takes {medians['load'] / medians[name]:.2f} times as long"
            )


if __name__ == "__main__":
    main()
