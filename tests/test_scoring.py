"""`jaxscore.Scoring`: tables in, the same tables with typed columns out."""

import datetime
import decimal
import json
import os
import pickle
import shutil
import subprocess
import sys

import datasets
import numpy as np
import pandas
import pyarrow
import pytest
from safetensors.numpy import load_file, save_file

import jaxscore
from jaxscore import InputError, Scoring, evaluate, scoring
from tests.conftest import CASES, ROOT

MODEL = str(CASES / "models/tiny-qwen2")
TEXTS = ["The cat sat", "One two, three", None, "été 🙂"]
TABLE = pyarrow.table(
    {
        "n": pyarrow.array([3, 1, 2, 4], pyarrow.int16()),
        "text": TEXTS,
        "price": pyarrow.array([decimal.Decimal("1.50")] * 4, pyarrow.decimal128(5, 2)),
        "day": [datetime.date(2026, 1, k) for k in (1, 2, 3, 4)],
        "tags": [["a"], [], None, ["b", "c"]],
    },
    metadata={"owner": "me"},
)


@pytest.fixture
def loads(monkeypatch, scorers):
    """Names of the models that are loaded; the session's scorer stands in for them."""
    loaded, scorer = [], scorers("tiny-qwen2", batch_tokens=256)

    def load(model, **options):
        loaded.append((model, options))
        return scorer

    monkeypatch.setattr(scoring.Scorer, "from_pretrained", load)
    monkeypatch.setattr(scoring, "_loaded", {})
    return loaded


def score(**more):
    return Scoring(MODEL, columns={"continuation": "text"}, dtype="float32", **more)


def expected(scorers):
    rows = [{"continuation": text} for text in TEXTS]
    return evaluate("score", scorers("tiny-qwen2", batch_tokens=256), rows).items


def test_a_table_keeps_its_columns_and_gets_typed_results(loads, scorers):
    found = score()(TABLE)
    assert found.select(TABLE.column_names).equals(TABLE)
    assert found.schema.metadata[b"owner"] == b"me"
    assert found.schema.field("sum_logprob").type == pyarrow.float64()
    assert found.schema.field("logprob").type == pyarrow.list_(pyarrow.float32())
    assert found.schema.field("n_tokens").type == pyarrow.int64()
    assert "context" not in found.column_names
    for row, record in zip(found.to_pylist(), expected(scorers), strict=True):
        assert row["error"] == record.get("error")
        assert row["sum_logprob"] == pytest.approx(record.get("sum_logprob"), abs=1e-5)
        assert row["tokens"] == record.get("tokens")
    assert "continuation" in found.column("error")[2].as_py()
    made = json.loads(found.schema.metadata[b"jaxscore"])
    assert made["system"] == "score"
    assert made["version"] == jaxscore.__version__


def test_the_model_is_loaded_once_and_only_if_there_are_rows(loads):
    scored = score()
    empty = scored(TABLE.slice(0, 0))
    assert loads == []
    assert empty.schema.equals(scored.schema(TABLE.schema))
    first = scored(TABLE)
    assert first.schema.equals(empty.schema)
    score()(TABLE)
    assert loads == [(MODEL, {"dtype": "float32"})]


def test_a_pickled_scoring_scores_the_same(loads):
    scored = score(summary_only=True)
    raw = pickle.dumps(scored)
    assert b"numpy" not in raw
    again = pickle.loads(raw)
    assert again(TABLE).equals(scored(TABLE))
    assert len(raw) < 1000  # its arguments, and no model


def test_frames_batches_and_dicts(loads):
    scored = score(summary_only=True)
    want = scored(TABLE).column("sum_logprob").to_pylist()
    frame = pandas.DataFrame({"text": TEXTS}, index=[7, 8, 9, 3])
    found = scored(frame)
    assert found.index.tolist() == [7, 8, 9, 3]
    np.testing.assert_array_equal(found["sum_logprob"], np.array(want, float))
    assert scored({"text": TEXTS})["sum_logprob"] == want
    arrays = score()({"text": np.array(["The cat sat", "One two, three"])})
    assert arrays["n_tokens"].dtype == np.int64
    np.testing.assert_allclose(arrays["sum_logprob"], want[:2], atol=1e-4)
    assert [len(one) for one in arrays["logprob"]] == arrays["n_tokens"].tolist()
    [batch] = scored.on_batches(TABLE.to_batches())
    assert pyarrow.Table.from_batches([batch]).column("sum_logprob").to_pylist() == want
    [none] = scored.on_batches(
        [
            TABLE.slice(0, 0).combine_chunks().to_batches()
            or pyarrow.RecordBatch.from_pylist([], TABLE.schema)
        ]
    )
    assert none.num_rows == 0


def test_other_systems(loads, scorers):
    items = {"context": ["The cat"] * 2, "options": [[" sat", " ran"], None], "gold": [0, 1]}
    found = Scoring(MODEL, "choose")(pyarrow.table(items))
    rows = [dict(zip(items, values, strict=True)) for values in zip(*items.values(), strict=True)]
    record = evaluate("choose", scorers("tiny-qwen2", batch_tokens=256), rows[:1]).items[0]
    assert found.column("choice")[0].as_py() == record["choice"]
    np.testing.assert_allclose(found.column("sum_logprob")[0].as_py(), record["sum_logprob"])
    assert found.column("choice")[1].as_py() is None
    assert found.column("error")[1].as_py()
    nothing = Scoring(MODEL, "choose")({"context": ["a"], "options": [None]})
    assert nothing["choice"] == [None]
    top = score(measures=("top_k",), top_k=2)(TABLE.slice(0, 1))
    assert top.schema.field("top_logprob").type == pyarrow.list_(pyarrow.list_(pyarrow.float64()))
    none, *others = top.column("top_id")[0].as_py()  # the first token has nothing before it
    assert none is None
    assert [len(row) for row in others] == [2] * top.column("n_scored")[0].as_py()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scoring(MODEL, "scores"), "no system 'scores'"),
        (lambda: Scoring(MODEL, "paths"), "system paths gives no row per item"),
        (lambda: Scoring(MODEL, "divergence"), "system divergence gives no row per item"),
        (lambda: Scoring(MODEL, "probsem"), "system probsem gives no row per item"),
        (lambda: Scoring(MODEL, "chronologic"), "system chronologic gives no row per item"),
        (lambda: Scoring(MODEL, boundry="joint"), "is it boundary"),
        (lambda: Scoring(MODEL, boundary="x"), "boundary"),
        (lambda: Scoring(MODEL, journal="j"), "no setting 'journal'"),
        (lambda: Scoring(MODEL, columns={"text": "continuation"}), "columns has 'text'"),
        (lambda: score()({"body": ["a"]}), 'the table lacks the column "text"'),
        (lambda: Scoring(MODEL)({"body": ["a"]}), "has the columns body, expected some of"),
        (lambda: score()({"text": ["a"], "logprob": [1]}), 'has a column "logprob"'),
        (lambda: score()(["a"]), "found list, expected a pyarrow Table"),
    ],
)
def test_refusals(loads, make, message):
    with pytest.raises(InputError, match=message):
        make()
    assert loads == []


def test_datasets_map(loads):
    """The recipe of the page."""
    rows = datasets.Dataset.from_dict({"text": ["The cat sat", "One two, three"], "n": [1, 2]})
    found = rows.map(score(summary_only=True), batched=True, batch_size=1)
    assert found["n"] == [1, 2]
    want = score()({"text": rows["text"]})["sum_logprob"]
    np.testing.assert_allclose(found["sum_logprob"], want, atol=1e-4)


def test_weights_that_training_replaced_are_loaded_again(tmp_path):
    """The folder keeps its name, as that of a training run's last checkpoint does."""
    folder = tmp_path / "last"
    shutil.copytree(CASES / "models/tiny-gpt2", folder)
    table = {"continuation": ["The cat sat."]}
    first = Scoring(str(folder))(table)["sum_logprob"]
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"] * 0.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert Scoring(str(folder))(table)["sum_logprob"] != first


FORKED = """
import multiprocessing, sys, warnings

import jax
from jaxscore import Scorer, Scoring, evaluate

warnings.simplefilter("ignore")  # JAX warns of every fork
MODEL, TABLE = {model!r}, {{"continuation": ["The cat sat"]}}


def call(use, *args):
    try:
        result = use(*args)
    except Exception as problem:
        return f"{{type(problem).__name__}}: {{problem}}"
    return float(result)


def scoring():
    return SCORING(TABLE)["sum_logprob"][0]


def scorer():
    return SCORER.score(["The cat sat"])[0].sum_logprob


def label():
    return SCORER.choose("The cat", [" sat", " ran"]).p[0]


def loaded():
    return Scorer.from_pretrained(MODEL).batch_tokens


def generated():
    return len(SCORER.generate("The cat", max_new_tokens=2)[0].token_ids)


def evaluated():
    return evaluate("score", SCORER, [{{"continuation": "The cat sat"}}]).items[0]["sum_logprob"]


def in_child(method, use):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(call, (use,))


SCORING = Scoring(MODEL)
if __name__ == "__main__":
    {body}
"""


def forked(body, tmp_path):
    """Lines that a program prints, with the parts of `FORKED`; a hang would end with an error."""
    script = tmp_path / "program.py"
    script.write_text(FORKED.format(model=MODEL, body=body), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(script)], env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert not ran.returncode, ran.stderr[-2000:]
    return ran.stdout.splitlines()


def test_a_worker_that_was_forked_before_the_first_call_scores(tmp_path):
    body = 'print(in_child("fork", scoring)); print(call(scoring))'
    of_worker, own = forked(body, tmp_path)
    assert float(of_worker) == float(own) < 0


REFUSED = "was forked from process"


def test_a_worker_that_was_forked_after_the_first_call_is_refused_by_name(tmp_path):
    """And one that was spawned scores."""
    body = """
    print(call(scoring))
    print(in_child("fork", scoring))
    SCORER = Scorer.from_pretrained(MODEL)
    for use in loaded, scorer, label, generated, evaluated:
        print(in_child("fork", use))
    print(in_child("spawn", scoring))"""
    own, *refused, spawned = forked(body, tmp_path)
    assert len(refused) == 6
    for line in refused:
        assert line.startswith("InputError: ")
        assert REFUSED in line
        assert "start workers by spawn" in line
    assert float(spawned) == float(own)


@pytest.mark.slow
def test_a_worker_of_a_parent_that_used_jax_alone_is_refused(tmp_path):
    body = 'jax.numpy.ones(3).sum(); print(in_child("fork", scoring))'
    [line] = forked(body, tmp_path)
    assert line.startswith("InputError: ")
    assert REFUSED in line


@pytest.mark.slow
def test_workers_of_datasets_and_data_loaders_are_refused_after_the_first_call(tmp_path):
    body = """
    import datasets, torch

    def load():
        texts = torch.utils.data.DataLoader([1, 2], num_workers=1, collate_fn=lambda _: scoring())
        return next(iter(texts))

    def map_rows():
        rows = datasets.Dataset.from_dict(TABLE | {"n": [1]})
        rows = datasets.concatenate_datasets([rows, rows])
        return len(rows.map(SCORING, batched=True, num_proc=2))

    print(call(map_rows))
    print(call(scoring))
    for use in load, map_rows:
        print(REFUSED in call(use))""".replace("REFUSED", repr(REFUSED))
    n_rows, own, *refused = forked(body, tmp_path)
    assert float(n_rows) == 2
    assert float(own) < 0
    assert refused == ["True", "True"]
