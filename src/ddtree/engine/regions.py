"""Which runs of the pool's cells are taken: first fit, lowest first."""

import bisect

# Runs come in few sizes, so that neighbours often lie equally far apart and attend in one call.
_LEAST = 64


class Regions:
    """Contiguous runs out of `size` cells, none longer than `longest`."""

    def __init__(self, size: int, longest: int) -> None:
        self.size, self.longest = size, longest
        self._free = [(0, size)]  # (first cell, cells), ascending, never touching
        self._taken: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Cells that nobody holds, in whatever pieces."""
        return sum(cells for _, cells in self._free)

    def take(self, cells: int) -> int | None:
        """The first cell of a run of at least `cells`, None while there is none."""
        wanted = self.rounded(cells)
        for index, (first, free) in enumerate(self._free):
            if free >= wanted:
                rest = [(first + wanted, free - wanted)] if free > wanted else []
                self._free[index : index + 1] = rest
                self._taken[first] = wanted
                return first
        return None

    def taken(self, first: int) -> int:
        """Cells of the run taken at `first`. KeyError if none is."""
        return self._taken[first]

    def give(self, first: int) -> None:
        """Give a run back. KeyError for one that is not taken."""
        cells = self._taken.pop(first)
        index = bisect.bisect(self._free, (first, 0))
        begin, end = first, first + cells
        if index < len(self._free) and self._free[index][0] == end:
            end += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == begin:
            index -= 1
            begin = self._free.pop(index)[0]
        self._free.insert(index, (begin, end - begin))

    def rounded(self, cells: int) -> int:
        """`cells` rounded up to the sizes that runs come in: quarters of a power of two."""
        cells = max(cells, _LEAST)
        quarter = 1 << (cells.bit_length() - 3)
        return min(-(-cells // quarter) * quarter, self.longest)
