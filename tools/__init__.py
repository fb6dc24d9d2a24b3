"""Programs for those who work on jaxscore, each run as a script from the root."""
