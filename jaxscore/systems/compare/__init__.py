"""`compare`: two finished runs of one system on the same items."""
