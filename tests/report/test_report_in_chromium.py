"""The page of a report in headless Chromium: charts, hover, toggles, keyboard, requests and accessibility."""

import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright
from tests.report.test_report_page import HOSTILE, result_row, write_run

from lengthwise.report.page import write_report

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; run apt-get install chromium"),
]
TIMEOUT_MS = 120_000
LONG_NAMES = ["a name of a run that is long and ends with 1", "a name of a run that is long and ends with 2"]


both_colors = pytest.mark.parametrize("page", ["light", "dark"], indirect=True)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    runs = [
        write_run(folder / "a", [result_row(20, 0.75), result_row(40, 0.5)]),
        write_run(folder / "b", [result_row(20, 0.25, task="parity", variant=None)], clip=2.0, note=HOSTILE),
        *(write_run(folder / name, [result_row(20, 0.5, task="copy")]) for name in LONG_NAMES),
    ]
    write_report(runs, folder / "report.html", diagnose=False)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=TIMEOUT_MS)
        yield browser
        browser.close()


@pytest.fixture
def page(request, browser, page_file):
    page = browser.new_page(color_scheme=getattr(request, "param", "light"))
    page.set_default_timeout(TIMEOUT_MS)
    page.problems = []
    page.on("console", lambda message: page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda sent: page.problems.append(sent.url) if sent.url != page_file.as_uri() else None)
    page.goto(page_file.as_uri())
    page.wait_for_selector("body[data-ready]")
    yield page
    assert page.problems == []
    page.close()


@both_colors
def test_every_chart_is_drawn(page):
    charts = page.locator(".plot")
    assert charts.count() == 5
    for index in range(5):
        assert charts.nth(index).locator(".main-svg").count() > 0
    assert page.locator("#chart-0 .scatterlayer .point").count() == 3


def test_hovering_shows_the_number_of_the_row(page):
    page.locator("#chart-0 .scatterlayer .point").nth(1).scroll_into_view_if_needed()
    box = page.locator("#chart-0 .scatterlayer .point").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#chart-0 .hovertext")
    text = page.locator("#chart-0 .hovertext").text_content()
    assert "length 40: exact match 0.500" in text
    assert "n = 64, seed 0" in text


def test_the_keyboard_reads_the_points(page):
    page.locator("#chart-0").focus()
    page.keyboard.press("End")
    assert page.locator("#point-0").text_content().startswith("b; length 20: exact match 0.250")


def test_a_cut_label_of_a_heat_map_has_its_full_text_as_a_tooltip(page):
    labels = page.locator("#chart-3 .ytick text")
    assert labels.locator("title").all_text_contents() == LONG_NAMES
    shown = [text.removesuffix(name) for text, name in zip(labels.all_text_contents(), LONG_NAMES, strict=True)]
    assert all(len(text) <= 28 for text in shown)
    assert len(set(shown)) == len(LONG_NAMES)


def test_the_ticks_of_lengths_are_lengths_on_both_scales(page):
    for is_linear in (False, True):
        if is_linear:
            page.locator('input[data-chart="0"][data-switch="log x"]').uncheck()
            page.wait_for_function("document.querySelector('#chart-0').layout.xaxis.type === 'linear'")
        assert set(page.locator("#chart-0 .xtick text").all_text_contents()) <= {"20", "40"}


def test_a_switch_hides_a_line_and_makes_the_axis_linear(page):
    page.locator('input[data-chart="0"][data-line="0"]').uncheck()
    page.wait_for_function("document.querySelectorAll('#chart-0 .scatterlayer .point').length === 1")
    page.locator('input[data-chart="0"][data-switch="log x"]').uncheck()
    page.wait_for_function("document.querySelector('#chart-0').layout.xaxis.type === 'linear'")


@both_colors
def test_no_serious_fault_of_accessibility_is_found(page):
    violations = Axe().run(page).response["violations"]
    assert [each["id"] for each in violations if each["impact"] in ("serious", "critical")] == []


def test_a_phone_draws_all_charts_without_horizontal_scrolling(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
