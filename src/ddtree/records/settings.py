"""Where arms are compared: everything a cell is defined by beside its arm."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Setting:
    """Context in tokens, requests in flight, temperature, and how requests arrive.

    `rate` is 0 in a closed loop, which keeps `concurrency` requests in flight. Above 0 requests
    arrive at so many a second whether or not earlier ones are done, and `concurrency` is only the
    number that the server has slots for.
    """

    context: int
    concurrency: int
    temperature: float = 0.0
    rate: float = 0.0

    @property
    def name(self) -> str:
        """`context 60, concurrency 1`, the temperature unless greedy, the rate unless closed."""
        text = f"context {self.context}, concurrency {self.concurrency}"
        if self.temperature:
            text += f", temperature {self.temperature:g}"
        return text + (f", {self.rate:g} requests/s" if self.rate else "")

    @property
    def slug(self) -> str:
        """`name` for ids and file names: letters, digits, hyphens and underscores."""
        text = f"{self.context}-{self.concurrency}-{self.temperature:g}"
        text += f"-{self.rate:g}" if self.rate else ""
        return text.replace(".", "_")
