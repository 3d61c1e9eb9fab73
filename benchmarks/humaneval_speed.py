"""Decode speed on HumanEval prompts as they are, one request at a time, all arms in one run.

Prompt by prompt every arm decodes in turn, in an order that is reversed from one prompt to the
next, so that drift falls on all arms alike. The ratio of two arms is the geometric mean of
per-prompt decode ratios with a paired bootstrap interval; an arm's speed is tokens after the first
over the time they took. transformers' own `generate` (its cache, its attention) is an arm too.

    OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 \\
      python benchmarks/humaneval_speed.py --out benchmarks/results/HARDWARE/humaneval_speed.json
"""

import time

import torch
from common import humaneval_prompts, load, parser, progress, ratio_of, write

from ddtree.engine import EngineConfig, SamplingParams, Speculation
from ddtree.models.compat import load_causal_lm
from ddtree.records.statistics import paired_ratio

ARMS = {
    "ar": Speculation("ar"),
    "chain": Speculation("chain"),
    "ddtree(8,4)": Speculation("ddtree", 8, 4),
    "ddtree(16,4)": Speculation("ddtree", 16, 4),
}


def main() -> None:
    """Decode every prompt with every arm."""
    options = parser(__doc__)
    options.add_argument("--prompts", type=int, default=40)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--no-transformers", action="store_true")
    args = options.parse_args()
    loaded = load(args, args.dtype, EngineConfig(slots=1, max_context=1024))
    decoders = {name: engine_arm(loaded.engine, s, args.tokens) for name, s in ARMS.items()}
    if not args.no_transformers:
        decoders["transformers"] = transformers_arm(loaded, args)
    prompts = [loaded.tokenizer(t).input_ids for t in humaneval_prompts(args.humaneval)]
    for decode in decoders.values():  # warm-up: allocations, first-call costs
        decode(prompts[-1])
    rows = []
    for number, prompt in enumerate(prompts[: args.prompts]):
        order = list(decoders) if number % 2 == 0 else list(reversed(decoders))
        rows.append({name: decoders[name](prompt) for name in order})
        speeds = {n: round(r["tokens_per_s"], 1) for n, r in rows[-1].items()}
        progress(f"prompt {number}: {speeds}")
    result = summarise(rows, list(decoders))
    for name, speculation in ARMS.items():
        share = share_outside_models(loaded.engine, prompts[:5], speculation, args.tokens)
        result["arms"][name]["share_outside_models"] = share
        progress(f"{name}: {share:.1%} of a round outside the models")
    write(args, result)


def engine_arm(engine, speculation, tokens):
    """Decode through the engine; speed from its own stamps."""

    def decode(prompt):
        request = engine.generate([prompt], SamplingParams(tokens), speculation)[0]
        stats = request.stats
        return {
            "tokens": request.output,
            "tokens_per_s": request.decode_tokens_per_s,
            "rounds": stats.rounds,
            "accepted_histogram": stats.accepted_histogram,
            "stage_seconds": stats.stage_seconds,
        }

    return decode


def share_outside_models(engine, prompts, speculation, tokens) -> float:
    """Share of decoding steps' wall time not spent inside the target's and the drafter's forward
    passes (their attention included), clocked around those calls in a pass of its own."""
    spent = {"models": 0.0, "steps": 0.0}

    def clocked(call, name):
        def timed(*arguments, **options):
            start = time.perf_counter()
            result = call(*arguments, **options)
            spent[name] += time.perf_counter() - start
            return result

        return timed

    drafter = engine.drafting.drafter
    calls = [(engine.target, n) for n in ("forward", "head", "embed")]
    calls += [(drafter, n) for n in ("forward", "context")]
    for owner, name in calls:
        setattr(owner, name, clocked(getattr(owner, name), "models"))
    for prompt in prompts:
        request = engine.submit(prompt, SamplingParams(tokens), speculation)
        while request.state in ("waiting", "prefilling"):
            engine.step()
        prefill = spent["models"]
        steps = clocked(engine.step, "steps")
        while not engine.is_idle:
            steps()
        spent["decoding"] = spent.get("decoding", 0.0) + spent["models"] - prefill
    for owner, name in calls:
        delattr(owner, name)
    return 1 - spent["decoding"] / spent["steps"]


def transformers_arm(loaded, args):
    """transformers' own greedy generate with its defaults, timed from the first token on."""
    model = load_causal_lm(loaded.paths.target, getattr(torch, args.dtype), args.device)

    class Stamps:
        """A streamer: `generate` calls it with the prompt, then with every token."""

        def __init__(self):
            self.times = []

        def put(self, value):
            self.times.append(time.perf_counter())

        def end(self):
            pass

    @torch.inference_mode()
    def decode(prompt):
        ids, stamps = torch.tensor([prompt], device=args.device), Stamps()
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=args.tokens,
            streamer=stamps,
        )
        times = stamps.times[1:]
        return {
            "tokens": output[0, len(prompt) :].tolist(),
            "tokens_per_s": (len(times) - 1) / (times[-1] - times[0]),
        }

    return decode


def summarise(rows, names) -> dict[str, object]:
    """Ratios against ar and chain, acceptance, where a round's time goes."""
    usable = [r for r in rows if all(r[n]["tokens_per_s"] for n in names)]
    result = {"prompts": len(rows), "prompts_with_one_token": len(rows) - len(usable), "arms": {}}
    for name in names:
        arm = {"tokens_per_s": sum(r[name]["tokens_per_s"] for r in usable) / len(usable)}
        for base in ("ar", "chain"):
            ratios = [r[name]["tokens_per_s"] / r[base]["tokens_per_s"] for r in usable]
            estimate = paired_ratio([[x] for x in ratios], seed=0)
            arm[f"against_{base}"] = ratio_of(estimate)
        arm["identical_to_ar"] = sum(r[name]["tokens"] == r["ar"]["tokens"] for r in rows)
        if "rounds" in rows[0][name]:
            arm |= round_account([r[name] for r in rows])
        result["arms"][name] = arm
        progress(name, arm)
    result["raw"] = [
        {n: {k: v for k, v in r[n].items() if k != "stage_seconds"} for n in names} for r in rows
    ]
    return result


def round_account(runs) -> dict[str, object]:
    """Acceptance length and milliseconds a round by stage."""
    rounds = sum(r["rounds"] for r in runs)
    accepted = sum(a * n for r in runs for a, n in enumerate(r["accepted_histogram"]))
    stages = {}
    for run in runs:
        for stage, seconds in run["stage_seconds"].items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    return {
        "acceptance_length": 1 + accepted / rounds,
        "round_ms": {s: 1e3 * v / rounds for s, v in stages.items()},
    }


if __name__ == "__main__":
    main()
