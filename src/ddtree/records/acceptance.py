"""What rounds accepted, from accounts of one request or of a whole block.

An account has the names of a request's `stats`: `rounds`, `accepted_histogram` (how many rounds
accepted a draft tokens) or at least `num_accepted`, and `source`, absent where our own server
counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddtree.records.requests import RequestRecord
from ddtree.records.summary import StatsSource

Account = Mapping[str, Any]

_CERTAIN: tuple[StatsSource, ...] = ("estimate", "counters", "server")


def accounts_of(records: Iterable[RequestRecord]) -> list[Account]:
    """Those of requests that finished."""
    return [record.stats for record in records if record.error is None and record.stats]


def accepted_of(account: Account) -> int | None:
    """Accepted draft tokens before any cut; None where it doesn't say."""
    histogram: Sequence[int] | None = account.get("accepted_histogram")
    if histogram is not None:
        return sum(accepted * rounds for accepted, rounds in enumerate(histogram))
    found = account.get("num_accepted")
    return None if found is None else int(found)


def length_of(accounts: Iterable[Account]) -> float | None:
    """Acceptance length: 1 + sum(num_accepted) / rounds, all together; None without rounds."""
    told = [(accepted_of(account), account.get("rounds", 0)) for account in accounts]
    known = [(accepted, rounds) for accepted, rounds in told if accepted is not None]
    rounds = sum(rounds for _, rounds in known)
    return 1 + sum(accepted for accepted, _ in known) / rounds if rounds else None


def by_depth_of(accounts: Iterable[Account]) -> tuple[float, ...]:
    """[d - 1] = share of rounds that accepted at least d draft tokens; empty without drafts, and
    where no histogram says."""
    counts: list[int] = []
    for account in accounts:
        histogram = account.get("accepted_histogram") or ()
        counts.extend([0] * (len(histogram) - len(counts)))
        for accepted, rounds in enumerate(histogram):
            counts[accepted] += rounds
    while counts and counts[-1] == 0:
        counts.pop()
    total = sum(counts)
    return tuple(sum(counts[depth:]) / total for depth in range(1, len(counts)))


def source_of(accounts: Iterable[Account]) -> StatsSource | None:
    """Who counted the rounds, the least certain of them if several did; None without accounts."""
    found = {account.get("source", "server") for account in accounts}
    return next((source for source in _CERTAIN if source in found), None)


def account_error(account: Account, completion_tokens: int | None) -> str | None:
    """What is wrong with one request's account, or None.

    completion_tokens = 1 + sum(num_accepted + 1) - cut_tokens: the 1 is the prompt's own token,
    each round adds its accepted drafts and one bonus.
    """
    missing = [n for n in ("completion_tokens", "rounds", "cut_tokens") if n not in account]
    accepted = accepted_of(account)
    if accepted is None:
        missing.append("accepted_histogram")
    if missing or accepted is None:
        return f"stats lack {missing[0]!r}"
    rounds, cut = account["rounds"], account["cut_tokens"]
    expected = 1 + accepted + rounds - cut
    if account["completion_tokens"] != expected:
        return (
            f"token count does not reconcile: {account['completion_tokens']} tokens, but 1 + "
            f"{accepted} accepted + {rounds} bonus - {cut} cut = {expected}"
        )
    histogram: Sequence[int] | None = account.get("accepted_histogram")
    if histogram is not None and sum(histogram) != rounds:
        return f"histogram {list(histogram)} does not sum to {rounds}"
    if account["completion_tokens"] != completion_tokens:
        return f"{account['completion_tokens']} tokens in stats, {completion_tokens} in usage"
    return None
