"""`lrnas` on a machine whose clock is wrong: python other_clock.py SECONDS ARGUMENTS..."""

import sys
import time

from lrnas.cli.main import main

if __name__ == "__main__":
    ahead, *arguments = sys.argv[1:]
    right = time.time
    time.time = lambda: right() + float(ahead)
    sys.argv = ["lrnas", *arguments]
    sys.exit(main())
