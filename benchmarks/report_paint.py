"""How long the report of 3,008 cells takes to paint, to be read in and to sort, and its size.

The page is that of the tests' largest sample (`tests/report/report_matrices.py`), opened from a
file by headless Chromium, once for each repeat after one that doesn't count. `paint_ms` is the
browser's first contentful paint and `load_ms` the end of its load event, both from the start of
the navigation; `sort_ms` is one sort of all rows by speed-up, until the next frame. It should
paint in under 2 s and stay under 10 MB.

    python benchmarks/report_paint.py --out benchmarks/results/HARDWARE/report_paint.json
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from common import median_interval, progress, write
from selenium import webdriver

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))

from report_matrices import night_run

from ddtree.report.page import write_report

LIMIT_MS, LIMIT_BYTES = 2000.0, 10_000_000
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
TIMES = """
const [paint] = performance.getEntriesByName("first-contentful-paint");
const [load] = performance.getEntriesByType("navigation");
return paint && load.loadEventEnd ? [paint.startTime, load.loadEventEnd] : null;
"""
SORT = """
const done = arguments[0];
const table = document.getElementById("all-cells");
for (let e = table; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
const heads = [...table.tHead.rows[0].cells];
const button = heads.find(head => head.textContent.startsWith("Speed-up")).firstChild;
requestAnimationFrame(() => requestAnimationFrame(() => {
  const start = performance.now();
  button.click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
}));
"""


def main() -> None:
    """Measure, write, and exit 1 above a limit."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="result file (JSON)")
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--chromium", default="/usr/bin/chromium")
    options.add_argument("--driver", default="/usr/bin/chromedriver")
    options.set_defaults(device="cpu")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        started = time.perf_counter()
        write_report(night_run(), page)
        render_s, size = time.perf_counter() - started, page.stat().st_size
        progress(f"{size / 1e6:.2f} MB, made in {render_s:.1f} s")
        browser = start(args.chromium, args.driver)
        try:
            runs = [measure(browser, page) for _ in range(args.repeats + 1)][1:]
            version = browser.capabilities["browserVersion"]
        finally:
            browser.quit()
    paint = median_interval([run["paint_ms"] for run in runs])
    passed = paint["median"] < LIMIT_MS and size < LIMIT_BYTES
    limits = {"paint_ms": LIMIT_MS, "bytes": LIMIT_BYTES}
    found = {"bytes": size, "render_s": render_s, "paint_ms": paint, "passed": passed}
    write(args, {"chromium": version, "limits": limits, **found, "runs": runs})
    if not passed:
        sys.exit(1)


def start(chromium: str, driver: str) -> webdriver.Chrome:
    """Headless Chromium, 1280 x 844."""
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, "--window-size=1280,844"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def measure(browser: webdriver.Chrome, page: Path) -> dict[str, float]:
    """One navigation, then one sort."""
    browser.get(page.as_uri())
    times = None
    while times is None:
        times = browser.execute_script(TIMES)
    sort_ms = browser.execute_async_script(SORT)
    progress(f"paint {times[0]:.0f} ms, load {times[1]:.0f} ms, sort {sort_ms:.0f} ms")
    return {"paint_ms": times[0], "load_ms": times[1], "sort_ms": sort_ms}


if __name__ == "__main__":
    main()
