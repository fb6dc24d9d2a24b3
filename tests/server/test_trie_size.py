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
        if new:
            assert size.add(array, len(new) - 1) is None
        assert size.add(array, len(new)) == len(new)
        assert size.n_tokens == len(prefixes)
