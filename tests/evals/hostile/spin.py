# expect: timeout
# limits: {"wall_s": 1.0}


def solve():
    while True:
        pass
