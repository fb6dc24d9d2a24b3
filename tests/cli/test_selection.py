"""`select` and `vote` as a user runs them: the shared cases, file names, what goes wrong."""

import json
import shutil

import pytest

from jaxscore.systems.selection import symbolic
from tests.cli.conftest import strict
from tests.conftest import CASES

WANT = json.loads((CASES / "expected/selection.json").read_text(encoding="utf-8"))
VOTES = [
    (file, n, power, most)
    for file, most in (("samples", 8), ("crux", 7))
    for n in (4, 8)
    for power in ("0.0", "0.5", "1.2")
]


def answer(value):
    return json.dumps({"reasoning": "", "answer": value})


def item(answers, confidences, **more):
    return {
        "id": "i", "generator": "Llama-3.1", "dataset": "math", **more,
        "output": [answer(value) for value in answers], "confidence_list": confidences,
    }  # fmt: skip


@pytest.fixture
def write(tmp_path):
    """`write(value)`: `in.json` in a fresh folder, of a value or of text or bytes."""

    def make(value):
        path = tmp_path / "in.json"
        if isinstance(value, bytes):
            path.write_bytes(value)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            path.write_text(text, encoding="utf-8")
        return path

    return make


KINDS = ("md", "json", "html")  # of a report's files


def result(path):
    return strict(path.read_text(encoding="utf-8"))


def assert_as_expected(key, path):
    assert [{k: one[k] for k in ("output", "confidence")} for one in result(path)] == WANT[key]


@pytest.mark.parametrize("n", [4, 8])
def test_select_on_the_shared_cases(run, tmp_path, n):
    considered = {
        4: "N = 4: the 8 items have 8 responses each; 8 of them have more than 4, and what "
        "is after the first 4 is left out",
        8: "N = 8: the 8 items have 8 responses each; all of them are considered",
    }
    path = shutil.copy(CASES / "voting/samples.json", tmp_path)
    ran = run("select", "--input-file", path, "--best-N", n)
    assert (ran.code, ran.err) == (0, "")
    out = tmp_path / f"samples-confidence-{n}.json"
    assert ran.out == (
        f"{considered[n]}\n"
        "done     8 items, 0 failed\n"
        "result   8 of 8 items decided by confidence, 0 by fallback\n"
        f"files    {out}\n"
        + "".join(f"         {out.with_suffix('')}_report.{kind}\n" for kind in KINDS)
        + f"         {out}.run.json\n"
    )
    assert_as_expected(f"select {n}", out)


@pytest.mark.parametrize(("file", "n", "power", "most"), VOTES)
def test_vote_on_the_shared_cases(run, tmp_path, file, n, power, most):
    path = shutil.copy(CASES / f"voting/{file}.json", tmp_path)
    ran = run("vote", "--input_file", path, "--best_N", n, "--power", power, "--quiet")
    assert (ran.code, ran.err) == (0, "")
    out = tmp_path / f"{file}-confidence-borda-power-{power}-{min(n, most)}-kl.json"
    assert_as_expected(f"vote {file} N={n} power={power}", out)


def test_defaults_and_names(run, write):
    """As published: 4 responses for `select`, 64 and a power of 0.5 for `vote`."""
    path = write([item(["1"] * 6, [1, 2, 3, 4, 5, 6]), item(["1"] * 70, [1] * 70)])
    assert run("select", "--input-file", path).code == 0
    assert run("vote", "--input-file", path).code == 0
    assert run("vote", "--input-file", path, "--power", 1, "--best-N", "3").code == 0
    names = [one.name for one in path.parent.glob("*.json")]
    assert sorted(name for name in names if not name.endswith((".run.json", "_report.json"))) == [
        "in-confidence-4.json",
        "in-confidence-borda-power-0.5-64-kl.json",
        "in-confidence-borda-power-1.0-3-kl.json",
        "in.json",
    ]
    assert result(path.parent / "in-confidence-4.json")[0]["confidence"] == 4.0


def test_the_output_file_and_its_layout(run, write, tmp_path):
    path = write([item(["π", "2"], [1.5, 1], note="é")])
    out = tmp_path / "sub" / "out.json"
    assert run("select", "--input-file", path, "--output-file", out).code == 0
    text = out.read_text(encoding="ascii")
    assert text.startswith('[\n    {\n        "id": "i",\n')  # the published script's
    [one] = strict(text)
    assert list(one)[-3:] == ["confidence_list", "output", "confidence"]
    assert one["note"] == "é"


def test_nothing_extractable(run, write):
    path = write([{**item(["1"], [1]), "output": ["no", "none"], "confidence_list": [1, 2]}])
    ran = run("select", "--input-file", path)
    assert ran.code == 0
    reported = "fallback, 1 of 1 items: no response has an extractable answer"
    assert reported in ran.out
    assert "result   0 of 1 item decided by confidence, 1 by fallback" in ran.out
    assert "note: item 1 (id i): no response has an extractable answer, so the first" in ran.err
    [one] = result(path.parent / "in-confidence-2.json")
    assert (one["output"], one["confidence"]) == (["no"], -1e9)
    ran = run("vote", "--input-file", path)
    assert reported in ran.out
    [one] = result(path.parent / "in-confidence-borda-power-0.5-2-kl.json")
    assert (one["output"], one["confidence"]) == (["no"], 0.0)


HOSTILE = [
    item(["1", "2"], [1, 2], id="good"),
    item(["1", "2"], [1], id="short"),
    item([], [], id="empty"),
    {**item(["1"], [1], id="null"), "output": None},
    item(["1", "2"], [1, "2"], id="text"),
    item(["1", "2"], [None, float("nan")], id="unknown"),
    {"id": "bare"},
    {**item(["1"], [1], id="nulls"), "output": [None, answer("2")], "confidence_list": [9, 1]},
    item(["1", "2"], [float("nan"), 1], id="nan"),
    {**item(["1"], [1], id="unread"), "output": ["no", answer("2")], "confidence_list": [1, None]},
    {**item(["1"], [1], id="long"), "output": ['{"answer":' * 20_000 + "\u202e" + "}" * 20_000]},
    item(["e\u0301", "e\u0301"], [1, 2], id="good"),
]


@pytest.mark.parametrize(("command", "suffix"), [("select", "2"), ("vote", "borda-power-0.5-2-kl")])
def test_items_that_go_wrong_are_named_and_the_others_kept(run, write, command, suffix):
    path = write(HOSTILE)
    code, out, err = run(command, "--input-file", path)
    assert (code, "Traceback" in err) == (1, False)
    assert "done     12 items, 6 failed\n" in out
    assert "result   5 of 12 items decided by " in out
    reported = "no response with an extractable answer has a confidence"
    assert f"fallback, 1 of 12 items: {reported}\n" in out
    bad = (
        "failed: item 2 (id short): ", "failed: item 3 (id empty): ", "failed: item 4 (id null): ",
        "failed: item 5 (id text): ", "failed: item 6 (id unknown): ", "failed: item 7 (id bare): ",
    )  # fmt: skip
    assert all(name in err for name in bad)
    assert "6 failed, the others are kept" in err
    assert "note: item 8 (id nulls): response 1 is not text" in err
    assert "note: item 9 (id nan): confidence 1 is not a number" in err
    got = result(path.parent / f"in-confidence-{suffix}.json")
    assert [one["id"] for one in got] == [one["id"] for one in HOSTILE]
    assert [("error" in one, len(one["output"])) for one in got] == [
        (False, 1), *[(True, 0)] * 6, *[(False, 1)] * 5,
    ]  # fmt: skip
    assert got[0]["output"] == [answer("2")]
    assert got[7]["output"] == got[8]["output"] == got[9]["output"] == [answer("2")]


def test_notes_are_remarks_and_failures_are_not(run, write):
    path = write(HOSTILE)
    err = run("select", "--input-file", path, "--quiet").err
    assert "note: " not in err
    assert "failed: item 2 (id short)" in err


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["in.json: the file is empty"]),
        ("[]", ["in.json: found no items"]),
        ('{"output": []}', ["output"]),
        ('{"a": 1}\n{"a": 2}\n', ["in.json:2: ", "JSONL"]),
        ('[{"a": 1}', ["in.json:1: not JSON"]),
        ("[[1]]", ["item 1 is a list, expected an object"]),
        ("[null]", ["item 1 is null"]),
        ("[" * 100_000, ["not usable JSON"]),
        (b'[{"a": "\xff"}]', ["not UTF-8"]),
    ],
)
@pytest.mark.parametrize(
    "command", ["select", "vote", "livecode-select", "livecode-parse", "usc-select"]
)
def test_files_that_cannot_be_used(run, write, command, content, parts):
    path = write(content)
    ran = run(command, "--input-file", path)
    assert (ran.code, ran.out) == (2, "")
    assert f"jaxscore {command}: error: " in ran.err
    for part in parts:
        assert part in ran.err
    assert [one.name for one in path.parent.iterdir()] == ["in.json"]


def test_byte_order_mark_and_crlf(run, write):
    text = json.dumps([item(["1", "2"], [1, 2])], indent=1).replace("\n", "\r\n")
    path = write(b"\xef\xbb\xbf" + text.encode())
    assert run("select", "--input-file", path).code == 0
    assert result(path.parent / "in-confidence-2.json")[0]["output"] == [answer("2")]


def test_half_a_surrogate_pair(run, write):
    path = write('[{"id": "\\ud83d", "output": ["\\ud83d answer: 1"], "confidence_list": [1]}]')
    assert run("select", "--input-file", path).code == 0
    [one] = result(path.parent / "in-confidence-1.json")
    assert one["output"] == ["\ud83d answer: 1"]
    path = write('[{"id": "\\ud83d", "output": []}]')
    ran = run("vote", "--input-file", path)
    assert ran.code == 2
    assert r"no item can be used; item 1 (id \ud83d): " in ran.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--best-N", "0"), "0, expected a whole number of at least 1"),
        (("--best-N", "x"), "'x', expected a whole number"),
        (("--power", "nan"), "--power: nan, expected a finite number"),
        (("--power", "inf"), "--power: inf, expected a finite number"),
        (("--power", "x"), "'x', expected a finite number"),
        (("--power", "5000"), "setting power is 5000.0: the votes of 2 responses"),
        (("--time-limit", "0"), "0.0, expected seconds above 0"),
        (("--time-limit", "-1"), "-1.0, expected seconds above 0"),
        (("--time-limit", "1e9"), "at most a day"),
    ],
)
def test_flags_that_cannot_be_used(run, write, words, part):
    path = write([item(["1", "2"], [1, 2])])
    ran = run("vote", "--input-file", path, *words)
    assert (ran.code, ran.out) == (2, "")
    assert part in ran.err
    assert [one.name for one in path.parent.iterdir()] == ["in.json"]


def test_the_output_may_not_be_the_input(run, write):
    path = write([item(["1", "2"], [1, 2])])
    for command in ("select", "vote", "livecode-select", "livecode-parse", "usc-select"):
        ran = run(command, "--input-file", path, "--output-file", path)
        assert (ran.code, ran.out) == (2, "")
        assert f"--output {path} is an input of this run" in ran.err


@pytest.mark.slow
def test_vote_with_sympy_ends_on_answers_made_to_hang(run, write, monkeypatch):
    monkeypatch.setattr(symbolic, "MOST_TIMEOUTS", 1)  # each of them starts a process
    towers = [f"9^{{9^{{9^{{{k}}}}}}}" for k in range(12, 20)]
    path = write(
        [
            item([*towers, "x+x"], list(range(9)), task="amps_hard", id="hangs"),
            item(["y+1", "1+y", "z"], [1, 2, 3], task="amps_hard"),
        ]
    )
    code, out, err = run("vote", "--input-file", path, "--power", 1, "--time-limit", 0.5)
    assert code == 0
    assert "result   2 of 2 items decided by votes, 0 by fallback" in out
    assert "note: item 1 (id hangs): SymPy ran out of time or memory once, so the rest" in err
    first, _ = result(path.parent / "in-confidence-borda-power-1.0-9-kl-time0.5.json")
    assert first["output"] == [answer("x+x")]


@pytest.mark.parametrize(
    "command", ["select", "vote", "livecode-select", "livecode-parse", "usc-select"]
)
def test_help_teaches_with_an_input(run, command):
    ran = run(command, "--help")
    assert ran.code == 0
    for part in ("input, a JSON array", "[{", "output", "exit code: 0 all"):
        assert part in ran.out


COMMANDS = ("select", "vote", "livecode-select", "livecode-parse", "usc-select")


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_usable_leaves_no_file(run, write, command):
    path = write([{"id": "a", "output": []}, {"id": "b"}])
    ran = run(command, "--input", path)
    assert (ran.code, ran.out) == (2, "")
    assert f"{path}: no item can be used; item 1 (id a): " in ran.err
    assert [one.name for one in path.parent.iterdir()] == ["in.json"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_made_its_output(run, write, tmp_path, command):
    good = {**item(["1", "2"], [1, 2]), "responses": ["a", "b"]}
    good["output"][0] = "Response 1, answer: 1"
    path = write([good, {"id": "bad"}])
    ran = run(command, "--input", path, "--output", tmp_path / "out.json")
    assert ran.code == 1
    facts = result(tmp_path / "out.json.run.json")
    assert facts["command"] == command
    assert facts["failed"] == 1
    assert "model" not in facts
    assert "done     2 items, 1 failed\n" in ran.out
    assert f"files    {tmp_path / 'out.json'}\n" in ran.out
    assert ran.out.endswith(f"{tmp_path / 'out.json'}.run.json\n")


def test_limit_takes_the_first_items(run, write):
    path = write([item(["1"], [1], id=k) for k in range(3)])
    assert run("select", "--input", path, "--limit", 2).code == 0
    assert [one["id"] for one in result(path.parent / "in-confidence-1-first2.json")] == [0, 1]


@pytest.mark.parametrize(
    ("command", "words", "whole", "part"),
    [
        ("select", (), "confidence-2", "confidence-2-first1"),
        (
            "vote",
            ("--time-limit", 2.5),
            "confidence-borda-power-0.5-2-kl",
            "confidence-borda-power-0.5-2-kl-time2.5-first1",
        ),
        ("livecode-select", (), "livecode-16", "livecode-16-first1"),
        ("livecode-parse", (), "livecode", "livecode-first1"),
        ("usc-select", ("--dataset-type", "close"), "usc", "usc-close-first1"),
    ],
)
def test_results_of_other_settings_have_other_names(run, write, command, words, whole, part):
    path = write([{**item(["1", "2"], [1, 2]), "responses": ["a", "b"]}] * 2)
    for more in ((), (*words, "--limit", 1)):
        assert run(command, "--input", path, *more).code == 0
    sizes = [len(result(path.parent / f"in-{name}.json")) for name in (whole, part)]
    assert sizes == [2, 1]


def test_how_many_responses_n_leaves_out(run, write):
    path = write([item(["1"] * 6, [1] * 6), item(["1", "2"], [1, 2]), {"id": "bad"}])
    out = run("select", "--input", path).out
    assert out.startswith(
        "N = 4: the 3 items have 2 to 6 responses; 1 of them have more than 4, and what is "
        "after the first 4 is left out\n"
    )
