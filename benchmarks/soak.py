"""A server under random traffic: answers, slots, cache and memory must stay as they were.

Requests arrive at random (Poisson) and differ in everything: method, draft window, lengths on both
sides of the window, streamed or whole, greedy or sampled, two choices, stops, clients that leave
at a random chunk, bodies that must be refused. Every greedy answer is compared with its prompt's
output decoded alone, without drafts, in float32. When all is over, free slots and free cache must
be what they were at the start. Memory (RSS) is sampled each second; its slope over the second half
has a Newey-West interval, and passes unless all of the interval lies above --bound.

    python benchmarks/soak.py --model tiny --seconds 60 --out soak.json
    python benchmarks/soak.py --model smollm2-135m --rate 0.4 --seconds 600 --out soak.json
"""

import asyncio
import collections
import json
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import numpy as np
import psutil
from common import humaneval_prompts, parser, paths_of, progress, write
from soak_cases import Answer, Call, decode_solos, draw_call, judge, prompt_lengths, random_prompts
from tiny_models import CONTEXT, VOCABULARY, WINDOW, write_tiny

from ddtree.endpoint.launch import LaunchPlan, ServerProcess, free_port
from ddtree.endpoint.sse import SSEParser
from ddtree.models.compat import load_tokenizer
from ddtree.models.drafter_config import load_drafter_config

SETTLE_S = 30  # after the last answer, until a leak is called one
GAUGES = ("slots", "slots_free", "kv_cache_tokens", "requests_running", "requests_waiting")


def main() -> None:
    """Run the soak; exit status 1 when it fails."""
    options = parser(__doc__)
    options.set_defaults(model="tiny")
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--rate", type=float, default=8, help="requests that arrive a second")
    options.add_argument("--at-most", type=int, default=64, help="in flight; others don't come")
    options.add_argument("--slots", type=int, default=8)
    options.add_argument("--prompts", type=int, default=24)
    options.add_argument("--tokens", type=int, default=32)
    options.add_argument("--bound", type=float, default=1.0, help="MiB a minute")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(soak(args, Path(folder)))
    print(summary(result))
    write(args, result)
    sys.exit(0 if result["passed"] else 1)


async def soak(args, folder) -> dict[str, object]:
    """The whole run."""
    rng = random.Random(args.seed)
    paths, prompts, room = materials(args, folder, rng)
    solos = decode_solos(paths, prompts, args.tokens, room)
    progress(f"{len(solos)} prompts decoded alone")
    port = free_port()
    command = [sys.executable, "-m", "ddtree", "serve", "--model", str(paths.target)]
    command += ["--drafter", str(paths.drafter), "--dtype", "float32", "--port", str(port)]
    command += ["--slots", str(args.slots), "--max-context", str(room), "--prefill-chunk", "48"]
    plan = LaunchPlan(command, os.environ, "127.0.0.1", port, folder / "server.log")
    async with ServerProcess(plan) as server, Traffic(plan.url, solos, rng) as traffic:
        before = await traffic.gauges()
        memory: list[float] = []
        sampling = asyncio.create_task(sample_memory(server.pid, memory))
        await traffic.run(args.seconds, args.rate, args.at_most)
        sampling.cancel()
        after = await traffic.settle(before)
        server.check_alive()
    drift = slope(memory[len(memory) // 2 :])
    passed = not traffic.faults and before == after and drift["interval"][0] <= args.bound
    return {
        "passed": passed,
        "seconds": args.seconds,
        "answers": dict(sorted(traffic.counts.items())),
        "tokens": traffic.tokens,
        "held_back": traffic.held_back,
        "faults": traffic.faults[:20],
        "before": before,
        "after": after,
        "memory_mib_per_minute": drift,
        "bound_mib_per_minute": args.bound,
        "rss_mib": [round(m, 1) for m in memory],
    }


def materials(args, folder, rng):
    """Model, prompts and the context they need: noise for the tiny one, code for others."""
    if args.model == "tiny":
        lengths = prompt_lengths(WINDOW, CONTEXT - args.tokens, args.prompts, rng)
        return write_tiny(folder), random_prompts(lengths, VOCABULARY, args.seed), CONTEXT
    paths = paths_of(args.model)
    window = load_drafter_config(paths.drafter).window or 1024
    lengths = prompt_lengths(window, window + 256, args.prompts, rng)
    ids = load_tokenizer(paths.target)("\n\n".join(humaneval_prompts(args.humaneval))).input_ids
    starts = [rng.randrange(len(ids) - length) for length in lengths]
    prompts = [ids[s : s + n] for s, n in zip(starts, lengths, strict=True)]
    return paths, prompts, window + 256 + args.tokens


class Traffic:
    """Sends, and keeps account of what came back."""

    def __init__(self, url, solos, rng) -> None:
        self.url, self.solos, self.rng = url, solos, rng
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self.tokens = self.held_back = 0

    async def __aenter__(self):
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=300),
        )
        return self

    async def __aexit__(self, *_error) -> None:
        await self.session.close()

    async def run(self, seconds, rate, at_most) -> None:
        """Arrivals for so long, then until the last answer."""
        end = time.monotonic() + seconds
        flying: set[asyncio.Task[None]] = set()
        while time.monotonic() < end:
            await asyncio.sleep(self.rng.expovariate(rate))
            if len(flying) >= at_most:
                self.held_back += 1
                continue
            task = asyncio.create_task(self._one(draw_call(self.solos, self.rng)))
            flying.add(task)
            task.add_done_callback(flying.discard)
        await asyncio.gather(*flying)

    async def _one(self, call: Call) -> None:
        self.counts[call.kind] += 1
        try:
            answer = await asyncio.wait_for(self._send(call), call.leave_s)
        except (aiohttp.ClientError, TimeoutError) as error:
            if call.leave_s is None:
                self.faults.append(f"{call.kind}: {type(error).__name__}: {error}")
            return
        self.tokens += sum(map(len, answer.ids.values()))
        fault = None if call.leaves else judge(call, answer)
        if fault is not None:
            self.faults.append(f"{call.kind}: {fault}")

    async def _send(self, call: Call) -> Answer:
        async with self.session.post(self.url + "/v1/completions", json=call.body) as response:
            answer = Answer(response.status)
            if response.status != 200:
                answer.error = (await response.json())["error"]["message"]
            elif not call.body["stream"]:
                take(answer, await response.json())
            else:
                await self._follow(call, response, answer)
            return answer

    async def _follow(self, call: Call, response, answer: Answer) -> None:
        """Events up to the end, or to the chunk at which the client leaves."""
        parser, seen = SSEParser(), 0
        async for data in response.content.iter_any():
            for event in parser.feed(data):
                if call.chunks is not None and seen >= call.chunks:
                    return
                seen += 1
                if event.strip() != "[DONE]":
                    take(answer, json.loads(event))

    async def gauges(self) -> dict[str, float]:
        """Slots and cache as the server sees them."""
        async with self.session.get(self.url + "/metrics") as response:
            text = await response.text()
        found = {}
        for name in GAUGES:
            line = re.search(rf"^ddtree_{name} (\S+)$", text, re.MULTILINE)
            found[name] = float(line[1])
        return found

    async def settle(self, before) -> dict[str, float]:
        """The gauges once they are as before, or after SETTLE_S."""
        end = time.monotonic() + SETTLE_S
        while (now := await self.gauges()) != before and time.monotonic() < end:
            await asyncio.sleep(0.2)
        return now


def take(answer: Answer, data) -> None:
    """Add a whole answer or one event of a stream."""
    if data.get("error"):
        answer.error = str(data["error"])
        return
    for choice in data["choices"]:
        index = choice["index"]
        answer.ids.setdefault(index, []).extend(choice.get("token_ids") or ())
        answer.text[index] = answer.text.get(index, "") + (choice.get("text") or "")
        if choice.get("finish_reason"):
            answer.finish[index] = choice["finish_reason"]
    if data.get("usage"):
        answer.completion_tokens = data["usage"]["completion_tokens"]


async def sample_memory(pid, memory) -> None:
    """The server's resident MiB, each second."""
    process = psutil.Process(pid)
    while True:
        memory.append(process.memory_info().rss / 2**20)
        await asyncio.sleep(1)


def slope(series) -> dict[str, object]:
    """MiB a minute by least squares over samples a second apart, with a 95 % Newey-West interval
    (memory moves in steps, so that neighbouring residuals are alike)."""
    values = np.asarray(series, dtype=float)
    count = len(values)
    if count < 4:
        raise SystemExit(f"--seconds: {count} samples of memory say nothing; run longer")
    minutes = np.arange(count) / 60
    centred = minutes - minutes.mean()
    spread = float(centred @ centred)
    rate = float(centred @ values) / spread
    scores = centred * (values - values.mean() - rate * centred)
    lags = min(max(int(count**0.5), 1), count - 1)
    variance = float(scores @ scores)
    for lag in range(1, lags + 1):
        weight = 1 - lag / (lags + 1)
        variance += 2 * weight * float(scores[lag:] @ scores[:-lag])
    half = 1.96 * max(variance, 0.0) ** 0.5 / spread
    return {"slope": round(rate, 3), "interval": [round(rate - half, 3), round(rate + half, 3)]}


def summary(result) -> str:
    """For people."""
    drift = result["memory_mib_per_minute"]
    low, high = drift["interval"]
    lines = [f"{kind:>12}: {count}" for kind, count in result["answers"].items()]
    lines += [f"fault: {fault}" for fault in result["faults"]]
    return "\n".join(
        [
            *lines,
            f"{result['tokens']} tokens; before {result['before']}, after {result['after']}",
            f"memory {result['rss_mib'][0]:.0f} to {result['rss_mib'][-1]:.0f} MiB, second half "
            f"{drift['slope']:+.2f} MiB a minute ({low:+.2f} to {high:+.2f}; fails above "
            f"{result['bound_mib_per_minute']:g})",
            "PASS" if result["passed"] else "FAIL",
        ]
    )


if __name__ == "__main__":
    main()
