"""Local paths from users, a refusal of remote addresses, and the cache folder."""

import os
import re
from pathlib import Path

import platformdirs

from jaxscore.errors import InputError

# At least two characters before the colon: `C:` is a drive.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
# Quotes and brackets may be part of a name, before a signature: to the next space, or, before a
# query, to the next address.
SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{1,19}://"
URL = re.compile(rf"{SCHEME}(?:(?!{SCHEME})[^\s?])*(?:\?\S*)?")
QUERY = re.compile(r"\?[^\s?=]+=\S*")  # of an address with a space
# User and password of an address; the second form has a password with a slash or question mark.
USER = re.compile(r"[^/?]*@|[^/:?]*:(?!\d*(?:[/?]|$)).*@")


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


def mask(text: str) -> str:
    """A text whose addresses have no user, password or query, which may be a signature."""

    def masked(found: re.Match[str]) -> str:
        scheme, _, rest = found[0].partition("://")
        rest = USER.sub("", rest, count=1) if USER.match(rest) else rest
        place, query, _ = rest.partition("?")
        return f"{scheme}://{place}{'?...' if query else ''}"

    out, n = URL.subn(masked, text)
    return QUERY.sub("?...", out) if n else out


def check_local(text: str, expected: str = "a local path") -> None:
    """Refuse an address such as `gs://bucket/file`; a colon elsewhere is part of a name.

    The message has no password or signature.

    Args:
        expected: what the message asks for instead.

    Raises:
        InputError: naming the scheme.
    """
    if found := ADDRESS.match(text):
        remedy = "copy it to this machine, or mount it, and give the path there"
        if found[1].lower() in ("http", "https", "hf"):
            remedy = "download it and give the local path"
        raise InputError(
            f"{mask(text)}: found an address of scheme {found[1]}://, which is not handled, "
            f"expected {expected}; {remedy}"
        )


def cache_folder(kind: str) -> Path | None:
    """The folder for one kind of cached files, which may not exist yet.

    JAXSCORE_CACHE overrides the user's cache folder; JAXSCORE_CACHE=off disables the cache.

    Args:
        kind: the name of the folder: "xla" for compiled programs, "weights" for digests.

    Returns:
        The folder, or None if the cache is disabled.

    Raises:
        InputError: JAXSCORE_CACHE is an address.
    """
    override = os.environ.get("JAXSCORE_CACHE")
    if override == "off":
        return None
    folder = local_path(override) if override else Path(platformdirs.user_cache_dir("jaxscore"))
    return folder / kind
