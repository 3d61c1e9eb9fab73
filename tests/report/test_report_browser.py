"""The page in a real browser: no errors, no request, nothing wider than the screen, two themes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from report_matrices import chosen_run, night_run, window_run
from report_samples import faulty_run, good_run, large_run, one_cell_run

from ddtree.records.summary_json import read_summary
from ddtree.report.page import write_report

webdriver = pytest.importorskip("selenium.webdriver")
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait

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

RUNS = (good_run, faulty_run, one_cell_run, large_run, window_run, chosen_run)
LARGEST_BYTES = 10_000_000
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
COLUMN = """
const [id, title] = arguments;
const heads = [...document.getElementById(id).tHead.rows[0].cells];
const column = heads.findIndex(head => head.textContent.startsWith(title));
return [...document.getElementById(id).tBodies[0].rows]
  .filter(row => !row.hidden)
  .map(row => [row.cells[column].firstChild.textContent.trim(), row.className]);
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
    for make in RUNS:
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


@pytest.mark.parametrize("run", [make.__name__ for make in RUNS])
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


def press(browser: "webdriver.Chrome", table: str, title: str) -> str | None:
    """Sort by a column from the keyboard; what the header says of it."""
    heads = browser.find_elements("css selector", f"#{table} thead th")
    (head,) = [h for h in heads if h.get_attribute("textContent").startswith(title)]
    button = head.find_element("tag name", "button")
    browser.execute_script("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element == button
    return head.get_attribute("aria-sort")


def column(browser: "webdriver.Chrome", table: str, title: str) -> list[tuple[str, str]]:
    """(text, class of the row) of a column's cells, hidden rows left out."""
    return [tuple(pair) for pair in browser.execute_script(COLUMN, table, title)]


def speeds(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(text.removesuffix("×")) for text, _ in pairs if text.endswith("×")]


def test_a_table_sorts_from_the_keyboard_and_what_cannot_count_stays_last(browser, pages):
    show(browser, pages["faulty_run"], 1280, "light")
    before = column(browser, "all-cells", "Speed-up")
    assert press(browser, "all-cells", "Speed-up") == "descending"
    down = column(browser, "all-cells", "Speed-up")
    assert press(browser, "all-cells", "Speed-up") == "ascending"
    up = column(browser, "all-cells", "Speed-up")
    assert sorted(before) == sorted(down) == sorted(up)
    for found, turned in ((down, True), (up, False)):
        counted = [pair for pair in found if pair[1] != "void"]
        assert found[: len(counted)] == counted
        assert speeds(counted) == sorted(speeds(counted), reverse=turned)
    assert ("9.87×", "void") in down[-4:]
    marked = browser.find_elements("css selector", "#all-cells [aria-sort]")
    assert len(marked) == 1


def test_arms_sort_by_their_numbers_and_dashes_come_last(browser, pages):
    show(browser, pages["good_run"], 1280, "light")
    assert press(browser, "all-cells", "Arm") == "ascending"
    labels = [text for text, _ in column(browser, "all-cells", "Arm")]
    assert labels[::4] == [
        "ar",
        "chain",
        "ddtree(8,2)",
        "ddtree(8,4)",
        "ddtree(16,2)",
        "ddtree(16,4)",
    ]
    for _ in range(2):
        press(browser, "all-cells", "Acceptance length")
        texts = [text for text, _ in column(browser, "all-cells", "Acceptance length")]
        assert [text[0] for text in texts[-4:]] == ["–"] * 4


def test_a_table_filters_by_all_words(browser, pages):
    show(browser, pages["good_run"], 1280, "light")
    box = browser.find_element("css selector", "#cells .filters input")
    box.send_keys("CHAIN 900")
    rows = column(browser, "all-cells", "Context")
    assert [text for text, _ in rows] == ["900", "900"]
    said = browser.find_element("css selector", "#cells .filters output").text
    assert said == "2 of 24 rows"
    box.clear()
    box.send_keys(" ")
    assert len(column(browser, "all-cells", "Context")) == 24


def test_the_data_can_be_saved(browser, pages, tmp_path: Path):
    show(browser, pages["chosen_run"], 1280, "light")
    setting = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", setting)
    browser.find_element("id", "save").send_keys(Keys.ENTER)
    path = tmp_path / "summary.json"
    WebDriverWait(browser, 20).until(lambda _: path.exists())
    saved = read_summary(path.read_text())
    assert [cell.place for cell in saved.cells] == [cell.place for cell in chosen_run().cells]
    assert browser.get_log("browser") == []


def test_no_script_but_the_page_s_own_runs(browser, pages):
    show(browser, pages["one_cell_run"], 1280, "light")
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.planted = 1';"
        "document.body.append(s)"
    )
    assert browser.execute_script("return window.planted === undefined")
    assert any(
        "Content Security Policy" in entry["message"] for entry in browser.get_log("browser")
    )


def test_three_thousand_cells_load_and_sort(browser, tmp_path: Path, record_property):
    run, path = night_run(), tmp_path / "night.html"
    write_report(run, path)
    assert len(run.cells) > 3000
    assert path.stat().st_size < LARGEST_BYTES
    show(browser, path.as_uri(), 1280, "light")
    assert browser.get_log("browser") == []
    assert browser.execute_script(OVERFLOWING) == []
    record_property("bytes", path.stat().st_size)
    record_property("paint_ms", browser.execute_script(PAINT))
    folded = browser.find_element("css selector", "#cells > details")
    assert folded.get_attribute("open") is None
    folded.find_element("tag name", "summary").send_keys(Keys.ENTER)
    assert press(browser, "all-cells", "Speed-up") == "descending"
    found = column(browser, "all-cells", "Speed-up")
    assert len(found) == len(run.cells)
    counted = [pair for pair in found if pair[1] != "void"]
    assert found[: len(counted)] == counted
    assert speeds(counted) == sorted(speeds(counted), reverse=True)
    assert "99.99×" not in [text for text, _ in counted]


def test_the_sorting_check_sees_a_row_that_is_not_held_back(browser, pages):
    show(browser, pages["faulty_run"], 1280, "light")
    browser.execute_script(
        "document.querySelectorAll('#all-cells tr.void').forEach(row => row.className = '')"
    )
    press(browser, "all-cells", "Speed-up")
    assert column(browser, "all-cells", "Speed-up")[0] == ("9.87×", "")
