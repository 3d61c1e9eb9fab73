"""The embedded engine: the round loop, slots and caches, scheduling."""
