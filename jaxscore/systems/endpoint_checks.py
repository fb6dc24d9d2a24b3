"""Settings that an endpoint cannot do, refused before anything is asked."""

from collections.abc import Mapping

from jaxscore.endpoints.completions import BOUNDARIES as POSSIBLE
from jaxscore.errors import InputError
from jaxscore.systems.prompt_settings import PromptSettings
from jaxscore.systems.scoring_run import NO_LAYOUTS
from jaxscore.text.encoder import Boundary


def check(settings: PromptSettings, boundary: str | None, policies: Mapping[str, Boundary]) -> None:
    """Refuse settings of a system that the server of an endpoint cannot do.

    Args:
        boundary: the one asked for, a key of `policies`; None where no continuation is scored.
        policies: names of the boundaries that the system has -> policies of
            `jaxscore.text.encoder`.

    Raises:
        InputError: naming the setting.
    """
    if settings.apply_chat_template:
        raise InputError(
            "apply_chat_template: the template is part of a tokenizer, and an endpoint shows none; "
            "take a local model"
        )
    if settings.audit_noise:
        raise InputError(NO_LAYOUTS)
    if boundary is not None and policies[boundary] not in POSSIBLE:
        others = " or ".join(name for name, policy in policies.items() if policy in POSSIBLE)
        raise InputError(
            f"boundary {boundary}: an endpoint encodes context and answer as one text; give "
            f"{others}, or take a local model"
        )
    if settings.truncate is not None:
        raise InputError("truncate: an endpoint takes texts as they are; take a local model")
