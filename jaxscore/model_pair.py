"""A `Scorer` of a pair of models, whose results include their divergences."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jaxscore.engine import provenance
from jaxscore.engine.batch_tokens import BatchTokens
from jaxscore.engine.devices import use_device
from jaxscore.engine.loading import Loaded, load_checkpoint
from jaxscore.errors import InputError
from jaxscore.io.local_path import local_path
from jaxscore.journal import Journal
from jaxscore.lm import Capabilities
from jaxscore.models.model import Model, paired
from jaxscore.models.model_types import DtypeOption, ImplementationOption, Quantize
from jaxscore.scorer import Scorer
from jaxscore.text.tokenize_requests import Chunk, WindowTokenizer
from jaxscore.text.tokenizer import tokenizer_difference
from jaxscore.types.results import ScoredRequest

# Entries of `Loaded.about` that differ between the models of a pair.
MODEL_FACTS = (
    "model",
    "model_type",
    "dtype",
    "quantize",
    "implementation",
    "transformers",
    "accepted_config",
)
# Entries of `provenance.of_model` that the models of a run share.
RUN_FACTS = frozenset({"mesh", "reproducible", "device"})
SAME_WEIGHTS = (
    "both models have the same weights and settings, so a divergence comes from rounding alone"
)
ALIKE = (
    "--model and --reference are the same model with the same settings, so every divergence is 0; "
    "give another --reference, or another --reference-dtype, --reference-quantize, "
    "--reference-lora or --reference-revision"
)


class DivergenceScorer(Scorer):
    """A scorer of text under a model p that also measures its divergence from a reference q.

    `score` and `stream` return results of p, whose `measures` compare both models
    (`jaxscore.device.lm_head.divergence.MEASURES`). Generation is not supported.

    Example:
        >>> scorer = DivergenceScorer.from_pretrained("demo", "demo", reference_dtype="bfloat16")
        >>> [scored] = scorer.score([("The capital of Norway is", " Oslo")])
        >>> scored.measures["kl"]

    Attributes:
        is_identical: True if both models have the same weights and settings.
    """

    is_identical: bool = False
    _models: tuple[Model, ...] = ()
    _origin_of_reference: tuple[Any, ...] = (None, None, None, None)

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(
            super().capabilities, compares_models=True, generates=False, takes_messages=False
        )

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings about the models' files, and a note if both have the same weights."""
        return (*super().remarks, *([SAME_WEIGHTS] if self.is_identical else []))

    @property
    def models(self) -> tuple[Model, ...]:
        """p and q, or the combined pair if it was not loaded from checkpoints."""
        return self._models or super().models

    @classmethod
    def from_pretrained(  # type: ignore[override]  # two models
        cls,
        model: str,
        reference: str,
        *,
        device: str | None = None,
        dtype: DtypeOption = "auto",
        implementation: ImplementationOption = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
        cache_dir: Path | None = None,
        lora: str | Path | None = None,
        quantize: Quantize | None = None,
        reference_dtype: DtypeOption | None = None,
        reference_implementation: ImplementationOption | None = None,
        reference_revision: str | None = None,
        reference_lora: str | Path | None = None,
        reference_quantize: Quantize | None = None,
        batch_tokens: int | str | None = None,
        progress: bool = False,
        journal: str | Path | None = None,
        mesh: str | None = None,
        reproducible: bool = False,
        accept_config: Sequence[str] = (),
        reference_accept_config: Sequence[str] = (),
        prefix_token_id: int | None = None,
        chat_template_args: Mapping[str, Any] | None = None,
    ) -> "DivergenceScorer":  # over 60 lines: mostly public parameters
        """Load two checkpoints onto the same devices.

        Args:
            model, reference: p and q: a local folder, a hub id, or "demo".
            reference_dtype, reference_implementation: the settings of q; None means those of p.
            reference_revision, reference_lora, reference_quantize, reference_accept_config: the
                settings of q; None means unset.
            mesh: see `Scorer.from_pretrained`. "auto" assigns half of the memory to each model, and
                both models use the same mesh.

        Other arguments: see `Scorer.from_pretrained`.

        Raises:
            InputError: a model or the journal cannot be used, both models have the same settings,
                or their tokenizers or numbers of columns differ.
        """
        use_device(device)
        p_settings = _settings(dtype, implementation, revision, lora, quantize)
        q_settings = _settings(
            reference_dtype or dtype,
            reference_implementation or implementation,
            reference_revision,
            reference_lora,
            reference_quantize,
        )
        same_checkpoint = (
            _resolve(model) == _resolve(reference)
            and p_settings["revision"] == q_settings["revision"]
        )
        if same_checkpoint and p_settings == q_settings:
            raise InputError(ALIKE)
        shared: dict[str, Any] = {
            "trust_remote_code": trust_remote_code,
            "cache_dir": cache_dir,
            "reproducible": reproducible,
            "n_models": 2,
            "generates": False,
        }
        p = load_checkpoint(model, mesh=mesh, accept_config=accept_config, **p_settings, **shared)
        q = load_checkpoint(
            reference,
            mesh=mesh and str(p.model.devices.shape),
            accept_config=reference_accept_config,
            **q_settings,
            **shared,
        )
        is_identical = p.about == q.about
        if same_checkpoint and is_identical:
            raise InputError(ALIKE)
        if (
            difference := tokenizer_difference(p.encoder.tokenizer, q.encoder.tokenizer)
        ) is not None:
            raise InputError(
                f"--model {model} and --reference {reference} have different tokenizers: "
                f"{difference}; a divergence compares probabilities of the same tokens"
            )
        p.customize(prefix_token_id, chat_template_args)
        both = paired(p.model, q.model)
        about = _about(p, q)
        # Without measures the compiler would remove all of q.
        measures = both.functions.measures
        size = BatchTokens(batch_tokens, reproducible=reproducible, measures=measures)
        scorer = cls(
            both,
            p.encoder,
            batch_tokens=size.choose(both),
            progress=progress,
            journal=None if journal is None else Journal(local_path(str(journal)), about),
            reproducible=reproducible,
        )
        scorer._models, scorer.is_identical, scorer.about = (p.model, q.model), is_identical, about
        scorer._origin = model, revision, cache_dir, p_settings["lora"]
        scorer._origin_of_reference = reference, reference_revision, cache_dir, q_settings["lora"]
        return scorer

    def describe(self) -> dict[str, Any]:
        """Describe p like `Scorer`, and q with the keys `reference`, `reference_dtype`, …"""
        if not self._models:
            return super().describe()
        p_facts, q_facts = (
            provenance.of_model(name, model, *origin, reproducible=self.reproducible)
            for model, (name, *origin) in zip(
                self._models, (self._origin, self._origin_of_reference), strict=True
            )
        )
        return p_facts | {
            "reference" if name == "model" else f"reference_{name}": value
            for name, value in q_facts.items()
            if name not in RUN_FACTS
        }

    def facts(self) -> dict[str, Any]:
        stored_as = self.models[-1].checkpoint.stored_as
        return ({"reference_stored_as": stored_as} if stored_as else {}) | super().facts()

    def _stream(
        self,
        chunks: Iterator[Chunk],
        windows: WindowTokenizer,
        n_requests: int | None,
        measures: Collection[str],
        top: int,
        classes: Mapping[str, Iterable[int]] | None,
    ) -> Iterator[ScoredRequest]:
        """Request all measures of the pair unless others are requested."""
        measures = measures or self.model.functions.measures
        return super()._stream(chunks, windows, n_requests, measures, top, classes)

    @classmethod
    def from_tensors(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise an error: not supported.

        Raises:
            InputError: a pair takes two checkpoints.
        """
        raise InputError(
            "a DivergenceScorer takes checkpoints; see DivergenceScorer.from_pretrained"
        )

    @classmethod
    def from_function(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse, like `from_tensors`."""
        cls.from_tensors()

    def update(self, values: Any) -> NoReturn:
        """Raise an error: not supported.

        Raises:
            InputError: a pair has two models.
        """
        raise InputError("a DivergenceScorer takes no other weights; update a Scorer of each model")

    def generate(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an error: not supported.

        Raises:
            InputError: two models cannot generate together.
        """
        raise InputError(
            "a DivergenceScorer generates no text; load one model with Scorer.from_pretrained"
        )


def _settings(
    dtype: DtypeOption,
    implementation: ImplementationOption,
    revision: str | None,
    lora: str | Path | None,
    quantize: Quantize | None,
) -> dict[str, Any]:
    """Return the settings of one model for `load_checkpoint`."""
    return {
        "dtype": dtype,
        "implementation": implementation,
        "revision": revision,
        "lora": None if lora is None else local_path(str(lora)),
        "quantize": quantize,
    }


def _resolve(name: str) -> str:
    """Return the resolved path of a local folder, or the name of another model."""
    path = Path(name)
    return str(path.resolve()) if path.exists() else name


def _about(p: Loaded, q: Loaded) -> dict[str, Any]:
    """Return the facts that determine a pair's numbers: the identity of its journal entries."""
    return p.about | {f"reference_{name}": q.about[name] for name in MODEL_FACTS if name in q.about}
