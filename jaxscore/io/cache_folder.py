"""Where this program keeps what it can always compute again."""

import os
from pathlib import Path

import platformdirs

from jaxscore.io.local_path import local_path


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
