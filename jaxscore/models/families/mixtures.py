"""Fields of a decoder with a mixture of experts, and names of attributes that mixtures share."""

from typing import Any

from jaxscore.device.decoder_config import Experts, OtherMlp
from jaxscore.errors import InputError

# A layer behind the last one that predicts a token more; the released checkpoints carry it, and
# nothing that scores text reads it.
NEXT_TOKENS = "num_nextn_predict_layers"
TRAINING = "output_router_logits router_aux_loss_coef"


def check_counts(experts: Experts, attribute: str = "num_experts_per_tok") -> Experts:
    """The same experts, if there are enough to choose from.

    Args:
        attribute: of the config, with the number of experts per token.

    Raises:
        InputError: more experts per token than there are, or groups that do not fit.
    """
    count, groups, kept = experts.count, experts.groups, experts.groups_per_token
    if groups < 1 or count % groups or not 1 <= kept <= groups:
        raise InputError(
            f"{count} experts in {groups} groups, {kept} of them per token: expected groups of "
            "equal size, and at most all of them"
        )
    of_groups = count // groups
    if groups > kept and of_groups < experts.group_rank:
        raise InputError(
            f"groups have {of_groups} experts, expected at least {experts.group_rank}, by whose "
            "scores a group is ranked"
        )
    if not 1 <= experts.per_token <= of_groups * kept:
        raise InputError(
            f"{attribute} is {experts.per_token}, expected 1 to {of_groups * kept} of "
            f"{count} experts"
        )
    return experts


def mlps(
    config: Any,
    experts: Experts,
    width: int,
    plain: tuple[int, ...],
    plain_width: int,
    per_token: str = "num_experts_per_tok",
) -> dict[str, Any]:
    """The MLP fields of a decoder, some of whose layers have a plain MLP instead of experts.

    Args:
        width: of an expert.
        plain: layers without experts.
        plain_width: of their MLP.
        per_token: the attribute with the number of experts per token.
    """
    if len(plain) == config.num_hidden_layers:
        return {"mlp_width": plain_width}
    other = OtherMlp(plain, plain_width) if plain else None
    return {"mlp_width": width, "experts": check_counts(experts, per_token), "other_mlp": other}
