"""Our client beside a peer's on one running server: SGLang's benchmark client.

Both send the text of random token ids, equally many, `concurrency` at a time, to the same server
with the same baseline arm, in turn and in alternating order, and report in their own words. Of ours
the request log is summed up by the peer's definitions, so that what differs is the clocks:

- throughput: all output tokens over the time from the first request to the last one's end. (Our
  reports count the window in which all slots are busy.)
- TTFT: mean of first chunk - sent.
- TPOT: mean of (end - first chunk) / (tokens - 1), the end being the last chunk.

    python benchmarks/peer_client.py --peer "PYTHON -m sglang.benchmark.serving" --out FILE

`--peer` is the peer's command in its own environment, installed apart. The server is
`ddtree serve`, or with `--paced` a mock that answers as SGLang does at a pace of its own: a model's
speed moves from run to run by more than two clients differ.
"""

import argparse
import asyncio
import json
import math
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import numpy as np
from common import progress, write

from ddtree.endpoint.calls import CompletionRequest
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.launch import LaunchPlan, ServerProcess, free_port
from ddtree.endpoint.load import closed_loop
from ddtree.endpoint.loop import run
from ddtree.endpoint.mock import MockServer
from ddtree.endpoint.mock_script import MockScript
from ddtree.endpoint.mock_talk import MockTalk
from ddtree.records.arms import Arm
from ddtree.records.metrics import tpot_s, ttft_s
from ddtree.records.requests import RequestRecord
from ddtree.records.statistics import mean_interval

LIMIT = 0.02
METRICS = ("tokens_per_s", "ttft_s", "tpot_s")


def main() -> None:
    """Measure, write; exit 1 where a metric differs by more than the limit."""
    if sys.argv[1:2] == ["--serve-paced"]:
        asyncio.run(serve_paced(int(sys.argv[2])))
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="result file (JSON)")
    options.add_argument("--peer", required=True, help="the peer's command")
    options.add_argument("--paced", action="store_true", help="the mock in place of a model")
    options.add_argument("--url", help="a server that runs already; default: one is started")
    options.add_argument("--model", default="smollm2-135m", help="served model")
    options.add_argument("--tokenizer", required=True, help="folder of its tokenizer, for the peer")
    options.add_argument("--requests", type=int, default=24)
    options.add_argument("--concurrency", type=int, default=4)
    options.add_argument("--input", type=int, default=64, help="tokens of a prompt")
    options.add_argument("--output", type=int, default=64, help="tokens of an answer")
    options.add_argument("--repeats", type=int, default=6)
    options.set_defaults(device="cpu")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(args, Path(folder)) as url:
        rounds = [measure(args, url, i, Path(folder)) for i in range(args.repeats)]
    ratios = {name: [ours[name] / peer[name] for ours, peer in rounds] for name in METRICS}
    found = {name: summary_of(values) for name, values in ratios.items()}
    passed = all(abs(entry["geometric_mean"] - 1) < LIMIT for entry in found.values())
    write(args, {"limit": LIMIT, "ours_over_peer": found, "passed": passed, "rounds": rounds})
    if not passed:
        sys.exit(1)


@contextmanager
def served(args: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The URL of the server of both clients."""
    if args.url:
        yield args.url
        return
    process = ServerProcess(plan := serve_plan(args, folder))
    try:
        run(process.wait_ready())
        yield plan.url
    finally:
        process.stop()


def serve_plan(args: argparse.Namespace, folder: Path) -> LaunchPlan:
    """How that server is started."""
    port = free_port("127.0.0.1")
    if args.paced:
        command = [sys.executable, __file__, "--serve-paced", str(port)]
        return LaunchPlan(
            command, dict(os.environ), "127.0.0.1", port, folder / "log", kind="sglang"
        )
    command = [sys.executable, "-m", "ddtree", "serve", "--model", args.model]
    command += ["--port", str(port), "--slots", str(args.concurrency), "--dtype", "bfloat16"]
    # Requests of the peer name no method.
    command += ["--method", "ar"]
    return LaunchPlan(tuple(command), dict(os.environ), "127.0.0.1", port, folder / "server.log")


async def serve_paced(port: int) -> None:
    """The mock, for ever: 100 ms to the first token, 25 ms a step."""
    script = MockScript(round_s={"ar": 0.025}, prefill_s=0.075, max_context=4096)
    async with MockServer(script, port, MockTalk("sglang")):
        await asyncio.Event().wait()


def measure(
    args: argparse.Namespace, url: str, number: int, folder: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """One round: (ours, the peer's)."""
    if number % 2:
        peer = measure_peer(args, url, folder / f"{number}.jsonl")
        ours = measure_ours(args, url, number)
    else:
        ours = measure_ours(args, url, number)
        peer = measure_peer(args, url, folder / f"{number}.jsonl")
    progress(", ".join(f"{name} {ours[name] / peer[name]:.4f}" for name in METRICS))
    return ours, peer


def measure_ours(args: argparse.Namespace, url: str, number: int) -> dict[str, float]:
    """Our client's numbers by the peer's definitions."""
    draw = random.Random(number)
    prompts = [
        tuple(draw.randrange(1000, 40000) for _ in range(args.input)) for _ in range(args.requests)
    ]

    async def drop(_: RequestRecord) -> None: ...

    async def load() -> tuple[RequestRecord, ...]:
        async with ServerClient(url, kind="sglang" if args.paced else "ddtree") as client:

            async def send(text: str) -> RequestRecord:
                request = CompletionRequest(text, args.output, Arm("ar"), ignore_eos=True)
                return await client.stream_completion(request)

            texts = [await client.detokenize(prompt) for prompt in prompts]
            return await closed_loop(texts, args.concurrency, send, drop)

    records = run(load())
    failed = [record.error for record in records if record.error is not None]
    if failed:
        raise SystemExit(f"{len(failed)} of our requests failed: {failed[0]}")
    return ours_of(records)


def ours_of(records: tuple[RequestRecord, ...]) -> dict[str, float]:
    """Sums of a request log."""
    tokens = sum(sum(record.chunk_tokens) for record in records)
    ends = [record.chunk_times_s[-1] for record in records]
    return {
        "tokens_per_s": tokens / (max(ends) - min(record.sent_s for record in records)),
        "ttft_s": fmean(ttft_s(record) or 0.0 for record in records),
        "tpot_s": fmean(tpot_s(record) or 0.0 for record in records),
        "tokens": tokens,
    }


def measure_peer(args: argparse.Namespace, url: str, path: Path) -> dict[str, float]:
    """The peer's own numbers."""
    backend = "sglang" if args.paced else "sglang-oai"
    command = [*shlex.split(args.peer), "--backend", backend, "--base-url", url]
    command += ["--model", args.model, "--tokenizer", args.tokenizer]
    command += ["--dataset-name", "random-ids", "--random-input-len", str(args.input)]
    command += ["--random-output-len", str(args.output), "--random-range-ratio", "1"]
    command += ["--num-prompts", str(args.requests), "--max-concurrency", str(args.concurrency)]
    command += ["--disable-tqdm", "--output-file", str(path)]
    command += ["--warmup-requests", "0", "--ready-check-timeout-sec", "0"]
    if not args.paced:
        command += ["--extra-request-body", json.dumps({"speculation": {"method": "ar"}})]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the peer failed: {done.stderr[-2000:]}")
    data = json.loads(path.read_text().splitlines()[-1])
    return {
        "tokens_per_s": data["output_throughput"],
        "ttft_s": data["mean_ttft_ms"] / 1e3,
        "tpot_s": data["mean_tpot_ms"] / 1e3,
        "tokens": data["total_output_tokens"],
    }


def summary_of(ratios: list[float]) -> dict[str, object]:
    """Geometric mean of the rounds' ratios, and the spread that they show."""
    logs = np.log(ratios)
    spread = mean_interval([(value, 1.0) for value in logs], 0, 10_000)
    sure = None if spread is None else [math.exp(value) for value in (spread.low, spread.high)]
    return {"geometric_mean": math.exp(logs.mean()), "interval": sure, "ratios": ratios}


if __name__ == "__main__":
    main()
