"""Targets and drafters: adapters, loaders and the zoo of known pairs."""
