"""Reports of `paths`: how many are shown."""

import pytest

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import paths_report


@pytest.mark.parametrize(
    ("n", "title"),
    [
        (paths_report.SHOWN, "## Paths, least gain first\n"),
        (paths_report.SHOWN + 1, f"## Paths, least gain first (the first {paths_report.SHOWN} of"),
    ],
)
def test_the_title_says_whether_some_are_left_out(n, title):
    one = {"question": "?", "path": ["a", "b"], "baseline_prob": 3e-7, "retrieved_prob": 0.25,
           "absolute_improvement": 0.2499997}  # fmt: skip
    page = paths_report.report(
        {
            "summary": dict.fromkeys(paths_report.MEANS, Estimate(n, 3.2e-7, 1e-7, 0.5)),
            "by_length": [],
            "boundary_audit": {"n_answers": 2 * n, "changed": {"joint": 1}},
            "failures": [],
            "settings": {"model": "m|n", "n_bootstrap": 10, "boundary": "separate"},
            "paths": [one] * n,
        }
    )
    assert title in page
    assert page.count("| ? | a -> b | 3e-07 | 0.25 | 0.25 |") == paths_report.SHOWN
    assert f"| 3.2e-07 | 1e-07 to 0.5 | {n} |" in page
    assert page.startswith(r"# Path Evaluation: m\|n")
