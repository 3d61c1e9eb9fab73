"""Rounds of a fixed shape: recorded once, replayed for any requests, the host one round behind."""
