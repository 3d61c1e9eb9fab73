"""The first thing that runs inside: receives the rest on standard input, and what is to be done.

Nothing has to be readable for the uid that it becomes. What stands on standard input after the
message is the program's own.
"""

import builtins
import json
import os
import site
import sys
import types

# Digits in which the message's length comes first.
_HEADER = 10


def _receive(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(0, size)
        if not part:
            raise EOFError("the message breaks off")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def main() -> None:
    """Receive, give up what is to be given up, run."""
    # `exit` and `quit`, which programs may expect: -S leaves them out.
    site.setquit()
    message = json.loads(_receive(int(_receive(_HEADER))))
    modules = {}
    for name, source in message["sources"].items():
        module = modules[name.rpartition(".")[2]] = sys.modules[name] = types.ModuleType(name)
        # Builtins of its own: programs may change theirs.
        vars(module)["__builtins__"] = dict(vars(builtins))
        exec(compile(source, f"<{name}>", "exec"), vars(module))
    modules["guard"].apply(message["guard"])
    for name in message["sources"]:
        del sys.modules[name]
    modules["runner"].run(message["job"])


if __name__ == "__main__":
    main()
