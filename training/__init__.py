"""Train a DFlash drafter for a target, from text that the target writes itself."""
