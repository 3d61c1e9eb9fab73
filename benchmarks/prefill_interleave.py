"""How long a short request waits while a long prompt prefills, over HTTP.

A server with each chunk size in turn. The control is the short request alone. Then, while a stream
decodes, a long prompt arrives, and behind it the short request: its time to first token, the long
prompt's, and the largest gap in the stream while the long prompt was under way. The time of one
pass is the long prompt's time over its passes; a short request should wait for the pass that runs
and ride in the next, however long the long prompt is.

One arm or several per call (CHUNK, or CHUNK:MS with --max-stall-ms); the result file keeps others.

    OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 python benchmarks/prefill_interleave.py \\
      --arms 512 --out benchmarks/results/HARDWARE/prefill_interleave.json
"""

import asyncio
import itertools
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from common import humaneval_prompts, parser, paths_of, previous, progress, provenance, write

from ddtree.endpoint.calls import CompletionRequest, Deadlines
from ddtree.endpoint.client import ServerClient
from ddtree.endpoint.launch import LaunchPlan, ServerProcess, free_port
from ddtree.models.compat import load_tokenizer
from ddtree.records.requests import RequestRecord

SHORT, ANSWER = 60, 8  # tokens of the short prompt and of its answer
STREAM = 4000  # tokens at most of the stream, which is given up when all is seen
HEAD_START_S = 0.5  # of the long prompt, so that its first pass runs
DEADLINES = Deadlines(first_token_s=600, silence_s=600)


def main() -> None:
    """Measure the arms asked for."""
    options = parser(__doc__)
    options.add_argument("--arms", default="128,512,512:200", help="CHUNK or CHUNK:MS, ...")
    options.add_argument("--long", type=int, default=8000, help="ids of the long prompt")
    options.add_argument("--repeats", type=int, default=2, help="long prompts")
    options.add_argument("--controls", type=int, default=5)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--quick", action="store_true", help="a prompt of a few hundred ids")
    args = options.parse_args()
    if args.quick:
        args.arms, args.long, args.repeats, args.controls = "64", 400, 1, 1
    tokenizer = load_tokenizer(paths_of(args.model).target)
    ids = tokenizer("\n\n".join(humaneval_prompts(args.humaneval))).input_ids
    while len(ids) < args.long + args.repeats + 2 * SHORT:
        ids += ids
    arms = previous(args.out, "arms")
    for name in args.arms.split(","):
        found = asyncio.run(measure(args, name, ids))
        arms[name] = {"provenance": provenance(args), "long_prompt": args.long, **found}
        print(line(name, arms[name]))
    write(args, {"arms": arms})


async def measure(args, name, ids) -> dict[str, object]:
    """One server, from start to stop."""
    chunk, _, stall = name.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        plan = launch_plan(args, int(chunk), stall, Path(folder))
        async with ServerProcess(plan), ServerClient(plan.url, deadlines=DEADLINES) as client:
            short = CompletionRequest(tuple(ids[-SHORT:]), ANSWER, ignore_eos=True)
            await checked(client, short)  # warm-up
            alone = [ttft(await checked(client, short)) for _ in range(args.controls)]
            rounds = [await crowded(args, client, short, ids[i:]) for i in range(args.repeats)]
    passes = math.ceil(args.long / int(chunk))
    for found in rounds:
        found["passes_at_least"] = passes
        found["pass_s"] = round(found["long_ttft_s"] / passes, 4)
    return {"alone_ttft_s": alone, "crowded": rounds}


def launch_plan(args, chunk, stall, folder) -> LaunchPlan:
    """`ddtree serve`, the environment as it is here."""
    port = free_port()
    paths = paths_of(args.model)
    command = [sys.executable, "-m", "ddtree", "serve", "--model", str(paths.target)]
    command += ["--drafter", str(paths.drafter), "--dtype", args.dtype, "--device", args.device]
    command += ["--port", str(port), "--prefill-chunk", str(chunk)]
    command += ["--max-stall-ms", stall or "0"]
    return LaunchPlan(command, os.environ, "127.0.0.1", port, folder / "server.log")


async def crowded(args, client, short, ids) -> dict[str, object]:
    """A stream, a long prompt behind it, the short request last."""
    times: list[float] = []
    streaming = asyncio.create_task(stream(client.url, ids[:SHORT], times))
    while len(times) < 2 and not streaming.done():
        await asyncio.sleep(0.01)
    long = CompletionRequest(tuple(ids[: args.long]), 1, ignore_eos=True)
    sending = asyncio.create_task(checked(client, long))
    await asyncio.sleep(0.05 if args.quick else HEAD_START_S)
    quick = await checked(client, short)
    slow = await sending
    outlived = not streaming.done()
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    begin, end = slow.sent_s, slow.chunk_times_s[0]
    inside = [(a, b) for a, b in itertools.pairwise(times) if b > begin and a < end]
    gaps = sorted(round(late - early, 4) for early, late in inside)
    found = {
        "short_ttft_s": ttft(quick),
        "long_ttft_s": ttft(slow),
        "short_was_first": quick.chunk_times_s[0] < end,
        "stream_outlived_it": outlived,
        "stream_gaps": len(gaps),
        "stream_median_gap_s": statistics.median(gaps) if gaps else None,
        "stream_largest_gap_s": gaps[-1] if gaps else None,
    }
    progress(found)
    return found


async def stream(url, ids, times) -> None:
    """Decode with `ar` until cancelled; `times` gets the moment of every chunk."""
    body = {
        "prompt": ids,
        "max_tokens": STREAM,
        "stream": True,
        "ignore_eos": True,
        "return_token_ids": True,
        "speculation": {"method": "ar"},
    }
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
        session.post(url + "/v1/completions", json=body) as response,
    ):
        async for text in response.content:
            if b"token_ids" in text:
                times.append(time.monotonic())


async def checked(client, request) -> RequestRecord:
    """The record of a request that must succeed."""
    record = await client.stream_completion(request)
    if record.error is not None:
        raise SystemExit(f"a request failed: {record.error}")
    return record


def ttft(record) -> float:
    """Seconds from sending to the first token."""
    return round(record.chunk_times_s[0] - record.sent_s, 4)


def line(name, arm) -> str:
    """For people."""
    rounds = arm["crowded"]

    def median(key):
        values = [found[key] for found in rounds if found[key] is not None]
        return f"{statistics.median(values):.2f} s" if values else "-"

    return (
        f"chunk {name}: short alone {statistics.median(arm['alone_ttft_s']):.2f} s, behind "
        f"{arm['long_prompt']} ids {median('short_ttft_s')} (a pass {median('pass_s')}, the long "
        f"prompt {median('long_ttft_s')}); largest gap of a stream {median('stream_largest_gap_s')}"
    )


if __name__ == "__main__":
    main()
