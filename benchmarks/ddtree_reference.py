"""The authors' DDTree on our weights: loads their source from a folder, as it is.

It needs flash-attn for its drafter and a few packages that a benchmark host may lack; here the
drafter attends through SDPA, which within its window is the same, and what is only imported is
stood in for.
"""

import importlib
import importlib.util
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

_IMPORTED_ONLY = ("loguru", "datasets", "tqdm")


def reference_arms(folder: Path, loaded, budgets, tokens):
    """Its arms by name, like those of gpu_speed.py."""
    theirs = load_source(folder)
    target, drafter = models(theirs, loaded)
    stops = sorted(loaded.engine.target.eos_ids)

    def arm(budget, block):
        def decode(prompt):
            ids = torch.tensor([prompt], device=target.device)
            given = dict(
                model=drafter,
                target=target,
                input_ids=ids,
                mask_token_id=drafter.mask_token_id,
                max_new_tokens=tokens,
                block_size=block,
                stop_token_ids=stops,
            )
            start = time.perf_counter()
            if budget is None:
                found = theirs.dflash.dflash_generate(**given)
            else:
                found = theirs.ddtree.ddtree_generate(**given, tree_budget=budget)
            seconds = time.perf_counter() - start
            return {
                "output": found.output_ids[0, len(prompt) :].tolist(),
                "tokens_per_s": 1 / found.time_per_output_token,
                "whole": found.num_output_tokens / seconds,
                "rounds": found.decode_rounds,
                "acceptance_length": statistics.mean(found.acceptance_lengths),
            }

        return decode

    block = drafter.block_size
    arms = {"reference ar": arm(None, 1), "reference chain": arm(None, block)}
    return arms | {f"reference {budget}": arm(budget, block) for budget in budgets}


def load_source(folder: Path):
    """Its modules."""
    for name in _IMPORTED_ONLY:
        try:
            importlib.import_module(name)
        except ImportError:
            stand_in = ModuleType(name)
            stand_in.__getattr__ = lambda wanted: SimpleNamespace(
                warning=lambda text: None, info=lambda text: None
            )
            sys.modules[name] = stand_in
    sys.path.insert(0, str(folder))
    try:
        # Its `ddtree.py` has our package's name.
        spec = importlib.util.spec_from_file_location("reference_ddtree", folder / "ddtree.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        dflash, model = importlib.import_module("dflash"), importlib.import_module("model")
    finally:
        sys.path.remove(str(folder))
    return SimpleNamespace(ddtree=module, dflash=dflash, model=model)


def models(theirs, loaded):
    """Target and drafter as its benchmark loads them."""
    from transformers import AutoModelForCausalLM

    device, dtype = loaded.engine.target.device, loaded.engine.target.dtype
    target = AutoModelForCausalLM.from_pretrained(
        loaded.paths.target, attn_implementation="sdpa", dtype=dtype
    )
    drafter = theirs.model.DFlashDraftModel.from_pretrained(
        loaded.paths.drafter, attn_implementation="sdpa", dtype=dtype
    )
    return target.to(device).eval(), drafter.to(device).eval()
