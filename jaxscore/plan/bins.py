"""Best-fit decreasing: things of given sizes into few bins, with the things or only counted.

Bit r of `open_rooms` says that a bin with room r exists, so the tightest bin that fits is the
lowest set bit from the size up. At most 11/9 of the best number of bins (Johnson 1974).
"""

from collections.abc import Mapping, Sequence


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Things into as few bins of `capacity` as it finds, by their place in `sizes`."""
    bins: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    open_rooms = 0
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        size = sizes[k]
        fitting = open_rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            index = by_room[room].pop()
            if not by_room[room]:
                open_rooms &= ~(1 << room)
        else:
            room, index = capacity, len(bins)
            bins.append([])
        bins[index].append(k)
        left = room - size
        by_room.setdefault(left, []).append(index)
        open_rooms |= 1 << left
    return bins


def rooms_left(counts: Mapping[int, int], capacity: int) -> dict[int, int]:
    """Room that is left -> how many of the bins that `best_fit` fills have it.

    Items of one size go as far as they fit into the tightest bin, then into the next, so bins
    with equal room are counted together.

    Args:
        counts: size -> how many things have it.
        capacity: of each bin.
    """
    rooms: dict[int, int] = {}
    open_rooms = 0
    for size in sorted(counts, reverse=True):
        left = counts[size]
        while left:
            fitting = open_rooms >> size
            if fitting:
                room = size + (fitting & -fitting).bit_length() - 1
                available = rooms.pop(room)
                open_rooms &= ~(1 << room)
            else:
                room = capacity
                available = -(-left // (capacity // size))
            each = room // size
            full = min(available, left // each)
            left -= full * each
            after = {room - each * size: full}
            if left and available > full:  # the last items go into one bin more
                after[room - left * size] = 1
                full, left = full + 1, 0
            after[room] = available - full
            for empty, n in after.items():
                if n:
                    rooms[empty] = rooms.get(empty, 0) + n
                    open_rooms |= 1 << empty
    return rooms
