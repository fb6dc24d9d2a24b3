"""`config.yaml` of an experiment folder: what retrieved, ranked and answered."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import check_regular, json_kind
from jaxscore.io.yaml_input import read_yaml

PROCESSORS = "modules.dataset_processor."  # before the name of a data set's class


@dataclasses.dataclass(frozen=True, slots=True)
class Experiment:
    """What a config says; None where it says nothing.

    Attributes:
        retrieve_top_k, rerank_top_k: documents kept by each stage.
        generation_top_k: documents that the generator reads, the k of recall_k.
    """

    query_dataset: str | None
    doc_dataset: str | None
    retriever: str | None
    reranker: str | None
    generator: str | None
    retrieve_top_k: int | None
    rerank_top_k: int | None
    generation_top_k: int | None


def load(folder: Path, split: str) -> Experiment:
    """The config of a folder; all None where it has no `config.yaml`.

    Raises:
        InputError: the file cannot be read, is not YAML of plain values, or is no mapping.
    """
    path = folder / "config.yaml"
    config = _read(path)
    retriever, reranker = _text(config, "retriever"), _text(config, "reranker")
    return Experiment(
        query_dataset=_dataset(config, split, "query"),
        doc_dataset=_dataset(config, split, "doc"),
        retriever=retriever,
        reranker=reranker,
        generator=_text(config, "generator"),
        # A config names them also for a stage that it does not have.
        retrieve_top_k=_whole(config, "retrieve_top_k") if retriever else None,
        rerank_top_k=_whole(config, "rerank_top_k") if reranker else None,
        generation_top_k=_whole(config, "generation_top_k"),
    )


def _read(path: Path) -> dict[str, Any]:
    check_regular(path)
    value = read_yaml(path) if os.path.lexists(path) else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{path}: found {json_kind(value)}, expected a mapping of settings")
    return value


def _text(config: dict[str, Any], module: str) -> str | None:
    value = _at(config, module, "init_args", "model_name")
    return value if isinstance(value, str) else None


def _dataset(config: dict[str, Any], split: str, part: str) -> str | None:
    value = _at(config, "dataset", split, part, "init_args", "_target_")
    return value.replace(PROCESSORS, "") if isinstance(value, str) else None


def _whole(config: dict[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int and value > 0 else None


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
