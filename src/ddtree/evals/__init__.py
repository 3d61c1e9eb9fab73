"""Coding evaluation: tasks, extraction of answers, the sandbox they run in, what came of them."""
