"""`config.yaml`: plain values only, and whatever is there of them."""

import pytest

from jaxscore.errors import InputError
from jaxscore.systems.rag.experiment_folder import read_config

FULL = """
dataset:
  dev:
    query: {init_args: {_target_: modules.dataset_processor.KILTNQ, split: validation}}
    doc: {init_args: {_target_: modules.processors.kilt.KILT100w}}
retriever: {init_args: {model_name: naver/splade-v3}}
reranker: {init_args: {model_name: naver/deberta}}
generator: {init_args: {model_name: meta/llama}}
retrieve_top_k: 50
rerank_top_k: 20
generation_top_k: 5
"""


def write(tmp_path, text):
    raw = text if isinstance(text, bytes) else text.encode("utf-8")
    (tmp_path / "config.yaml").write_bytes(raw)
    return tmp_path


def test_a_whole_config(tmp_path):
    assert read_config(write(tmp_path, FULL), "dev") == {
        "query_dataset": "KILTNQ",
        "doc_dataset": "modules.processors.kilt.KILT100w",
        "Retriever": "naver/splade-v3",
        "Reranker": "naver/deberta",
        "Generator": "meta/llama",
        "r_top": 50,
        "rr_top": 20,
        "generation_top_k": 5,
    }


@pytest.mark.parametrize(
    "text",
    ["", "# nothing", "dataset: [1]", "retriever: null\nretrieve_top_k: 5", "generation_top_k: no",
     "dataset: {test: {query: x}}", "\ufeff{}", "retriever: {init_args: {model_name: [a]}}",
     "generation_top_k: -1"],
)  # fmt: skip
def test_what_is_not_there_is_none(tmp_path, text):
    got = read_config(write(tmp_path, text), "dev")
    assert got == dict.fromkeys(got)


def test_no_config(tmp_path):
    got = read_config(tmp_path, "dev")
    assert got == dict.fromkeys(got)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "not usable YAML"),
        ("a: 2024-99-99", "not usable YAML"),
        ("!!python/object/apply:os.system ['exit 1']", "not usable YAML"),
        ("[" * 5000, "not usable YAML"),
        ("- a", "found a list, expected a mapping"),
        (b"a: \xff", "config.yaml:1: byte 4 is not UTF-8"),
    ],
)
def test_a_bad_config(tmp_path, text, why):
    with pytest.raises(InputError, match=r"config\.yaml") as problem:
        read_config(write(tmp_path, text), "dev")
    assert why in str(problem.value)
