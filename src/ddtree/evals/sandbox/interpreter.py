"""Which Python runs programs: one outside of virtual environments, that the sandbox can reach."""

import os
import platform
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ddtree.errors import ConfigError

SYSTEM_PYTHON = Path("/usr/bin/python3")
_OLDEST = (3, 10)
_ANSWER_S = 30.0
_ASK = "import sys; print(sys.base_prefix); print('.'.join(map(str, sys.version_info[:3])))"


@dataclass(frozen=True)
class Interpreter:
    """`prefix` is the folder that holds it and its library; `version` is like `3.11.7`."""

    executable: str
    prefix: str
    version: str


def this_interpreter() -> Interpreter:
    """What runs this very process, without its virtual environment."""
    prefix = Path(sys.base_prefix).resolve()
    executable = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not os.access(executable, os.X_OK):
        raise ConfigError(f"{executable}: not there, expected the Python that runs this")
    return Interpreter(str(executable), str(prefix), platform.python_version())


def reachable_interpreter() -> Interpreter:
    """This one, or the system's where other users can't reach this one (pyenv below /root).

    ConfigError where neither can be used.
    """
    own = this_interpreter()
    return own if _reachable(Path(own.executable)) else system_interpreter()


def system_interpreter() -> Interpreter:
    """The system's own Python; ConfigError where there is none, or too old a one."""
    wanted = f"a Python of at least {'.'.join(map(str, _OLDEST))} that every user can reach"
    try:
        answer = subprocess.run(
            [SYSTEM_PYTHON, "-I", "-S", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=True,
            env={},
        )
        prefix, version = answer.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{SYSTEM_PYTHON}: {error}; expected {wanted}") from None
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        raise ConfigError(f"{SYSTEM_PYTHON} is {version}, expected {wanted}")
    return Interpreter(str(SYSTEM_PYTHON.resolve()), prefix, version)


def _reachable(executable: Path) -> bool:
    """Whether any user may execute it and look up what lies beside it."""
    if executable.stat().st_mode & stat.S_IROTH == 0:
        return False
    return all(path.stat().st_mode & stat.S_IXOTH for path in (executable, *executable.parents))
