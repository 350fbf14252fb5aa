"""A line plot on logarithmic axes, in text."""

import math
from collections.abc import Callable, Mapping, Sequence

BLANK = " "
DOT = "·"
MARGIN = 8  # columns of the labels on the left


def log_plot(
    lines: Mapping[str, Callable[[float], float]],
    ticks: Sequence[tuple[float, str]],
    *,
    width: int,
    height: int,
    label: Callable[[float], str],
    solid: str,
) -> list[str]:
    """Draw functions as dotted lines with their marks between, one of them as a solid line of its mark.

    Marks take turns over the columns, so that of lines that coincide all marks are seen.

    Args:
        lines: Positive functions, by their marks.
        ticks: Positions on the horizontal axis and their names; the first and the last are its ends.
        width: Characters of a row, labels included.
        height: Rows of the plotting area.
        label: Writes a value of the vertical axis.
        solid: The mark of the solid line, if it is there.

    Returns:
        The rows of text.
    """
    columns = width - MARGIN - 2
    first, last = (math.log10(ticks[end][0]) for end in (0, -1))
    at = [10 ** (first + (last - first) * column / (columns - 1)) for column in range(columns)]
    values = {mark: [math.log10(line(x)) for x in at] for mark, line in lines.items()}
    low = math.floor(min(min(row) for row in values.values()))
    high = math.ceil(max(max(row) for row in values.values()))
    high = max(high, low + 1)

    def place(value: float) -> int:
        return round((high - value) / (high - low) * (height - 1))

    grid = [[BLANK] * columns for _ in range(height)]
    others = [mark for mark in values if mark != solid]
    for mark in [*others, *(values.keys() & {solid})]:
        for column, value in enumerate(values[mark]):
            grid[place(value)][column] = solid if mark == solid else DOT
    for turn, mark in enumerate(others):
        for column in range(turn, columns, len(others)):
            grid[place(values[mark][column])][column] = mark
    labels = {place(power): label(10.0**power) for power in range(low, high + 1)}
    rows = [
        f"{labels.get(index, ''):>{MARGIN}} {'┤' if index in labels else '│'}{''.join(row)}".rstrip()
        for index, row in enumerate(grid)
    ]
    return [*rows, *_axis(ticks, columns=columns)]


def _axis(ticks: Sequence[tuple[float, str]], *, columns: int) -> list[str]:
    first, last = math.log10(ticks[0][0]), math.log10(ticks[-1][0])
    line, names = ["─"] * columns, [BLANK] * (columns + 1)
    for position, name in ticks:
        column = round((math.log10(position) - first) / (last - first) * (columns - 1))
        line[column] = "┴"
        start = max(0, min(column - len(name) // 2, columns - len(name)))
        names[start : start + len(name)] = name
    return [f"{'':>{MARGIN}} └{''.join(line)}", f"{'':>{MARGIN + 2}}{''.join(names).rstrip()}"]
