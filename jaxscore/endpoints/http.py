"""JSON over HTTP: many requests in flight, each tried again when the server is busy.

    map(task, items) ── the first item ever alone: a server that is not there is told at once
                     └─ the others on `in_flight` threads, results in the order of the items

urllib3 can try again by itself, but it is done here: it sees neither an answer that breaks off
after its headers nor that somebody pressed Ctrl-C while it waits.

A server may be broken or hostile: an answer has at most so many bytes and so many seconds, and what
is no usable JSON fails its item alone.
"""

import dataclasses
import ipaddress
import itertools
import json
import os
import queue
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from tqdm import tqdm
from urllib3.exceptions import (
    HTTPError,
    InvalidHeader,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
)
from urllib3.util import Retry

from jaxscore.errors import InputError
from jaxscore.io.json_input import MOST_NESTED, TOO_DEEP, check_unicode, nests_beyond

KEY_VARIABLE = "OPENAI_API_KEY"
CONNECT_RETRIES = 2  # nobody listens: known at once, and a user waits to hear of it
SHOWN = 300  # characters of what a server says
PIECE = 1 << 16  # bytes of an answer that are read at a time
# Bytes that an answer may have: some in any case, and more for each byte that is sent, which may be
# a token with its log-probability, its offset and its rivals, and for each token to generate.
ANSWER_BYTES, BYTES_PER_TOKEN = 1 << 20, 1 << 10

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How hard a server is asked, and for how long.

    Attributes:
        in_flight: requests at a time, at most.
        retries: of one request, after its first attempt.
        backoff: seconds before the first retry, doubled each time; half of it is random, so
            that clients do not all come back together.
        longest_wait: seconds between two attempts, at most, whatever Retry-After says.
        connect_timeout, read_timeout: seconds until a connection stands, and without a byte of
            the answer.
        total_timeout: seconds from sending a request to the last byte of its answer.
        give_up_after: when so many requests in a row failed for good, the rest is not sent; nor
            is a request while so many answers still arrive after their total time.
    """

    in_flight: int = 8
    retries: int = 5
    backoff: float = 0.5
    longest_wait: float = 60.0
    connect_timeout: float = 10.0
    read_timeout: float = 600.0
    total_timeout: float = 900.0
    give_up_after: int = 32

    def __post_init__(self) -> None:
        above = ("in_flight", "connect_timeout", "read_timeout", "total_timeout", "give_up_after")
        for name in above:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected more than 0")
        for name in ("retries", "backoff", "longest_wait"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more")


class Failed(Exception):
    """One request came to nothing; the others may not.

    Attributes:
        status: of the server's answer; None where there was none.
        misdirected: not this request is to blame but the URL, the key or the model's name, so
            that no other request will fare better.
    """

    def __init__(
        self, message: str, *, status: int | None = None, misdirected: bool = False
    ) -> None:
        super().__init__(message)
        self.status, self.misdirected = status, misdirected


class _Reply(NamedTuple):
    """A server's answer.

    Attributes:
        content: its body, truncated if it exceeds the limit.
        is_whole: whether that is all of it.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    is_whole: bool


class _TooSlow(Exception):
    """An answer was not whole within the total time."""


class Client:
    """Posts JSON to the paths below one URL.

    Args:
        base_url: `http://host:port/path`, without user, query or fragment.
        wants_key: send the key that is in the environment, `OPENAI_API_KEY`. It is read from
            there for each request and kept nowhere. To another machine it goes by https only.
        not_found: what to do about a 404, for people.
        progress: a bar on stderr.

    Raises:
        InputError: the URL or the key cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        wants_key: bool,
        not_found: str,
        limits: Limits | None = None,
        progress: bool = False,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.limits = limits or Limits()
        host, encrypted = _checked(base_url)
        local = _is_loopback(host)
        self._key_would_leak = not (encrypted or local)
        self._not_found = not_found
        self._progress = progress
        self._session = _Session()
        # A proxy of the environment leads out, never to this machine itself.
        self._session.trust_env = not local
        # Always given: requests would else send what a .netrc holds for the host.
        self._session.auth = _Authorization(wants_key and not self._key_would_leak)
        self._wants_key = wants_key
        adapter = HTTPAdapter(pool_maxsize=self.limits.in_flight, max_retries=0)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._asked = False  # whether a server was ever spoken to
        self._lock = threading.Lock()
        self._failed_in_a_row = 0
        self._left_behind: list[threading.Thread] = []
        self._stop = threading.Event()
        if wants_key:
            _key()  # one that cannot be sent is told before anything is asked

    def map(
        self, task: Callable[[Item], Result], items: Sequence[Item], *, goes_on: bool = False
    ) -> list["Result | Failed"]:
        """`task` of each item, in order, `in_flight` at a time.

        Args:
            task: calls `post`; runs on several threads at once.
            items: any number.
            goes_on: whether they follow on those of the call before, so that failures in a row
                are counted through both.

        Returns:
            For each item its result, or why there is none.

        Raises:
            InputError: the first request that this client ever sends shows that the URL, the
                key or the model's name is wrong.
        """
        self._stop = stop = threading.Event()
        if not goes_on:
            self._failed_in_a_row = 0
        if not items:
            return []
        results: list[Any] = [None] * len(items)
        done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        left: Iterator[int] = iter(())

        def work() -> None:
            while not stop.is_set():
                with self._lock:
                    k = next(left, None)
                if k is None:
                    return
                try:
                    outcome: Any = task(items[k])
                except BaseException as problem:
                    outcome = problem
                done.put((k, outcome))

        bar = tqdm(
            total=len(items),
            disable=not self._progress,
            unit="request",
            desc="asking",
            mininterval=0.1 if sys.stderr.isatty() else 10.0,
            file=sys.stderr,
        )
        try:
            n_alone = 0
            while not self._asked and n_alone < len(items):
                try:
                    results[n_alone] = task(items[n_alone])
                except Failed as problem:
                    if problem.misdirected:
                        raise InputError(str(problem)) from None
                    results[n_alone] = problem
                n_alone += 1
                bar.update()
            left = iter(range(n_alone, len(items)))
            # Daemons: an executor's threads would keep an interrupted program alive until the
            # server has answered what is in flight.
            for _ in range(min(self.limits.in_flight, len(items) - n_alone)):
                threading.Thread(target=work, daemon=True).start()
            for _ in range(len(items) - n_alone):
                k, outcome = done.get()
                if isinstance(outcome, BaseException) and not isinstance(outcome, Failed):
                    raise outcome
                results[k] = outcome
                bar.update()
        finally:
            stop.set()
            bar.close()
        return results

    def post(self, path: str, body: dict[str, Any], n_generated: int = 0) -> dict[str, Any]:
        """The server's answer to one request, after as many attempts as it takes.

        Tried again: 408, 429 and 5xx, no connection, none within the time, a broken answer.

        Args:
            n_generated: most tokens that the server is asked to generate; the limit of the
                answer's bytes grows with them and with the body.

        Raises:
            Failed: in the end there was no answer, it is too long or not whole in the total
                time, or it is no usable JSON object.
        """
        if self._failed_in_a_row >= self.limits.give_up_after:
            raise Failed(f"not sent, since {self._failed_in_a_row} requests before it failed")
        with self._lock:
            self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
            n_left_behind = len(self._left_behind)
        if n_left_behind >= self.limits.give_up_after:
            raise Failed(
                f"not sent, since {n_left_behind} answers before it still arrive after "
                f"{self.limits.total_timeout:g} s; see what slows the server down"
            )
        try:
            data = json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except UnicodeEncodeError:
            raise Failed("its text has half a surrogate pair, which is no character") from None
        url = self.base_url + path
        most_bytes = ANSWER_BYTES + BYTES_PER_TOKEN * (len(data) + n_generated)
        for attempt in itertools.count():
            wait = None
            most = self.limits.retries
            self._asked = True
            try:
                reply = self._fetch(url, data, most_bytes)
            except _TooSlow:
                failure, most = (
                    Failed(f"{url}: no whole answer within {self.limits.total_timeout:g} s"),
                    0,  # another attempt would take as long
                )
            except (requests.RequestException, HTTPError) as problem:
                failure, most = self._broken(url, problem)
            else:
                if reply.status < 300:
                    self._failed_in_a_row = 0
                    return _json(url, reply, most_bytes)
                failure = self._refused(url, reply)
                if reply.status not in (408, 429) and reply.status < 500:
                    self._failed_in_a_row = 0
                    raise failure
                wait = _retry_after(reply)
            if attempt >= most:
                with self._lock:
                    self._failed_in_a_row += 1
                if attempt:
                    failure.args = (f"{failure} ({attempt + 1} attempts)",)
                raise failure
            if self._stop.wait(self._wait(attempt, wait)):
                raise Failed("interrupted")
        raise AssertionError  # the loop ends by return or raise

    def _fetch(self, url: str, data: bytes, most_bytes: int) -> _Reply:
        """One attempt, in a thread of its own: no socket has a limit for all its reads together.

        A thread that is too slow is left behind, with its socket. It ends at the next byte of the
        body, after the head, or with the connection. While `give_up_after` of them run, `post`
        sends nothing, so there are fewer than `give_up_after + in_flight`.

        Raises:
            _TooSlow: the answer was not whole within the total time.
            RequestException, HTTPError: on the way, before and after its headers.
        """
        outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()
        too_slow = threading.Event()

        def fetch() -> None:
            try:
                outcome.put(self._read(url, data, most_bytes, too_slow))
            except BaseException as problem:
                outcome.put(problem)

        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        try:
            found = outcome.get(timeout=self.limits.total_timeout)
        except queue.Empty:
            too_slow.set()
            with self._lock:
                self._left_behind.append(thread)
            raise _TooSlow from None
        if isinstance(found, BaseException):
            raise found
        return found

    def _read(self, url: str, data: bytes, most_bytes: int, too_slow: threading.Event) -> _Reply:
        # Not compressed: a kilobyte may stand for gigabytes.
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        with self._session.post(
            url,
            data=data,
            headers=headers,
            timeout=(self.limits.connect_timeout, self.limits.read_timeout),
            stream=True,
        ) as response:
            parts, size = [], 0
            while size <= most_bytes and not too_slow.is_set():
                part = response.raw.read1(PIECE, decode_content=False)
                if not part:
                    break
                parts.append(part)
                size += len(part)
            content = b"".join(parts)
            return _Reply(response.status_code, response.headers, content, size <= most_bytes)

    def _wait(self, attempt: int, asked: float | None) -> float:
        """Seconds until the next attempt."""
        doubled = self.limits.backoff * 2.0 ** min(attempt, 32) * random.uniform(0.5, 1.0)
        return min(asked or doubled, self.limits.longest_wait)

    def _broken(
        self, url: str, problem: requests.RequestException | HTTPError
    ) -> tuple[Failed, int]:
        """What went wrong on the way, and how many retries it is worth."""
        reason = problem.args[0] if problem.args else problem
        reason = getattr(reason, "reason", None) or reason
        connect = min(CONNECT_RETRIES, self.limits.retries)
        if isinstance(problem, requests.exceptions.SSLError):
            return Failed(
                f"{url}: no encrypted connection ({shown(str(reason))}); "
                "check https against http in the URL, and the server's certificate",
                misdirected=True,
            ), 0
        if isinstance(problem, requests.ConnectTimeout):
            return Failed(
                f"{url}: no connection within {self.limits.connect_timeout:g} s; "
                "check host and port of the URL, and firewalls",
                misdirected=True,
            ), connect
        if isinstance(reason, NameResolutionError):
            return Failed(
                f"{url}: no machine of this name is known; check the URL", misdirected=True
            ), connect
        proxy = isinstance(problem, requests.exceptions.ProxyError)
        if proxy or isinstance(reason, NewConnectionError):
            return Failed(
                f"{url}: no connection ({_cause(reason)}); start the server there, "
                "or give the URL that it listens at",
                misdirected=True,
            ), connect
        slow = isinstance(problem, requests.ReadTimeout | ReadTimeoutError)
        if slow or "timed out" in str(reason):
            return Failed(
                f"{url}: no answer within {self.limits.read_timeout:g} s"
            ), self.limits.retries
        if isinstance(
            problem, requests.ConnectionError | requests.exceptions.ChunkedEncodingError | HTTPError
        ):
            return Failed(
                f"{url}: the connection broke off before the answer was complete"
            ), self.limits.retries
        return Failed(f"{url}: {type(problem).__name__}; check the URL", misdirected=True), 0

    def _refused(self, url: str, reply: _Reply) -> Failed:
        """What a status that is no success means, and what to do."""
        status, said = reply.status, _said(reply)
        told = f"{url}: HTTP {status}" + (f", {said}" if said else "")
        if status in (401, 403):
            return Failed(f"{told}; {self._about_the_key()}", status=status, misdirected=True)
        if status in (404, 405):
            return Failed(f"{told}; {self._not_found}", status=status, misdirected=True)
        if 300 <= status < 400:
            return Failed(
                f"{told}; the server sends elsewhere, give the URL that it answers at itself",
                status=status,
                misdirected=True,
            )
        return Failed(told, status=status)

    def _about_the_key(self) -> str:
        if not self._wants_key:
            return "the server wants a key, and this interface sends none"
        if _key() is None:
            return f"if the server wants a key, set the environment variable {KEY_VARIABLE}"
        if self._key_would_leak:
            return (
                f"the key in {KEY_VARIABLE} is not sent to another machine without encryption; "
                "give an https URL, or one on localhost that a tunnel leads to the server"
            )
        return f"the server does not take the key in the environment variable {KEY_VARIABLE}"


class _Session(requests.Session):
    """Follows no redirect; with `allow_redirects=False` requests still reads its body."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        return None


class _Authorization(AuthBase):
    """Sends the key, and knows it only while it does."""

    def __init__(self, send: bool) -> None:
        self._send = send

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        key = _key() if self._send else None
        if key is not None:
            request.headers["Authorization"] = f"Bearer {key}"
        return request


def _key() -> str | None:
    """The key of the environment.

    Raises:
        InputError: it cannot be one; the message does not show it.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            f"the environment variable {KEY_VARIABLE} holds a blank, a line end or another "
            "character that is in no key; set it again (its value is not shown here)"
        )
    return key or None


def _checked(url: str) -> tuple[str, bool]:
    """Host, and whether https, of a base URL."""
    expected = "expected http://host:port/path or https://…"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as problem:
        raise InputError(f"the URL cannot be read ({problem}); {expected}") from None
    # Not shown: somebody has put a secret there.
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "the URL holds a user or a password; leave them out, and set the environment "
            f"variable {KEY_VARIABLE} where the server wants a key"
        )
    if parts.query or parts.fragment:
        raise InputError(f"the URL goes on after its path with ? or #; {expected}")
    if parts.scheme not in ("http", "https") or not host or not url.isprintable():
        raise InputError(f"{url!a} is no URL of a server; {expected}")
    return host, parts.scheme == "https"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _retry_after(reply: _Reply) -> float | None:
    """Seconds that the server asks to wait; None where it says nothing that makes sense."""
    try:
        return Retry(0).parse_retry_after(reply.headers["Retry-After"])
    except (KeyError, InvalidHeader, OverflowError, ValueError):
        return None


class _Twice(ValueError):
    """An object has two fields of one name."""


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(name)
        found[name] = value
    return found


def _parsed(content: bytes) -> Any:
    """The value of a JSON text that can be told from others and be written again.

    NaN and infinities are taken: many servers are written in Python. What reads a number
    checks it.

    Raises:
        ValueError, RecursionError: it is none.
    """
    value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_fields)
    if nests_beyond(value, MOST_NESTED):
        raise InputError(TOO_DEEP)
    check_unicode(value, "in it")
    return value


def _json(url: str, reply: _Reply, most_bytes: int) -> dict[str, Any]:
    def unusable(why: str) -> Failed:
        return Failed(f"{url}: the answer {why}", status=reply.status)

    if not reply.is_whole:
        raise unusable(f"has more than {most_bytes} bytes, expected less for this request")
    encoding = reply.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise unusable(f"is encoded as {shown(encoding)!a}, which was not asked for")
    try:
        value = _parsed(reply.content)
    except _Twice as problem:
        name = shown(str(problem))
        raise unusable(f"has the field {name!a} twice, and they may differ") from None
    except InputError as problem:
        raise unusable(f"is no usable JSON ({problem})") from None
    except (ValueError, RecursionError):
        raise unusable(f"is no JSON ({_text(reply)!a})") from None
    if not isinstance(value, dict):
        raise unusable(f"is a {type(value).__name__}, expected a JSON object")
    return value


def _said(reply: _Reply) -> str:
    """The message in an answer that is no success: JSON as servers write it, or its text."""
    try:
        value = _parsed(reply.content)
    except (ValueError, RecursionError, InputError):
        return _text(reply)
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return shown(value if isinstance(value, str) else json.dumps(value))


def _text(reply: _Reply) -> str:
    """The beginning of an answer, as one line."""
    return shown(reply.content[: 8 * SHOWN].decode("utf-8", "replace"))


def shown(text: str) -> str:
    """One line of what a server says, cut, and without the key, should it repeat that."""
    key = _key()
    if key is not None:
        text = text.replace(key, f"[{KEY_VARIABLE}]")
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return line if len(line) <= SHOWN else line[:SHOWN] + "…"


def _cause(reason: Any) -> str:
    """The system's word for it: Connection refused."""
    cause = getattr(reason, "__cause__", None)
    return getattr(cause, "strerror", None) or shown(str(reason))
