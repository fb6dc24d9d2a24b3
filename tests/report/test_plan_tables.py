"""The page that `plan` prints."""

import pytest

from jaxscore.report.plan_tables import text

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
