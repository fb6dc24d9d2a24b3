"""Pictures as SVG: colours come from the style sheet of the page, so that they follow its mode."""
