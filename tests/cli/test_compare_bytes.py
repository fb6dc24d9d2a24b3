"""`compare --bytes` as a user runs it: runs by models with different tokenizers."""

import json
import math
import re
import shlex

import pytest

from tests.conftest import CASES, ROOT
from tests.systems.compare.records import made_by, score, write

TEXT = "In 2024 東京 grew: 🙂 is a character of four bytes, é of two."
BYTE_LEVEL = ["In", "Ġ2024", "Ġ", "æĿ", "±", "äº¬", "Ġgrew", ":", "Ġ", "ðŁĻĤ", "Ġis", "Ġa"]
BYTE_LEVEL += ["Ġcharacter", "Ġof", "Ġfour", "Ġbytes", ",", "ĠÃ", "©", "Ġof", "Ġtwo", "."]
PIECES = ["▁In", "▁2", "0", "2", "4", "▁", "東京", "▁grew", ":", "▁"]
PIECES += ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁is", "▁a", "▁character", "▁of", "▁four"]
PIECES += ["▁bytes", ",", "▁é", "▁of", "▁two", "."]


def tokens(id, names, scored="all"):
    logprob = [None if scored == "rest" and not k else -1.0 for k in range(len(names))]
    return {**score(id, -float(len(names)), tokens=names), "logprob": logprob}


def document(id, nats, n_scored=5, n_bytes=20):
    return {
        "id": id, "begin": "T", "text_sha256": f"{id:064}", "n_tokens": 5, "n_scored": n_scored,
        "n_bytes": n_bytes, "n_words": 4, "n_windows": 1, "sum_logprob": nats,
        "mean_logprob": nats / n_scored, "perplexity": 2.0, "bits_per_byte": 1.0,
        "bits_per_word": 2.0,
    }  # fmt: skip


@pytest.fixture
def two(tmp_path):
    def make(a, b, made_a=None, made_b=None):
        paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
        return [
            write(path, records, made)
            for path, records, made in zip(paths, (a, b), (made_a, made_b), strict=True)
        ]

    return make


def result(folder):
    return json.loads((folder / "a-vs-b.report.json").read_text("utf-8"))


def test_two_tokenizers(run, two, tmp_path):
    """Without the input the texts that the tokens spell pair the items."""
    a = [tokens(k, BYTE_LEVEL, "rest") for k in range(9)]
    ran = run("compare", "--bytes", *two(a, [tokens(k, PIECES) for k in range(9)]))
    assert ran.code == 0, ran.err
    n_bytes, n_first = len(TEXT.encode()), len("In")
    bits_a, bits_b = (len(BYTE_LEVEL) - 1) / math.log(2), len(PIECES) / math.log(2)
    report = result(tmp_path)
    both, every = report["results"]
    assert (every["mean_a"], every["mean_b"]) == pytest.approx((bits_a / n_bytes, bits_b / n_bytes))
    left = n_bytes - n_first
    expected = bits_a / left, (bits_b - 1 / math.log(2)) / left
    assert (both["mean_a"], both["mean_b"]) == pytest.approx(expected)
    rows = {row["class"]: row["n_bytes"] for row in report["by_class"]}
    assert rows["letter Han"] == 6 * 9
    assert rows["digit"] == rows["other"] == 4 * 9
    assert sum(rows.values()) == left * 9
    assert "A does not score 18 of 594 bytes" in ran.err
    assert "letter Han" in ran.out
    assert report["spans"][0]["text"] in TEXT
    page = (tmp_path / "a-vs-b.report.html").read_text("utf-8")
    assert 'class="t less"' in page  # without scripts the spans are coloured too
    assert "| letter Han | 54 |" in (tmp_path / "a-vs-b.report.md").read_text("utf-8")


def test_a_text_that_one_run_does_not_spell_is_left_out_by_name(run, two, tmp_path):
    given = write(tmp_path / "in.jsonl", [{"id": k, "continuation": TEXT} for k in range(3)])
    a = [tokens(k, BYTE_LEVEL) for k in range(3)]
    b = [*(tokens(k, PIECES) for k in range(2)), tokens(2, ["▁In", "<unk>"])]
    ran = run("compare", "--bytes", *two(a, b, made_by("score", given), made_by("score", given)))
    assert ran.code == 1
    assert "2: the tokens of A and B do not spell the same text" in ran.err
    assert result(tmp_path)["results"][0]["n"] == 2


def test_runs_over_other_texts_are_refused(run, two):
    ran = run("compare", "--bytes", *two([tokens(1, ["a"])], [tokens(1, ["b"])]))
    assert (ran.code, ran.out) == (2, "")
    assert "no pair of requests" in ran.err


def test_a_run_with_sums_alone_is_refused(run, two, tmp_path):
    given = write(tmp_path / "in.jsonl", [{"id": 0, "continuation": TEXT}])
    short = {name: value for name, value in score(0).items() if name != "tokens"}
    made = made_by("score", given)
    ran = run("compare", "--bytes", *two([tokens(0, BYTE_LEVEL)], [short], made, made))
    assert (ran.code, ran.out) == (2, "")
    assert "b.jsonl, line 1) lacks tokens, as with --summary-only; run score again" in ran.err


def test_runs_of_another_system_are_refused(run, two):
    item = {"id": 0, "context": "c", "options": ["a", "b"], "sum_logprob": [-1.0, -2.0]}
    ran = run("compare", "--bytes", *two([item], [item], made_by("choose"), made_by("choose")))
    assert (ran.code, ran.out) == (2, "")
    assert "found a run of choose, expected runs of score or perplexity" in ran.err


@pytest.mark.parametrize("in_extra", [False, True])
def test_by_value_of_a_field(run, two, tmp_path, in_extra):
    """Tables have the other fields of an item in `extra`."""
    others = [{"topic": "sea"}, {"topic": "sea"}, {"topic": ""}]
    fields = [{"extra": json.dumps(other)} if in_extra else other for other in others]
    a, b = (
        [{**tokens(k, names), **more} for k, more in enumerate(fields)]
        for names in (BYTE_LEVEL, PIECES)
    )
    ran = run("compare", "--bytes", "--by", "topic", *two(a, b))
    assert ran.code == 0, ran.err
    rows = result(tmp_path)["by"]["topic"]
    n_bytes = len(TEXT.encode())
    assert {row["value"]: row["n_bytes"] for row in rows} == {"sea": 2 * n_bytes, "(none)": n_bytes}
    assert "| sea | 132 |" in (tmp_path / "a-vs-b.report.md").read_text("utf-8")


def test_a_field_that_is_missing_or_of_no_use_is_refused(run, two):
    paths = two([tokens(1, BYTE_LEVEL)], [tokens(1, PIECES)])
    ran = run("compare", "--bytes", "--by", "topic", *paths)
    assert (ran.code, ran.out) == (2, "")
    assert "--by topic: no record of A has this field" in ran.err
    ran = run("compare", "--by", "topic", *paths)
    assert (ran.code, ran.out) == (2, "")
    assert "tables by value of a field are those of --bytes" in ran.err


def test_documents_have_totals_alone(run, two, tmp_path):
    a = [document(k, -10.0, n_scored=4) for k in range(8)]
    b = [document(k, -12.0 - k) for k in range(8)]
    ran = run("compare", "--bytes", *two(a, b))
    assert ran.code == 0, ran.err
    [total] = result(tmp_path)["results"]
    assert total["name"] == "bits_per_byte"
    assert total["mean_a"] == pytest.approx(10 / math.log(2) / 20)
    assert total["mean_b"] == pytest.approx(15.5 / math.log(2) / 20)
    assert "the records of perplexity have no tokens" in ran.err
    assert "A does not score 8 tokens" in ran.err


def test_three_runs_are_one_table(run, two, tmp_path):
    a, b = two(
        [tokens(k, BYTE_LEVEL) for k in range(4)],
        [tokens(k, PIECES) for k in range(4)],
    )
    ran = run("compare", "--bytes", a, b, a)
    assert ran.code == 0, ran.err
    assert "bits per byte, bytes that both scored" in ran.out


@pytest.mark.numeric
def test_the_example_of_the_page(run, tmp_path, monkeypatch):
    page = (ROOT / "jaxscore/systems/README.md").read_text(encoding="utf-8")
    section = page.partition("### Two tokenizers (`compare --bytes`)")[2]
    line, *commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1].strip().split("\n")
    monkeypatch.chdir(tmp_path)
    for folder, name in (("small", "tiny-gpt2"), ("large", "tiny-llama3")):
        (tmp_path / folder).symlink_to(CASES / "models" / name)
    (tmp_path / "in.jsonl").write_text(shlex.split(line)[1], encoding="utf-8")
    for command in commands:
        ran = run(*shlex.split(command)[3:])
        assert ran.code == 0, ran.err
    assert "letter Han" in ran.out
