"""A round's draft tree drawn in the terminal, the accepted path marked."""

import math
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from ddtree.engine import RoundResult


class TreePrinter:
    """Prints the tree of a batch's only request, round after round."""

    def __init__(self, console: Console | None = None) -> None:
        """`tokenizer` is to be set before the first round: it is loaded with the engine."""
        self.tokenizer: Any = None
        self._console = console or Console(highlight=False)
        self._round = 0

    def __call__(self, result: RoundResult) -> None:
        """Draw one round: tokens with their path's probability under the drafter."""
        self._round += 1
        count = len(result.tokens[0]) - 1
        accepted = set(result.accepted.rows[0, : count + 1].tolist())
        nodes = result.num_nodes[0]
        title = (
            f"round {self._round}: {count} of {nodes} nodes accepted, "
            f"bonus {self._show(int(result.accepted.bonus[0]))}"
        )
        branches = {0: Tree(Text(title, style="bold"), guide_style="dim")}
        for n in range(nodes):
            row, parent = n + 1, int(result.tree.parents[0, n])
            share = math.exp(float(result.tree.scores[0, n]))
            label = f"{self._show(int(result.tree.tokens[0, n]))}  {share:.0%}"
            good = row in accepted
            text = Text(f"✓ {label}" if good else f"  {label}", style="green" if good else "dim")
            branches[row] = branches[parent].add(text)
        self._console.print(branches[0])

    def _show(self, token: int) -> str:
        return repr(self.tokenizer.decode([token]))
