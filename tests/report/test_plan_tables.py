"""The page that `plan` prints."""

import pytest

from jaxscore.report.plan_tables import estimate_blocks, text

REPORT = {
    "model": "config.json",
    "model_type": "qwen3_moe",
    "dtype": "bfloat16",
    "quantize": None,
    "n_layers": 48,
    "width": 2048,
    "n_heads": 32,
    "n_kv_heads": 4,
    "vocab_size": 151936,
    "max_positions": 40960,
    "parameters": 30_532_122_624,
    "active_parameters": 3_353_032_704,
    "mesh": {"data": 2, "model": 8},
    "whole_on_every_device": {"key heads": 4},
    "parts": [
        {"name": "embedding", "parameters": 311_164_928, "bytes": 622_329_856,
         "bytes_a_device": 77_791_232},
        {"name": "experts", "parameters": 28_991_029_248, "bytes": 57_982_058_496,
         "bytes_a_device": 7_247_757_312},
    ],
    "bytes_a_device": 7_325_548_544,
    "key_value_bytes_a_token": {"model": 98_304, "device": 24_576},
    "flops": {
        "linear_a_token": 6_083_837_952,
        "attention_a_token_at": {"64": 50_331_648, "4096": 999_999_999},
        "unembedding_a_query": 622_329_856,
    },
    "programs": [
        {"rows": 64, "length": 64, "temporary_bytes": 412_000_000, "compile_seconds": 1.26,
         "peak_bytes_a_device": 7_740_000_000, "fits": True},
        {"rows": 1, "length": 4096, "temporary_bytes": 9_000_000_000, "compile_seconds": 10.0,
         "peak_bytes_a_device": 16_325_548_544, "fits": False},
    ],
    "compiled_shards": 1,
    "compiled_for": "cpu (cpu)",
    "device_memory": 16_000_000_000,
    "would_fit": [
        {"dtype": "bfloat16", "quantize": None, "model": 16},
        {"dtype": "bfloat16", "quantize": "int8", "model": 8},
    ],
}  # fmt: skip
PAGE = """\
config.json: qwen3_moe, 30,532,122,624 parameters (3,353,032,704 for each token), bfloat16
48 layers of width 2048, 32 query heads, 4 key heads, vocabulary 151936, 40960 positions
mesh data=2,model=8
  4 key heads do not divide by 8: whole on every device

part                           parameters    bytes  per device
embedding                     311,164,928   622 MB     77.8 MB
experts                    28,991,029,248  58.0 GB     7.25 GB
all                        30,532,122,624  58.6 GB     7.33 GB
keys and values per token                  98.3 kB     24.6 kB

FLOPs
weights                   6.08 G  per token
attention to 64 tokens    50.3 M  per token
attention to 4096 tokens  1000 M  per token
unembedding                622 M  per query

batch     temporary     peak  compiled in  fits
64 x 64      412 MB  7.74 GB        1.3 s   yes
1 x 4096    9.00 GB  16.3 GB       10.0 s    no
programs of the whole model, compiled for cpu (cpu); here are too few devices to compile for a shard

fits in part: 16.0 GB per device
  all of these batches fit with --dtype bfloat16 from model=16
  all of these batches fit with --quantize int8 from model=8"""


def test_the_page():
    assert text(REPORT) == PAGE


def test_states_of_recurrent_layers():
    states = {"model": 52_690_944, "device": 26_345_472}
    page = text({**REPORT, "state_bytes_a_path": states})
    assert "\nstates per prefix or slot                  52.7 MB     26.3 MB\n" in page


def without_memory(program):
    return {**program, "fits": None}


def test_without_a_memory_nothing_is_judged():
    programs = [without_memory(one) for one in REPORT["programs"]]
    page = text({**REPORT, "device_memory": None, "would_fit": None, "programs": programs})
    assert "fit" not in page
    assert page.count("\n\n") == PAGE.count("\n\n") - 1


def test_shards_and_a_model_without_experts():
    page = text({**REPORT, "compiled_shards": 8, "active_parameters": REPORT["parameters"]})
    assert "\nprograms of one of 8 shards, compiled for cpu (cpu)\n" in page
    assert page.startswith("config.json: qwen3_moe, 30,532,122,624 parameters, bfloat16\n")


@pytest.mark.parametrize(
    ("fits", "verdict"),
    [((True, True), "\nfits: 16.0 GB"), ((False, False), "\ndoes not fit: 16.0 GB")],
)
def test_the_verdict(fits, verdict):
    programs = [{**one, "fits": own} for one, own in zip(REPORT["programs"], fits, strict=True)]
    page = text({**REPORT, "programs": programs, "would_fit": []})
    assert verdict in page
    assert "  no mesh makes all of these batches fit; give less --batch-tokens" in page


ESTIMATES = {
    "batches": [
        {"rows": 8, "length": 512, "collectives": [
            {"op": "all-gather", "count": 5, "bytes": 262_144},
            {"op": "all-reduce", "count": 9, "bytes": 201_000_000},
        ]},
        {"rows": 1, "length": 32768, "collectives": []},
    ],
    "layer": [
        {"rows": 8, "length": 512, "is_recurrent": False, "seconds": 0.013155, "mfu": 0.69608,
         "operations_left_out": 3,
         "collectives": [{"op": "all-reduce", "count": 2, "bytes": 134_217_728}],
         "kernels": ["interval_attention"]},
        {"rows": 8, "length": 512, "is_recurrent": True, "seconds": 0.0208, "mfu": 0.31,
         "operations_left_out": 0, "collectives": [], "kernels": []},
        {"rows": 1, "length": 32768, "is_recurrent": False, "seconds": None, "mfu": None,
         "operations_left_out": 0, "collectives": [], "kernels": []},
    ],
    "vocabulary": [
        {"queries": 4096, "seconds": 0.00583, "products_share": 0.971, "operations_left_out": 0,
         "kernels": []},
    ],
}  # fmt: skip
TABLES = [
    """\
collectives              count   bytes
8 x 512      all-gather      5  262 kB
8 x 512      all-reduce      9  201 MB
as the programs have them; what is in a loop stands once""",
    """\
estimate of one layer     time    MFU  collectives
8 x 512                13.2 ms  69.6%       134 MB
8 x 512, recurrent     20.8 ms  31.0%
1 x 32768                 none
the compiler's model of the chip, not a measurement
a kernel counts as what it declares: interval_attention
8 x 512: without 3 operations that it has no model of; they move nothing
recurrent: without the states at branch points, which are made in a loop
none: it has no model of some operation, or refused the program""",
    """\
estimate of the vocabulary pass     time  products alone
4096 queries                     5.83 ms           97.1%
the compiler's model of the chip, not a measurement""",
]


def test_the_tables():
    assert estimate_blocks(ESTIMATES) == TABLES


def test_parts_without_anything_are_left_out():
    """As of a GPU, whose compiler estimates no time."""
    assert (
        estimate_blocks({"batches": ESTIMATES["batches"][1:], "layer": [], "vocabulary": []}) == []
    )
