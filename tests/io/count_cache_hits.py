"""Run by test_processes.py: `jaxscore`, which ends with the number of programs from JAX's cache.

Takes the words of a command. Processes on accelerators have one cache key for a program; on the
CPU, JAX's key has the process, which is left out here.
"""

import sys
from collections import Counter
from unittest import mock

import jax
from jax._src import cache_key

from jaxscore.cli.main import main

if __name__ == "__main__":
    events: Counter[str] = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
    with mock.patch.object(cache_key, "_hash_accelerator_config", cache_key._hash_devices):
        code = main()
    print(
        f"programs from the cache: {events['/jax/compilation_cache/cache_hits']}", file=sys.stderr
    )
    sys.exit(code)
