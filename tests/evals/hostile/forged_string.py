# expect: assertion


class Text(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def solve():
    return Text("not at all")
