"""Drawn ids from `sample` on through the commands: tables, runs that go on, shards."""

import json

import pytest

from jaxscore.systems.drawn_tokens import ID_FIELDS
from tests.cli.conftest import QWEN, strict

ASKED = [{"id": k, "prompt": f"How many days did {name} travel?"} for k, name in enumerate("abcd")]
MODEL = ("--model", QWEN, "--dtype", "float32", "--journal", "off")


def sample(folder, *more, n=3):
    return (
        "sample", "--input", folder / "in.jsonl", "--output", folder / "s.json", "-n", n,
        "--temperature", 2, "--max-new-tokens", 10, *MODEL, *more,
    )  # fmt: skip


def result(path):
    return strict(path.read_text(encoding="utf-8"))


def confidences(run, path, *more):
    """Confidences of a file's outputs, and what the command says of their ids."""
    out = path.with_name(f"{path.name}.out.json")
    code, _, err = run("self-certainty", "--input", path, "--output", out, *MODEL, *more)
    assert code == 0, err
    return [one["confidence_list"] for one in result(out)], [
        line for line in err.splitlines() if "token_ids" in line
    ]


def test_ids_come_back_from_every_form_of_input(run, place):
    """Parquet has lists of lists, CSV JSON text."""
    pandas = pytest.importorskip("pandas")
    folder = place(*ASKED[:2])
    assert run(*sample(folder)).code == 0
    records = result(folder / "s.json")
    want, said = confidences(run, folder / "s.json")
    assert said == []
    names = ["model_input", "output", *ID_FIELDS]
    frame = pandas.DataFrame([{name: record[name] for name in names} for record in records])
    frame.to_parquet(folder / "s.parquet")
    for name in names[1:]:
        frame[name] = [json.dumps(value) for value in frame[name]]
    frame.to_csv(folder / "s.csv", index=False)
    frame.to_csv(folder / "s.tsv", index=False, sep="\t")
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    (folder / "s.jsonl").write_text(lines, encoding="utf-8")
    for name in ("s.parquet", "s.csv", "s.tsv", "s.jsonl"):
        assert confidences(run, folder / name) == (want, []), name


def test_ids_are_on_one_line_of_the_file(run, place):
    folder = place(ASKED[0])
    assert run(*sample(folder)).code == 0
    text = (folder / "s.json").read_text(encoding="utf-8")
    [record] = json.loads(text)
    for name in ID_FIELDS:
        assert f'        "{name}": {json.dumps(record[name])},\n' in text
    others = {name: value for name, value in record.items() if name not in ID_FIELDS}
    left = [line for line in text.splitlines() if "token_ids" not in line]
    assert "\n".join(left) == json.dumps([others], indent=4)


def test_samples_of_an_earlier_version_stay_unless_more_are_requested(run, place):
    folder = place(*ASKED[:2])
    assert run(*sample(folder, n=2)).code == 0
    records = result(folder / "s.json")
    old = [{k: v for k, v in one.items() if k not in ID_FIELDS} for one in records]
    text = json.dumps(old, indent=4) + "\n"
    (folder / "s.json").write_text(text, encoding="utf-8")
    (folder / "s.json.run.json").unlink()  # has the digest of the file with ids
    assert run(*sample(folder, n=2)).code == 0  # nothing is left to do
    assert (folder / "s.json").read_text(encoding="utf-8") == text
    _, said = confidences(run, folder / "s.json")
    assert said[-1].startswith("4 outputs have no token_ids: ")
    (folder / "s-confidence-list.json").unlink(missing_ok=True)
    assert run(*sample(folder, n=3)).code == 0
    for one, before in zip(result(folder / "s.json"), records, strict=True):
        assert one["token_ids"][:2] == before["token_ids"]
        assert one["output"][:2] == before["output"]


def test_confidences_of_encoded_texts_are_not_kept_for_drawn_ids(run, place):
    """The same texts come first without and then with their ids."""
    folder = place(*ASKED[:2])
    assert run(*sample(folder)).code == 0
    records, path = result(folder / "s.json"), folder / "in.json"
    want, _ = confidences(run, folder / "s.json")
    old = [{k: v for k, v in one.items() if k not in ID_FIELDS} for one in records]
    path.write_text(json.dumps([old[0], records[1]]), encoding="utf-8")
    mixed, _ = confidences(run, path)
    assert mixed[0] != want[0]
    path.write_text(json.dumps(records), encoding="utf-8")
    now, _ = confidences(run, path)
    for values, expected in zip(now, want, strict=True):
        assert values == pytest.approx(expected, abs=1e-5)


def test_shards_count_texts_without_ids_together(run, place, tmp_path):
    folder = place(*ASKED)
    assert run(*sample(folder)).code == 0
    records = result(folder / "s.json")
    (tmp_path / "parts").mkdir()
    for k in range(2):
        part = [
            {n: v for n, v in one.items() if n not in ID_FIELDS} for one in records[2 * k :][:2]
        ]
        part[0] |= {name: records[2 * k][name] for name in ID_FIELDS}
        part[0]["output"] = ["edited", *part[0]["output"][1:]]
        (tmp_path / f"parts/{k}.json").write_text(json.dumps(part), encoding="utf-8")
    words = ("self-certainty", "--input", tmp_path / "parts", "--output", f"{tmp_path / 'out'}/")
    code, _, err = run(*words, *MODEL)
    assert code == 0, err
    code, _, err = run("merge", tmp_path / "out", "--output", tmp_path / "all.json")
    assert code == 0, err
    said = [line for line in err.splitlines() if "token_ids" in line]
    [without] = [line for line in said if "have no token_ids" in line]
    [stale] = [line for line in said if "not those of the texts" in line]
    assert without.startswith("6 outputs have no token_ids: ")
    assert stale.startswith("2 outputs have token_ids that are not those of the texts")
    assert all("prompt_token_ids" in one for one in result(tmp_path / "all.json")[::2])


def test_a_prompt_with_the_name_of_a_result_is_refused(run, place):
    folder = place({"prompt": "Who?", "token_ids": [1]}, ASKED[0])
    code, _, err = run(*sample(folder))
    assert code == 1
    assert 'field "token_ids" has the name of a result' in err
