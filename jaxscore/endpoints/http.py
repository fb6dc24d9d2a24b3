"""JSON over HTTP: concurrent requests, with retries while the server is busy.

    map(task, items)    the first item ever is sent alone, so that a wrong URL is reported once;
                        the others run on `in_flight` threads, with results in the order of items

urllib3's retries are not used, since they miss answers that break off after their headers, and
cannot be interrupted by Ctrl-C while they wait. A server may be broken or hostile: answers are
limited in bytes and seconds, and an unusable answer fails only its item.
"""

import dataclasses
import ipaddress
import itertools
import json
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
from urllib3.exceptions import (
    HTTPError,
    InvalidHeader,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
)
from urllib3.util import Retry

from jaxscore.endpoints.answers import (
    KEY_VARIABLE,
    Failed,
    Reply,
    api_key,
    error_message,
    json_object,
    quote,
)
from jaxscore.errors import InputError

CONNECT_RETRIES = 2  # few: a refused connection fails at once, and the user waits for the message
READ_SIZE = 1 << 16  # bytes of an answer read at a time
# Size limit of an answer: a constant, plus a term for each byte sent, which may be a token with its
# log-probability, offset and alternatives, and for each token to generate.
ANSWER_BYTES, BYTES_PER_TOKEN = 1 << 20, 1 << 10

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Concurrency, retries and timeouts of a client.

    Attributes:
        in_flight: the maximum number of concurrent requests.
        retries: the maximum number of retries of a request after its first attempt.
        backoff: the seconds before the first retry, doubled each time. Half of it is random, so
            that clients do not return at the same time.
        longest_wait: the maximum seconds between two attempts, which also limits Retry-After.
        connect_timeout, read_timeout: the maximum seconds for connecting, and between two bytes of
            the answer.
        total_timeout: the maximum seconds from sending a request to the last byte of its answer.
        give_up_after: the number of consecutive failures after which nothing is sent any more; also
            the number of answers that are still arriving after their total time.
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


class _TooSlow(Exception):
    """An answer was not complete within the total time."""


class Client:
    """A client that posts JSON to the paths below one URL.

    Args:
        base_url: `http://host:port/path`, without user, query or fragment.
        sends_key: if True, send the key in the environment, `OPENAI_API_KEY`. It is read for each
            request, never stored, and sent to other machines only over https.
        not_found: advice about HTTP 404.
        progress: if True, display a progress bar on stderr.

    Raises:
        InputError: the URL or the key cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        sends_key: bool,
        not_found: str,
        limits: Limits | None = None,
        progress: bool = False,
    ) -> None:
        host, is_encrypted = _check_url(base_url)
        is_local = _is_loopback(host)
        self.base_url = base_url.rstrip("/")
        self.limits = limits or Limits()
        self._sends_key = sends_key
        self._key_would_leak = not (is_encrypted or is_local)
        self._not_found = not_found
        self._progress = progress
        self._session = _Session(self.limits.in_flight)
        # Proxies in the environment are not for this machine.
        self._session.trust_env = not is_local
        # Always set: otherwise requests would send credentials from a .netrc file.
        self._session.auth = _Authorization(sends_key and not self._key_would_leak)
        self._has_sent = False
        self._lock = threading.Lock()
        self._n_consecutive_failures = 0
        self._abandoned: list[threading.Thread] = []
        self._stop = threading.Event()
        if sends_key:
            api_key()  # refuses an unusable key before anything is sent

    def map(
        self, task: Callable[[Item], Result], items: Sequence[Item], *, continues: bool = False
    ) -> list["Result | Failed"]:
        """Run a task on each item, `in_flight` at a time.

        Args:
            task: a function that calls `post`; it runs on several threads at once.
            continues: if True, the items continue those of the previous call, and the count of
                consecutive failures is kept.

        Returns:
            The result of each item, in order, or its failure.

        Raises:
            InputError: the first request that this client ever sends shows that the URL, the
                key or the model's name is wrong.
        """
        self._stop = stop = threading.Event()
        if not continues:
            self._n_consecutive_failures = 0
        results: list[Any] = [None] * len(items)
        bar = tqdm(
            total=len(items),
            disable=not self._progress or not items,
            unit="request",
            desc="asking",
            mininterval=0.1 if sys.stderr.isatty() else 10.0,
            file=sys.stderr,
        )
        try:
            for k, outcome in self._outcomes(task, items, stop):
                if isinstance(outcome, BaseException) and not isinstance(outcome, Failed):
                    raise outcome  # a bug, not a failed request
                results[k] = outcome
                bar.update()
        finally:
            stop.set()
            bar.close()
        return results

    def _outcomes(
        self, task: Callable[[Item], Result], items: Sequence[Item], stop: threading.Event
    ) -> Iterator[tuple[int, "Result | BaseException"]]:
        """Yield the index and outcome of each item; see `map`.

        Items run one at a time until a request was sent.
        """

        def attempt(item: Item) -> "Result | BaseException":
            try:
                return task(item)
            except BaseException as problem:
                return problem

        n_alone = 0
        while not self._has_sent and n_alone < len(items):
            outcome = attempt(items[n_alone])
            if isinstance(outcome, Failed) and outcome.misdirected:
                raise InputError(str(outcome))
            yield n_alone, outcome
            n_alone += 1
        done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        remaining = iter(range(n_alone, len(items)))

        def work() -> None:
            while not stop.is_set():
                with self._lock:
                    k = next(remaining, None)
                if k is None:
                    return
                done.put((k, attempt(items[k])))

        # Daemon threads: those of an executor would keep an interrupted program alive until the
        # server has answered all requests in flight.
        for _ in range(min(self.limits.in_flight, len(items) - n_alone)):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(len(items) - n_alone):
            yield done.get()

    def post(self, path: str, body: dict[str, Any], n_generated: int = 0) -> dict[str, Any]:
        """Send a request, with retries.

        Retries after status 408, 429 and 5xx, failed connections, timeouts and broken answers.

        Args:
            n_generated: the maximum number of tokens to generate; the size limit of the answer
                grows with it and with the body.

        Returns:
            The JSON object of the answer.

        Raises:
            Failed: all attempts failed, or the answer is too long, too slow or not a usable JSON
                object.
        """
        self._check_failures()
        try:
            data = json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
        except UnicodeEncodeError:
            raise Failed("its text contains a lone surrogate (invalid Unicode)") from None
        url = self.base_url + path
        max_bytes = ANSWER_BYTES + BYTES_PER_TOKEN * (len(data) + n_generated)
        for attempt in itertools.count():
            retry_after, max_retries = None, self.limits.retries
            self._has_sent = True
            try:
                reply = self._fetch(url, data, max_bytes)
            except _TooSlow:
                failure = Failed(
                    f"{url}: no complete answer within {self.limits.total_timeout:g} s"
                )
                max_retries = 0  # another attempt would take as long
            except (requests.RequestException, HTTPError) as problem:
                failure, max_retries = _connection_failure(url, problem, self.limits)
            else:
                is_busy = reply.status in (408, 429) or reply.status >= 500
                if not is_busy:
                    self._n_consecutive_failures = 0
                if reply.status < 300:
                    return json_object(url, reply, max_bytes)
                failure, retry_after = self._status_failure(url, reply), _retry_after(reply)
                if not is_busy:
                    raise failure
            if attempt >= max_retries:
                with self._lock:
                    self._n_consecutive_failures += 1
                if attempt:
                    failure.args = (f"{failure} ({attempt + 1} attempts)",)
                raise failure
            if self._stop.wait(self._wait(attempt, retry_after)):
                raise Failed("interrupted")
        raise AssertionError  # unreachable

    def _check_failures(self) -> None:
        """Raise `Failed` after `give_up_after` failures or slow answers."""
        if self._n_consecutive_failures >= self.limits.give_up_after:
            raise Failed(
                f"not sent, since {self._n_consecutive_failures} requests before it failed"
            )
        with self._lock:
            self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
            n_abandoned = len(self._abandoned)
        if n_abandoned >= self.limits.give_up_after:
            raise Failed(
                f"not sent, since {n_abandoned} answers before it are still arriving after "
                f"{self.limits.total_timeout:g} s; check why the server is slow"
            )

    def _fetch(self, url: str, data: bytes, max_bytes: int) -> Reply:
        """Make one attempt in a new thread, since sockets cannot limit the total time of reads.

        A thread that is too slow is abandoned with its socket. It ends at the next byte of the
        body, after the headers, or with the connection. While `give_up_after` abandoned threads
        run, `post` sends nothing, so there are fewer than `give_up_after + in_flight`.

        Raises:
            _TooSlow: the answer was not complete within the total time.
            RequestException, HTTPError: the connection failed, before or after the headers.
        """
        outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()
        too_slow = threading.Event()

        def fetch() -> None:
            try:
                limits = self.limits
                outcome.put(_read(self._session, url, data, max_bytes, limits, too_slow))
            except BaseException as problem:
                outcome.put(problem)

        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        try:
            reply = outcome.get(timeout=self.limits.total_timeout)
        except queue.Empty:
            too_slow.set()
            with self._lock:
                self._abandoned.append(thread)
            raise _TooSlow from None
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        """Return the seconds until the next attempt."""
        doubled = self.limits.backoff * 2.0 ** min(attempt, 32) * random.uniform(0.5, 1.0)
        return min(retry_after or doubled, self.limits.longest_wait)

    def _status_failure(self, url: str, reply: Reply) -> Failed:
        """Describe an HTTP status other than success, with advice."""
        status, message = reply.status, error_message(reply)
        line = f"{url}: HTTP {status}" + (f", {message}" if message else "")
        if status in (401, 403):
            advice = self._key_advice()
        elif status in (404, 405):
            advice = self._not_found
        elif 300 <= status < 400:
            advice = "the server redirects to another URL; give that URL"
        else:
            return Failed(line, status=status)
        return Failed(f"{line}; {advice}", status=status, misdirected=True)

    def _key_advice(self) -> str:
        if not self._sends_key:
            return "the server requires a key, but this interface does not send one"
        if api_key() is None:
            return f"if the server requires a key, set the environment variable {KEY_VARIABLE}"
        if not self._key_would_leak:
            return f"the server does not accept the key in the environment variable {KEY_VARIABLE}"
        return (
            f"the key in {KEY_VARIABLE} is not sent to another machine without encryption; use an "
            "https URL, or a tunnel to the server and its URL on localhost"
        )


def _read(
    session: requests.Session,
    url: str,
    data: bytes,
    max_bytes: int,
    limits: Limits,
    too_slow: threading.Event,
) -> Reply:
    # Not compressed: a kilobyte could expand to gigabytes.
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    timeout = limits.connect_timeout, limits.read_timeout
    with session.post(url, data=data, headers=headers, timeout=timeout, stream=True) as response:
        content = bytearray()
        while len(content) <= max_bytes and not too_slow.is_set():
            chunk = response.raw.read1(READ_SIZE, decode_content=False)
            if not chunk:
                break
            content += chunk
        is_whole = len(content) <= max_bytes
        return Reply(response.status_code, response.headers, bytes(content), is_whole)


def _connection_failure(
    url: str, problem: requests.RequestException | HTTPError, limits: Limits
) -> tuple[Failed, int]:
    """Return the failure of a connection, and the maximum number of retries for it."""
    errors = requests.exceptions
    reason = problem.args[0] if problem.args else problem
    reason = getattr(reason, "reason", None) or reason
    n_retries = min(CONNECT_RETRIES, limits.retries)
    if isinstance(problem, errors.SSLError):
        n_retries = 0
        why = (
            f"no encrypted connection ({quote(str(reason))}); check whether the URL should start "
            "with http instead of https, and the server's certificate"
        )
    elif isinstance(problem, requests.ConnectTimeout):
        why = (
            f"no connection within {limits.connect_timeout:g} s; check host and port of the URL, "
            "and firewalls"
        )
    elif isinstance(reason, NameResolutionError):
        why = "unknown host name; check the URL"
    elif isinstance(problem, errors.ProxyError) or isinstance(reason, NewConnectionError):
        why = (
            f"no connection ({_cause(reason)}); start the server there, or give the URL that it "
            "listens on"
        )
    elif isinstance(problem, requests.ReadTimeout | ReadTimeoutError) or "timed out" in str(reason):
        return Failed(f"{url}: no answer within {limits.read_timeout:g} s"), limits.retries
    elif isinstance(problem, errors.ConnectionError | errors.ChunkedEncodingError | HTTPError):
        why = "the connection was closed before the answer was complete"
        return Failed(f"{url}: {why}"), limits.retries
    else:
        n_retries, why = 0, f"{type(problem).__name__}; check the URL"
    return Failed(f"{url}: {why}", misdirected=True), n_retries


class _Session(requests.Session):
    """A session that ignores redirects.

    With `allow_redirects=False` requests would still read the body of a redirect.
    """

    def __init__(self, n_connections: int) -> None:
        super().__init__()
        adapter = HTTPAdapter(pool_maxsize=n_connections, max_retries=0)
        self.mount("http://", adapter)
        self.mount("https://", adapter)

    def get_redirect_target(self, resp: requests.Response) -> None:
        return None


class _Authorization(AuthBase):
    """An authorization that adds the key to each request without storing it."""

    def __init__(self, sends_key: bool) -> None:
        self._sends_key = sends_key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        key = api_key() if self._sends_key else None
        if key is not None:
            request.headers["Authorization"] = f"Bearer {key}"
        return request


def _check_url(url: str) -> tuple[str, bool]:
    """Return the host of a base URL, and True if it is https.

    Raises:
        InputError: the URL is not that of a server.
    """
    expected = "expected http://host:port/path or https://…"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as problem:
        raise InputError(f"the URL cannot be read ({problem}); {expected}") from None
    # Not displayed: it may contain a secret.
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "the URL contains a user or a password; leave them out, and set the environment "
            f"variable {KEY_VARIABLE} if the server requires a key"
        )
    if parts.query or parts.fragment:
        raise InputError(f"the URL contains ? or # after its path; {expected}")
    if parts.scheme not in ("http", "https") or not host or not url.isprintable():
        raise InputError(f"{url!a} is not the URL of a server; {expected}")
    return host, parts.scheme == "https"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _retry_after(reply: Reply) -> float | None:
    """Return the seconds that the server asks to wait, or None without a valid number."""
    try:
        return Retry(0).parse_retry_after(reply.headers["Retry-After"])
    except (KeyError, InvalidHeader, OverflowError, ValueError):
        return None


def _cause(reason: Any) -> str:
    """Return the system's message, such as "Connection refused"."""
    cause = getattr(reason, "__cause__", None)
    return getattr(cause, "strerror", None) or quote(str(reason))
