"""`jaxscore serve`: serves one model over HTTP with OpenAI's interface."""

import argparse
import dataclasses
import functools
import importlib.util
import os
import re
from pathlib import Path

from jaxscore.cli import model_flags
from jaxscore.cli.app import Command
from jaxscore.cli.messages import remark
from jaxscore.errors import InputError, install_extra, parse_bytes
from jaxscore.io.json_input import MOST_SETTINGS, read_text
from jaxscore.shell.flags import ONE, flag, options_of

KEY = "JAXSCORE_API_KEY"
PACKAGES = ("starlette", "uvicorn", "prometheus_client", "pydantic")  # of the extra `serve`
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0}

DESCRIPTION = f"""\
Serve a model over HTTP with OpenAI's interface. Requests that arrive together
are scored together, and text that they share is computed once.

paths:
  POST /v1/completions         log-probabilities of prompts (`echo`, `logprobs`)
                               and texts after them
  POST /v1/chat/completions    answers to conversations
  POST /jaxscore/score         lines of `score`; also /jaxscore/label
  POST /tokenize, /detokenize  and GET /tokenizer_info
  GET  /v1/models, /health, /metrics
  GET  /                       a page for a browser: type a text, see its tokens

  python -m jaxscore serve --model demo
  curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"prompt": "Oslo is in Norway", "max_tokens": 0, "echo": true,
         "logprobs": 1}}'

output:
  when the model is ready, one line on stdout: listening on http://HOST:PORT
  on stderr, unless --quiet, a line for each answer: method, path, status, time

security:
  Only this machine can connect, and web pages cannot. With {KEY}
  in the environment every path but /health and the page needs it as a bearer
  token; --host beyond this machine needs it.

Ctrl-C or SIGTERM: no more connections; requests in flight are answered within
25 seconds. A second one exits at once.

exit code: 0 ended by a signal, 2 port in use, no such model, unusable flags.
"""


def _whole_number(limit: int, expected: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= limit):
        raise ValueError(f"{text!r} is not {expected} from 0 to {limit}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r} has an empty name")
    return names


_port = functools.partial(_whole_number, 65535, "a port")
_logprobs = functools.partial(_whole_number, 20, "a whole number")


def _seconds(text: str, above_zero: bool = False) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|min)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time such as 5ms, 30s or 10min")
    seconds = float(match[1]) * UNITS[match[2]]
    if above_zero and not seconds:
        raise ValueError(f"{text!r} is not above 0")
    return seconds


_positive_seconds = functools.partial(_seconds, above_zero=True)


_size = functools.partial(parse_bytes, unit_required=False)
server = functools.partial(flag, group="server")
advanced = functools.partial(flag, group="server", is_advanced=True)


@dataclasses.dataclass(kw_only=True)
class Flags:
    """The flags of `serve` before those of the model."""

    host: str = server("127.0.0.1", help="name or address to listen at (default 127.0.0.1)")
    port: int = server(8000, read=_port, help="0 is any free one (default 8000)")
    served_model_name: list[str] = server(
        [],
        read=_names,
        words=ONE,
        metavar="NAME[,NAME]",
        help="what clients call the model (default: the folder's name, or the hub id)",
    )
    chat_template: Path | None = server(
        None,
        metavar="FILE",
        help="a Jinja template in place of the tokenizer's; it writes all special tokens of a "
        "chat, no BOS is added",
    )
    gather: float = advanced(
        0.005,
        read=_seconds,
        metavar="TIME",
        help="how long the first request of an idle server waits for others (default 5ms)",
    )
    window_tokens: int | None = advanced(
        None,
        least=1,
        metavar="N",
        help="most distinct tokens that are planned together; fewer if the device needs more than "
        "0.1 s for them (default: 8 times the tokens per batch)",
    )
    max_body: int = advanced(
        32_000_000,
        read=_size,
        metavar="SIZE",
        help="largest body of a request, in bytes or like 32MB (the default)",
    )
    max_queue_tokens: int = advanced(
        10_000_000,
        least=1,
        metavar="N",
        help="most tokens that wait together; more get status 429 (default 10,000,000)",
    )
    max_logprobs: int = advanced(
        20,
        read=_logprobs,
        metavar="N",
        help="most probable tokens per position, at most 20 (the default)",
    )
    request_timeout: float = advanced(
        600.0,
        read=_positive_seconds,
        metavar="TIME",
        help="longest time of a request in queue and work; then status 503 (default 600s)",
    )
    receive_timeout: float = advanced(
        30.0,
        read=_positive_seconds,
        metavar="TIME",
        help="longest time for a request to arrive, and for a client to read nothing of a finished "
        "answer; then the connection is closed (default 30s)",
    )
    allowed_hosts: list[str] = advanced(
        [],
        read=_names,
        words=ONE,
        metavar="NAME[,NAME]",
        help="further names accepted in the Host header",
    )
    cors: str | None = advanced(
        None,
        metavar="ORIGIN",
        help="web pages of this origin may read answers, such as http://localhost:3000",
    )


def run(args: argparse.Namespace) -> int:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"{', '.join(missing)}: not installed, and the server needs it; "
            f"{install_extra('serve')}"
        )
    model_flags.ModelSpec.of(args).check()
    from jaxscore.server import Settings, lifecycle  # deferred: imports JAX
    from jaxscore.server.service import Service

    key, address = os.environ.get(KEY) or None, lifecycle.resolve(args.host, args.port)
    if key is None and not address.is_loopback:
        raise InputError(
            f"--host {args.host}: other machines can connect, and {KEY} is not set in the "
            "environment; set it to a secret, or leave --host out"
        )
    if key is not None and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise InputError(
            f"{KEY}: has characters that a header cannot carry; use printable ASCII without spaces"
        )
    template = None
    if args.chat_template is not None:
        template = read_text(args.chat_template, "a chat template in UTF-8", MOST_SETTINGS)
    hosts = tuple(args.allowed_hosts)
    if address.is_loopback:  # the Host header is checked, and clients may use this name
        hosts = (*hosts, args.host, address.host)
    with lifecycle.listen(address) as listening:
        scorer = model_flags.load_scorer(args, args.model, None)
        scorer.progress = False
        for line in scorer.remarks:
            remark(args, line)
        if template is not None:
            scorer.encoder.tokenizer.chat_template = template
        service = Service(
            scorer,
            Settings(
                names=tuple(args.served_model_name) or (_name(args.model),),
                gather=args.gather,
                window_tokens=args.window_tokens or 8 * scorer.batch_tokens,
                max_body=args.max_body,
                max_queue_tokens=args.max_queue_tokens,
                max_logprobs=args.max_logprobs,
                request_timeout=args.request_timeout,
                receive_timeout=args.receive_timeout,
                loopback=address.is_loopback,
                allowed_hosts=hosts,
                cors=args.cors,
                key=key,
            ),
        )
        url = lifecycle.url_of(listening)
        lifecycle.run(
            service,
            listening,
            ready=lambda: print(f"listening on {url}", flush=True),
            log=lambda method, path, status, seconds: remark(
                args, f"{method} {path} {status or 'gone'} {seconds:.3f} s"
            ),
        )
    remark(args, "ended")
    return 0


def _name(model: str) -> str:
    """Last part of a folder's path; a hub id stays."""
    path = Path(model)
    return path.resolve().name if path.exists() else model


COMMAND = Command(
    "serve",
    DESCRIPTION,
    [
        *options_of(Flags),
        *options_of(model_flags.ModelSpec, ("journal", *model_flags.PROCESSES)),
    ],
    run,
)
