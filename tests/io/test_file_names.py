"""Files of a run: names that every system takes, and nothing written over."""

import os
import stat

import pytest

from jaxscore.errors import InputError
from jaxscore.io.atomic import check_writable_folder, write_new_files
from jaxscore.io.local_path import LONGEST_NAME, distinct_file_name, model_file_name, shorten_name

TEXTS = {"eval_report_m_1.md": "# é\n", "eval_results_m_1.json": "{}\n"}


def contents(folder):
    return {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir()}


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("gpt2", "gpt2"),
        ("Qwen/Qwen2.5-7B", "Qwen_Qwen2.5-7B"),
        ("llama3:8b", "llama3_8b"),
        ("/a/b", "_a_b"),
        ("a\\b\nc", "a_b_c"),
    ],
)
def test_a_models_name(model, part):
    assert model_file_name(model) == part


def test_a_long_name_keeps_its_end_and_stays_distinct():
    one, other = (shorten_name(f"{start}{'é' * 200}/end") for start in "ab")
    assert one != other
    assert one.endswith("é/end")
    assert len(one.encode()) <= LONGEST_NAME
    assert shorten_name("x" * LONGEST_NAME) == "x" * LONGEST_NAME


def test_a_second_run_in_the_same_second_counts_up(tmp_path):
    first, second, third = (write_new_files(tmp_path, TEXTS) for _ in range(3))
    assert [one.name for one in first] == ["eval_report_m_1.md", "eval_results_m_1.json"]
    assert [one.name for one in second] == ["eval_report_m_1_2.md", "eval_results_m_1_2.json"]
    assert [one.name for one in third] == ["eval_report_m_1_3.md", "eval_results_m_1_3.json"]
    assert sorted(contents(tmp_path).values()) == ["# é\n"] * 3 + ["{}\n"] * 3


def test_one_taken_name_moves_all(tmp_path):
    (tmp_path / "eval_results_m_1.json").write_text("mine", encoding="utf-8")
    write_new_files(tmp_path, TEXTS)
    assert contents(tmp_path) == {
        "eval_results_m_1.json": "mine",
        "eval_report_m_1_2.md": "# é\n",
        "eval_results_m_1_2.json": "{}\n",
    }


def test_all_or_none(tmp_path):
    half = {"c.md": "\ud83d"}  # cannot be encoded, so writing it fails
    with pytest.raises(UnicodeEncodeError):
        write_new_files(tmp_path, TEXTS | half)
    assert contents(tmp_path) == {}


def test_the_mode_is_what_open_would_give(tmp_path):
    before = os.umask(0o027)
    try:
        [path, _] = write_new_files(tmp_path, TEXTS)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_folder_is_made_or_refused(tmp_path):
    check_writable_folder(tmp_path / "new" / "one")
    assert list((tmp_path / "new" / "one").iterdir()) == []
    (tmp_path / "file").write_text("", encoding="utf-8")
    for bad in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"cannot be written .*expected a folder that can"):
            check_writable_folder(bad)
    with pytest.raises(InputError, match="cannot be written"):
        write_new_files(tmp_path / "file", TEXTS)


def test_names_that_differ_only_in_signs_stay_apart():
    assert distinct_file_name("LLMeval_phi-3.5") == "LLMeval_phi-3.5"
    names = [
        distinct_file_name(name) for name in ("a/b", "a_b", "a b", "x" * 300 + "/", "x" * 300 + " ")
    ]
    assert len(set(names)) == 5
    assert all("/" not in name and len(name) <= LONGEST_NAME for name in names)
