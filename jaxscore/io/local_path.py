"""Local paths and names from users, masked addresses, and folders that nobody else can write.

Compiled programs are code that runs, and a link in a folder of unfinished work makes this process
write elsewhere. So both are in folders that belong to this user, whatever the umask.
"""

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote

import platformdirs

from jaxscore.errors import UNPRINTABLE, InputError

# At least two characters before the colon: `C:` is a drive.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
# Quotes and brackets may be part of a name, before a signature: to the next space, or, before a
# query or fragment, to the next address.
SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{1,19}://"
URL = re.compile(rf"{SCHEME}(?:(?!{SCHEME})[^\s?#])*(?:[?#]\S*)?")
QUERY = re.compile(r"\?[^\s?=]+=\S*")  # of an address with a space
# User and password of an address, after the scheme; the second form has a password with a slash or
# question mark. The addresses of the web have ports, and those of stores do not.
USER = re.compile(r"[^/?]*@|[^/:?]*:.*@", re.DOTALL)
WEB_USER = re.compile(r"[^/?]*@|[^/:?]*:(?!\d+(?:[/?#]|$)).*@", re.DOTALL)
# Start of a query, of a fragment, or of a parameter as in `file;sig=abc`
PARAMETERS = re.compile(r"[?#]|;(?=[^\s/?#;=]+=)")
MASKED = re.compile(r"""\.\.\.[:;,.)\]}'"]*""")
# A parameter with a credential in a text without the address that it is from
CREDENTIAL = re.compile(
    r"(?i)([?&#;][^\s?&#;=/]*(?:sig|token|secret|passw|credential|key|auth)[^\s?&#;=/]*=)[^\s&#;]+"
)
LONGEST_NAME = 120  # maximum bytes of a name from data in a file name, which may have 255
LEAST_SECRET = 3  # characters of what is looked for in messages of stores
CACHE = "JAXSCORE_CACHE"  # variable of the environment
DRIVE = re.compile(r"[A-Za-z]:")  # start of a part that Windows takes for a drive


class Folder(type(Path())):  # type: ignore[misc]
    """A path that was written with a slash at its end."""

    __slots__ = ()


def local_path(text: str) -> Path:
    """Convert a user's text to a local path, a `Folder` if it ends in a slash.

    Raises:
        InputError: an address such as `gs://bucket/file`, which `Path` would take for the folder
            `gs:` of the working directory.
    """
    check_local(text)
    return Folder(text) if text.endswith("/") else Path(text)


def check_name(name: object, where: str) -> str:
    """Check that a name from data, such as an object key, stays below the folder it is joined to.

    Backslashes and drives are refused on every system, so that a name means one file everywhere.

    Args:
        name: parts separated by slashes.
        where: the file or pattern that has the name, for the message.

    Returns:
        The name.

    Raises:
        InputError: it is not a string; a part is empty, `.`, `..` or a drive; it has a backslash,
            a zero byte or invalid Unicode.
    """
    parts = name.split("/") if isinstance(name, str) else []
    for is_wrong, problem in (
        (not isinstance(name, str), "is not a string"),
        (parts[:1] == [""], "is empty or absolute"),
        ("" in parts, "has an empty part"),
        ({".", ".."} & {*parts}, "has the part . or .."),
        (any("\\" in name for name in parts), "has a backslash"),
        (any(map(DRIVE.match, parts)), "has a drive"),
        (any("\0" in name for name in parts), "has a zero byte"),
        (not _is_encodable(name), "contains a lone surrogate (invalid Unicode)"),
    ):
        if is_wrong:
            raise InputError(
                f"{where}: the name {name!r} {problem}, expected the name of a file below a "
                "folder; rename the file, or leave it out"
            )
    return str(name)


def _is_encodable(name: object) -> bool:
    """Return True if the file system can have a name; one of undecodable bytes has surrogates."""
    try:
        os.fsencode(str(name))
    except UnicodeEncodeError:
        return False
    return True


def shorten_name(name: str, longest: int = LONGEST_NAME) -> str:
    """Return the name, or a digest of it and its end if it is too long."""
    raw = name.encode(errors="backslashreplace")
    if len(raw) <= longest:
        return name
    return f"{hashlib.sha256(raw).hexdigest()[:8]}_{raw[9 - longest :].decode(errors='ignore')}"


def model_file_name(model: str) -> str:
    """Return a model's name as part of a file name, as published scripts write it.

    `:`, `/`, unprintable characters and characters that a file system may refuse become `_`.
    """
    return shorten_name(UNPRINTABLE.sub("_", re.sub(r'[:/\\<>"|?*]', "_", model)))


def distinct_file_name(name: str) -> str:
    """Replace all but letters, digits and `.+-` by `_`, and add a digest if the name changed.

    Different names stay different.
    """
    plain = re.sub(r"[^\w.+-]", "_", name)
    if plain != name:
        raw = name.encode(errors="backslashreplace")
        plain += f"_{hashlib.sha256(raw).hexdigest()[:8]}"
    return shorten_name(plain)


def check_inside(path: Path, folder: Path) -> None:
    """Check that no symbolic link between a folder and a path in it leads out of the folder.

    Raises:
        InputError: the path is a file elsewhere.
    """
    target = os.path.realpath(path)
    if not Path(target).is_relative_to(os.path.realpath(folder)):
        raise InputError(
            f"{path}: a symbolic link leads out of {folder}, to {target}; remove the link, or give "
            "another folder"
        )


def mask(text: str, *addresses: str) -> str:
    """Remove users, passwords, queries, fragments and parameters from the addresses of a text.

    Any of them may be a credential.

    Args:
        addresses: addresses that the text may quote in part or in another form, as stores do.
    """
    for address in addresses:
        text = text.replace(address, mask_address(address))
        for secret in _secrets(address):
            text = text.replace(secret, "...")
    out, n = URL.subn(lambda match: mask_address(match[0]), text)
    return CREDENTIAL.sub(r"\1...", QUERY.sub("?...", out) if n else out)


def mask_address(address: str) -> str:
    """Remove user, password, query, fragment and parameters from an address."""
    scheme, _, rest = address.partition("://")
    if user := _user(address):
        rest = rest.removeprefix(user)
    cut = PARAMETERS.search(rest)
    if cut is None or MASKED.fullmatch(rest, cut.end()):  # masked before, in a sentence
        return f"{scheme}://{rest}"
    return f"{scheme}://{rest[: cut.start()]}{cut[0]}..."


def _user(address: str) -> str:
    """Return user, password and `@` of an address, or an empty text."""
    scheme, _, rest = address.partition("://")
    is_web = scheme.lower() in ("http", "https", "ftp")
    match = (WEB_USER if is_web else USER).match(rest)
    return "" if match is None else match[0]


def _secrets(address: str) -> list[str]:
    """Return all that `mask_address` removes, and parts of it, in each encoding, longest first."""
    user = _user(address)
    removed = [user, user.removesuffix("@").partition(":")[2] or user.removesuffix("@")]
    rest = address.partition("://")[2].removeprefix(user)
    if cut := PARAMETERS.search(rest):
        parameters = rest[cut.end() :]
        values = [pair.partition("=")[2] or pair for pair in re.split("[?&#;]", parameters)]
        removed += [parameters, *values]
    forms = {form(text) for text in removed for form in (str, quote, quote_plus, unquote)}
    return sorted((form for form in forms if len(form) >= LEAST_SECRET), key=len, reverse=True)


def check_local(text: str, expected: str = "a local path") -> None:
    """Refuse an address such as `gs://bucket/file`; a colon elsewhere is part of a name.

    The message does not contain passwords or signatures.

    Args:
        expected: description of a valid value, for the message.

    Raises:
        InputError: naming the scheme.
    """
    if match := ADDRESS.match(text):
        remedy = "copy it to this machine, or mount it, and give the path there"
        if match[1].lower() in ("http", "https", "hf"):
            remedy = "download it and give the local path"
        raise InputError(
            f"{mask(text, text)}: found an address of scheme {match[1]}://, which is not handled, "
            f"expected {expected}; {remedy}"
        )


def cache_folder(name: str) -> Path | None:
    """Return the folder of some cached files, which may not exist yet.

    JAXSCORE_CACHE overrides the user's cache folder; JAXSCORE_CACHE=off disables the cache.

    Args:
        name: the name of the folder: "xla" for compiled programs, "weights" for digests.

    Returns:
        The folder, or None if the cache is disabled.

    Raises:
        InputError: JAXSCORE_CACHE is an address.
    """
    if (named := _named_cache()) is None and os.environ.get(CACHE) == "off":
        return None
    return (named or Path(platformdirs.user_cache_dir("jaxscore"))) / name


def _named_cache() -> Path | None:
    """Return the folder that JAXSCORE_CACHE names, or None."""
    value = os.environ.get(CACHE)
    if not value or value == "off":
        return None
    try:
        return local_path(value)
    except InputError as problem:
        raise InputError(f"{CACHE}={problem}") from None


def create_cache_folder(name: str) -> Path | None:
    """Create `cache_folder(name)` or check it, see `create_private_folder`.

    Raises:
        InputError: somebody else can write to it, or JAXSCORE_CACHE is an address.
        OSError: it cannot be created.
    """
    folder = cache_folder(name)
    return None if folder is None else create_private_folder(folder, _named_cache())


def work_folder() -> Path:
    """Return the folder of remote inputs and unfinished outputs, which may not exist yet.

    It is in the cache folder; without a cache, in the temporary folder under the user's number.
    """
    user = os.geteuid() if hasattr(os, "geteuid") else ""
    return cache_folder("remote") or Path(tempfile.gettempdir()) / f"jaxscore-remote-{user}"


def create_work_folder() -> Path:
    """Create `work_folder()` or check it, see `create_private_folder`.

    Raises:
        InputError: somebody else can write to it, or it cannot be created.
    """
    folder = work_folder()
    try:
        return create_private_folder(folder, _named_cache())
    except OSError as problem:
        raise InputError(
            f"{folder}: cannot be created ({problem.strerror}); set {CACHE} to a folder that you "
            "can write"
        ) from None


def create_private_folder(
    folder: Path, named: Path | None = None, remedy: str = f"set {CACHE} to another folder"
) -> Path:
    """Create a folder with mode 0700, or check that nobody else can write to an existing one.

    Args:
        folder: the folder; missing folders above it get mode 0700 too.
        named: the folder above it that the user named, or None. Its owner is trusted too. If its
            group may write to it, the group is trusted, and may write to a new `folder`.
        remedy: the remedy, for the message.

    Returns:
        `folder`.

    Raises:
        InputError: it is a link or a file, belongs to somebody else, or others can write to it.
        OSError: it cannot be created.
    """
    for path in (*reversed(folder.absolute().parents), folder):
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
                if path == folder and named is not None and _is_shared(named):
                    path.chmod(path.stat().st_mode | 0o070)
    if os.name != "posix":  # elsewhere owners and modes are not comparable
        return folder
    facts, user = folder.lstat(), os.geteuid()
    owners, is_shared = {user, 0}, False
    if named is not None and not any(
        is_planted(path) for path in (named, *named.absolute().parents, *named.resolve().parents)
    ):
        owners.add(named.stat().st_uid)
        is_shared = _is_shared(named)
    mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISLNK(facts.st_mode):
        description = "a link"
    elif not stat.S_ISDIR(facts.st_mode):
        description = "a file"
    elif facts.st_uid not in owners and not is_shared:
        description = f"a folder of {_user_name(facts.st_uid)}"
    elif mode & (0o002 if is_shared else 0o022):
        description = f"a folder that others can write (mode {mode:o})"
    else:
        return folder
    raise InputError(
        f"{folder}: found {description}, expected a folder that {_user_name(user)} alone can "
        f"write; remove it if you do not know who made it, chmod go-w if you do, or {remedy}"
    )


def is_planted(path: Path) -> bool:
    """Return True if another user may have made a file, folder or link.

    Everybody may create an entry in a folder such as /tmp.
    """
    try:
        owner, above = path.lstat().st_uid, path.parent.stat().st_mode
    except OSError:
        return False
    return os.name == "posix" and bool(above & 0o002) and owner not in (os.geteuid(), 0)


def refuse_planted_link(path: Path) -> None:
    """Refuse to write through a link that another user may have made.

    Raises:
        InputError: `path` is such a link.
    """
    if os.path.islink(path) and is_planted(path):
        raise InputError(
            f"{path}: found a link of {_user_name(path.lstat().st_uid)} in a folder that everybody "
            "can write, expected a file, or your own link; give another name"
        )


def _is_shared(folder: Path) -> bool:
    """Return True if a folder's group may write to it, and others may not."""
    return folder.stat().st_mode & 0o022 == 0o020


def _user_name(number: int) -> str:
    """Return a user's name, or the number of a user without one."""
    import pwd  # deferred: Windows has none

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
