"""Lets `python -m lrnas` do what `lrnas` does."""

import sys

from lrnas.cli.main import main

sys.exit(main())
