"""Entry point of `python -m lrnas`, which is the same as the command `lrnas`."""

import sys

from lrnas.cli.main import main

sys.exit(main())
