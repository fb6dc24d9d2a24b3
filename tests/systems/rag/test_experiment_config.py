"""`config.yaml`: plain values only, and whatever is there of them."""

import dataclasses

import pytest

from jaxscore.errors import InputError
from jaxscore.systems.rag import experiment_config

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
    assert experiment_config.load(write(tmp_path, FULL), "dev") == experiment_config.Experiment(
        query_dataset="KILTNQ",
        doc_dataset="modules.processors.kilt.KILT100w",
        retriever="naver/splade-v3",
        reranker="naver/deberta",
        generator="meta/llama",
        retrieve_top_k=50,
        rerank_top_k=20,
        generation_top_k=5,
    )


@pytest.mark.parametrize(
    "text",
    ["", "# nothing", "dataset: [1]", "retriever: null\nretrieve_top_k: 5", "generation_top_k: no",
     "dataset: {test: {query: x}}", "\ufeff{}", "retriever: {init_args: {model_name: [a]}}",
     "generation_top_k: -1"],
)  # fmt: skip
def test_what_is_not_there_is_none(tmp_path, text):
    got = dataclasses.asdict(experiment_config.load(write(tmp_path, text), "dev"))
    assert got == dict.fromkeys(got)


def test_no_config(tmp_path):
    got = dataclasses.asdict(experiment_config.load(tmp_path, "dev"))
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
        experiment_config.load(write(tmp_path, text), "dev")
    assert why in str(problem.value)
