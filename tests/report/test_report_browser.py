"""The page in a real browser: no errors, no request, nothing wider than the screen, two themes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from report_samples import faulty_run, good_run, large_run, one_cell_run

from ddtree.report.page import write_report

webdriver = pytest.importorskip("selenium.webdriver")

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
OVERFLOWING = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")]
  .filter(e => !e.closest(".scroll > *") && e.getBoundingClientRect().right > wide + 0.5)
  .map(e => e.tagName + "." + (e.getAttribute("class") || ""));
"""
SPILLING = """
return [...document.querySelectorAll(".map td.heat, .checks > li, .ship")]
  .filter(e => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 9)
  .map(e => e.textContent);
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM.exists() and DRIVER.exists()),
        reason="needs Debian's chromium and chromium-driver",
    ),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["webdriver.Chrome"]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    urls = {}
    for make in (good_run, faulty_run, one_cell_run, large_run):
        path = folder / f"{make.__name__}.html"
        write_report(make(), path)
        urls[make.__name__] = path.as_uri()
    return urls


def show(browser: "webdriver.Chrome", url: str, width: int, scheme: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.get(url)


@pytest.mark.parametrize("run", ["good_run", "faulty_run", "one_cell_run", "large_run"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_and_is_quiet(browser, pages, run, width, scheme):
    show(browser, pages[run], width, scheme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    root = "document.documentElement"
    assert browser.execute_script(f"return {root}.scrollWidth") == width
    assert browser.execute_script(OVERFLOWING) == []
    assert browser.execute_script(SPILLING) == []


def test_the_page_and_its_charts_follow_the_theme(browser, pages):
    def colour(selector: str, name: str) -> str:
        script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        return browser.execute_script(script, selector, name)

    seen = {}
    for scheme in ("light", "dark"):
        show(browser, pages["good_run"], 1280, scheme)
        seen[scheme] = (
            colour("body", "backgroundColor"),
            colour("body", "color"),
            colour("svg.plot text", "fill"),
            colour("td.win", "backgroundColor"),
        )
    assert all(a != b for a, b in zip(seen["light"], seen["dark"], strict=True))
    assert seen["light"][0] == "rgb(252, 252, 250)"


def test_the_overflow_check_sees_a_planted_wide_element(browser, pages):
    show(browser, pages["one_cell_run"], 390, "light")
    browser.execute_script(
        "document.querySelector('main').insertAdjacentHTML('beforeend',"
        "'<div class=planted style=\"width: 600px\">wide</div>')"
    )
    assert "DIV.planted" in browser.execute_script(OVERFLOWING)
