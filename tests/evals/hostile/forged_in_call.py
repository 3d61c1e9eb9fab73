# expect: assertion
# tests: call


class Anything(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def solve():
    return [Anything("x")]
