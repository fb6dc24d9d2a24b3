"""Configs of each family in which every two values of two attributes meet: covering arrays.

The cases of families.py vary attributes one by one, or many at once. What goes wrong only if two
meet is found by covering arrays of strength two (Cohen et al. 1997, "The AETG system"). The values
are those of the cases and of the family's base. Pairs that a case holds are compared by
test_parity.py, which also shows that PyTorch answers to each attribute there. Of the others, two
attributes of one mechanism meet over the base alone, so that no third one hides what they do
together. Each value stands in one config at least, since these have prefix caches and short chunks.
A pair is set apart if the family refuses by name, or torch's class fails at, every config that
could hold it.
"""

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.models import native
from jaxscore.models.config import table
from tests.models.families import BASE, CASES

# Attributes that decide one thing together
MECHANISMS = [
    set(words.split())
    for words in (
        # which keys and values a layer has
        "head_dim global_head_dim num_key_value_heads num_kv_heads num_global_key_value_heads "
        "multi_query new_decoder_architecture attention_k_eq_v per_layer_config "
        "num_kv_shared_layers layer_types",
        # how far a layer sees, and what it knows of positions
        "layer_types sliding_window use_sliding_window max_window_layers sliding_window_pattern "
        "attention_chunk_size no_rope_layers no_rope_layer_interval alibi rope_scaling "
        "rope_parameters partial_rotary_factor rotary_dim rope_interleave attn_temperature_tuning",
        # which layers are mixtures, and how experts are chosen and weighed
        "n_group topk_group topk_method norm_topk_prob num_experts_per_tok routed_scaling_factor "
        "first_k_dense_replace moe_layers moe_norm_min moe_num_shared_experts enable_moe_block "
        "interleave_moe_layer_step use_double_wide_mlp num_kv_shared_layers",
        # where the halves of a layer are normed and joined
        "parallel_attn use_parallel_residual num_ln_in_parallel_attn new_decoder_architecture "
        "do_layer_norm_before _remove_final_layer_norm use_qk_norm qk_layernorm bias enable_bias "
        "word_embed_proj_dim",
    )
]

# What torch's class takes in the config and then fails at, and no released model has
NOT_IN_TORCH: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "bailing_hybrid": (
        "layer_types null gives full attention to none of three layers, which torch's class needs",
        lambda config: config["layer_types"] is None and "layer_group_size" not in config,
    ),
    "dbrx": (
        "torch's class reads a rope_theta beside attn_config alone, and 4.57's the one in it",
        lambda config: config["attn_config"]["rope_theta"] != config.get("rope_theta", 1e4),
    ),
    "exaone4": (
        "torch's class divides by sliding_window_pattern, which is 0 without sliding_window",
        lambda config: config["sliding_window"] is None and not config.get("layer_types"),
    ),
    "falcon": (
        "torch's class takes num_kv_heads for all heads' keys with multi_query False",
        lambda config: (
            config.get("multi_query") is False
            and not config.get("new_decoder_architecture")
            and config.get("num_kv_heads", config["num_attention_heads"])
            != config["num_attention_heads"]
        ),
    ),
    "gemma4_text": (
        "torch's class needs hidden_size_per_layer_input with num_kv_shared_layers",
        lambda config: (
            bool(config.get("num_kv_shared_layers")) and not config["hidden_size_per_layer_input"]
        ),
    ),
    "kimi_linear": (
        "torch's class needs full attention, which layer_types null gives no layer of three",
        lambda config: config["layer_types"] is None and not config.get("linear_attn_config"),
    ),
    "minimax": (
        "torch's class multiplies head_dim, which is null, by a share of rotated channels",
        lambda config: config.get("head_dim") is None and bool(config.get("rope_scaling")),
    ),
}

TRIES = 10  # of which the row that covers most is taken

Level = tuple[str, int]  # an attribute, and the index of one of its values
Pair = frozenset[Level]  # or one level alone
Row = tuple[int, ...]  # for each attribute the index of its value


class Cover(NamedTuple):
    """Configs over a family's base, and the pairs that they hold.

    Attributes:
        covered: pairs that stand together in one of `configs` or of the cases.
        alone: pairs that stand in one of `configs` with all else as in the base.
        refused: pairs that no config holds, each with the reason.
    """

    configs: list[dict[str, Any]]
    covered: set[Pair]
    alone: set[Pair]
    refused: dict[Pair, str]


def values(kind: str) -> dict[str, list[Any]]:
    """Values of each attribute that a case of the family sets, the base's first; None is absent.

    Of rotary scalings that differ in numbers alone one stands for all.
    """
    out: dict[str, list[Any]] = {}
    for case in CASES:
        if case.kind != kind:
            continue
        for name, value in case.config.items():
            known = out.setdefault(name, [BASE[kind].get(name)])
            if not any(_same(name, value, other) for other in known):
                known.append(value)
    return {name: known for name, known in out.items() if len(known) > 1}


def _same(name: str, value: Any, other: Any) -> bool:
    if name == "rope_scaling" and value and other:
        one, two = (scaling.get("rope_type", scaling.get("type")) for scaling in (value, other))
        return bool(one == two)
    return type(value) is type(other) and bool(value == other)


@functools.cache
def cover(kind: str) -> Cover:
    """A covering array of the family, found greedily; the same in every run."""
    known = values(kind)
    names = list(known)
    draw = random.Random(0)
    tried: dict[Row, str] = {}

    def refusal(row: Row) -> str:
        """Why a config is not compared; empty if it is."""
        if row not in tried:
            tried[row] = _refusal(kind, _config(kind, known, row))
        return tried[row]

    starts = [tuple(0 for _ in names)]
    for case in CASES:
        if case.kind == kind:
            starts.append(tuple(level(name, known[name], case.config) for name in names))
    every = sorted(_all_pairs(known), key=sorted)
    every += [frozenset({(name, n)}) for name in names for n in range(len(known[name]))]
    in_cases = {pair for row in starts for pair in _pairs_of(names, row) if len(pair) == 2}
    covered = set(in_cases)
    refused: dict[Pair, str] = {}
    rows: list[Row] = []

    def filled(row: Row, pair: Pair) -> Row:
        """The row with the values of other attributes that cover most, chosen one by one."""
        free = [k for k, name in enumerate(names) if name not in dict(pair)]
        draw.shuffle(free)
        for k in free:
            options = [(*row[:k], n, *row[k + 1 :]) for n in range(len(known[names[k]]))]
            options.sort(key=lambda one: -len(_pairs_of(names, one, k) - covered))
            row = next((one for one in options if not refusal(one)), row)
        return row

    alone = {
        pair
        for pair in every
        if _meet(pair) and pair not in covered and not refusal(_with(names, starts[0], pair))
    }
    for pair in sorted(alone, key=sorted):
        rows.append(_with(names, starts[0], pair))
        covered |= _pairs_of(names, rows[-1])
    n_alone = len(rows)
    for pair in every:
        if pair in covered:
            continue
        third = (_with(names, row, level) for row in starts for level in every if len(level) == 1)
        candidates = (_with(names, row, pair) for row in itertools.chain(starts, rows, third))
        row = next((one for one in candidates if not refusal(one)), None)
        if row is None:
            refused[pair] = refusal(_with(names, starts[0], pair))
            continue
        tries = [filled(row, pair) for _ in range(TRIES)]
        rows.append(max(tries, key=lambda one: len(_pairs_of(names, one) - covered)))
        covered |= _pairs_of(names, rows[-1])
    for pair in covered & set(refused):
        del refused[pair]
    rows = _needed(names, rows, n_alone, in_cases)
    covered = {pair for pair in covered if len(pair) == 2}
    return Cover([_config(kind, known, row) for row in rows], covered, alone, refused)


def _needed(names: list[str], rows: list[Row], n_fixed: int, in_cases: set[Pair]) -> list[Row]:
    """The first rows, and of the others those that hold a pair that neither rows nor cases hold."""
    held = Counter(pair for row in rows for pair in _pairs_of(names, row))
    held.update(in_cases)
    needed = []
    for row in rows[n_fixed:]:
        pairs = _pairs_of(names, row)
        if all(held[pair] > 1 for pair in pairs):
            held.subtract(pairs)
        else:
            needed.append(row)
    return [*rows[:n_fixed], *needed]


def _meet(pair: Pair) -> bool:
    """Whether two values, neither of them the base's, are of one mechanism."""
    names = {name for name, _ in pair}
    return len(names) == 2 and all(n for _, n in pair) and any(names <= g for g in MECHANISMS)


def all_pairs(kind: str) -> set[Pair]:
    """Every two values of two attributes of the family."""
    return set(_all_pairs(values(kind)))


def _all_pairs(known: dict[str, list[Any]]) -> Iterator[Pair]:
    for one, other in itertools.combinations(known, 2):
        for n, m in itertools.product(range(len(known[one])), range(len(known[other]))):
            yield frozenset({(one, n), (other, m)})


def _pairs_of(names: list[str], row: Row, at: int | None = None) -> set[Pair]:
    """The pairs and levels of a row; those of one attribute alone if `at` is its index."""
    levels = list(zip(names, row, strict=True))
    if at is not None:
        return {frozenset({levels[at], level}) for level in levels}
    return set(map(frozenset, itertools.combinations_with_replacement(levels, 2)))


def _with(names: list[str], row: Row, pair: Pair) -> Row:
    own = dict(pair)
    return tuple(own.get(name, n) for name, n in zip(names, row, strict=True))


def level(name: str, known: list[Any], config: dict[str, Any]) -> int:
    """Index of the value that a config over the base has for an attribute."""
    if name not in config:
        return 0
    return next(n for n, value in enumerate(known) if _same(name, config[name], value))


def _config(kind: str, known: dict[str, list[Any]], row: Row) -> dict[str, Any]:
    """What differs from the base."""
    return {name: known[name][n] for name, n in zip(known, row, strict=True) if n}


def _refusal(kind: str, config: dict[str, Any]) -> str:
    raw = {"model_type": kind} | BASE[kind] | config
    if kind in NOT_IN_TORCH and NOT_IN_TORCH[kind][1](raw):
        return NOT_IN_TORCH[kind][0]
    rope, own = table()[kind].rope or {}, {"rope_theta", "rotary_emb_base"} & set(raw)
    if not own and "rope_theta" in rope and (rope["rope_theta"] is None or "rope_scaling" in raw):
        raw = {"rope_theta": rope["rope_theta"] or 10_000.0} | raw  # torch writes its default
    try:
        native.translate(Path(), raw)
    except InputError as problem:
        return str(problem)
    return ""
