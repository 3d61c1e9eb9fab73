"""GPU memory as the driver counts it: a server that is gone must have given its share back."""

import asyncio
import subprocess
import time

from ddtree.errors import EndpointError

_QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
_QUERY_S = 10.0
_POLL_S = 0.2
# A driver's own bookkeeping moves by some MiB.
_SLACK_MIB = 256


def memory_used_mib() -> tuple[int, ...] | None:
    """MiB used on each GPU; None where there is no NVIDIA driver to ask."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_S, check=False)
        if done.returncode != 0:
            return None
        return tuple(int(line) for line in done.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


async def wait_for_floor(floor: tuple[int, ...] | None, seconds: float = 60.0) -> None:
    """Return once no GPU uses notably more than `floor` says; at once where it is None.

    EndpointError when that takes longer: a server started then would find less memory than the
    ones before it.
    """
    if floor is None:
        return
    end = time.monotonic() + seconds
    while True:
        used = await asyncio.to_thread(memory_used_mib)
        over = [now - was for now, was in zip(used or (), floor, strict=False)]
        if max(over, default=0) <= _SLACK_MIB:
            return
        if time.monotonic() > end:
            raise EndpointError(
                f"GPU memory: {max(over)} MiB more in use than before the first launch, "
                f"{seconds:g} s after the last server ended; stop what holds it"
            )
        await asyncio.sleep(_POLL_S)
