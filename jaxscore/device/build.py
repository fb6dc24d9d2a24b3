"""How a decoder's program is built, beside the config that says what it computes."""

import dataclasses

from jaxscore.device.backends import FORMS, Forms
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.mesh_shape import MODEL


@dataclasses.dataclass(frozen=True)
class Build:
    """Forms, and heads, inner widths, experts and vocabulary over the devices of the axis MODEL.

    Functions of a decoder that is split run inside `jax.shard_map`, on parameters as
    `device.sharding` places them; the sizes of a `DecoderConfig` are the whole model's.

    Attributes:
        forms: for the platform that the program is compiled for.
        shards: how many devices; 1 is no split.
    """

    forms: Forms = FORMS["cpu"]
    shards: int = 1

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ValueError(f"shards is {self.shards}, expected at least 1")

    @property
    def axis(self) -> str | None:
        """The mesh axis to sum over, None on one device."""
        return MODEL if self.shards > 1 else None

    def vocabulary_axis(self, config: DecoderConfig) -> str | None:
        """The same for embedding and unembedding, which are whole where they do not divide."""
        return self.axis if not config.vocab_size % self.shards else None

    def whole_kv(self, config: DecoderConfig) -> bool:
        """Whether each shard computes all key heads and keeps the one that its queries use."""
        return config.n_kv_heads % self.shards != 0


ON_CPU = Build()
