"""Group rows of similar length into batches."""

from collections.abc import Iterator, Sequence


def group_by_length(lengths: Sequence[int], *, tokens: int) -> Iterator[list[int]]:
    """Yield the positions of rows that share a batch, the shortest first.

    Args:
        lengths: Number of tokens of each row.
        tokens: Budget of a batch, with padding. A row that is longer is alone.
    """
    group: list[int] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[position] > tokens:
            yield group
            group = []
        group.append(position)
    if group:
        yield group
