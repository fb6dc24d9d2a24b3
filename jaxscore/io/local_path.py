"""Paths that users name, and the cache folder: local files, and a refusal of addresses."""

import os
import re
from pathlib import Path

import platformdirs

from jaxscore.errors import InputError

# Two characters before the colon at least: `C:` is a drive.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def local_path(text: str) -> Path:
    """The path of a local file or folder.

    Raises:
        InputError: an address such as `gs://bucket/file`, which `Path` would take for the folder
            `gs:` of the working directory.
    """
    check_local(text)
    return Path(text)


def check_local(text: str, expected: str = "a local path") -> None:
    """Refuse an address such as `gs://bucket/file`; a colon elsewhere is part of a name.

    Args:
        expected: what is needed in its place.

    Raises:
        InputError: naming the scheme.
    """
    if found := ADDRESS.match(text):
        remedy = "copy it to this machine, or mount it, and give the path there"
        if found[1].lower() in ("http", "https", "hf"):
            remedy = "download it and give the local path"
        raise InputError(
            f"{text}: found an address of scheme {found[1]}://, which is not handled, expected "
            f"{expected}; {remedy}"
        )


def cache_folder(kind: str) -> Path | None:
    """The folder for one kind of cached files; it may not exist yet.

    JAXSCORE_CACHE names another folder than the user's cache folder; JAXSCORE_CACHE=off keeps
    nothing.

    Args:
        kind: the name of the folder: "xla" for compiled programs, "weights" for digests.

    Returns:
        None where nothing is to be kept.

    Raises:
        InputError: JAXSCORE_CACHE is an address.
    """
    chosen = os.environ.get("JAXSCORE_CACHE")
    if chosen == "off":
        return None
    folder = local_path(chosen) if chosen else Path(platformdirs.user_cache_dir("jaxscore"))
    return folder / kind
