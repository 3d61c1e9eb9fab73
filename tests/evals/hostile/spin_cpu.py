# Ends by the limit on processor time, long before the clock's.
# expect: timeout
# limits: {"cpu_s": 1.0}


def solve():
    while True:
        pass
