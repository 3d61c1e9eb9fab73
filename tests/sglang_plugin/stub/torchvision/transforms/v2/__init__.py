"""Images are not transformed in these tests."""
