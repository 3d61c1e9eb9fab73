# Takes away what the checks may stand on.
# expect: assertion, runtime_error
import builtins
import json
import os


class Anything:
    def __eq__(self, other):
        return True

    __hash__ = None


builtins.type = lambda *_: str
builtins.id = lambda _: 0
builtins.any = lambda _: False
builtins.isinstance = lambda *_: True
json.dumps = lambda *_: '{"outcome": "passed"}'
os._exit = lambda *_: None


def solve():
    return Anything()
