# Its class says of itself that it is no program's.
# expect: assertion


class Static(type):
    __flags__ = 0

    def __eq__(cls, other):
        return True

    def __hash__(cls):
        return hash(str)


class Anything(metaclass=Static):
    def __eq__(self, other):
        return True

    __hash__ = None


def solve():
    return Anything()
