"""Train a drafter: `python -m training.train --target T --data SHARDS --start DRAFTER --out RUN`.

Stopped at any time it goes on where it last saved, with the same result. Progress is one line of
JSON for each report, also in RUN/log.jsonl.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddtree.errors import ConfigError
from ddtree.models.compat import load_causal_lm
from ddtree.models.drafter import Drafter, load_drafter
from ddtree.models.target import Target
from training.blocks import Places, draft
from training.corpus import Batch, Mixture, load_shards
from training.kernels import Kernels, fitting
from training.objective import Learned, Objective, loss_of
from training.plans import CausalPlan


@dataclass(frozen=True)
class Recipe:
    """One training run. rate: the highest learning rate, reached after `warmup` steps, from where
    it falls along a cosine to a tenth. tokens: of a step's sequences; every `spacing` of them has
    one anchor. window: committed tokens that a block sees."""

    steps: int = 4000
    tokens: int = 32_768
    spacing: int = 8
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


@dataclass(frozen=True)
class Told:
    """A step as it was measured, still on the device: reading it waits for the step."""

    step: int
    norm: Tensor
    learned: Learned

    def line(self) -> dict[str, Any]:
        """For the log; ConfigError if the gradient was not finite (the weights then never are
        again, so that a later step tells as well)."""
        if not bool(self.norm.isfinite()):
            raise ConfigError(
                f"step {self.step}: the gradient's norm is {float(self.norm)}; lower --rate, and"
                " go on from the last save"
            )
        return {
            "step": self.step,
            "loss": round(float(self.learned.loss), 5),
            "norm": round(float(self.norm), 4),
            "agreement": [round(share, 4) for share in self.learned.agreement.tolist()],
        }


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
    kernels: Kernels,
) -> Learned:
    """The loss of one batch; its gradient is added to the network's."""
    ids, anchors = (_moved(part, target.device) for part in (batch.ids, batch.anchors))
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    with torch.no_grad():
        hidden, features = target.forward(ids, positions, CausalPlan(), features=True)
    assert features is not None
    size = network.config.block_size
    places = Places(anchors, ids.shape[1], size, recipe.window)
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=target.dtype == torch.bfloat16):
        drafted = draft(network, target.embed, ids, features, places, kernels.attention_of(places))
    offsets = torch.arange(size - 1, device=ids.device)
    # The target's state at a position tells of the token after it.
    before = (anchors[:, :, None] + offsets).flatten(1)
    true = hidden.gather(1, before[:, :, None].expand(-1, -1, hidden.shape[-1]))
    tokens = ids.gather(1, before + 1)
    width = hidden.shape[-1]
    drafted = drafted.to(target.dtype).view(-1, size - 1, width)
    learned = loss_of(
        recipe.objective,
        target.head,
        drafted,
        true.view(-1, size - 1, width),
        tokens.view(-1, size - 1),
        kernels.mix,
    )
    drafted.backward(learned.gradient)  # type: ignore[no-untyped-call]
    return learned


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device, without waiting for what it still has to do."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def take_step(
    recipe: Recipe,
    target: Target,
    run: Run,
    mixture: Mixture,
    kernels: Kernels,
) -> Told:
    """One step of the optimizer, and what to say of it."""
    size = recipe.tokens, recipe.spacing
    batch = mixture.batch(run.step, size, run.network.config.block_size)
    for group in run.optimizer.param_groups:
        group["lr"] = recipe.rate_at(run.step)
    run.optimizer.zero_grad(set_to_none=True)
    learned = learn(recipe, target, run.network, batch, kernels)
    norm = torch.nn.utils.clip_grad_norm_(run.network.parameters(), recipe.clip)
    run.optimizer.step()
    run.step += 1
    return Told(run.step, norm, learned)


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


def main() -> None:
    """Train to the end, or until the time is up."""
    args = _arguments()
    fields = {name: getattr(args, name) for name in Recipe.__dataclass_fields__}
    recipe = Recipe(**fields)
    target, network = load_pair(args.target, args.start, args.device)
    run = new_run(recipe, network)
    if resume(recipe, run, args.out):
        print(f"goes on at step {run.step}", file=sys.stderr)
    kernels = fitting(args.device, target, network)
    mixture = Mixture([load_shards(folder) for folder in args.data], recipe.steps, recipe.seed)
    begun, first = time.monotonic(), run.step
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "log.jsonl").open("a") as log:
        while run.step < recipe.steps:
            told = take_step(recipe, target, run, mixture, kernels)
            spent = time.monotonic() - begun
            up = args.minutes is not None and spent > 60 * args.minutes
            up |= run.step == recipe.steps
            keeps = up or run.step % args.save_every == 0
            if keeps or run.step % args.report_every == 0:
                each = spent / (run.step - first)
                left = {"s": round(spent, 1), "eta_s": round(each * (recipe.steps - run.step))}
                line = json.dumps(told.line() | left)
                print(line, file=sys.stderr, flush=True)
                log.write(line + "\n")
            if keeps:
                save(recipe, run, args.out)
            if up:
                return


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--target", type=Path, required=True)
    options.add_argument("--data", type=Path, nargs="+", required=True, help="folders of shards")
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
