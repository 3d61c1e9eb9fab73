"""What one run may use."""

import math
from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of one run: sizes in bytes, times in seconds.

    `address_space` bounds the memory of each process. `wall_s` counts from the start of the
    program, not of its sandbox. `processes` counts processes and threads together. `output` bounds
    standard output and standard error together, `results` what is told of results, `folder`
    everything in the work folder, `file_size` each file in it.
    """

    address_space: int = 1024 * _MIB
    cpu_s: float = 10.0
    wall_s: float = 15.0
    processes: int = 32
    files: int = 64
    file_size: int = 16 * _MIB
    stack: int = 64 * _MIB
    output: int = 64 * 1024
    results: int = 16 * _MIB
    folder: int = 64 * _MIB

    def rlimits(self, others: int = 0) -> dict[str, tuple[int, int]]:
        """(soft, hard) by the resource module's names.

        `others` is how many processes and threads the run's uid has besides: the kernel counts
        them by uid.
        """
        cpu = max(1, math.ceil(self.cpu_s))
        both = {
            "RLIMIT_AS": self.address_space,
            "RLIMIT_NPROC": self.processes + others,
            "RLIMIT_NOFILE": self.files,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_STACK": self.stack,
            "RLIMIT_CORE": 0,
        }
        # The signal of the soft limit can be ignored, that of the hard one can't.
        return {name: (size, size) for name, size in both.items()} | {"RLIMIT_CPU": (cpu, cpu + 1)}
