"""What `tools/check_device.py` holds and measures, one module a section."""
