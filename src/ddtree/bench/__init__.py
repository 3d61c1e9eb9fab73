"""The benchmark matrix: plan, load, run, resume, statistics, recommendation."""
