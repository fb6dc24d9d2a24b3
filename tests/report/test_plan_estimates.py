"""The tables that `plan` prints of a target's compiler beside memory."""

from jaxscore.report.plan_estimates import blocks

REPORT = {
    "batches": [
        {"rows": 8, "length": 512, "collectives": [
            {"op": "all-gather", "count": 5, "bytes": 262_144},
            {"op": "all-reduce", "count": 9, "bytes": 201_000_000},
        ]},
        {"rows": 1, "length": 32768, "collectives": []},
    ],
    "layer": [
        {"rows": 8, "length": 512, "seconds": 0.013155, "mfu": 0.69608, "operations_left_out": 3,
         "collectives": [{"op": "all-reduce", "count": 2, "bytes": 134_217_728}],
         "kernels": ["interval_attention"]},
        {"rows": 1, "length": 32768, "seconds": None, "mfu": None, "operations_left_out": 0,
         "collectives": [], "kernels": []},
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
1 x 32768                 none
the compiler's model of the chip, not a measurement
a kernel counts as what it declares: interval_attention
8 x 512: without 3 operations that it has no model of; they move nothing
none: it has no model of some operation, or refused the program""",
    """\
estimate of the vocabulary pass     time  products alone
4096 queries                     5.83 ms           97.1%
the compiler's model of the chip, not a measurement""",
]


def test_the_tables():
    assert blocks(REPORT) == TABLES


def test_parts_without_anything_are_left_out():
    """As of a GPU, whose compiler estimates no time."""
    assert blocks({"batches": REPORT["batches"][1:], "layer": [], "vocabulary": []}) == []
