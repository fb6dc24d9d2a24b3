"""Formulas over finished results: NumPy and text only, no tasks and no models."""
