"""Parts that several test files build on."""
