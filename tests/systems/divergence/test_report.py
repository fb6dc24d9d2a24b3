"""The page of `divergence`, and the further numbers of tokens that it shows."""

import itertools
import math

import numpy as np
import pytest

from jaxscore import DivergenceScorer, evaluate
from jaxscore.report.html import strips
from jaxscore.systems.divergence.worst import worst_texts
from tests.conftest import CASES
from tests.report.html.made import block, rounded, tree
from tests.report.html.test_systems import LONG, ROW, columns

QWEN = str(CASES / "models/tiny-qwen2")
REQUESTS = [("The cat", " sat on the mat"), {"continuation": "A dog ran"}, {"continuation": LONG}]


@pytest.mark.slow
def test_divergence():
    with DivergenceScorer.from_pretrained(QWEN, QWEN, reference_dtype="bfloat16") as scorer:
        report = evaluate("divergence", scorer, REQUESTS, n_bootstrap=50)
    page, markdown = report.html(), report.markdown()
    reported = [one.text_content() for one in tree(page).xpath("//*[@class='card']")]
    rows = {row.split(" | ")[0]: row.split(" | ") for row in ROW.findall(markdown)}
    row = rows["KL divergence from the model to the reference, KL(p ‖ q)"]
    assert reported[0].startswith(f"KL(p ‖ q){rounded(row[1])}95% interval {rounded(row[2])}")
    table, header = columns(page)
    texts = worst_texts(report.records)
    assert table["Id"][:2] == [str(one["id"]) for one in texts]
    assert table["KL(p ‖ q)"][:2] == [f"{one['mean_kl']:.4g}" for one in texts]
    assert list(header["errors"]) == ["2"]
    found = header["strips"]["shows"]
    assert [one["key"] for one in found] == [
        "kl", "difference", "logprob", "entropy", "self_certainty",
    ]  # fmt: skip
    _, arrays = block(page)
    by_id = {one["id"]: one for one in report.items}
    starts = [0, *arrays["length"].cumsum()]
    for one, (a, b) in zip(texts, itertools.pairwise(starts), strict=True):
        record = by_id[one["id"]]
        for show, name in zip(found, ("kl", "logprob_difference"), strict=False):
            held = arrays[show["key"]][a:b]
            want = np.array(record[name], float)
            np.testing.assert_array_equal(held == strips.MISSING, np.isnan(want))
            largest = strips.LARGEST / show["per"]
            known = ~np.isnan(want)
            np.testing.assert_allclose(
                held[known] / show["per"], want[known], atol=largest / strips.LARGEST
            )
    assert "Tokens, largest KL divergence first" in tree(page).xpath("//summary/h2/text()")[0]


@pytest.mark.parametrize("values", [[0.0, 0.0], [math.nan, math.nan], [1e-30, -1e-30], [3e38, 1.0]])
def test_numbers_of_any_size(values):
    held, per = strips.scale_to_largest(np.array(values, np.float32))
    for value, one in zip(values, held.tolist(), strict=True):
        if math.isnan(value):
            assert one == strips.MISSING
        else:
            assert one / per == pytest.approx(value, abs=max(map(abs, values)) / strips.LARGEST)
    top = strips.metric_header(strips.TokenMetric("x", "X", scaled=True), held, per, None)["top"]
    assert 0 < top < math.inf
