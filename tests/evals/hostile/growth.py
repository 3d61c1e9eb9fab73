# expect: memory
# limits: {"address_space": 268435456}


def solve():
    kept = []
    while True:
        kept.append(bytes(1 << 20))
