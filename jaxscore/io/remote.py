"""Files at addresses such as s3://bucket/file: copied to this machine, and uploaded.

The rest of the program reads and writes local files. An address becomes a path in a separate
folder below the user's cache folder:

    s3://bucket/run/out.jsonl   <cache>/remote/<digest of the address>/out.jsonl

An input is copied before it is read, an output is uploaded when it is finished (`io.upload`).
Messages, manifests and reports have the address, without passwords and signatures.

Failed requests are retried in one layer: here, with the retries of the store's client disabled, or
by the client if that is impossible.
"""

import codecs
import contextlib
import glob
import hashlib
import itertools
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from jaxscore.errors import InputError
from jaxscore.io.atomic import remove_abandoned, temporary_folder
from jaxscore.io.json_input import MOST_BYTES
from jaxscore.io.local_path import (
    ADDRESS,
    PARAMETERS,
    Folder,
    check_inside,
    check_local,
    check_name,
    create_private_folder,
    create_work_folder,
    mask,
    mask_address,
    work_folder,
)
from jaxscore.io.streams import CHUNK, descriptor, refuse_device

T = TypeVar("T")
SCHEMES = {  # scheme -> what installs its file system
    "gs": "pip install gcsfs (extra gcs)",
    "gcs": "pip install gcsfs (extra gcs)",
    "s3": "pip install s3fs (extra s3)",
    "hf": "pip install huggingface_hub",
    "http": "pip install aiohttp (extra http)",
    "https": "pip install aiohttp (extra http)",
}
READ_ONLY = ("http", "https")
# Facts that change with the bytes of a file: its identity is the first of them. Listings may format
# times differently from queries of one file.
CONTENT_VERSIONS = ("ETag", "etag", "generation", "blob_id", "md5Hash")
VERSIONS = (*CONTENT_VERSIONS, "LastModified", "last_modified", "mtime", "created")
TRIES = 4
PAUSE = 0.5  # seconds before the second try; doubled before each further one
LONGEST_RETRY = 60.0  # seconds after the first failure within which another try begins
SILENCE = 15.0  # seconds without a byte from a store, after which its request fails
# Schemes whose clients always retry: gcsfs 6 times within 40 s, huggingface_hub as often
CLIENT_RETRIES = ("gs", "gcs", "hf")
# Temporary statuses of web servers; None without an answer
PASSING = (None, 408, 429, 500, 502, 503, 504)
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError, TypeError)
STDIN = "stdin.json"  # the name of its copy: an array, or one object per line
LONGEST_REASON = 300  # characters of a store's own message
_parents: dict[Path, str] = {}  # local folder -> the address that it represents
_files: dict[Path, str] = {}  # local path -> its address as the user gave it
_with_spaces: dict[str, str] = {}  # addresses that `mask` does not find in a text -> masked
_retrying = threading.local()  # `active` is True in a thread within `_request`


class _Changed(OSError):
    """A file differs from the store's facts about it; another try may succeed."""


class RemoteFile(NamedTuple):
    """A file of a store: its address, size and version."""

    address: str
    identity: Mapping[str, Any]


def is_address(text: str) -> bool:
    """Return True if a text is an address of a scheme that is handled."""
    return _scheme(text) in SCHEMES


def stage(address: str) -> Path:
    """Return the local path of an address, without reading or writing.

    Raises:
        InputError: the scheme is not handled, or the address names no file or folder.
    """
    if not is_address(address):
        check_local(address, f"a local path, or an address of {schemes()}")
        return Path(address)
    start, _, rest = _without_parameters(address).rstrip("/").partition("://")
    parent, slash, name = rest.rpartition("/")
    if not parent or not slash or name in ("", ".", ".."):
        raise InputError(
            f"{mask_address(address)}: found no name in it, expected {start}://BUCKET/NAME"
        )
    check_name(name, mask_address(address))
    folder = work_folder() / hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16]
    _parents[folder] = f"{start}://{parent}"
    path = folder / name
    _files[path] = address
    if re.search(r"\s", address):
        _with_spaces[address] = mask_address(address)
    return Folder(path) if address.endswith("/") else path


def create_output_folder(output: Path) -> None:
    """Create the local folder of an output's address, or check that nobody else can write to it.

    Raises:
        InputError: somebody else can, or it cannot be created.
    """
    create_work_folder()
    create_private_folder(output.parent)


def _without_parameters(address: str) -> str:
    """Remove query, fragment and parameters from a web address; names in stores have none."""
    cut = PARAMETERS.search(address) if _scheme(address) in READ_ONLY else None
    return address if cut is None else address[: cut.start()]


def below(folder: Path, name: str) -> Path:
    """Return the path of a name below a local or remote folder.

    Every name of an output that data decides passes here: object keys, matches of patterns, names
    of files in a folder, and the names in a listing of shards.

    Raises:
        InputError: the name, or a symbolic link in a local folder, leads out of the folder.
    """
    check_name(name, displayed(folder))
    if (address := address_of(folder)) is not None:
        return stage(f"{address.rstrip('/')}/{name}")
    check_inside(folder / name, folder)
    return folder / name


def schemes() -> str:
    """Return the supported schemes for messages."""
    return ", ".join(f"{scheme}://" for scheme in SCHEMES if scheme != "gcs")


def address_of(path: Path) -> str | None:
    """Return the address of a staged path, or None for a local path."""
    if path in _files:
        return _files[path]
    folder = next((folder for folder in path.parents if folder in _parents), None)
    if folder is None:
        return None
    return "/".join((_parents[folder], *path.relative_to(folder).parts))


def displayed(text: object) -> str:
    """Replace local paths by their addresses in a message, and remove credentials.

    The journal, in `.jaxscore`, is only on this machine and keeps its path.
    """
    out = str(text)
    for with_spaces, masked in _with_spaces.items():
        out = out.replace(with_spaces, masked)
    if not _parents or (root := str(work_folder())) not in out:
        return mask(out)

    def address(match: re.Match[str]) -> str:
        parent = _parents.get(Path(match[1]))
        if parent is None:
            return match[0]
        return f"{mask_address(parent)}/{match[2]}" if parent else "-"

    rest = rf"/(?!\.jaxscore)((?:{re.escape(STDIN)})?)"
    return mask(re.sub(rf"({re.escape(root)}/[^/\s]+){rest}", address, out))


def _scheme(address: str) -> str:
    match = ADDRESS.match(address)
    return "" if match is None else match[1].lower()


def _client_options(scheme: str, configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a store's client: no retries, and requests end after SILENCE.

    Args:
        configured: fsspec's settings of the scheme, whose limits are kept.
    """
    if scheme == "s3":
        silence = {"connect_timeout": SILENCE, "read_timeout": SILENCE}
        once = {"retries": {"total_max_attempts": 1}}
        return {"config_kwargs": silence | configured.get("config_kwargs", {}) | once}
    if scheme not in ("gs", "gcs", *READ_ONLY):
        return {}
    import aiohttp  # deferred: only these addresses need it

    # aiohttp's own limit of five minutes would end long downloads.
    limits = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
    if scheme in READ_ONLY:
        return {"client_kwargs": {"timeout": limits} | configured.get("client_kwargs", {})}
    return {"requests_timeout": configured.get("requests_timeout", limits)}


def _store(address: str) -> Any:
    """Return the file system of an address.

    Raises:
        InputError: its package is not installed, or it cannot be set up.
    """
    import fsspec  # deferred: only addresses need it

    scheme = _scheme(address)
    try:
        configured = fsspec.config.conf.get(scheme, {})
        options = {"use_listings_cache": False} | _client_options(scheme, configured)
        store = fsspec.filesystem(scheme, **options)
        if scheme == "s3":
            store.retries = 1  # of s3fs, around those of botocore
            store.s3.meta.events.register_last(
                "before-call.s3", _send_at_once, unique_id="jaxscore-send-at-once"
            )
        store.invalidate_cache()
        return store
    except ImportError as problem:
        raise InputError(f"{mask_address(address)}: {problem}; {SCHEMES[scheme]}") from None
    except Exception as problem:  # credentials that are not a file, a proxy without a port
        raise _refusal(address, problem) from None


def _send_at_once(params: dict[str, Any], **_: Any) -> None:
    """Leave out `Expect: 100-continue`, whose answer aiohttp awaits without any limit."""
    params["headers"].pop("Expect", None)


def _facts(store: Any, store_path: str) -> dict[str, Any]:
    """Return a store's facts about a file.

    Args:
        store_path: see `_store_path`.

    Raises:
        FileNotFoundError: there is no such file.
        Exception: the store does not answer.
    """
    try:
        return dict(store.info(store_path))
    except FileNotFoundError as problem:
        # The client of web pages calls every failure a missing file. Its cause has the status.
        cause = problem.__cause__
        is_web = _scheme(store_path) in READ_ONLY
        if is_web and cause is not None and getattr(cause, "status", None) in PASSING:
            raise cause from None
        raise


def _store_path(address: str) -> str:
    """Return an address for its file system: without the scheme, except for web pages."""
    return address if _scheme(address) in READ_ONLY else address.partition("://")[2]


def _refusal(address: str, problem: Exception) -> InputError:
    lines = mask(str(problem), address).strip().splitlines()
    reason = (lines or [type(problem).__name__])[0][:LONGEST_REASON]
    if isinstance(problem, FileNotFoundError):
        reason = f"no such file or bucket, or no access to it ({reason})"
    return InputError(
        f"{mask_address(address)}: {reason}; check the address, the network and the credentials"
    )


def _request(address: Path | str, action: Callable[[Any, str], T]) -> T:
    """Run an action on a store, and retry it after a temporary failure.

    An action within another is not retried: the outer action is.

    Args:
        address: an address, or its local path.
        action: a function of the file system and the result of `_store_path`.

    Raises:
        InputError: it failed permanently, too often, or for too long.
        FileExistsError: see `action`.
    """
    address = str(address_of(address)) if isinstance(address, Path) else address
    store, store_path = _store(address), _store_path(address)
    if getattr(_retrying, "active", False):
        return action(store, store_path)
    deadline = None
    _retrying.active = True
    try:
        for attempt in itertools.count(1):
            try:
                return action(store, store_path)
            except (InputError, FileExistsError):
                raise
            except Exception as problem:  # stores raise many unrelated kinds
                now, pause = time.monotonic(), PAUSE * 2 ** (attempt - 1)
                deadline = now + LONGEST_RETRY if deadline is None else deadline
                is_retried = _scheme(address) in CLIENT_RETRIES and not isinstance(
                    problem, _Changed
                )
                is_last = attempt == TRIES or now + pause > deadline
                if isinstance(problem, FINAL) or is_retried or is_last:
                    raise _refusal(address, problem) from None
                time.sleep(pause)
    finally:
        _retrying.active = False
    raise AssertionError("unreachable")


def _identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    version = next((name for name in VERSIONS if facts.get(name)), None)
    return {"size": facts.get("size")} | ({} if version is None else {version: str(facts[version])})


def identity(path: Path) -> dict[str, Any] | None:
    """Return size and ETag, generation or time of a remote file; None if the file is missing.

    Raises:
        InputError: the store does not answer.
    """

    def look(store: Any, store_path: str) -> dict[str, Any] | None:
        try:
            facts = _facts(store, store_path)
            return None if facts.get("type") == "directory" else _identity(facts)
        except FileNotFoundError:
            return None

    return _request(path, look)


def find(address: str) -> list[RemoteFile]:
    """List the files below a folder, or those that a pattern matches, by name.

    Raises:
        InputError: the store does not answer, or cannot be listed.
    """
    scheme = address.partition("://")[0]

    def search(store: Any, store_path: str) -> dict[str, dict[str, Any]]:
        is_pattern = any(sign in store_path for sign in "*?[")
        return dict((store.glob if is_pattern else store.find)(store_path, detail=True))

    return [
        RemoteFile(name if "://" in name else f"{scheme}://{name.lstrip('/')}", _identity(facts))
        for name, facts in sorted(_request(address, search).items())
        if facts.get("type") != "directory"
    ]


def read_bytes(path: Path) -> bytes | None:
    """Read a small remote file; None if it does not exist.

    Raises:
        InputError: the store does not answer.
    """

    def read(store: Any, store_path: str) -> bytes | None:
        try:
            return bytes(store.cat_file(store_path))
        except FileNotFoundError:
            return None

    return _request(path, read)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small remote file, or replace it.

    Raises:
        InputError: the store refuses.
    """
    _request(path, lambda store, store_path: store.pipe_file(store_path, data))


@contextlib.contextmanager
def fetched(
    path: Path, sibling: Path | None = None, expected: Mapping[str, Any] | None = None
) -> Iterator[Path]:
    """Yield a local file to read: the path itself, or a copy that the block's end removes.

    Standard input, `-`, is copied too, since inputs are read more than once.

    Args:
        sibling: a file of the same folder, which is copied too.
        expected: identity of the remote file, as it was listed; None for any.

    Raises:
        InputError: the store does not answer, or the file changes while it is copied.
    """
    address = address_of(path)
    if address is None and descriptor(path) != 0 and str(path) != "-":
        yield path
        return
    inputs = create_work_folder() / f"inputs-{socket.gethostname()}"  # others' locks may be hidden
    for left in inputs.parent.glob(f".{glob.escape(inputs.name)}-*.part"):
        remove_abandoned(str(left), is_folder=True)
    with temporary_folder(inputs.with_name(f"{inputs.name}-{secrets.token_hex(4)}")) as folder:
        copy = folder / (STDIN if address is None else path.name)
        plain = "" if address is None else _without_parameters(address)
        _parents[folder] = plain.rpartition("/")[0]
        if address is not None:
            _download(path, copy, expected or {})
        else:
            refuse_device(path, sys.stdin.buffer)
            with copy.open("wb") as file:
                _copy_text(sys.stdin.buffer, file)
        if sibling is not None:
            _download(sibling, folder / sibling.name)
        yield copy


def _copy_text(source: BinaryIO, target: BinaryIO) -> None:
    """Copy UTF-8 text up to the first invalid byte: the rest may never end."""
    decoder, n_of_line = codecs.getincrementaldecoder("utf-8")(), 0
    while n_of_line <= MOST_BYTES and (chunk := source.read(CHUNK)):
        target.write(chunk)
        try:
            decoder.decode(chunk)
        except UnicodeDecodeError:  # the reader names the line
            return
        newline = chunk.rfind(b"\n")
        n_of_line = n_of_line + len(chunk) if newline < 0 else len(chunk) - 1 - newline


def _download(path: Path, copy: Path, expected: Mapping[str, Any] = {}) -> None:
    def download(store: Any, store_path: str) -> None:
        before = _identity(_facts(store, store_path))
        compared = before.keys() & expected.keys() & {"size", *CONTENT_VERSIONS}
        if any(before[name] != expected[name] for name in compared):
            raise InputError(
                f"{displayed(path)}: changed while this run read it; run the same command again"
            )
        store.get_file(store_path, str(copy))
        if _identity(_facts(store, store_path)) != before:
            raise _Changed("it changed while it was copied")
        if before["size"] not in (None, copy.stat().st_size):
            raise _Changed(f"found {copy.stat().st_size} bytes, expected {before['size']}")

    _request(path, download)


@contextlib.contextmanager
def copy_beside(path: Path) -> Iterator[Path | None]:
    """Yield a copy of a remote file, next to its local path; None if it does not exist.

    Raises:
        InputError: the store does not answer.
    """
    if identity(path) is None:
        yield None
        return
    with temporary_folder(create_private_folder(path.parent) / path.name) as folder:
        _download(path, folder / path.name)
        yield folder / path.name


def send(source: Path, path: Path, mode: Callable[[], str] = lambda: "overwrite") -> None:
    """Upload a local file to a path's address.

    Args:
        mode: gives, before each try, "overwrite" or "create", which refuses to replace a file.

    Raises:
        InputError: the store refuses.
        FileExistsError: there is a file that is not to be replaced.
    """
    size = source.stat().st_size

    def put(store: Any, store_path: str) -> None:
        store.put_file(str(source), store_path, mode=mode())
        if (stored := _facts(store, store_path).get("size")) != size:
            raise _Changed(f"found {stored} bytes in the store, expected {size}")

    _request(path, put)


def remove(path: Path) -> None:
    """Remove the file at a path's address, if it exists.

    Raises:
        InputError: the store refuses.
    """
    if identity(path) is not None:
        _request(path, lambda store, store_path: store.rm_file(store_path))


def check_writable(path: Path) -> None:
    """Refuse an address that is only read.

    Raises:
        InputError: naming its scheme.
    """
    address = str(address_of(path))
    if _scheme(address) in READ_ONLY:
        raise InputError(
            f"{mask_address(address)}: found an address of scheme {_scheme(address)}://, which is "
            "only read; write to a store or to a local path"
        )
