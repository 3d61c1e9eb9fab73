"""Bugs planted in what decides which context the drafter sees."""

from mutations import window_checks as windows
from mutations.planting import Mutation

CONFIG, WINDOW = "ddtree.models.drafter_config", "ddtree.models.drafter_window"
PLAN, MAKING = "ddtree.engine.plan", "ddtree.engine.making"

MEANING_MUTATIONS = (
    Mutation(
        "a sliding layer among full ones loses its window",
        CONFIG,
        (
            (
                "self.layer_windows[layer] if len(set(self.layer_windows)) > 1 else None",
                "None",
            ),
        ),
        (windows.check_meanings,),
        harmless_to=windows.check_batch_windows,
    ),
    Mutation(
        "an override of causality is ignored",
        WINDOW,
        (("if overrides.causal is not None:", "if False:"),),
        (windows.check_meanings,),
    ),
    Mutation(
        "an override of the window's kind is ignored",
        WINDOW,
        (("if overrides.window_kind is not None:\n        return", "if False:\n        return"),),
        (windows.check_meanings,),
    ),
)

LENGTH_MUTATIONS = (
    Mutation(
        "a full per-query window ends at the context's length",
        CONFIG,
        (
            (
                'largest + self.block_size if self.window_kind == "per-query" else largest',
                "largest",
            ),
        ),
        (windows.check_long_windows,),
        harmless_to=windows.check_batch_windows,
    ),
    Mutation(
        "any window that is asked for is the context's length",
        CONFIG,
        (("else min(wanted, reach)", "else largest"),),
        (windows.check_long_windows, windows.check_batch_windows),
    ),
    Mutation(
        "every request of a batch has the widest window",
        PLAN,
        (
            (
                "torch.tensor(context.windows,",
                "torch.tensor([max(context.windows)] * len(context.windows),",
            ),
        ),
        (windows.check_batch_windows,),
        harmless_to=windows.check_long_windows,
    ),
    Mutation(
        "a request has its neighbour's window",
        PLAN,
        (
            (
                "limits = windows[first:last] if window is None",
                "limits = windows.flip(0)[first:last] if window is None",
            ),
        ),
        (windows.check_batch_windows,),
        harmless_to=windows.check_long_windows,
    ),
)

LIMIT_MUTATIONS = (
    Mutation(
        "the drafter's limit is one position too high",
        CONFIG,
        (("if wanted > self.max_positions:", "if wanted > self.max_positions + 1:"),),
        (windows.check_window_limits,),
        harmless_to=windows.check_batch_windows,
    ),
    Mutation(
        "a full window ignores the drafter's limit",
        CONFIG,
        (("largest = min(max_context, self.max_positions)", "largest = max_context"),),
        (windows.check_window_limits,),
        harmless_to=windows.check_batch_windows,
    ),
    Mutation(
        "a request may ask for more than the ring holds",
        MAKING,
        (("if window.ring > self._drafting.ring:", "if False:"),),
        (windows.check_window_limits,),
        harmless_to=windows.check_batch_windows,
    ),
    Mutation(
        "a request's window is not held against the drafter",
        MAKING,
        (
            (
                'elif wanted != "full" and (fault := config.check_window(wanted)) is not None:',
                "elif False:",
            ),
        ),
        (windows.check_window_limits,),
        harmless_to=windows.check_batch_windows,
    ),
)
WINDOW_MUTATIONS = (*MEANING_MUTATIONS, *LENGTH_MUTATIONS, *LIMIT_MUTATIONS)
