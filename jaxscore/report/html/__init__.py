"""Reports for a browser: one file each, which loads nothing and needs no network."""
