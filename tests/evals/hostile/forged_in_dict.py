# expect: assertion


class Anything:
    def __eq__(self, other):
        return True

    __hash__ = None


def solve():
    return {"answer": [Anything()]}
