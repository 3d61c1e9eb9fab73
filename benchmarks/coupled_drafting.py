"""Does a tree gain by looking at the noise that the target's draws will use?

Records what the drafter says along sampled texts (see `coupled_recording`), fits the chance that
a candidate is the draw (ddtree.core.coupling) on one set of prompts, and on another counts what
trees ranked by that chance would have had accepted, against trees ranked by the drafter's
probability. At a temperature where the fit doesn't win on its own prompts the calibration says to
rank by probability. Texts drawn hotter or with top_k or top_p show how far the fit carries there.
Last, the engine itself decodes some prompts with and without.

    python benchmarks/coupled_drafting.py --recordings /tmp/recordings --fit --out \
        benchmarks/results/HARDWARE/coupled_drafting.json

`--fit` writes the calibration beside the drafter's checkpoint. Recordings that exist are reused.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from common import load, one_line_lists, parser, paths_of, progress, ratio_of, write
from coupled_recording import Law, Recording, make_prompts, record, recorded

from ddtree.core import Candidates, LevelwiseBuilder
from ddtree.core.candidates import ordered_places
from ddtree.core.coupling import POOL, Coupling, draw_log_probs
from ddtree.core.noise import approximate_gumbel
from ddtree.engine import EngineConfig, Speculation
from ddtree.models.coupling_file import FILE_NAME, Calibration, DepthWeights
from ddtree.records.statistics import paired_ratio

PLAIN = "plain"
# A depth's coefficients are fitted where the tokens before it could have been in the tree.
REACH = 8
JUDGE = (16, 4)  # budget and topk that decide whether a fit is kept


@dataclass(frozen=True)
class Pools:
    """The part of the engine's pools that was recorded, [N, D, P]; -inf for what isn't in one."""

    tokens: torch.Tensor
    log_q: torch.Tensor


def main() -> None:
    """Record, fit, replay, decode."""
    args = arguments()
    source = Source(args)
    fits, entries = {}, []
    for temperature in args.temperatures:
        data = source.recording("fit", Law(temperature))
        weights = fit(data, temperature)
        judged = compare(data, rankings(data, weights, JUDGE[1]), *JUDGE)
        kept = judged["coupled_over_plain"]["interval"][0] > 1
        entries.append(weights if kept else plain_weights(data))
        fits[temperature] = {"weights": weights, "kept": kept, "judged": judged}
        progress(temperature, fits[temperature])
    calibration = Calibration(tuple(args.temperatures), tuple(entries))
    replays = []
    for law in [Law(temperature) for temperature in args.temperatures] + args.others:
        data = source.recording("test", law)
        known = fits.get(law.temperature)
        weights = known["weights"] if known else calibration.at(law.temperature)
        found = rankings(data, weights or plain_weights(data), max(k for _, k in args.shapes))
        for budget, topk in args.shapes:
            cell = compare(data, found, budget, topk)
            replays.append({**vars(law), "texts": int(data.texts.max()) + 1, **cell})
            progress(replays[-1])
    result = {
        "prompts": 2 * args.prompts,
        "tokens": args.tokens,
        "fits": [
            {"temperature": temperature, **found, "weights": rounded(found["weights"])}
            for temperature, found in fits.items()
        ],
        "replays": replays,
        "pool_sizes": pool_sizes(source, max(args.temperatures)),
    }
    if args.fit:
        write_calibration(args, calibration)
    write(args, {**result, "engine": end_to_end(args)})


class Source:
    """Recordings, made where they are missing by an engine loaded on the first need."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._loaded = args, None

    def recording(self, half: str, law: Law) -> Recording:
        """Of all prompts of a half, of fewer for laws that nothing is fitted for."""
        name = f"{half}-{law.temperature}-{law.top_p}-{law.top_k}"
        return recorded(self._args.recordings, name, lambda: self._make(half, law))

    def _make(self, half: str, law: Law) -> Recording:
        args = self._args
        if self._loaded is None:
            self._loaded = load(args, "bfloat16", EngineConfig(slots=8, max_context=1024))
        count = args.prompts if law in map(Law, args.temperatures) else args.other_prompts
        prompts = make_prompts(self._loaded.tokenizer, half, count, args.humaneval)
        return record(self._loaded.engine, prompts, law.samplings(len(prompts), args.tokens))


def arguments() -> argparse.Namespace:
    """Options; `shapes` are budget:topk, 7:1 is the chain."""
    options = parser(__doc__)
    options.add_argument("--recordings", type=Path, required=True, help="folder, 100 MB each")
    options.add_argument("--fit", action="store_true", help=f"write the drafter's {FILE_NAME}")
    options.add_argument("--prompts", type=int, default=20, help="of each kind in each half")
    options.add_argument("--tokens", type=int, default=96)
    options.add_argument("--temperatures", default="0.3,0.6,1.0")
    options.add_argument(
        "--others",
        default="1.3:1:0,1:0.95:0,1:0.9:0,1:1:50,0.6:0.95:0,0.6:1:50,0.7:0.8:0,0.7:0.8:20,"
        "0.45:1:0,0.7:1:0,0.8:1:0,0.7:0.95:0",
        help="temperature:top_p:top_k that nothing was fitted for",
    )
    options.add_argument("--other-prompts", type=int, default=8)
    options.add_argument("--shapes", default="7:1,4:4,8:4,16:4,32:4,8:8,16:8,32:8")
    options.add_argument("--decode", type=int, default=4, help="prompts for the engine, each kind")
    args = options.parse_args()
    args.temperatures = sorted(float(t) for t in args.temperatures.split(","))
    laws = [text.split(":") for text in args.others.split(",") if text]
    args.others = [Law(float(t), float(top_p), int(top_k)) for t, top_p, top_k in laws]
    args.shapes = [tuple(map(int, shape.split(":"))) for shape in args.shapes.split(",")]
    return args


def pools_of(data: Recording, size: int = POOL) -> Pools:
    """Of each class of ids modulo `size` the best token."""
    tokens = data.ids.long()
    log_q = data.logits.float() - data.totals[..., None]
    classes, order = (tokens % size).sort(dim=-1, stable=True)  # in each the best comes first
    later = torch.zeros_like(classes, dtype=torch.bool)
    later[..., 1:] = classes[..., 1:] == classes[..., :-1]
    beaten = torch.zeros_like(later).scatter_(-1, order, later)
    return Pools(tokens, log_q.masked_fill(beaten, -torch.inf))


def plain_weights(data: Recording) -> DepthWeights:
    """Those that leave the drafter's distribution as it is."""
    depth = data.following.shape[1]
    return DepthWeights((1.0,) * depth, (0.0,) * depth, (0.0,) * depth)


def fit(data: Recording, temperature: float, size: int = POOL) -> DepthWeights:
    """Maximum likelihood, depth by depth: a convex problem in a and b."""
    pools = pools_of(data, size)
    reached = torch.ones(len(data.roots), dtype=torch.bool)
    found = []
    for depth in range(data.following.shape[1]):
        true = data.following[:, depth]
        reached &= true >= 0
        log_q, tokens = pools.log_q[reached, depth], pools.tokens[reached, depth]
        positions = (data.roots[reached] + depth + 1)[:, None]
        noise = approximate_gumbel(data.seeds[reached][:, None], positions, tokens).float()
        hits = (tokens == true[reached][:, None]) & (log_q > -torch.inf)
        log_q = log_q.clamp(min=-1e4)  # -inf would make gradients of NaN
        # The draw's place in the pool; the place after the last stands for all others.
        places = torch.where(hits.any(-1), hits.int().argmax(-1), tokens.shape[-1])
        found.append(fit_depth(log_q, noise, places, 1 / temperature))
        reached &= (data.ids[:, depth, :REACH] == true[:, None]).any(-1)
    return DepthWeights(*(tuple(values) for values in zip(*found, strict=True)))


def fit_depth(log_q, noise, places, start: float) -> tuple[float, float, float]:
    """a, b and c of one depth: log_q, noise [n, P], places [n] of the draws."""
    missing = (1 - log_q.exp().sum(-1, keepdim=True)).clamp(min=1e-12).log()
    parameters = torch.tensor([start, 0.3, 0.0], requires_grad=True)
    solver = torch.optim.LBFGS([parameters], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        a, b, c = parameters[0].clamp(min=1e-3), parameters[1].clamp(min=0), parameters[2]
        scores = torch.cat([a * log_q + b * noise, a * missing + c], -1)
        # The penalty holds c where no draw is outside the pool.
        value = torch.nn.functional.cross_entropy(scores, places) + 1e-4 * c**2
        value.backward()
        return value

    solver.step(loss)
    a, b, c = parameters.tolist()
    return round(max(a, 1e-3), 4), round(max(b, 0.0), 4), round(c, 4)


def candidates(data: Recording, weights: DepthWeights, topk: int, size: int = POOL) -> Candidates:
    """What the engine's builder would get."""
    pools, count = pools_of(data, size), len(data.roots)
    if weights.is_plain:
        scores = data.logits.float() - data.totals[..., None]
    else:
        columns = (torch.tensor(v).expand(count, -1) for v in vars(weights).values())
        coupling = Coupling(torch.arange(count), data.seeds, data.roots, *columns)
        scores = draw_log_probs(pools.log_q, pools.tokens, coupling)
    best = ordered_places(scores, pools.tokens, topk)
    tokens, log_probs = pools.tokens.gather(-1, best), scores.gather(-1, best)
    return Candidates(tokens, log_probs.clamp(max=0), torch.zeros(count).bool())


def accepted(data: Recording, found: Candidates, budget: int, topk: int) -> torch.Tensor:
    """[N]: nodes of each root's tree that its text follows."""
    count, depth, width = found.tokens.shape
    builder = LevelwiseBuilder(budget, width, depth, torch.device("cpu"))
    tree = builder(found, torch.full((count,), budget), torch.full((count,), topk))
    rows, total = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
    going = torch.ones(count, dtype=torch.bool)
    for level in range(min(depth, budget)):
        fits = tree.live() & (tree.parents == rows[:, None])
        fits &= tree.tokens == data.following[:, level, None]
        going &= fits.any(-1)
        total += going
        rows = torch.where(going, fits.int().argmax(-1) + 1, rows)
    return total


def decode(data: Recording, counts: torch.Tensor) -> list[tuple[int, int]]:
    """Tokens and rounds of each text, decoded with so many accepted at each root."""
    results = []
    for text in range(int(data.texts.max()) + 1):
        own = counts[data.texts == text].tolist()
        place = rounds = 0
        while place < len(own):
            place += own[place] + 1
            rounds += 1
        results.append((place, rounds))
    return [result for result in results if result[1]]


def rankings(data: Recording, weights: DepthWeights, topk: int) -> dict[str, Candidates]:
    """Candidates by probability and by `weights`."""
    plain = candidates(data, plain_weights(data), topk)
    return {PLAIN: plain, "coupled": candidates(data, weights, topk)}


def compare(
    data: Recording, found: dict[str, Candidates], budget: int, topk: int
) -> dict[str, object]:
    """Acceptance lengths of both rankings, cut to `topk`; the ratio is paired by prompt."""
    counts, texts = {}, {}
    for name, ranked in found.items():
        counts[name] = accepted(data, ranked, budget, topk)
        texts[name] = decode(data, counts[name])
    ratios = [
        [(t / r) / (plain_t / plain_r)]
        for (t, r), (plain_t, plain_r) in zip(texts["coupled"], texts[PLAIN], strict=True)
    ]
    return {
        "budget": budget,
        "topk": topk,
        "acceptance_length": {name: round(length(value), 4) for name, value in texts.items()},
        "mean_over_all_roots": {
            name: round(1 + float(value.double().mean()), 4) for name, value in counts.items()
        },
        "coupled_over_plain": ratio_of(paired_ratio(ratios, seed=0)),
    }


def length(texts: list[tuple[int, int]]) -> float:
    """Acceptance length over texts of (tokens, rounds)."""
    return sum(tokens for tokens, _ in texts) / sum(rounds for _, rounds in texts)


def pool_sizes(source: Source, temperature: float) -> list[dict[str, object]]:
    """What looking at the noise of more tokens brings."""
    train, test = (source.recording(half, Law(temperature)) for half in ("fit", "test"))
    found = []
    for size in (64, 128, 256, 512, 1024, 2048):
        scored = candidates(test, fit(train, temperature, size), JUDGE[1], size)
        texts = decode(test, accepted(test, scored, *JUDGE))
        found.append({"pool": size, "acceptance_length": round(length(texts), 4)})
        progress(found[-1])
    return found


def rounded(weights: DepthWeights) -> dict[str, list[float]]:
    """For JSON."""
    return {name: list(values) for name, values in vars(weights).items()}


def write_calibration(args: argparse.Namespace, calibration: Calibration) -> None:
    """The drafter's file."""
    entries = [
        {"temperature": temperature, **rounded(weights)}
        for temperature, weights in zip(calibration.temperatures, calibration.weights, strict=True)
    ]
    source = {
        "script": "benchmarks/coupled_drafting.py",
        "model": args.model,
        "dtype": "bfloat16",
        "texts": 2 * args.prompts,
        "prompts": f"HumanEval 80 to {79 + args.prompts} and as many chats",
        "tokens_per_text": args.tokens,
        "top_p": 1.0,
        "pool": POOL,
    }
    data = {"schema_version": 1, "fitted_on": source, "weights": entries}
    drafter = paths_of(args.model).drafter
    (drafter / FILE_NAME).write_text(one_line_lists(json.dumps(data, indent=1)) + "\n")
    progress("wrote", drafter / FILE_NAME)


def end_to_end(args: argparse.Namespace) -> list[dict[str, object]]:
    """The engine on some test prompts, by the drafter's file as it is; in float32, where texts must
    be the same (in bfloat16 near-ties fall either way with the number of rows in a round)."""
    rows = []
    for temperature in args.temperatures:
        outputs, lengths = {}, {}
        for name, coupled in ((PLAIN, False), ("coupled", True)):
            config = EngineConfig(slots=8, max_context=1024, coupled_drafting=coupled)
            loaded = load(args, "float32", config)
            prompts = make_prompts(loaded.tokenizer, "test", args.decode, args.humaneval)
            params = Law(temperature).samplings(len(prompts), args.tokens)
            how = Speculation("ddtree", *JUDGE)
            requests = [
                loaded.engine.submit(*pair, how) for pair in zip(prompts, params, strict=True)
            ]
            while not loaded.engine.is_idle:
                loaded.engine.step()
            outputs[name] = [request.output for request in requests]
            done = [(r.stats.num_accepted + r.stats.rounds, r.stats.rounds) for r in requests]
            lengths[name] = round(length(done), 4)
        same = sum(a == b for a, b in zip(outputs[PLAIN], outputs["coupled"], strict=True))
        rows.append(
            {
                "temperature": temperature,
                "prompts": len(outputs[PLAIN]),
                "same_output": same,
                "acceptance_length": lengths,
            }
        )
        progress(rows[-1])
    return rows


if __name__ == "__main__":
    main()
