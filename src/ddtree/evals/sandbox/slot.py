"""A slot's uid: one for each worker on this machine, since the kernel counts processes by uid."""

import socket
from dataclasses import dataclass

from ddtree.errors import ConfigError

# Distributions and systemd give none of these to anybody.
UIDS = range(60800, 61184)


@dataclass(frozen=True)
class Slot:
    """`lock` keeps other workers, of whatever process, from the uid for as long as it is open; it
    ends with the process."""

    uid: int
    lock: socket.socket


def claim_slot() -> Slot:
    """A uid that no other worker has; ConfigError where all are taken."""
    for uid in UIDS:
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(f"\0ddtree-sandbox-{uid}")
        except OSError:
            lock.close()
        else:
            return Slot(uid, lock)
    raise ConfigError(f"all {len(UIDS)} uids for sandboxes are in use; end other evaluations")
