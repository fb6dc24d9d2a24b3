"""How a server is reached, and what it takes."""

import dataclasses

from jaxscore.engine.defaults import BATCH_TOKENS

# Programs exist for these numbers of most probable tokens alone: each one is compiled.
TOPS = (0, 1, 5, 20)
MAX_LOGPROBS = TOPS[-1]
# Prompts, samples and items of one request: each takes a kilobyte, however short its text is.
MAX_PROMPTS = 65_536
# Log-probabilities of prompts in one answer, which take a gigabyte while it is made.
MAX_NUMBERS = 8_000_000
# Characters, or ids, that one text may have where it need not fit in the positions: it is cut, or
# only tokenized. Tokenizing so many takes a second.
MAX_CHARACTERS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a server.

    Attributes:
        names: what the model is called, at least one.
        gather: seconds for which the first request of an idle server waits for others.
        window_tokens: distinct tokens that are planned together at most, see `WindowSize`.
        max_body: bytes of a request's body.
        max_queue_tokens: tokens that wait and are in work; a request beyond them gets 429.
        max_logprobs: most probable tokens of one place, up to `MAX_LOGPROBS`.
        request_timeout: seconds in the queue and in work together.
        receive_timeout: seconds within which a whole request arrives, and within which a client
            reads some of a finished answer.
        loopback: whether only this machine can connect; the Host header is then checked.
        allowed_hosts: names that the Host header may have beside this machine's names.
        cors: the origin whose web pages may read answers; None is none.
        key: what clients must send as a bearer token; None asks for none.
    """

    names: tuple[str, ...]
    gather: float = 0.005
    window_tokens: int = 8 * BATCH_TOKENS
    max_body: int = 32_000_000
    max_queue_tokens: int = 10_000_000
    max_logprobs: int = MAX_LOGPROBS
    request_timeout: float = 600.0
    receive_timeout: float = 30.0
    loopback: bool = True
    allowed_hosts: tuple[str, ...] = ()
    cors: str | None = None
    key: str | None = dataclasses.field(default=None, repr=False)
