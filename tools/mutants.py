"""Plants defects in a copy of the package, one at a time, and reports which tests find them.

    python tools/mutants.py --list                       mutants, and those that no longer apply
    python tools/mutants.py --results FILE.json          run all without a result in FILE.json
    python tools/mutants.py --results FILE.json --only tries journal
    python tools/mutants.py --results FILE.json --tests tests/device tests/engine -- --all

A mutant is a text that occurs exactly once in its folder of the package, and what replaces it. It
is killed if one of the tests fails; pytest stops there (`-x`). Without --tests these are the
mutant's nearest tests, which take seconds. What follows `--` goes to pytest. Results are written
after each mutant, so an interrupted run continues. Exit code 1 if a mutant survived.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script Python finds this folder and not the repository

from tools.requirements import require

SECONDS = 1800  # most time of the tests of one mutant


class Mutant(NamedTuple):
    """A planted defect.

    Attributes:
        name: the unique name, in kebab case.
        folder: the folder below `jaxscore/` in which the text is searched.
        tests: the nearest files or tests, below `tests/`, separated by spaces.
        text: the text to replace, which occurs once in the Python files of the folder.
        replacement: the new text.
        breaks: the defect.
    """

    name: str
    folder: str
    tests: str
    text: str
    replacement: str
    breaks: str

    @property
    def paths(self) -> list[str]:
        return [f"tests/{path}" for path in self.tests.split()]


MUTANTS = [
    Mutant(*fields)
    for fields in (
        # device
        ("mask-subtree", "device", "device/attention/test_interval.py",
         "(ends.max(axis=1)[None] > i)",
         "(ends.max(axis=1)[None] > i + queries - 1)",
         "a block of keys that some of the queries see is skipped"),
        ("mask-window-blocks", "device", "device/attention/test_interval.py",
         "(min_distance < window)", "(min_distance < window - 1)",
         "a block at the edge of a window is skipped"),
        ("cache-window", "device", "device/attention/test_kv_cache.py",
         "(position - slot_position < window)", "(position - slot_position <= window)",
         "a window sees one cached token more"),
        ("cache-length", "device", "device/attention/test_kv_cache.py",
         "mask = (slot < length)[..., None, :]",
         "mask = (slot <= length)[..., None, :]", "an empty slot of the cache is attended to"),
        ("cache-merge", "device", "device/attention/test_kv_cache.py",
         "weights = [jnp.exp(lse - max_lse) for _, lse in parts]",
         "weights = [jnp.exp(lse - max_lse) * 0 + 1 for _, lse in parts]",
         "parts of an attention are averaged instead of weighed"),
        ("attention-diagonal", "device", "device/attention/test_interval.py",
         "lax.fori_loop(0, q_index + 1, add_key_block, start)",
         "lax.fori_loop(0, jnp.maximum(q_index, 1), add_key_block, start)",
         "a block of queries does not see its own keys"),
        ("attention-rescale", "device", "device/attention/test_interval.py",
         "acc = acc * alpha[..., None] + pv",
         "acc = acc + pv", "the online softmax does not rescale"),
        ("attention-sinks", "device", "device/attention/test_kv_cache.py",
         "jax.nn.sigmoid(lse - sinks_N)",
         "jax.nn.sigmoid(sinks_N - lse)", "an attention sink takes the wrong share"),
        ("rotate-interleaved", "device", "device/test_decoder.py models/test_parity.py",
         "rotary[..., 0::2], rotary[..., 1::2]",
         "rotary[..., 1::2], rotary[..., 0::2]", "interleaved rotary pairs are swapped"),
        ("rotate-sign", "device", "device/test_decoder.py models/test_parity.py",
         "(low * cos - high * sin, high * cos + low * sin)",
         "(low * cos + high * sin, high * cos - low * sin)", "rotary angles turn backwards"),
        ("norm-mean", "device", "test_walkthrough.py test_cases.py",
         'if c.norm.kind == "layer":', 'if c.norm.kind == "none":',
         "a layer norm does not subtract the mean"),
        ("int8-scale", "device", "models/weights/test_int8.py",
         "y *= self.param(SCALE, nn.initializers.ones, (self.features,))",
         "self.param(SCALE, nn.initializers.ones, (self.features,))",
         "int8 weights lose their channel scales"),
        ("head-softcap", "device", "device/lm_head/test_sums.py",
         "logits = softcap * jnp.tanh(logits / softcap)",
         "logits = jnp.tanh(logits / softcap)", "capped logits are too small"),
        ("head-scale", "device", "device/lm_head/test_sums.py",
         "logits = logits * scale\n", "logits = logits / scale\n",
         "scaled logits are divided"),
        ("head-shard-rise", "device", "device/lm_head/test_measures.py",
         "lax.psum(shrink * (s1 + rise * s0), axis)",
         "lax.psum(shrink * s1, axis)",
         "the entropy of a sharded vocabulary ignores the moved maximum"),
        ("head-rank-tie", "device", "device/lm_head/test_measures.py",
         "jnp.square(root * distance * SCALE)",
         "jnp.square(root * SCALE)", "varentropy of merged blocks ignores their distance"),
        ("experts-renormalised", "device", "device/test_routing.py device/test_experts.py",
         "if experts.router.renormalised:",
         "if not experts.router.renormalised:", "shares of experts are not renormalised"),
        ("experts-groups", "device", "device/test_routing.py device/test_experts.py",
         "lax.top_k(groups, experts.router.group_rank)[0].sum(axis=-1)",
         "lax.top_k(groups, 1)[0].sum(axis=-1)", "groups of experts are ranked by their best"),
        ("experts-scale", "device", "device/test_routing.py device/test_experts.py",
         "return share * experts.router.scale, chosen", "return share, chosen",
         "shares of experts are not scaled"),
        ("sampling-top-p", "device", "device/test_sampling.py",
         "nucleus_share = sampling.top_p * share.sum(axis=1)",
         "nucleus_share = sampling.top_p", "the nucleus is measured before top-k is renormalised"),
        ("sampling-noise", "device",
         "device/test_sampling.py::test_draw_depends_only_on_seed_and_count",
         "keys = jax.vmap(jax.random.fold_in)(keys, drawn)",
         "keys = keys", "every token of a text is drawn with the same noise"),
        ("sampling-bits", "device", "device/test_sampling.py",
         "words[..., 0] ^ words[..., 1]", "words[..., 0]", "other bits than in earlier versions"),
        # plan
        ("tries-shared", "plan", "plan/test_tries.py",
         "np.minimum(np.minimum.reduceat(differs, first[:-1]), span)",
         "np.minimum(np.minimum.reduceat(differs, first[:-1]) + 1, span)",
         "texts share one token more than they have in common"),
        ("tries-choices", "plan", "plan/test_tries.py",
         "np.where(is_choice, 0, nth)", "nth",
         "choices are asked after different nodes"),
        ("tries-fed", "plan", "plan/test_tries.py",
         "np.maximum(n_ids - (n_choices == 0), 0)", "np.maximum(n_ids, 0)",
         "the last token of each text is laid out"),
        ("tries-subtree-end", "plan", "plan/test_tries.py",
         "stack[-1][3] = max(stack[-1][3], deepest)",
         "stack[-1][3] = deepest", "a branch forgets its longest path"),
        ("packing-size", "plan", "plan/test_packing.py",
         "left = room - size\n", "left = room - size + 1\n",
         "a row is filled beyond its length"),
        ("packing-rooms", "plan", "plan/test_packing.py",
         "filled = path + n - depth - room",
         "filled = path + n - depth", "planned rows differ from those that are packed"),
        ("rows-padding", "plan", "plan/test_packing.py plan/test_tries.py",
         "% length + 1  # padding", "% 1 + length  # padding",
         "padding attends to padding before it"),
        ("rows-first-path", "plan", "plan/test_packing.py plan/test_tries.py",
         "cell[is_path][::-1]", "cell[is_path]",
         "a repeated path is asked where it stands last"),
        ("prefix-worth", "plan", "plan/test_tries.py",
         "stop - fork > length - length_above",
         "stop - fork > 2 * length",
         "prefixes that would pay are not cached"),
        ("prefix-common", "plan", "plan/test_decode_slots.py",
         "for request in requests) - 1\n", "for request in requests)\n",
         "a prompt that is a prefix of the others has nothing left to feed"),
        ("prefix-position", "plan", "plan/test_tries.py",
         "_reach(depth, subtree_end) - np.int32(len(prefix_ids))",
         "_reach(depth, subtree_end)", "rows after a prefix are planned too long"),
        ("slots-size", "plan", "plan/test_decode_slots.py",
         "len(request.ids) - shared + request.n_new - 2",
         "len(request.ids) - shared + request.n_new - 3", "a text may need one slot more"),
        ("slots-blocks", "plan", "plan/test_decode_slots.py",
         "if n <= 0]", "if n < 0]",
         "a known text keeps its row for one block more"),
        ("digest-start", "plan", "plan/test_requests.py journal/test_texts.py",
         'struct.pack("<qq", self.start, len(self.choices))',
         'struct.pack("<qq", 0, len(self.choices))',
         "scores of one text from different starts share an entry of the journal"),
        ("digest-temperature", "plan", "plan/test_requests.py journal/test_texts.py",
         "self.n_new, self.temperature, self.top_p, self.seed",
         "self.n_new, 0.0, self.top_p, self.seed",
         "texts of different temperatures share an entry of the journal"),
        ("assembly-missing", "plan", "plan/test_result_assembly.py",
         "missing = ~np.isfinite(self._edges.logprob[edges])",
         "missing = np.isfinite(self._edges.logprob[edges])", "scores are not assembled"),
        # models
        ("rope-llama3", "models", "models/test_rope.py",
         "(1 - share) * frequencies / np.float32(factor) + share",
         "share * frequencies / np.float32(factor) + (1 - share)",
         "slow and fast rotary channels are swapped"),
        ("rope-linear", "models", "models/test_rope.py",
         'frequencies / np.float32(values["factor"])\n',
         'frequencies * np.float32(values["factor"])\n', "linear scaling goes the wrong way"),
        ("rope-yarn-ramp", "models", "models/test_rope.py",
         "interpolated * ramp + original * (1 - ramp), attention",
         "original * ramp + interpolated * (1 - ramp), attention", "the ramp of YaRN is reversed"),
        ("rope-longrope", "models", "models/test_rope.py",
         "math.sqrt(1 + math.log(ratio) / math.log(original))",
         "math.sqrt(1 + math.log(ratio))", "LongRoPE's factor is wrong"),
        ("layers-pattern", "models", "models/config models/test_published_configs.py",
         "FULL if not (i + 1) % interval else SLIDING",
         "FULL if not i % interval else SLIDING", "windows are in other layers"),
        ("layers-last", "models", "models/config models/test_published_configs.py",
         "SLIDING if i >= first else FULL",
         "SLIDING if i > first else FULL", "one layer lacks its window"),
        ("costs-experts", "models", "models/test_costs.py",
         "config.experts.count * config.experts.per_token",
         "config.experts.count", "active parameters of experts are wrong"),
        ("filling-bounds", "models", "models/weights/test_checkpoint.py",
         "low <= at < high", "low < at < high",
         "the first tensor of a shard is not read"),
        # recurrent layers
        ("recurrent-seen", "device", "device/recurrence/test_rules.py",
         "seen = (j <= i) & (i < subtree_end_of_slot[:, None, :])", "seen = j <= i",
         "a slot sees the other texts of its chunk"),
        ("recurrent-conv-starts", "device", "device/recurrence/test_rules.py",
         "jnp.where(slot_parent < T, slot_of[slot_parent], slot_parent - T + n_slots)",
         "slot_of[jnp.minimum(slot_parent, T)]",
         "chunks lose the inputs of convolutions before the rows"),
        ("recurrent-conv-order", "device", "device/recurrence/test_rules.py",
         "y += shifted * taps[:, k - 1 - distance]", "y += shifted * taps[:, distance - 1]",
         "the taps of a convolution are reversed"),
        ("recurrent-conv-nan", "device", "models/test_recurrent.py",
         "inputs = jnp.where(jnp.isfinite(inputs), inputs, 0.0)", "inputs = 1.0 * inputs",
         "products carry a NaN to the other texts of its chunk"),
        ("recurrent-reached", "device", "device/recurrence/test_rules.py models/test_recurrent.py",
         ".add(-broken_RL)", ".add(0 * broken_RL)",
         "a broken token breaks the texts after it in the row"),
        ("recurrent-key-heads", "device", "device/recurrence/test_rules.py",
         "keys = jnp.repeat(k[chunk], group, 1) * decay",
         "keys = jnp.tile(k[chunk], (1, group, 1, 1)) * decay",
         "states take the keys of other heads"),
        ("recurrent-step-size", "device", "device/recurrence/test_rules.py",
         "u = x * step_size[..., None]", "u = x + 0 * step_size[..., None]",
         "inputs of a state space are not discretised"),
        ("chunks-levels", "plan", "plan/test_chunks.py",
         "levels[slot_of[chunk.entry] // size] + 1", "levels[slot_of[chunk.entry] // size]",
         "exits of two levels are computed in one step"),
        ("chunks-padding", "plan", "plan/test_chunks.py",
         "is_padding[scored] = False", "is_padding[scored[:0]] = False",
         "a text of one token is taken for padding"),
        ("chunks-steps", "plan", "plan/test_chunks.py",
         "steps += range(e, e + n_exits, width)", "steps += [e]",
         "a level has no more exits than a step computes"),
        # dispatch
        ("dispatch-program", "engine", "engine/test_dispatch.py engine/test_on_eight_devices.py",
         "key = batch.shape, paths and paths.shape", "key = batch.shape",
         "bits of a score depend on the other batches"),
        # GGUF
        ("gguf-entry", "models", "models/weights/test_gguf.py",
         "data = tensor.data[index * n_bytes : (index + 1) * n_bytes]",
         "data = tensor.data[:n_bytes]", "every expert is the first one"),
        # files and stores
        ("upload-order", "io", "io/test_remote.py",
         "key=lambda path: path == self._manifest)", "key=lambda path: path != self._manifest)",
         "a manifest says finished before its output is there"),
        ("upload-taken", "io", "io/test_remote.py",
         "if before is not None and remote.identity(path) != before:",
         "if before is None and remote.identity(path) != before:",
         "the output of another worker is replaced"),
        # systems
        ("choose-bytes", "systems", "systems/choose",
         "(option.lstrip() or option).encode()", "option.encode()",
         "blanks before an option count"),
        ("choose-pmi", "systems", "systems/choose",
         "total - float(less or 0.0)", "total",
         "the premise is not subtracted"),
        ("paths-gain", "systems", "systems/paths",
         "gain = retrieved - baseline", "gain = baseline - retrieved",
         "a gain has the wrong sign"),
        ("perplexity-mean", "systems", "systems/perplexity",
         "mean = total / n_scored", "mean = total / scored.n_tokens",
         "the mean of a document counts tokens without a probability"),
        ("judge-outside", "systems", "systems/rag/test_pointwise.py",
         "1.0 - float(np.exp(logprob).sum())",
         "float(np.exp(logprob).sum())", "probability outside the labels is wrong"),
        ("chronologic-temperature", "systems", "systems/chronologic/test_temperature.py",
         "scores_NK * jnp.exp(-log_temperature)",
         "scores_NK * jnp.exp(log_temperature)", "a temperature is fitted as its inverse"),
        ("compare-shares", "systems", "systems/compare/test_differences.py",
         "(cells.both + cells.only_b) / cells.n",
         "(cells.both + cells.only_a) / cells.n", "B's share is A's"),
        # journal
        ("journal-checksum", "journal", "journal/test_database.py journal/test_texts.py",
         "== checksum else None", "!= b'' else None",
         "a damaged row is believed"),
        ("journal-length", "journal", "journal/test_database.py",
         "len(scores.logprob) == sequences[k].n_scored",
         "len(scores.logprob) >= 0", "scores of another length are taken"),
        ("journal-columns", "journal", "journal/test_database.py journal/test_texts.py",
         "terms[0], terms[1], terms[2]",
         "terms[0], terms[2], terms[1]", "entropy and self-certainty are swapped"),
        ("journal-finish", "journal", "journal/test_texts.py",
         '(finish == "eos") != (eos >= 0)',
         '(finish == "eos") == (eos >= 0)', "finished texts are not found again"),
        ("journal-rollback", "journal", "journal/test_database.py journal/test_texts.py",
         "database.rollback()", "database.commit()",
         "half of an interrupted transaction stays"),
        ("journal-layout", "journal", "journal/test_texts.py",
         "if not is_new and layout != LAYOUT:",
         "if not is_new and layout < 0:", "a journal of another layout is read"),
        ("journal-model", "journal", "journal/test_database.py journal/test_texts.py",
         "self._about = json.dumps(about, sort_keys=True)", "self._about = json.dumps({})",
         "models share their rows of the journal"),
    )
]  # fmt: skip


def main() -> int:
    args = _parse()
    chosen = [m for m in MUTANTS if not args.only or any(word in m.name for word in args.only)]
    places = {mutant.name: _find(ROOT, mutant) for mutant in chosen}
    for mutant in chosen:
        if isinstance(places[mutant.name], str):
            print(f"{mutant.name}: does not apply: {places[mutant.name]}")
    applicable = [mutant for mutant in chosen if not isinstance(places[mutant.name], str)]
    print(f"{len(applicable)} of {len(chosen)} mutants apply")
    if args.list:
        for mutant in applicable:
            print(f"{mutant.name:24} {places[mutant.name]}: {mutant.breaks}")
        return 0
    require("pytest", "test")
    results = json.loads(args.results.read_text()) if args.results.exists() else {}
    for mutant in applicable:
        if mutant.name not in results:
            results[mutant.name] = _run(mutant, args.tests or mutant.paths, args.options)
            args.results.write_text(json.dumps(results, indent=1) + "\n")
        _print(mutant, results[mutant.name])
    return int(any(results[mutant.name]["killed_by"] is None for mutant in applicable))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list the mutants, run nothing")
    parser.add_argument("--results", type=Path, help="JSON file of results, continued if it exists")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="mutants whose name has a word")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="tests to run")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    args.options = words[cut + 1 :]
    if not args.list and args.results is None:
        parser.error("--results FILE.json or --list is required")
    return args


def _find(root: Path, mutant: Mutant) -> Path | str:
    """Return the file that has the mutant's text, or the reason that there is none."""
    paths = []
    for path in sorted((root / "jaxscore" / mutant.folder).rglob("*.py")):
        paths += [path.relative_to(root)] * path.read_text(encoding="utf-8").count(mutant.text)
    if len(paths) == 1:
        return paths[0]
    return f"its text occurs {len(paths)} times in jaxscore/{mutant.folder}"


def _run(mutant: Mutant, tests: list[str], options: list[str]) -> dict[str, Any]:
    """Run the tests on a copy of the working tree that has the mutant."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "tree"
        skipped = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "build")
        shutil.copytree(ROOT, copy, ignore=skipped)
        path = copy / str(_find(copy, mutant))
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(mutant.text, mutant.replacement), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        start = time.monotonic()
        try:
            done = subprocess.run(
                [*command, f"--basetemp={folder}/pytest", *options, *tests],
                cwd=copy,
                env=os.environ | {"PYTHONPATH": str(copy), "HF_HUB_OFFLINE": "1"},
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
            )
            code, out = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            code, out = None, ""
    match = re.search(r"^(FAILED|ERROR) (\S+)", out, re.MULTILINE)
    if code not in (None, 0) and match is None:  # 3 to 5: bad arguments, or no tests
        raise SystemExit(f"pytest ended with exit code {code}:\n{out[-1000:]}")
    killer = "time limit" if code is None else None
    if match is not None:
        killer = f"error in {match[2]}" if match[1] == "ERROR" else match[2]
    return {
        "killed_by": killer,
        "seconds": round(time.monotonic() - start, 1),
        "tests": tests,
        "file": str(path.relative_to(copy)),
        "breaks": mutant.breaks,
    }


def _print(mutant: Mutant, result: dict[str, Any]) -> None:
    verdict = "SURVIVED" if result["killed_by"] is None else f"killed by {result['killed_by']}"
    print(f"{mutant.name:24} {result['seconds']:7.1f} s  {verdict}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
