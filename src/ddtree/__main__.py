"""`python -m ddtree`."""

from ddtree.cli import main

if __name__ == "__main__":
    main()
