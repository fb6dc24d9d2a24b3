"""`python -m jaxscore`."""

import sys

from jaxscore.cli import main

sys.exit(main())
