"""What the scripts that measure SGLang compute, without a server."""

import gzip
import importlib
import json
from pathlib import Path

import pytest
import torch

from ddtree.core.accept import accept
from ddtree.core.candidates import Candidates
from ddtree.core.layout import layout_tree
from ddtree.core.levelwise import LevelwiseBuilder

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


def module(name):
    """A script, or the plugin that they load into SGLang."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        patch.syspath_prepend(SCRIPTS / "forced")
        return importlib.import_module(name)


def a_trace(rounds, path):
    """Rounds of 1000 us: a graph of three kernels of 100 us with gaps of 10, one kernel of 50 in
    no graph, a graph of two kernels."""
    events, correlation = [], 0

    def launched(name, starts, duration):
        nonlocal correlation
        correlation += 1
        args = {"correlation": correlation}
        events.append({"cat": "cuda_runtime", "name": name, "ts": 0, "dur": 1, "args": args})
        for start in starts:
            events.append(
                {"cat": "kernel", "name": "k", "ts": start, "dur": duration, "args": args}
            )

    for number in range(rounds):
        begin = 1000 * number
        launched("cudaGraphLaunch", [begin, begin + 110, begin + 220], 100)
        launched("cudaLaunchKernel", [begin + 400], 50)
        launched("cudaGraphLaunch", [begin + 500, begin + 600], 20)
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    return path


def test_a_round_is_split_by_its_graphs(tmp_path):
    found = module("sglang_load").split_of(a_trace(9, tmp_path / "t.gz"))
    assert found["rounds"] == found["of"] == 6
    assert found["us"] == {
        "round": 1000,
        "0 3 kernels, span": 320,
        "0 3 kernels, kernels": 300,
        "1 2 kernels, span": 120,
        "1 2 kernels, kernels": 40,
        "outside graphs, kernels": 50,
        "outside graphs, count": 1,
    }


@pytest.mark.parametrize("budget", [2, 8, 30])
def test_forced_choices_accept_what_was_drawn_and_no_more(budget):
    forced = module("forced_acceptance")
    generator = torch.Generator().manual_seed(budget)
    tokens = torch.stack([torch.randperm(40, generator=generator)[:21] for _ in range(9)])
    log_probs = torch.tensor(forced.BY_RANK[:3]).log().expand(9, 7, 3)
    size = torch.full((9,), budget)
    tree = LevelwiseBuilder(budget, 3, 7, torch.device("cpu"))(
        Candidates(tokens.view(9, 7, 3), log_probs, torch.zeros(9, dtype=torch.bool)),
        size,
        torch.full_like(size, 3),
    )
    rows = layout_tree(tree, size, size)
    longest = int(tree.depths[0][tree.ranks[0] == 0].max())
    wanted = torch.arange(9) - 1
    taken = accept(tree, rows, forced.forced_choices(tree, wanted))
    assert taken.num_accepted.tolist() == wanted.clamp(0, longest).tolist()
    assert not (taken.bonus[:, None] == tree.tokens).any()


def test_draws_follow_the_histogram():
    draws = module("forced_acceptance").Draws((1, 0, 3), torch.device("cpu"))
    seen = torch.cat([draws.next(4) for _ in range(2000)])
    counts = torch.bincount(seen, minlength=3) / len(seen)
    assert counts.tolist() == pytest.approx([0.25, 0, 0.75], abs=0.03)
