"""What sampling adds to a round: `ddtree` with top_p, without filters, with penalties, against
greedy.

Two measurements in one run. Stage by stage: the `accept` stage of greedy and sampled rounds on the
same prompts, alternating. And the choice alone on recorded logits of one round: the walk over the
visited rows against sorting every row of the tree.

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
    seconds = {name: [] for name in MODES}  # per prompt: (accept, whole round) means
    for number, prompt in enumerate(prompts):
        order = list(MODES.items())
        for name, fields in order if number % 2 else order[::-1]:
            seed = {"seed": number} if "temperature" in fields else {}
            sampling = SamplingParams(args.tokens, ignore_eos=True, **fields, **seed)
            stats = engine.generate([prompt], sampling, tree)[0].stats
            per_round = {k: v / stats.rounds for k, v in stats.stage_seconds.items()}
            seconds[name].append((per_round["accept"], sum(per_round.values())))
        progress(number, {n: [round(1e3 * x, 2) for x in v[-1]] for n, v in seconds.items()})
    whole = statistics.median(total for _, total in seconds["greedy"])
    stages = {name: summary(values, whole, seconds["greedy"]) for name, values in seconds.items()}
    write(args, {"budget": args.budget, "stages": stages, "choice": choice_cost(args.budget)})
    for name, found in stages.items():
        print(name, found)


def summary(values, greedy_round_s, greedy) -> dict[str, float]:
    """Median milliseconds of the accept stage, and what it adds to a greedy round."""
    accept = statistics.median(accept for accept, _ in values)
    added = accept - statistics.median(accept for accept, _ in greedy)
    return {
        "accept_ms": round(1e3 * accept, 3),
        "round_ms": round(1e3 * statistics.median(total for _, total in values), 2),
        "added_share_of_a_greedy_round": round(added / greedy_round_s, 4),
    }


def choice_cost(budget: int, visited: int = 3, repeats: int = 40) -> dict[str, float]:
    """Milliseconds to draw for `visited` rows one after the other, and to sort every row, on
    logits with a tail like a language model's."""
    torch.manual_seed(0)
    logits = 2.5 * torch.randn(budget + 1, 49152)
    logits[:, ::1000] += 8.0
    rules = SamplingRules(
        torch.arange(budget + 1),
        torch.ones(budget + 1, dtype=torch.float64),
        torch.full((budget + 1,), 49152),
        torch.full((budget + 1,), 0.95, dtype=torch.float64),
        torch.zeros(budget + 1, dtype=torch.float64),
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
