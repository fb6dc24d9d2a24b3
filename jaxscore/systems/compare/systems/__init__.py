"""How the results of each system are read: one module per family, and the list of them."""
