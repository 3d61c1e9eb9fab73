"""docs/sglang-measured.md out of the committed results."""

import json
from itertools import groupby
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "h200"

HEAD = """# DDTREE on SGLang, measured

Written by `python scripts/make_docs.py` from `benchmarks/results/h200/sglang_*.json`; do not edit.

One H200, stock SGLang {sglang}, torch {torch}, bf16, SmolLM2-135M with the shipped drafter (block
8, window 1,024). All servers run at once on the GPU and are asked one at a time
(`benchmarks/sglang_gpu.py`). All use the triton backend, which trees need; SGLang's own decoding
may be faster on another. Trees are named by budget and topk, C is requests at once."""

OUTPUT = """## Output

Greedy tokens, each scored by the server without speculation; contexts {contexts}; {counts}
requests at once. SGLang's decoding and its verifying pass are different kernels, so its own chain
parts from its own decoding as often as trees do: what counts is that no token is further from the
target's best than rounding (0.3 nats), and that near ties are no more than the target's own."""

SPEED = """## Speed

tok/s end to end / ms a round / acceptance length, medians of {passes} passes. A target this small
is the hardest case: its own step takes a millisecond, so a round must accept a lot to pay, and at
32 requests at once plain decoding wins. With long contexts the triton verifying kernel is what
costs: it reads one request's context without splitting it, for chains and trees alike."""

SPLIT = """## A round on the GPU

Microseconds at context 60, one request: what each CUDA graph takes from its first kernel to its
last. A tree's round spends its time on the GPU, since overlap scheduling hides the host, for which
SGLang's own chain waits. `the rest` is the round above, which another run timed, less all that."""

SAMPLED = """## Sampled

Temperature 1: tok/s / ms a round / acceptance length. Sampled rounds run outside CUDA graphs, which
costs a small target more than trees gain. {note}"""

FORCED = """## A large target, acceptance forced

**Not a model**: Llama 3.1 8B's shapes with random weights and a drafter of five such layers; each
round's accepted tokens are drawn from what the trained small pair accepted
(`benchmarks/sglang_forced.py`). tok/s after the prompt / ms a round / acceptance length. {note}"""

STAGES = {1: ("verify",), 2: ("verify", "draft"), 4: ("verify", "settle", "open", "draft and tree")}


def render() -> str:
    """The page."""
    result = json.loads((RESULTS / "sglang_gpu.json").read_text())["sections"]
    forced = json.loads((RESULTS / "sglang_forced.json").read_text())
    exactness, speed = result["exactness"], result["speed"]
    parts = [
        HEAD.format(sglang=speed["sglang"], torch=speed["provenance"]["torch"]),
        OUTPUT.format(contexts=_listed(exactness, "context"), counts=_listed(exactness, "at_once")),
        _output(exactness["cells"]),
        SPEED.format(passes=len(speed["cells"][0]["passes"])),
        _speeds(speed["cells"], "tokens_per_s"),
        SPLIT,
        _split(result["split"]["cells"], speed["cells"]),
        result["split"]["note"],
        SAMPLED.format(note=result["sampled"]["note"]),
        _speeds(result["sampled"]["cells"], "tokens_per_s"),
        FORCED.format(note=forced["note"]),
        _speeds(forced["speed"], "decode_tokens_per_s"),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(section, name):
    return ", ".join(map(str, sorted({cell[name] for cell in section["cells"]})))


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _output(cells):
    rows = []
    for arm, found in groupby(sorted(cells, key=_by_arm), key=lambda cell: cell["arm"]):
        own = list(found)
        total = {name: sum(cell[name] for cell in own) for name in ("tokens", "near_ties")}
        same = sum(cell["same_as_ar_alone"] for cell in own)
        answers = sum(cell["answers"] for cell in own)
        gap = max(cell["largest_gap_nats"] for cell in own)
        bad = sum(cell["verdict"] is not None for cell in own)
        rows.append([arm, *total.values(), f"{gap:.2f}", f"{same} of {answers}", bad])
    return _table(
        [
            "arm",
            "tokens",
            "near ties",
            "largest, nats",
            "answers equal to ar's, alone",
            "bad cells",
        ],
        rows,
    )


def _by_arm(cell):
    """ar, chain, then trees by budget."""
    method, *sizes = cell["arm"].split("-")
    return (method, *map(int, sizes))


def _speeds(cells, rate):
    columns = sorted({(cell["context"], cell["at_once"]) for cell in cells})
    rows = []
    for arm, found in groupby(sorted(cells, key=_by_arm), key=lambda cell: cell["arm"]):
        told = {(cell["context"], cell["at_once"]): cell for cell in found}
        shown = [
            f"{told[key][rate]:,.0f} / {told[key]['round_ms']:.1f} /"
            f" {told[key]['acceptance_length']:.2f}"
            for key in columns
        ]
        rows.append([arm, *shown])
    return _table(["arm", *(f"{context}, C = {count}" for context, count in columns)], rows)


def _split(cells, speeds):
    names = ["open", "draft", "draft and tree", "verify", "settle", "outside graphs"]
    rows = []
    for cell in cells:
        spans = [value for name, value in cell["us"].items() if name.endswith(", span")]
        stages = dict(zip(STAGES[len(spans)], spans, strict=True))
        stages["outside graphs"] = cell["us"]["outside graphs, kernels"]
        (speed,) = (
            one
            for one in speeds
            if (one["arm"], one["context"], one["at_once"]) == (cell["arm"], cell["context"], 1)
        )
        rest = 1e3 * speed["round_ms"] - sum(stages.values())
        shown = (f"{stages[name]:,.0f}" if name in stages else "" for name in names)
        rows.append([cell["arm"], *shown, f"{rest:,.0f}"])
    return _table(["arm", *names, "the rest"], rows)
