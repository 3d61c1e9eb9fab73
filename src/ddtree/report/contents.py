"""Which sections a page has, in order; each is numbered by its place."""

from dataclasses import dataclass

TITLES = {
    "verdict": "Verdict",
    "crossover": "Who wins where",
    "speedup": "Speed-up",
    "throughput": "Throughput",
    "windows": "Draft window",
    "acceptance": "Acceptance",
    "round": "Round time",
    "selection": "Choosing",
    "losslessness": "Losslessness",
    "control": "Control",
    "coding": "Coding",
    "cells": "All cells",
    "provenance": "Provenance",
}
"""Every section's id and its name in the contents."""
OPTIONAL = ("crossover", "windows", "selection", "coding")


@dataclass(frozen=True)
class Entry:
    """One section of the page."""

    slug: str
    title: str
    number: int


def contents(present: set[str]) -> dict[str, Entry]:
    """The sections by id; of the optional ones those in `present`."""
    slugs = [slug for slug in TITLES if slug not in OPTIONAL or slug in present]
    return {slug: Entry(slug, TITLES[slug], place) for place, slug in enumerate(slugs, 1)}
