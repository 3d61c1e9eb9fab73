"""Train a drafter: `python -m training.train --target T --data SHARDS --start DRAFTER --out RUN`.

Stopped at any time it goes on where it last saved, with the same result. Progress is one line of
JSON for each report, also in RUN/log.jsonl.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddtree.errors import ConfigError
from ddtree.models.compat import load_causal_lm
from ddtree.models.drafter import Drafter, load_drafter
from ddtree.models.target import Target
from training.blocks import Attention, Places, dense_attention, draft, flexible_attention
from training.corpus import Batch, batch_of, load_shards
from training.objective import Learned, Objective, loss_of
from training.plans import CausalPlan
from training.writing import Written


@dataclass(frozen=True)
class Recipe:
    """One training run. rate: the highest learning rate, reached after `warmup` steps, from where
    it falls along a cosine to a tenth. window: committed tokens that a block sees."""

    steps: int = 4000
    sequences: int = 32
    anchors: int = 128
    window: int = 1024
    rate: float = 6e-4
    warmup: int = 100
    decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    kl: float = 0.7
    depth_decay: float = 4.0

    @property
    def objective(self) -> Objective:
        """The loss."""
        return Objective(self.kl, self.depth_decay)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(share, 1.0))))


@dataclass
class Run:
    """What a step changes. network: float32 weights, which compute in `compute`."""

    network: Drafter
    optimizer: torch.optim.Optimizer
    step: int = 0


def new_run(recipe: Recipe, network: Drafter) -> Run:
    """A run at its beginning; `network` becomes trainable."""
    network.train().requires_grad_()
    optimizer = torch.optim.AdamW(
        network.parameters(), recipe.rate, betas=(0.9, 0.95), weight_decay=recipe.decay
    )
    return Run(network, optimizer)


def learn(
    recipe: Recipe,
    target: Target,
    network: Drafter,
    batch: Batch,
    attention_of: Callable[[Places], Attention],
) -> Learned:
    """The loss of one batch, with its gradient to come."""
    ids, anchors = batch.ids.to(target.device), batch.anchors.to(target.device)
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    with torch.no_grad():
        hidden, features = target.forward(ids, positions, CausalPlan(), features=True)
    assert features is not None
    size = network.config.block_size
    places = Places(anchors, ids.shape[1], size, recipe.window)
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=target.dtype == torch.bfloat16):
        drafted = draft(network, target.embed, ids, features, places, attention_of(places))
    offsets = torch.arange(size - 1, device=ids.device)
    # The target's state at a position tells of the token after it.
    before = (anchors[:, :, None] + offsets).flatten(1)
    true = hidden.gather(1, before[:, :, None].expand(-1, -1, hidden.shape[-1]))
    tokens = ids.gather(1, before + 1)
    width = hidden.shape[-1]
    return loss_of(
        recipe.objective,
        target.head,
        drafted.to(target.dtype).view(-1, size - 1, width),
        true.view(-1, size - 1, width),
        tokens.view(-1, size - 1),
    )


def take_step(
    recipe: Recipe,
    target: Target,
    run: Run,
    corpus: Written,
    attention_of: Callable[[Places], Attention],
) -> dict[str, Any]:
    """One step of the optimizer, and what to say of it."""
    size = recipe.sequences, recipe.anchors
    batch = batch_of(corpus, run.step, size, run.network.config.block_size, recipe.seed)
    learned = learn(recipe, target, run.network, batch, attention_of)
    for group in run.optimizer.param_groups:
        group["lr"] = recipe.rate_at(run.step)
    run.optimizer.zero_grad(set_to_none=True)
    learned.loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(run.network.parameters(), recipe.clip)
    if not bool(norm.isfinite()):
        raise ConfigError(
            f"step {run.step}: the gradient's norm is {float(norm)}; lower --rate, and go on from"
            " the last save"
        )
    run.optimizer.step()
    run.step += 1
    return {
        "step": run.step,
        "loss": round(float(learned.loss.detach()), 5),
        "norm": round(float(norm), 4),
        "agreement": [round(share, 4) for share in learned.agreement.tolist()],
    }


def save(recipe: Recipe, run: Run, folder: Path) -> None:
    """All that a run needs to go on, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "recipe": asdict(recipe),
        "step": run.step,
        "network": run.network.state_dict(),
        "optimizer": run.optimizer.state_dict(),
    }
    part = folder / "state.part"
    torch.save(state, part)
    part.rename(folder / "state.pt")


def resume(recipe: Recipe, run: Run, folder: Path) -> bool:
    """Take up a saved state, if there is one; ConfigError if it is of another recipe."""
    path = folder / "state.pt"
    if not path.is_file():
        return False
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state["recipe"] != asdict(recipe):
        changed = {n for n, v in asdict(recipe).items() if state["recipe"].get(n) != v}
        raise ConfigError(
            f"{path}: was made with other settings ({', '.join(sorted(changed))}); give the same,"
            " or another --out"
        )
    run.network.load_state_dict(state["network"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.step = int(state["step"])
    return True


def load_pair(target: Path, drafter: Path, device: str) -> tuple[Target, Drafter]:
    """A target that computes as the device does best, and a drafter in float32."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    network = load_drafter(drafter, torch.float32, device)
    model = load_causal_lm(target, dtype, device)
    model.requires_grad_(False)
    return Target(model, network.config.target_layer_ids), network


def fitting_attention(device: str) -> Callable[[Places], Attention]:
    """flex_attention, compiled, on a GPU; a dense mask on a CPU."""
    if device == "cpu":
        return dense_attention
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Tensor] = torch.compile(flex_attention)
    return lambda places: flexible_attention(places, compiled)


def main() -> None:
    """Train to the end, or until the time is up."""
    args = _arguments()
    fields = {name: getattr(args, name) for name in Recipe.__dataclass_fields__}
    recipe = Recipe(**fields)
    target, network = load_pair(args.target, args.start, args.device)
    run = new_run(recipe, network)
    if resume(recipe, run, args.out):
        print(f"goes on at step {run.step}", file=sys.stderr)
    corpus, attention_of = load_shards(args.data), fitting_attention(args.device)
    begun, first = time.monotonic(), run.step
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "log.jsonl").open("a") as log:
        while run.step < recipe.steps:
            told = take_step(recipe, target, run, corpus, attention_of)
            spent = time.monotonic() - begun
            up = args.minutes is not None and spent > 60 * args.minutes
            if run.step % args.report_every == 0 or run.step == recipe.steps or up:
                each = spent / (run.step - first)
                told |= {"s": round(spent, 1), "eta_s": round(each * (recipe.steps - run.step))}
                print(json.dumps(told), file=sys.stderr, flush=True)
                log.write(json.dumps(told) + "\n")
            if run.step % args.save_every == 0 or up:
                save(recipe, run, args.out)
            if up:
                return
    save(recipe, run, args.out)


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--target", type=Path, required=True)
    options.add_argument("--data", type=Path, required=True, help="folder of shards")
    options.add_argument("--start", type=Path, required=True, help="the drafter to train on")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--device", default="cuda")
    options.add_argument("--minutes", type=float, help="save and stop then")
    options.add_argument("--report-every", type=int, default=20)
    options.add_argument("--save-every", type=int, default=500)
    for name, field in Recipe.__dataclass_fields__.items():
        flag = f"--{name.replace('_', '-')}"
        options.add_argument(flag, type=type(field.default), default=field.default, dest=name)
    return options.parse_args()


if __name__ == "__main__":
    main()
