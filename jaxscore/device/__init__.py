"""Pure JAX code: no I/O, tokenizers, logging or names of model families.

Axes, as suffixes on array names: R rows, L row length, Q queries, T targets per query, D width,
N query heads, K key/value heads, G = N/K heads per group, H head width, F MLP width,
V vocabulary columns.
"""
