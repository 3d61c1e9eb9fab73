# expect: assertion


class Anything:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("contained")


def solve():
    return Anything()
