"""`lrnas` that gets a signal at a point of its work: python signalled.py POINT NUMBER SIGNAL TIMES ARGUMENTS...

The signal is sent when the point is reached for the NUMBERth time, so it does not depend on the speed of the machine.
If TIMES is 2, it is sent again a second later.
"""

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import ray

from lrnas.cli.main import main
from lrnas.searching import ray_cluster
from lrnas.searching.proposals import Proposals
from lrnas.study.ledger import Ledger

BEFORE, AFTER = True, False
POINTS: dict[str, tuple[Any, str, bool]] = {
    "Ray is not started": (ray, "init", BEFORE),
    "Ray is started": (ray_cluster, "limit_to_room", BEFORE),
    "a network is being proposed": (Ledger, "write", BEFORE),
    "a network is proposed": (Proposals, "ask", AFTER),
    "an epoch is recorded": (Ledger, "report_epoch", AFTER),
    "a result is not recorded": (Ledger, "complete", BEFORE),
    "half a result is recorded": (optuna.Study, "tell", BEFORE),
    "a result is recorded": (Ledger, "complete", AFTER),
    "Ray is not stopped": (ray, "shutdown", BEFORE),
}
CHECKPOINT = "a checkpoint is being written"
IDLE_WORKER = "a network is proposed, to a worker that gets the signal"
WORKER = "a checkpoint is being written, by the worker that gets the signal"


def workers() -> list[int]:
    """Processes that this one has started for training."""
    sys.path.append(str(Path(__file__).parent.parent / "integration"))
    from searches import commands, descendants

    found = commands(descendants(os.getpid()))
    return [process for process, command in found.items() if "ray::ImplicitFunc" in command]


def hook(point: str, number: int, signal_number: int, times: int, receivers: Callable[[], list[int]]) -> None:
    """Make this process send a signal, to itself or to others, at a point of its own work."""
    owner, name, is_before = POINTS[point]
    function: Callable[..., Any] = getattr(owner, name)
    calls = 0

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        result = None if is_before else function(*arguments, **named)
        if calls == number:
            for process in receivers():
                for i in range(1, times):
                    again = threading.Timer(i, os.kill, (process, signal_number))
                    again.daemon = True
                    again.start()
                os.kill(process, signal_number)
            time.sleep(0.01)  # Python runs the handler before the next line
        return function(*arguments, **named) if is_before else result

    setattr(owner, name, call)


if __name__ == "__main__":
    point, number, signal_number, times, *arguments = sys.argv[1:]
    if point in POINTS:
        hook(point, int(number), int(signal_number), int(times), lambda: [os.getpid()])
    elif point == IDLE_WORKER:
        hook("a network is proposed", int(number), int(signal_number), int(times), workers)
    else:  # see in_workers/sitecustomize.py
        os.environ |= {
            "FAULT_FLAG": str(Path(f"fault-{os.getpid()}").resolve()),
            "FAULT_PROCESS": str(0 if point == WORKER else os.getpid()),
            "FAULT_NUMBER": number,
            "FAULT_SIGNAL": signal_number,
            "PYTHONPATH": f"{Path(__file__).parent / 'in_workers'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        }
    sys.argv = ["lrnas", *arguments]
    sys.exit(main())
