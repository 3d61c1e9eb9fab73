"""The algorithm: tree building, layout, acceptance, windows. Pure functions on tensors.

Importable alone: torch and numpy only, no I/O, no device policy.
"""

from ddtree.core.accept import Acceptance, accept, accept_walk
from ddtree.core.candidates import Candidates, top_candidates, top_candidates_sorted
from ddtree.core.heap import build_heap
from ddtree.core.layout import VerifyRows, causal_rows, layout_tree
from ddtree.core.levelwise import LevelwiseBuilder
from ddtree.core.tree import DraftTree, empty_tree
from ddtree.core.window import DraftVisibility, WindowKind, draft_visible, ring_positions

__all__ = [
    "Acceptance",
    "Candidates",
    "DraftTree",
    "DraftVisibility",
    "LevelwiseBuilder",
    "VerifyRows",
    "WindowKind",
    "accept",
    "accept_walk",
    "build_heap",
    "causal_rows",
    "draft_visible",
    "empty_tree",
    "layout_tree",
    "ring_positions",
    "top_candidates",
    "top_candidates_sorted",
]
