"""What a run leaves behind: arms, rounds, requests, cells, the ledger. No torch here."""
