"""What runs inside a sandbox. Sent there as text: standard library alone, and no other imports than
of one another. The parent uses some of it too, so that both sides agree."""
