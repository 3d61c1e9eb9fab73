"""Run summaries of whole matrices: windows, what chose the arms, and 3,000 cells."""

from dataclasses import replace
from itertools import product

from report_samples import AR, CHAIN, SHIP, TREES, cell, good_run, not_lossless

from ddtree.records.arms import Arm, Window
from ddtree.records.settings import Setting
from ddtree.records.summary import (
    CellSummary,
    Choice,
    Prediction,
    Rung,
    RunSummary,
    Sentinel,
    Verdict,
)

WINDOWS: tuple[Window, ...] = (64, 256, "full")
FLAG = "2 requests answered from a cache"


def window_run() -> RunSummary:
    """A chain and two trees, each at three draft windows, over two contexts and concurrencies."""
    arms = [AR, *(replace(arm, draft_window=w) for w in WINDOWS for arm in (CHAIN, *TREES[1:3]))]
    cells = tuple(
        _windowed(arm, context, concurrency)
        for context in (60, 4096)
        for concurrency in (1, 8)
        for arm in arms
    )
    ship = replace(SHIP, draft_window=256)
    verdict = Verdict(ship, "Ship the tree with a window of 256 tokens.", 1.7, ())
    return replace(good_run(), cells=cells, verdict=verdict, controls=())


def _windowed(arm: Arm, context: int, concurrency: int, temperature: float = 0.0) -> CellSummary:
    """A cell that gains by a wider window up to 256 tokens, and less than another at C = 1."""
    found = cell(arm, min(context, 1000), concurrency, temperature=temperature)
    found = replace(found, context=context)
    if found.speedup is None or found.speedup_interval is None or found.acceptance_length is None:
        return found
    factor = 0.94 if arm.draft_window == 64 else 1.0
    factor *= 1 - 0.004 * concurrency * (arm.budget or 0) ** 0.5
    interval = found.speedup_interval
    return replace(
        found,
        speedup=factor * found.speedup,
        speedup_interval=replace(interval, low=factor * interval.low, high=factor * interval.high),
        acceptance_length=(1 - 0.3 * (1 - factor)) * found.acceptance_length,
    )


def chosen_run() -> RunSummary:
    """The good run with predictions, a rung, its screened cells, sentinels and a flag."""
    run = good_run()
    here = Setting(900, 8)
    tree = {c.arm: c for c in run.cells if c.setting == here and c.arm.method == "ddtree"}
    ghost = Arm("ddtree", budget=32, topk=4)
    predictions = tuple(
        Prediction(
            arm,
            here,
            acceptance_length=1.02 * (found.acceptance_length or 0.0),
            round_s=0.97 * (found.round_s or 0.0),
            speedup=1.05 * (found.speedup or 0.0),
            chosen=True,
            reason="on the front of predicted speeds",
        )
        for arm, found in tree.items()
    )
    left = Prediction(ghost, here, 2.4, 0.09, 0.71, False, "predicted to be slower than ar")
    arms = (*tree, ghost)
    rung = Rung("rung 1", here, 4, arms, (1.1, 1.3, 1.2, None, 0.7), (arms[1], arms[2]))
    screened = tuple(replace(found, requests=4, speedup=8.88) for found in tree.values())
    cells = tuple(
        replace(c, flags=(FLAG,)) if (c.setting, c.arm) == (here, SHIP) else c for c in run.cells
    )
    return replace(
        run,
        cells=cells,
        predictions=(*predictions, left),
        rungs=(rung,),
        screened=screened,
        sentinels=tuple(
            Sentinel(3 * place, 1.78e9 + 600 * place, ratio)
            for place, ratio in enumerate((1.0, 0.996, 1.011, 0.984, 0.958, 0.99))
        ),
    )


def night_run() -> RunSummary:
    """3,008 cells: 94 arms at 32 settings, one in 29 of them invalid or not lossless."""
    arms = [AR, *(Arm("chain", draft_window=window) for window in WINDOWS)]
    arms += [
        Arm("ddtree", budget, topk, window)
        for budget, topk, window in product((4, 8, 16, 32, 64, 128), (1, 2, 4, 8, 16), WINDOWS)
    ]
    settings = tuple(product((0.0, 0.7), (60, 1024, 4096, 8192), (1, 8, 32, 64)))
    cells = []
    for number, ((temperature, context, concurrency), arm) in enumerate(product(settings, arms)):
        found = _windowed(arm, context, concurrency, temperature)
        if number % 29 == 0 and arm != AR:
            found = replace(found, losslessness=not_lossless(), speedup=99.99)
        elif number % 29 == 7 and arm != AR:
            found = replace(found, state="invalid", reason="the client's loop ran late")
        cells.append(found)
    choices = tuple(
        Choice(context, concurrency, temperature, AR, 1.0, "nothing is faster with confidence")
        for temperature, context, concurrency in settings
    )
    run = chosen_run()
    verdict = Verdict(None, "Nothing to ship everywhere.", None, choices)
    return replace(run, cells=tuple(cells), verdict=verdict, controls=())
