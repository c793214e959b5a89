"""Python runs this at its start. A worker then sends a signal, once, while it writes its NUMBERth file."""

import os
import sys

calls, fsync = 0, os.fsync


def send_signal(descriptor: int) -> None:
    """What `write_atomically` calls when a file is written but has not got its name yet."""
    global calls
    fsync(descriptor)
    calls += 1
    if calls == int(os.environ["FAULT_NUMBER"]):
        try:
            os.close(os.open(os.environ["FAULT_FLAG"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:  # another worker has done it
            return
        os.kill(int(os.environ["FAULT_PROCESS"]) or os.getpid(), int(os.environ["FAULT_SIGNAL"]))


if any(argument.endswith("default_worker.py") for argument in sys.orig_argv):
    os.fsync = send_signal
