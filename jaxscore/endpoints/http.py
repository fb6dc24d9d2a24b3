"""JSON over HTTP: many requests in flight, each tried again when the server is busy.

    map(task, items) ── the first item ever alone: a server that is not there is told at once
                     └─ the others on `in_flight` threads, results in the order of the items

urllib3 can try again by itself, but it is done here: it sees neither an answer that breaks off
after its headers nor that somebody pressed Ctrl-C while it waits.
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from tqdm import tqdm
from urllib3.exceptions import InvalidHeader, NameResolutionError, NewConnectionError
from urllib3.util import Retry

from jaxscore.errors import InputError

KEY_VARIABLE = "OPENAI_API_KEY"
CONNECT_RETRIES = 2  # nobody listens: known at once, and a user waits to hear of it
SHOWN = 300  # characters of what a server says

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
        give_up_after: when so many requests in a row failed for good, the rest is not sent.
    """

    in_flight: int = 8
    retries: int = 5
    backoff: float = 0.5
    longest_wait: float = 60.0
    connect_timeout: float = 10.0
    read_timeout: float = 600.0
    give_up_after: int = 32

    def __post_init__(self) -> None:
        for name in ("in_flight", "connect_timeout", "read_timeout", "give_up_after"):
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
        self._session = requests.Session()
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

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The server's answer to one request, after as many attempts as it takes.

        Tried again: 408, 429 and 5xx, no connection, none within the time, a broken answer.

        Raises:
            Failed: in the end there was no answer, or it is no JSON object.
        """
        if self._failed_in_a_row >= self.limits.give_up_after:
            raise Failed(f"not sent, since {self._failed_in_a_row} requests before it failed")
        try:
            data = json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except UnicodeEncodeError:
            raise Failed("its text has half a surrogate pair, which is no character") from None
        url = self.base_url + path
        for attempt in itertools.count():
            wait = None
            most = self.limits.retries
            self._asked = True
            try:
                response = self._session.post(
                    url,
                    data=data,
                    headers={"Content-Type": "application/json"},
                    timeout=(self.limits.connect_timeout, self.limits.read_timeout),
                    allow_redirects=False,
                )
            except requests.RequestException as problem:
                failure, most = self._broken(url, problem)
            else:
                if response.status_code < 300:
                    self._failed_in_a_row = 0
                    return _json(url, response)
                failure = self._refused(url, response)
                if response.status_code not in (408, 429) and response.status_code < 500:
                    self._failed_in_a_row = 0
                    raise failure
                wait = _retry_after(response)
            if attempt >= most:
                with self._lock:
                    self._failed_in_a_row += 1
                if attempt:
                    failure.args = (f"{failure} ({attempt + 1} attempts)",)
                raise failure
            if self._stop.wait(self._wait(attempt, wait)):
                raise Failed("interrupted")
        raise AssertionError  # the loop ends by return or raise

    def _wait(self, attempt: int, asked: float | None) -> float:
        """Seconds until the next attempt."""
        doubled = self.limits.backoff * 2.0 ** min(attempt, 32) * random.uniform(0.5, 1.0)
        return min(asked or doubled, self.limits.longest_wait)

    def _broken(self, url: str, problem: requests.RequestException) -> tuple[Failed, int]:
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
        if isinstance(problem, requests.ReadTimeout) or "timed out" in str(reason):
            return Failed(
                f"{url}: no answer within {self.limits.read_timeout:g} s"
            ), self.limits.retries
        if isinstance(
            problem,
            requests.ConnectionError
            | requests.exceptions.ChunkedEncodingError
            | requests.exceptions.ContentDecodingError,
        ):
            return Failed(
                f"{url}: the connection broke off before the answer was complete"
            ), self.limits.retries
        return Failed(f"{url}: {type(problem).__name__}; check the URL", misdirected=True), 0

    def _refused(self, url: str, response: requests.Response) -> Failed:
        """What a status that is no success means, and what to do."""
        status, said = response.status_code, _said(response)
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


def _retry_after(response: requests.Response) -> float | None:
    """Seconds that the server asks to wait; None where it says nothing that makes sense."""
    try:
        return Retry(0).parse_retry_after(response.headers["Retry-After"])
    except (KeyError, InvalidHeader, OverflowError, ValueError):
        return None


def _json(url: str, response: requests.Response) -> dict[str, Any]:
    try:
        value = json.loads(response.content)
    except (ValueError, RecursionError):
        raise Failed(
            f"{url}: the answer is no JSON ({_text(response)!a})", status=response.status_code
        ) from None
    if not isinstance(value, dict):
        raise Failed(
            f"{url}: the answer is a {type(value).__name__}, expected a JSON object",
            status=response.status_code,
        )
    return value


def _said(response: requests.Response) -> str:
    """The message in an answer that is no success: JSON as servers write it, or its text."""
    try:
        value = json.loads(response.content)
    except (ValueError, RecursionError):
        return _text(response)
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return shown(value if isinstance(value, str) else json.dumps(value))


def _text(response: requests.Response) -> str:
    """Not `response.text`, which guesses an encoding from the whole of it."""
    return shown(response.content[: 8 * SHOWN].decode("utf-8", "replace"))


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
