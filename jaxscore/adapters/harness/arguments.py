"""What model arguments may hold: hf's names where hf has them, and jaxscore's own."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from jaxscore.adapters.harness.idle import IDLE
from jaxscore.adapters.harness.readers import READERS, UNSAID, ArgumentError

MAX_GEN_TOKS = 256  # as hf


@dataclasses.dataclass(frozen=True)
class Arguments:
    """`model_args`, read.

    Attributes:
        pretrained: a folder, a hub id, "demo", or a `Scorer`.
        tokenizer: a folder or hub id of another tokenizer.
        max_length: tokens that the model reads at most; None is the config's, see `lengths`.
        add_bos_token: None is what the tokenizer does by itself.
        prefix_token_id: what a text without context is scored after; None is BOS, else EOS.
        think_end_token: text or id; a generated text begins after it.
        peft: a LoRA adapter.
        details: a JSONL file for per-token numbers.
        audit_noise: requests of each call whose numbers are computed in other layouts too.
        device, dtype, mesh, quantize, batch_tokens, journal, reproducible, implementation,
            accept_config, cache_dir, revision, trust_remote_code: as of `Scorer.from_pretrained`.
    """

    pretrained: Any
    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str = "auto"
    device: str | None = None
    max_length: int | None = None
    max_gen_toks: int = MAX_GEN_TOKS
    add_bos_token: bool | None = None
    prefix_token_id: int | None = None
    chat_template_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    enable_thinking: bool | None = None
    think_end_token: str | int | None = None
    peft: str | None = None
    quantize: str | None = None
    mesh: str | None = None
    batch_tokens: int | str | None = None
    journal: str | None = None
    reproducible: bool = False
    implementation: str = "auto"
    accept_config: tuple[str, ...] = ()
    cache_dir: str | None = None
    details: str | None = None
    audit_noise: int = 0


def read(given: Mapping[str, Any]) -> tuple[Arguments, list[str]]:
    """`model_args` with `batch_size`, `max_batch_size` and `device`, checked.

    Returns:
        The arguments, and the names that a user gave and that decide nothing here.

    Raises:
        ArgumentError: a name that does not exist, or a value that cannot be.
    """
    values: dict[str, Any] = {}
    idle = []
    for name, value in given.items():
        if name in READERS:
            values[name] = READERS[name](name, value)
        elif name in IDLE:
            IDLE[name].check(name, value)
            if value is not None and UNSAID.get(name) != value:
                idle.append(name)
        else:
            raise ArgumentError(_unknown(name))
    if values.get("pretrained") is None:
        raise ArgumentError(
            "model_args: pretrained is missing; give a folder, a hub id or demo: "
            "--model_args pretrained=NAME"
        )
    out = Arguments(**{name: value for name, value in values.items() if value is not None})
    if out.enable_thinking is not None:
        template = {**out.chat_template_args, "enable_thinking": out.enable_thinking}
        out = dataclasses.replace(out, chat_template_args=template)
    if out.enable_thinking and out.think_end_token is None:
        raise ArgumentError(
            "model_args: enable_thinking needs think_end_token, the text or id after which the "
            "answer begins, such as think_end_token=</think>"
        )
    if not isinstance(out.pretrained, str):
        _check_beside_scorer(values)
    return out, idle


OF_A_SCORER = (
    "tokenizer revision trust_remote_code dtype device peft quantize mesh batch_tokens journal "
    "reproducible implementation accept_config cache_dir"
).split()


def _check_beside_scorer(values: Mapping[str, Any]) -> None:
    """A scorer that is made already takes none of the arguments that make one."""
    if made := [name for name in OF_A_SCORER if values.get(name) not in (None, False)]:
        raise ArgumentError(
            f"model_args: {', '.join(made)} beside a Scorer as pretrained; make the scorer with "
            "it, or give the name of the model"
        )


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [*READERS, *IDLE], n=2)
    hint = f"is it {' or '.join(near)}?" if near else f"known are {', '.join(sorted(READERS))}"
    return f"model_args: {name} is no argument of jaxscore; {hint}"
