"""The algorithm: tree building, layout, acceptance, sampling, windows. Pure functions on tensors.

Importable alone: torch and numpy only, no I/O, no device policy.
"""

from ddtree.core.accept import Acceptance, accept, accept_walk
from ddtree.core.candidates import Candidates, top_candidates, top_candidates_sorted
from ddtree.core.coupling import Coupling, coupled_candidates
from ddtree.core.edits import LogitEdits, concat_edits
from ddtree.core.heap import build_heap
from ddtree.core.layout import VerifyRows, causal_rows, layout_tree
from ddtree.core.levelwise import LevelwiseBuilder
from ddtree.core.margins import edge_margins
from ddtree.core.noise import derived_seed, gumbel
from ddtree.core.rejection import reject_walk
from ddtree.core.sampling import SamplingRules, log_probabilities, rank, sample
from ddtree.core.tree import DraftTree, empty_tree
from ddtree.core.walk import Choices, greedy_choices, walk_choices
from ddtree.core.window import DraftVisibility, WindowKind, draft_visible, ring_positions

__all__ = [
    "Acceptance",
    "Candidates",
    "Choices",
    "Coupling",
    "DraftTree",
    "DraftVisibility",
    "LevelwiseBuilder",
    "LogitEdits",
    "SamplingRules",
    "VerifyRows",
    "WindowKind",
    "accept",
    "accept_walk",
    "build_heap",
    "causal_rows",
    "concat_edits",
    "coupled_candidates",
    "derived_seed",
    "draft_visible",
    "edge_margins",
    "empty_tree",
    "greedy_choices",
    "gumbel",
    "layout_tree",
    "log_probabilities",
    "rank",
    "reject_walk",
    "ring_positions",
    "sample",
    "top_candidates",
    "top_candidates_sorted",
    "walk_choices",
]
