"""Writers of results. They never compute."""
