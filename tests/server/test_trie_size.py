"""The size of a trie, against the set of all prefixes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.server.trie_size import TrieSize


@given(st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 2**31 - 1]), max_size=6), max_size=12))
def test_it_counts_distinct_prefixes(sequences):
    size, prefixes = TrieSize(), set()
    for ids in sequences:
        new = {tuple(ids[:n]) for n in range(1, len(ids) + 1)} - prefixes
        prefixes |= new
        array = np.array(ids, np.int32)
        n_shared, n_tokens = len(ids) - len(new), len(prefixes)
        assert size.add(array, lambda n, most=n_tokens - 1, want=n_shared: most + n - want) is None
        assert size.add(array, lambda n, most=n_tokens, want=n_shared: most + n - want) == len(new)
        assert size.n_tokens == len(prefixes)
