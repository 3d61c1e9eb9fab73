"""A run's records as one self-contained HTML page."""
