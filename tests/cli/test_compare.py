"""`compare` as a user runs it: two files in, a page, its data and a manifest out."""

import json
import shutil

import pytest

import jaxscore
from jaxscore.cli import compare
from jaxscore.io.records import parquet_writer
from jaxscore.shell.system import table_columns
from jaxscore.systems import declaration
from jaxscore.systems.choose import SYSTEM as CHOOSE
from jaxscore.systems.score import SYSTEM as SCORE
from tests.conftest import CASES
from tests.systems.compare.records import made_by, path, paths, score, write

N = 24


@pytest.fixture
def two(tmp_path):
    """`two(a, b, kind)`: files of two runs."""

    def make(a, b, made_a=None, made_b=None, name="jsonl"):
        return (
            write(tmp_path / f"a.{name}", a, made_a),
            write(tmp_path / f"b.{name}", b, made_b),
        )

    return make


def result(folder, name="a-vs-b.report.json"):
    return json.loads((folder / name).read_text("utf-8"))


def lines(shift=0.0):
    return [score(f"i{k}", -k - shift) for k in range(N)]


def test_two_runs_of_score(run, two, tmp_path):
    given = write(
        tmp_path / "in.jsonl", [{"id": f"i{k}", "continuation": str(k)} for k in range(N)]
    )
    made = made_by("score", given, model="one"), made_by("score", given, model="two")
    a, b = two(lines(), lines(0.5), *made)
    ran = run("compare", a, b)
    assert (ran.code, ran.err) == (0, "")
    assert (
        "log-probability of a text, nats: A -11.5, B -12, B is lower by 0.5 (p = 0.0004 after Holm "
        "over 4 tests), n = 24 pairs\n" in ran.out
    )
    assert (
        "mean entropy, nats per token: A 1, B 1, no difference shown, the means are equal"
        in ran.out
    )
    names = [f"a-vs-b.{kind}" for kind in ("report.md", "report.json", "report.html", "run.json")]
    assert ran.out.endswith("".join(f"{tmp_path / name}\n" for name in names).replace(
        f"\n{tmp_path}", f"\n         {tmp_path}"))  # fmt: skip
    found = result(tmp_path)
    assert found["pairs"]["matched_by"] == "input"
    assert found["differences"] == [{"setting": "model", "a": "one", "b": "two"}]
    assert found["results"][0]["difference"] == {"n": N, "mean": -0.5, "low": None, "high": None}
    page = (tmp_path / names[0]).read_text("utf-8")
    assert "| model | one | two |" in page
    assert "Both runs read the same input file" in page
    manifest = result(tmp_path, names[3])
    assert (manifest["command"], manifest["flags"]["seed"]) == ("compare", 0)


def test_the_texts_of_two_inputs_are_compared(run, two, tmp_path):
    given = [{"id": f"i{k}", "context": "c", "continuation": str(k)} for k in range(N)]
    one = write(tmp_path / "one.jsonl", given)
    other = write(
        tmp_path / "two.jsonl",
        [{**given[0], "continuation": "new"}, *given[1:], {"id": "z", "continuation": ""}],
    )
    a, b = two(lines(), [*lines(1.0), score("z")], made_by("score", one), made_by("score", other))
    ran = run("compare", a, b)
    assert ran.code == 0
    assert "the runs have the same ids and other texts of 1 request: i0; it is left out" in ran.err
    assert "B alone has 1 request: z; it is left out" in ran.err
    found = result(tmp_path)
    assert found["pairs"]["matched_by"] == "text"
    assert (found["pairs"]["compared"], found["other_text"]) == (N - 1, ["i0"])
    assert found["without_partner"] == {"a": [], "b": ["z"]}
    one.write_text("{}\n", encoding="utf-8")  # no longer what the run has read
    ran = run("compare", a, b)
    assert "are matched by id and by their scored tokens: " in ran.err
    assert result(tmp_path)["pairs"]["compared"] == N


def csv_run(folder, name, sentences, *, header="item,sentence", with_tokens=True, columns=()):
    """A run of `score` over a CSV file with `--column continuation=sentence`, without ids."""
    given = folder / f"{name}.csv"
    given.write_text("\n".join([header, *(f"1,{text}" for text in sentences)]), "utf-8")
    records = [score(k, -float(len(text))) for k, text in enumerate(sentences, start=2)]
    for record, text in zip(records, sentences, strict=True):
        record["tokens"] = text.split()
        if not with_tokens:
            del record["tokens"]
    made = made_by("score", given, column=[*(columns or ["continuation=sentence"])])
    return write(folder / f"{name}.jsonl", records, made)


def test_rows_of_a_csv_with_renamed_columns_are_paired_by_their_sentences(run, tmp_path):
    a = csv_run(tmp_path, "a", ["One row.", "Two rows.", "Three."])
    b = csv_run(tmp_path, "b", ["One row.", "Another row.", "Three."])
    ran = run("compare", a, b)
    assert ran.code == 0
    data = result(tmp_path)
    assert (data["pairs"]["compared"], data["pairs"]["matched_by"]) == (2, "text")
    assert data["without_partner"] == {"a": ["3"], "b": ["3"]}
    shifted = csv_run(tmp_path, "c", ["New.", "One row.", "Two rows.", "Three."])
    ran = run("compare", a, shifted, "--output", tmp_path / "o")
    data = result(tmp_path, "o.report.json")
    assert (data["pairs"]["compared"], data["without_partner"]) == (3, {"a": [], "b": ["2"]})
    assert data["results"][0]["difference"]["mean"] == 0


@pytest.mark.parametrize("lost", [False, True])
def test_equal_ids_of_other_sentences_are_refused_unless_by_id(run, tmp_path, lost):
    """The texts decide, and if the input is lost the tokens."""
    header = "id,sentence"
    a = csv_run(tmp_path, "a", ["Paris"], header=header)
    b = csv_run(tmp_path, "b", ["Oslo"], header=header)
    if lost:
        (tmp_path / "a.csv").unlink()
    ran = run("compare", a, b)
    other = "other scored tokens" if lost else "another text"
    assert (ran.code, ran.out) == (2, "")
    for record in (a, b):  # the id of the file, not the line
        record.write_text(record.read_text().replace('"id": 2', '"id": 1'))
    ran = run("compare", a, b)
    assert f"1 have the same id and {other}, --by-id pairs them; the first" in ran.err
    ran = run("compare", a, b, "--by-id")
    assert (ran.code, result(tmp_path)["pairs"]["matched_by"]) == (0, "id")
    assert "the requests are matched by id alone (--by-id): their texts were not" in ran.err
    assert "matched by id alone (`--by-id`)" in (tmp_path / "a-vs-b.report.md").read_text("utf-8")


def test_two_prompts_of_the_same_items_are_paired_by_id(run, two, tmp_path):
    a, b = (
        [
            {"id": k, "context": f"{prompt} {k}?", "options": ["a", "b"], "choice": k % 2,
             "sum_logprob": [-1.0, -2.0], "gold": 0, "acc": k % 2 == 0}
            for k in range(3)
        ]
        for prompt in ("Question:", "Q:")
    )  # fmt: skip
    files = two(a, b, made_by("choose"), made_by("choose"))
    ran = run("compare", *files)
    assert ran.code == 2
    assert "3 have the same id and another text, --by-id pairs them" in ran.err
    ran = run("compare", *files, "--by-id")
    assert (ran.code, result(tmp_path)["pairs"]["compared"]) == (0, 3)
    assert "matched by id alone (--by-id): the texts of 3 of 3 pairs differ\n" in ran.err


def test_runs_whose_texts_cannot_be_known_are_refused(run, two, tmp_path):
    a = csv_run(tmp_path, "a", ["One row."], with_tokens=False)
    b = csv_run(tmp_path, "b", ["One  row."], with_tokens=False)
    (tmp_path / "b.csv").write_text("changed")
    ran = run("compare", a, b)
    assert (ran.code, ran.out) == (2, "")
    assert (
        f"cannot be paired by text: the input of B, {tmp_path / 'b.csv'}, is missing or has "
        "changed, and 1 of 1 in A have no tokens; pair them by id alone with --by-id" in ran.err
    )
    assert run("compare", a, b, "--by-id").code == 0
    for manifest in tmp_path.glob("*.run.json"):
        manifest.unlink()
    a, b = two([{**record, "tokens": None} for record in lines()], lines())
    err = run("compare", b, a).err
    assert "no manifest names the input of A, and no manifest names the input of B, " in err
    assert "24 of 24 in B have no tokens" in err
    texts = [{"q_id": k, "response": "r", "F1": 0.5} for k in range(2)]
    assert "2 of 2 in A have no text; pair" in run("compare", *two(texts, texts, name="json")).err


def test_records_without_a_text_are_paired_by_id_if_the_input_is_the_same(run, two, tmp_path):
    given = write(tmp_path / "in.json", [{"id": k, "output": ["r"]} for k in range(2)])
    records = [{"id": k, "output": ["r"], "confidence": float(k)} for k in range(2)]
    ran = run("compare", *two(records, records, *[made_by("select", given)] * 2, name="json"))
    assert (ran.code, result(tmp_path)["pairs"]["matched_by"]) == (0, "input")


def test_two_columns_of_one_input_are_other_texts(run, tmp_path):
    a = csv_run(tmp_path, "a", ["One row."])
    b = csv_run(tmp_path, "b", ["One row."], columns=["continuation=item"])
    ran = run("compare", a, b)
    assert (ran.code, ran.out) == (2, "")
    assert "no pair of requests: of 1 in A and 1 in B none is in both" in ran.err


def test_a_report_without_records_names_the_output(run, two, tmp_path):
    a, b = two(lines(), lines())
    report = write(tmp_path / "a.jsonl.report.json", [])
    report.write_text('{"summary": {},\n "settings": {}}')
    ran = run("compare", report, b)
    assert ran.code == 2
    assert f"found a report without records; give {a}" in ran.err


def test_failed_items_are_listed_and_the_code_is_1(run, two, tmp_path):
    bad = [{"id": "i0", "error": "too long\u202e"}, *lines()[1:-1], score("i23", "text")]
    ran = run("compare", *two(lines(), bad))
    assert ran.code == 1
    assert "failed: B: i0: too long\\u202e\n" in ran.err
    assert 'failed: B: i23: line 24: field "sum_logprob" is a string, expected' in ran.err
    assert "done     22 pairs, 2 failures\n" in ran.out
    assert [one["name"] for one in result(tmp_path)["failures"]] == ["B: i0", "B: i23"]


def test_flips_margins_and_noise(run, two, tmp_path):
    a = [
        paths(k, path(["x"], 0.2, 0.1, within_noise=k == 1), path(["y"], 0.2, 0.3))
        for k in range(4)
    ]
    b = [
        paths(k, path(["x"], 0.2, 0.4, within_noise=False), path(["y"], 0.2, 0.3)) for k in range(4)
    ]
    ran = run("compare", *two(a, b, name="json"), "--output", tmp_path / "out.json")
    assert ran.code == 0
    assert (
        "flips, the path raises the probability: 4 of 8 pairs (1 within the noise floor)" in ran.out
    )
    found = result(tmp_path, "out_report.json")
    [decided] = found["decisions"]
    assert (decided["n"], decided["audited"], decided["n_within"]) == (8, "both", 1)
    first = found["flips"]["improves"][0]
    assert (first["a"], first["b"]) == (False, True)
    assert first["moved"] == pytest.approx(first["margin_a"] + first["margin_b"])
    right = found["results"][0]
    assert right["cells"] == {"both": 4, "only_a": 0, "only_b": 4, "neither": 0}
    assert (right["n_groups"], right["p"]) == (4, 2 / 2**4)
    plain = [paths(k, path(["x"], 0.2, 0.1 + 0.2 * k)) for k in range(2)]
    other = [paths(k, path(["x"], 0.2, 0.3)) for k in range(2)]
    ran = run("compare", *two(plain, other, name="json"), "--output", tmp_path / "out.json")
    assert "1 of 2 pairs (noise floor not audited: --audit-noise N)" in ran.out
    assert "not audited" in (tmp_path / "out_report.md").read_text("utf-8")


def test_seed_and_draws_decide_the_bytes(run, two, tmp_path):
    given = [score(k, float((k * 37) % 11)) for k in range(40)]
    a, b = two(given, [score(k, float((k * 53) % 13)) for k in range(40)])

    def numbers(*words):
        assert run("compare", a, b, *words).code == 0
        return result(tmp_path)["results"]

    assert numbers() == numbers() != numbers("--seed", 1)
    assert numbers("--n-resamples", 99)[0]["smallest_p"] == 0.01


def test_what_makes_means_another_thing_is_remarked(run, two, tmp_path):
    record = {"q_id": "q", "question": "Who?", "label": ["Ada"], "response": "Ada", "F1": 0.5}
    a, b = two([record, record], [{**record, "response": "Bo", "LLM": 1.0}, record], name="json")
    err = run("compare", a, b).err
    assert "1 of 2 pairs differ in response\n" in err
    assert "B alone has the numbers or decisions LLM\n" in err
    assert "1 of the records of A have the id and text of an earlier one" in err
    assert "A lacks a manifest next to it, so its settings are unknown\n" in err
    err = run("compare", *two(lines(), [{**one, "n_scored": 3} for one in lines()])).err
    assert "the runs score different numbers of tokens in 24 of 24 pairs" in err
    assert run("compare", a, b, "--quiet").err == ""


def test_limit_takes_the_first_pairs(run, two, tmp_path):
    ran = run("compare", *two(lines(), lines()[::-1]), "--limit", 5)
    assert (ran.code, result(tmp_path)["pairs"]["compared"]) == (0, 5)


def test_one_pair_tells_n_alone(run, two):
    ran = run("compare", *two([score(1)], [score(1, -3.0)]))
    assert ran.code == 0
    assert (
        "log-probability of a text, nats: too few pairs for an interval or a test, n = 1 pair\n"
        in ran.out
    )


@pytest.mark.parametrize(
    ("a", "b", "parts"),
    [
        ("", "{}", ["a.jsonl: the file is empty"]),
        ("{", "{}", ["a.jsonl:1: not JSON"]),
        ("[1]", "[1]", ["a.jsonl:1: found a JSON array, expected JSONL"]),
        ('{"x": 1}', "{}", ["a.jsonl: found records with the fields 'x', expected the output of"]),
        ('{"id": 1, "sum_logprob": NaN, "n_scored": 1}', "{}", ["a.jsonl:1: not JSON"]),
        ("\n\n", "{}", ["a.jsonl: the file is empty"]),
        (b'{"id": "\xff"}', "{}", ["a.jsonl:1: not JSON"]),
        ("[" * 100_000, "{}", ["a.jsonl"]),
        ('{"id": ' + "[" * 100_000, "{}", ["a.jsonl:1: not JSON"]),
    ],
)
def test_files_that_cannot_be_used(run, tmp_path, a, b, parts):
    one, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for place, content in ((one, a), (other, b)):
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
    ran = run("compare", one, other)
    assert (ran.code, ran.out) == (2, "")
    assert "jaxscore compare: error: " in ran.err
    assert all(part in ran.err for part in parts)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_a_table_in_text_is_refused_by_name(run, tmp_path):
    table = tmp_path / "out.csv"
    table.write_text("id,sum_logprob\na,-1.5\n")
    ran = run("compare", table, table)
    assert (ran.code, ran.out) == (2, "")
    assert "out.csv: found a table in text" in ran.err
    assert "ends in .jsonl or .parquet" in ran.err


def test_records_of_another_version_are_refused(run, two):
    unknown = dict.fromkeys(("name", "weights", "tokenizer", "loaded"))
    made = {"command": "score", "flags": {}, "files": {}, "records": 2, "numbers": 1, **unknown}
    a, b = two(lines(), lines(), made_by("score"), {**made_by("score"), "made": made})
    ran = run("compare", a, b)
    assert (ran.code, ran.out) == (2, "")
    assert f"{b}: its records have version 2, expected version 1 of score; run" in ran.err


def test_runs_that_do_not_fit(run, two, tmp_path):
    a, b = two([score(1), score(2)], [score(3), score(4)])
    ran = run("compare", a, b)
    assert (ran.code, ran.out) == (2, "")
    assert "no pair of requests: of 2 in A and 2 in B none is in both" in ran.err
    other = write(tmp_path / "c.json", [paths("q", path(["x"], 0.1, 0.2))])
    assert "A is of score and B of paths" in run("compare", a, other).err
    assert "No such file" in run("compare", a, tmp_path / "none").err
    assert "Is a directory" in run("compare", a, tmp_path).err
    for name, command in (("score", "usc-generate"), ("manifest", 5)):
        two([score(1)], [score(1)], {"command": command, "flags": {}})
        err = run("compare", a, b).err
        expected = "by its manifest" if name == "score" else "field 'command' is a whole number"
        assert expected in err


def test_settings_that_count_otherwise_are_refused(run, two, tmp_path):
    made = (
        made_by("score", dtype="float32"),
        made_by("score", boundary="separate", dtype="bfloat16"),
    )
    a, b = two(lines(), lines(1.0), *made)
    ran = run("compare", a, b)
    assert (ran.code, ran.out) == (2, "")
    assert (
        "differ in boundary (joint and separate), so their numbers do not count the same" in ran.err
    )
    ran = run("compare", a, b, "--force")
    assert ran.code == 0
    assert "they are compared by --force" in ran.err
    assert [one["setting"] for one in result(tmp_path)["differences"]] == ["boundary", "dtype"]


@pytest.mark.parametrize("older", [{}, {"answer_separator": None}])
def test_runs_with_other_answer_separators_are_refused(run, two, older):
    """A record from before the setting is one of a run without it."""
    records = [paths(f"q{k}", path(["x"], 0.1, 0.2)) for k in range(3)]
    made = made_by("paths", answer_separator=" "), made_by("paths", **older)
    for pair in (made, made[::-1]):
        a, b = two(records, records, *pair, name="json")
        ran = run("compare", a, b)
        assert (ran.code, ran.out) == (2, "")
        assert "the runs differ in answer_separator (" in ran.err
        assert run("compare", a, b, "--force").code == 0
    same = made_by("paths", answer_separator=None), made_by("paths")
    assert run("compare", *two(records, records, *same, name="json")).code == 0


@pytest.mark.parametrize("system", ["paths", "chronologic", "probsem"])
def test_the_answer_separator_decides_what_is_counted(system):
    assert "answer_separator" in declaration(system).settings.fixed


def test_settings_that_differ_are_on_stdout(run, two):
    """The models first, and of many settings how many more the report lists."""
    same = dict.fromkeys("abcdefgh", 1)
    made = (
        made_by("score", **same, model="one", dtype="float32"),
        made_by("score", **dict.fromkeys(same, 2), model="other", dtype="bfloat16"),
    )
    first = run("compare", *two(lines(), lines(1.0), *made)).out.splitlines()[0]
    assert first.startswith("A and B differ in model (one and other), dtype (float32 and bfloat16)")
    assert first.endswith(", f (1 and 2) and 2 more")
    is_identical = run("compare", *two(lines(), lines(1.0), made[0], made[0]))
    assert "differ in" not in is_identical.out


def test_an_input_is_not_written_over(run, two, tmp_path):
    a, b = two(lines(), lines(), made_by("score"))
    shutil.copy(b, tmp_path / "out.report.json")
    for output, other in ((tmp_path / "out", tmp_path / "out.report.json"), (a, b)):
        ran = run("compare", a, other, "--output", output)
        assert (ran.code, ran.out) == (2, "")
        assert "is an input of this run" in ran.err


def test_other_names(tmp_path):
    one, other = (tmp_path / name / "score.jsonl" for name in ("x", "y"))
    assert compare._name(one, other) == "x_score-vs-y_score"
    assert len(compare._name(tmp_path / ("a" * 200), tmp_path / ("b" * 200))) < 200


HOSTILE = "\u202e\x1b[31m<b>|`[x](http://e.org)\ud800\n# h"


def test_hostile_texts_stay_text(run, two, tmp_path):
    names = [HOSTILE, "good", f"{HOSTILE}2"]
    a = [paths(one, path([one], 0.2, 0.1), question=one) for one in names]
    b = [paths(one, path([one], 0.2, 0.4), question=one) for one in names]
    b[2]["question"] = "other"
    ran = run("compare", *two(a, b, {**made_by("paths"), HOSTILE: 1}, name="json"))
    assert ran.code == 0
    page = (tmp_path / "a-vs-b.report.md").read_text("utf-8")
    for reported in (ran.out, ran.err, page):
        assert not {"\x1b", "\u202e", "\ud800"} & set(reported)
    assert "<b>" not in page
    assert "\n# h" not in page
    assert "[x](http" not in page


def test_numbers_of_a_tables_rows(run, tmp_path):
    """The rows of a .parquet file are the lines of a .jsonl file."""
    with (
        open(tmp_path / "t.parquet", "wb") as file,
        parquet_writer(file, table_columns(SCORE, SCORE.settings())) as write_record,
    ):
        for one in lines(1.0):
            write_record({**one, "logprob": [-1.0, None]})
    a = write(tmp_path / "a.jsonl", [score(f"i{k}", -k) for k in range(N)])
    ran = run("compare", a, tmp_path / "t.parquet", "--output", tmp_path / "o")
    assert ran.code == 0
    assert result(tmp_path, "o.report.json")["results"][0]["difference"]["mean"] == -1.0


def test_a_name_without_room_for_that_of_a_manifest(run, two, tmp_path):
    a, b = two(lines(), lines(0.5))
    a = a.rename(tmp_path / f"{'n' * 245}.jsonl")
    assert run("compare", a, b, "--output", tmp_path / "o").code == 0


def test_an_input_that_cannot_be_looked_at_is_not_there(run, two):
    made = {**made_by("score"), "flags": {"input": "i" * 5000 + ".jsonl"}, "input_sha256": "0"}
    ran = run("compare", *two(lines(), lines(0.5), made))
    assert ran.code == 0
    assert "matched by id and by their scored tokens" in ran.err


def test_a_failed_item_is_no_item_with_another_text(run, two, tmp_path):
    """Two inputs that differ in bytes alone; the record of a failed item says less."""
    items = [{"id": k, "context": "c", "options": ["a", "b"]} for k in range(3)]
    one, other = (write(tmp_path / f"{name}.jsonl", items) for name in ("in", "other"))
    other.write_text(f"{other.read_text()}\n")
    good = [{**item, "sum_logprob": [-1.0, -2.0 - item["id"]], "choice": 0} for item in items]
    b = [*good[:2], {**items[2], "error": "too long"}]
    made = made_by("choose", one), made_by("choose", other)
    assert run("compare", *two(good, b, *made)).code == 1
    reported = result(tmp_path)["pairs"]
    assert (reported["compared"], reported["failed_pairs"], reported["other_text"]) == (2, 1, 0)
    assert reported["matched_by"] == "text"


def test_lists_of_a_tables_rows(run, tmp_path):
    items = [
        {"id": k, "context": "c", "options": ["a", "b"], "sum_logprob": [-2.0, -1.0 - k]}
        for k in range(3)
    ]
    items = [{**one, "choice": 1, "gold": 1, "acc": True} for one in items]
    with (
        open(tmp_path / "t.parquet", "wb") as file,
        parquet_writer(file, table_columns(CHOOSE, CHOOSE.settings())) as write_record,
    ):
        for one in items:
            write_record(one)
    a = write(tmp_path / "a.jsonl", items)
    assert run("compare", a, tmp_path / "t.parquet", "--output", tmp_path / "o").code == 0
    found = result(tmp_path, "o.report.json")
    assert (found["pairs"]["compared"], found["pairs"]["matched_by"]) == (3, "text")
    assert [one["agree"]["mean"] for one in found["decisions"]] == [1.0, 1.0]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("system", ["score", "chronologic", "paths"])
def test_runs_of_two_models(run, tmp_path, system):
    """What the commands themselves write, with their manifests."""
    found = []
    for name in ("tiny-gpt2", "tiny-qwen2"):
        folder, model = tmp_path / name, str(CASES / "models" / name)
        folder.mkdir()
        common = ("--quiet", "--journal", "off", "--dtype", "float32")
        if system == "chronologic":
            given = CASES / "chronologic/questions.jsonl"
            words = (model, given, "--full-eval", "--output-dir", folder)
        elif system == "paths":
            words = ("--model", model, "--input", CASES / "paths/input.jsonl",
                     "--output", folder / "out.json")  # fmt: skip
        else:
            given = tmp_path / "in.jsonl"
            given.write_text('{"continuation": "Oslo"}\n{"continuation": "Rome"}\n')
            words = ("--model", model, "--input", given, "--output", folder / "out.jsonl")
        assert run(system, *words, *common).code == 0
        pattern = "eval_results_*.json" if system == "chronologic" else "out.json*"
        found.append(
            next(one for one in sorted(folder.glob(pattern)) if "run.json" not in one.name)
        )
    ran = run("compare", *found, "--output", tmp_path / "o", "--quiet")
    assert (ran.code, ran.err) == (0, "")
    data = result(tmp_path, "o.report.json")
    assert data["system"] == system
    assert data["pairs"]["matched_by"] == ("input" if system == "score" else "text")
    assert data["pairs"]["compared"] == {"score": 2, "paths": 19, "chronologic": 9}[system]
    assert {"weights", "model"} <= {one["setting"] for one in data["differences"]}
    assert all(data["runs"][one]["has_manifest"] for one in "ab")


def test_from_python(two, tmp_path):
    a, b = two(lines(), lines(0.5))
    report = jaxscore.compare(a, str(b), seed=2)
    assert report.summary["sum_logprob"].difference.mean == -0.5
    assert len(report.items) == N
    assert report.items[1] == report.to_frame().to_dict("records")[1]
    assert (report.items[1]["sum_logprob_a"], report.items[1]["sum_logprob_b"]) == (-1.0, -1.5)
    assert report.markdown().startswith("# Comparison of score: ")
    with pytest.raises(jaxscore.InputError, match="no setting 'sede'; is it seed"):
        jaxscore.compare(a, b, sede=1)


def test_reports_from_python(scorers):
    texts = [("Oslo is", " in Norway"), ("Rome is", " in Italy"), ("It", " is")]
    one, other = (
        jaxscore.evaluate("score", scorers(name), texts) for name in ("tiny-gpt2", "tiny-qwen2")
    )
    report = jaxscore.compare(one, other)
    found = report.summary["sum_logprob"]
    assert found.n == 3
    assert found.mean_b == pytest.approx(sum(one["sum_logprob"] for one in other.items) / 3)
    assert any("by id and by their scored tokens" in reported for reported in report.remarks)


def test_three_runs_are_one_table(run, tmp_path):
    given = write(
        tmp_path / "in.jsonl", [{"id": f"i{k}", "continuation": str(k)} for k in range(N)]
    )
    runs = [
        write(tmp_path / f"{name}.jsonl", lines(shift), made_by("score", given, model=name))
        for name, shift in (("base", 0.0), ("q8", 0.0), ("q4", 0.5))
    ]
    ran = run("compare", *runs)
    assert (ran.code, ran.err) == (0, "")
    table = ran.out.partition("log-probability of a text, nats\n")[2].splitlines()
    assert [line.split()[:6] for line in table[1:3]] == [
        ["B", "q8", "24", "-11.5", "-11.5", "0"],
        ["C", "q4", "24", "-11.5", "-12", "-0.5"],
    ]
    assert "settings that differ: model\n" in ran.out
    found = result(tmp_path, "base-vs-q8-and-1-more.report.json")
    assert [*found["runs"]] == ["a", "b", "c"]
    alone = {}
    for label, other in zip("bc", runs[1:], strict=True):
        run("compare", runs[0], other, "--output", tmp_path / label)
        alone[label] = result(tmp_path, f"{label}.report.json")
    p_values = []
    for label, compared in found["comparisons"].items():
        assert compared["pairs"] == alone[label]["pairs"]
        for both, single in zip(compared["results"], alone[label]["results"], strict=True):
            assert both["difference"] == single["difference"]
            p_values.append((both["p"], both["p_holm"]))
            assert both["p"] == single["p"]
    assert found["n_tests"] == len(p_values) == 8
    assert min(p_values) == (1e-4, pytest.approx(8e-4))
    page = (tmp_path / "base-vs-q8-and-1-more.report.md").read_text("utf-8")
    assert "| Setting | A | B | C |" in page
    assert "| model | base | q8 | q4 |" in page
    assert (tmp_path / "base-vs-q8-and-1-more.report.html").exists()


def test_a_third_run_of_other_items_is_named_by_its_letter(run, two, tmp_path):
    a, b = two(lines(), lines())
    c = write(tmp_path / "c.jsonl", [score("other")])
    ran = run("compare", a, b, c)
    assert ran.code == 2
    assert "of 24 in A and 1 in C none is in both" in ran.err


def test_runs_from_python_are_compared_with_the_first(two):
    a, b = two(lines(), lines(0.5))
    table = jaxscore.compare(a, b, b)
    assert [*table.results] == ["B", "C"]
    assert repr(table).startswith("<Report compare: 3 runs; log-probability of a text, nats: A -11")
