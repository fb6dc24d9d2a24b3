"""Places that may not be written, and where reports lie."""

from pathlib import Path

import pytest

from jaxscore.cli import outputs
from jaxscore.errors import InputError


def test_the_flag_to_change_is_named(tmp_path):
    one, other = tmp_path / "a", tmp_path / "b"
    outputs.check_output(one, None, other)
    with pytest.raises(InputError, match=r"--output .*a is an input of this run"):
        outputs.check_output(one, other, one)
    with pytest.raises(InputError, match=r"--output-file .*a is an input of this run"):
        outputs.check_output(one, Path(one), flag="--output-file")
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(InputError, match=r"--report .*a: not usable as a path"):
        outputs.check_output(one, other, flag="--report")


def test_an_output_never_replaces_a_manifest(tmp_path):
    for name in ("out.jsonl.run.json", ".run.json"):
        with pytest.raises(InputError, match=r"--output .*\.run\.json are those of manifests"):
            outputs.check_output(tmp_path / name)
    outputs.check_output(tmp_path / "run.json")


@pytest.mark.parametrize(
    "name", ["x_report.json", "x_report.md", "x.jsonl.report.json", "x.jsonl.report.md"]
)
def test_an_output_never_replaces_a_report_of_another(tmp_path, name):
    with pytest.raises(InputError, match=rf"--output .*{name}: .*report\..* are those of reports"):
        outputs.check_output(tmp_path / name)
    outputs.check_outputs([tmp_path / "x.json", *outputs.report_paths(tmp_path / "x.json")])
    outputs.check_output(tmp_path / "report.json")


def test_two_outputs_are_never_one_file(tmp_path):
    one, other, third = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    outputs.check_outputs([one, other, third])
    other.symlink_to(third)
    with pytest.raises(InputError, match=r"--output .*a: .*b and .*c are one file"):
        outputs.check_outputs([one, other, third])
    # The first one has a manifest, and it is an output too.
    third = tmp_path / "d"
    third.symlink_to(tmp_path / "a.run.json")
    with pytest.raises(InputError, match=r"d and .*a\.run\.json are one file"):
        outputs.check_outputs([one, third])
    with pytest.raises(InputError, match=r"--output .*b is an input of this run"):
        outputs.check_outputs([one, other], tmp_path / "c")


def test_no_two_outputs_share_a_report():
    outs = [
        Path(name) for name in ("x", "x.json", "x.jsonl", "x_report", "x.report", "x.json.json")
    ]
    reports = [path for out in outs for path in outputs.report_paths(out)]
    assert len({*reports, *outs}) == 3 * len(outs)
    assert outputs.report_paths(Path("a/x.json")) == (
        Path("a/x_report.md"),
        Path("a/x_report.json"),
    )
    assert outputs.report_paths(Path("x"))[0] == Path("x.report.md")
