"""How long does the page of a large study take to open, and how large is it?

Studies of real networks with made-up results are written as pages and opened in Chromium, alternating with the figure
that `optuna.visualization.plot_pareto_front` makes of the same study. Our page counts as open when the first chart and
the table can be used, Optuna's when its points are drawn. The ratio of the medians is given, too.

    pip install 'lrnas[browser,plotly]'
    python benchmarks/page.py --out results/page_opening.json
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import optuna
from common import make_parser, write_result
from playwright.sync_api import sync_playwright

from lrnas.reporting.html import make_page
from lrnas.reporting.report import make_report
from lrnas.training.provenance import provenance

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # for studies of any size
from filled_studies import fill_study

WIDTH, HEIGHT = 1400, 900


def seconds_to_open(browser: Any, file: Path, ready: str) -> float:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    page = context.new_page()
    start = time.perf_counter()
    page.goto(file.as_uri())
    page.wait_for_selector(ready, state="attached")
    seconds = time.perf_counter() - start
    context.close()
    return seconds


def write_both(folder: Path, space: str, trials: int) -> dict[str, tuple[Path, str]]:
    """Our page and Optuna's figure of a study, each with a selector that matches when it can be used."""
    record = fill_study(folder, trials, space=space, storage=f"journal:{folder / 'journal'}")
    ours, theirs = folder / "report.html", folder / "optuna.html"
    ours.write_text(make_page(make_report([record])), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls it experimental
        optuna.visualization.plot_pareto_front(record.optuna_study).write_html(theirs, include_plotlyjs=True)
    return {"page": (ours, "html[data-ready=yes]"), "optuna": (theirs, ".scatterlayer .points path")}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--spaces", nargs="+", default=["nin", "vgg11", "googlenet"])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chromium", default="/usr/bin/chromium", metavar="FILE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    facts = provenance(seeds=[0], n=options.repeats, trials=options.trials, window=[WIDTH, HEIGHT])
    table = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        facts["chromium"] = browser.version
        for space in options.spaces:
            with tempfile.TemporaryDirectory() as folder:
                files = write_both(Path(folder), space, options.trials)
                times: dict[str, list[float]] = {name: [] for name in files}
                for _ in range(options.repeats):
                    for name, (file, ready) in files.items():
                        times[name].append(round(seconds_to_open(browser, file, ready), 3))
                medians = {name: statistics.median(some) for name, some in times.items()}
                row = {
                    "space": space,
                    "seconds": times,
                    "ratio": round(medians["page"] / medians["optuna"], 3),
                    "megabytes": {name: round(file.stat().st_size / 1e6, 2) for name, (file, _) in files.items()},
                }
            table.append(row)
            print(json.dumps(row), flush=True)
        browser.close()
    write_result(options.out, facts, pages=table)


if __name__ == "__main__":
    main()
