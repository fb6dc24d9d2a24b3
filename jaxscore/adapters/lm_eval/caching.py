"""`--use_cache`: answers of one model never stand for those of another.

lm-evaluation-harness keys its cache by the request alone, so the file also gets what decides the
numbers, under a key of ours.
"""

import json
from collections.abc import MutableMapping
from typing import Any

from jaxscore.errors import InputError

KEY = "jaxscore: what decides the answers"
# Arguments that change answers and are no part of `Scorer.about`
DECIDE = (
    "tokenizer",
    "add_bos_token",
    "prefix_token_id",
    "max_gen_toks",
    "think_end_token",
)


def claim(kept: MutableMapping[str, Any], about: dict[str, Any]) -> None:
    """Write down what decides the answers, or see that a file with answers says the same.

    Args:
        kept: the cache, by key.
        about: as JSON has it; empty where it is not known.

    Raises:
        InputError: the file has answers of another model, or of one that nobody knows.
    """
    advice = "give --use_cache another name, or remove the file"
    if not about:
        raise InputError(
            "--use_cache: this scorer was made from parameters, so nobody can tell whose answers "
            "a cache has; leave it out"
        )
    own = json.dumps(about, sort_keys=True)
    found = kept.get(KEY)
    if found is None and len(kept):
        raise InputError(f"--use_cache: the file has answers of another kind of model; {advice}")
    if found is None:
        kept[KEY] = own
        return
    if found != own:
        then = json.loads(found)
        names = [name for name in {**then, **about} if then.get(name) != about.get(name)]
        told = ", ".join(f"{name} {then.get(name)!r} is now {about.get(name)!r}" for name in names)
        raise InputError(f"--use_cache: the file has answers of another model ({told}); {advice}")
