"""Where untrusted programs run: tiers, their self-test, and verdicts."""
