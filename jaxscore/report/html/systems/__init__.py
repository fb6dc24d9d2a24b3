"""One module per system: its record as a `Document`."""
