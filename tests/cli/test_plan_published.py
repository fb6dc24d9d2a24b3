"""`plan` on the config.json of a released model whose weights are stored quantized."""

import json

import pytest

from tests.cli.conftest import strict
from tests.models import published


@pytest.mark.parametrize(
    ("name", "mesh", "parameters", "active"),
    [
        ("GPT_OSS_20B", "data=1,model=8", "20,914,757,184", "4,187,440,704"),
        ("DEEPSEEK_V3", "data=1,model=128", "671,026,419,200", "37,552,297,472"),
    ],
)
def test_a_config_from_the_hub(run, tmp_path, name, mesh, parameters, active):
    """20.9 billion (arXiv 2508.10925, table 1) and 671 billion (arXiv 2412.19437)."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(getattr(published, name)), encoding="utf-8")
    facts = tmp_path / "plan.json"
    words = ("--model", file, "--mesh", mesh, "--row-lengths", 64, "--quiet", "--json", facts)
    code, page, err = run("plan", *words)
    assert code == 0, err
    assert f"{parameters} parameters ({active} for each token), bfloat16\n" in page
    report = strict(facts.read_text(encoding="utf-8"))
    assert report["parameters"] == int(parameters.replace(",", ""))
    assert report["active_parameters"] == int(active.replace(",", ""))
