"""The evaluation systems, host side: load, requests, evaluate, summarise. No batches here."""
