"""Tables that read well on a terminal and are Markdown as well."""

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column and texts to the left, all that begins like a number to the right."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    right = [i > 0 and all(row[i][:1] in "0123456789-." for row in rows) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(cells, widths, right, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = (f"{'-' * (width - 1)}{':' if r else '-'}" for width, r in zip(widths, right, strict=True))
    return "\n".join([line(columns), f"| {' | '.join(rule)} |", *map(line, rows)])
