"""A second plugin for tests alone: plants the fault that FAULT names in DDTREE's plugin."""

import dataclasses
import os

import torch

from ddtree.sglang_plugin import adapter, drafting, rounds, worker


def everyone_sees_everyone(planted, lengths):
    """The tree's part of the mask is all True."""
    return torch.ones_like(rounds.full_mask(planted, lengths))


def rows_as_positions(*given):
    """Siblings get positions of their own."""
    planted = rounds.plant(*given)
    start = planted.rows.positions[:, :1]
    numbers = torch.arange(planted.rows.positions.shape[1])
    return rounds.Planted(
        planted.tree, dataclasses.replace(planted.rows, positions=start + numbers)
    )


def nothing_moves(block, path):
    """Accepted rows stay where the tree had them."""
    _, targets = rounds.moves(block, path)
    return targets, targets


def first_rows_are_kept(hidden, path, rows):
    """The drafter is fed the first rows, accepted or not."""
    return rounds.kept_hidden(hidden, torch.arange(path.shape[1]).expand_as(path), rows)


def no_first_token(logits, _, topk, gather, right=drafting.merged_candidates):
    """A rank's own token ids pass for those of the whole vocabulary."""
    return right(logits, 0, topk, gather)


def everyone_serves_trees():
    """Hooks take every server for one of DDTREE."""
    return True


FAULTS = {
    "mask": (worker, "full_mask", everyone_sees_everyone),
    "positions": (drafting, "plant", rows_as_positions),
    "moves": (worker, "moves", nothing_moves),
    "everywhere": (adapter, "is_serving_trees", everyone_serves_trees),
    "shard": (drafting, "merged_candidates", no_first_token),
    "hidden": (worker, "kept_hidden", first_rows_are_kept),
}


def register():
    """Plant it in this process."""
    module, name, fault = FAULTS[os.environ["FAULT"]]
    setattr(module, name, fault)
