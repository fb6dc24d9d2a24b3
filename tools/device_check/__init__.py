"""Sections of `tools/check_device.py`, one module each."""
