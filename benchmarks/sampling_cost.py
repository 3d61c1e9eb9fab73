"""What sampling adds to a round: `ddtree` with top_p, without filters, with penalties, against
greedy.

Two measurements in one run. Stage by stage: the `accept` and `build` stages (sampled trees may
look at the noise) of greedy and sampled rounds on the same prompts, alternating. And the choice
alone on the target's own logits of a prompt: three rows one after the other against sorting as many
rows as a tree has.

    OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 python benchmarks/sampling_cost.py \
        --out benchmarks/results/HARDWARE/sampling_cost.json
"""

import statistics
import time

import torch
from common import humaneval_prompts, load, parser, progress, write

from ddtree.core import SamplingRules, log_probabilities, sample
from ddtree.engine import EngineConfig, SamplingParams, Speculation

MODES = {
    "greedy": {},
    "T=1": {"temperature": 1.0},
    "T=1 top_p=0.95": {"temperature": 1.0, "top_p": 0.95},
    "T=0.7 top_p=0.95": {"temperature": 0.7, "top_p": 0.95},
    "T=0.7 top_p=0.95 penalties": {
        "temperature": 0.7,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
    },
}


def main() -> None:
    """Measure both."""
    options = parser(__doc__)
    options.add_argument("--prompts", type=int, default=8)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--budget", type=int, default=16)
    options.add_argument("--topk", type=int, default=4)
    args = options.parse_args()
    loaded = load(args, "bfloat16", EngineConfig(slots=1, max_context=1024))
    engine, tree = loaded.engine, Speculation("ddtree", args.budget, args.topk)
    texts = humaneval_prompts(args.humaneval)[: args.prompts]
    prompts = [loaded.tokenizer(text).input_ids for text in texts]
    engine.generate(prompts[:1], SamplingParams(16), tree)
    seconds = {name: [] for name in MODES}  # per prompt: (accept, build, whole round) means
    for number, prompt in enumerate(prompts):
        order = list(MODES.items())
        for name, fields in order if number % 2 else order[::-1]:
            seed = {"seed": number} if "temperature" in fields else {}
            sampling = SamplingParams(args.tokens, ignore_eos=True, **fields, **seed)
            stats = engine.generate([prompt], sampling, tree)[0].stats
            per_round = {k: v / stats.rounds for k, v in stats.stage_seconds.items()}
            total = sum(per_round.values())
            seconds[name].append((per_round["accept"], per_round["build"], total))
        progress(number, {n: [round(1e3 * x, 2) for x in v[-1]] for n, v in seconds.items()})
    stages = {name: summary(values, seconds["greedy"]) for name, values in seconds.items()}
    ids = torch.tensor(max(prompts, key=len))
    with torch.inference_mode():
        logits = engine.target.reference_logits(ids)[-args.budget - 1 :].float()
    write(args, {"budget": args.budget, "stages": stages, "choice": choice_cost(logits)})
    for name, found in stages.items():
        print(name, found)


def summary(values, greedy) -> dict[str, float]:
    """Median milliseconds of the two stages, and what they add to a greedy round."""
    accept, build, whole = (statistics.median(column) for column in zip(*values, strict=True))
    plain = [statistics.median(column) for column in zip(*greedy, strict=True)]
    return {
        "accept_ms": round(1e3 * accept, 3),
        "build_ms": round(1e3 * build, 3),
        "round_ms": round(1e3 * whole, 2),
        "added_share_of_a_greedy_round": round((accept + build - sum(plain[:2])) / plain[2], 4),
    }


def choice_cost(logits, visited: int = 3, repeats: int = 40) -> dict[str, float]:
    """Milliseconds to draw for `visited` rows one after the other, and to sort every row."""
    count, vocab = logits.shape
    rules = SamplingRules(
        torch.arange(count),
        torch.ones(count, dtype=torch.float64),
        torch.full((count,), vocab),
        torch.full((count,), 0.95, dtype=torch.float64),
        torch.zeros(count, dtype=torch.float64),
    )
    rows = [torch.tensor([row]) for row in range(visited)]
    cases = {
        "visited_rows": lambda: [sample(logits[r], rules.take(r), r) for r in rows],
        "all_rows_sorted": lambda: log_probabilities(logits, rules),
    }
    found = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            found[name].append(1e3 * (time.perf_counter() - start))
    return {f"{name}_ms": round(statistics.median(times), 3) for name, times in found.items()}


if __name__ == "__main__":
    main()
