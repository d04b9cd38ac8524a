"""The page in a real Chromium: nothing runs but its own script, nothing leaves the file, everything answers.

Needs Debian's chromium (``apt-get install chromium``) or another Chromium named by ``CHROMIUM``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from viewspan import records, report

sys.path.insert(0, str(Path(__file__).parents[1]))
import report_records as made

pytestmark = pytest.mark.browser
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SIZES = {"phone": (390, 844), "desktop": (1280, 900), "wide": (2200, 1200)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium here: install chromium, or name one in CHROMIUM")
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    made.everything(folder / "runs")
    path = folder / "report.html"
    path.write_text(report.page(*records.read_all([folder / "runs"])), encoding="utf-8")
    return path


class Visit:
    """An open page, with everything it complained about and asked for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(180_000)  # milliseconds; a busy machine is slow, not wrong
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.address = file.as_uri()
        self.context.route("**/*", self.route)
        self.page.goto(self.address)

    def route(self, route: Any) -> None:
        url = route.request.url
        if url == self.address or url.startswith("data:"):
            route.continue_()
        else:
            self.requests.append(url)
            route.abort()

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *failure: object) -> None:
        self.context.close()
        if not any(failure):
            assert self.complaints == []
            assert self.requests == []


def picture(page: Any, i: int = 0) -> str:
    return page.locator(".ball canvas").nth(i).evaluate("canvas => canvas.toDataURL()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_fits_every_screen_without_a_complaint(browser: Any, file: Path, size: str, scheme: str) -> None:
    width, height = SIZES[size]
    with Visit(browser, file, viewport={"width": width, "height": height}, color_scheme=scheme) as visit:
        page = visit.page
        page.wait_for_selector(".ball canvas[data-angle]")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.title() == "viewspan report"
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        folder = os.environ.get("SCREENSHOTS")  # to be looked at, never kept
        if folder:
            page.screenshot(path=Path(folder) / f"{size}-{scheme}.png", full_page=True)


def test_spheres_turn_hold_still_and_answer_keys_and_pointer(browser: Any, file: Path) -> None:
    with Visit(browser, file, viewport={"width": 1280, "height": 900}) as visit:
        page = visit.page
        page.wait_for_selector(".ball canvas[data-angle]")
        assert page.locator(".ball canvas").count() == 5  # latents and the four maps of the first process
        first, other = picture(page), picture(page, 2)
        page.wait_for_function(
            "before => document.querySelector('.ball canvas').toDataURL() !== before", arg=first
        )
        assert picture(page, 2) != other  # all turn together
        page.get_by_role("button", name="Hold still").click()
        still = picture(page)
        page.wait_for_timeout(150)
        assert picture(page) == still
        page.locator(".ball canvas").first.focus()
        page.keyboard.press("ArrowRight")
        keyed = picture(page)
        assert keyed != still
        box = page.locator(".ball canvas").first.bounding_box()
        page.mouse.move(box["x"] + 80, box["y"] + 80)
        page.mouse.down()
        page.mouse.move(box["x"] + 140, box["y"] + 100)
        page.mouse.up()
        dragged = picture(page)
        assert dragged != keyed
        page.locator(".colour").first.select_option("1")
        assert picture(page) != dragged
        page.locator(".group").first.select_option("invertible_mlp")
        assert page.locator(".ball canvas").count() == 4


def test_reduced_motion_holds_spheres_still(browser: Any, file: Path) -> None:
    with Visit(browser, file, reduced_motion="reduce") as visit:
        visit.page.wait_for_selector(".ball canvas[data-angle]")
        before = picture(visit.page)
        visit.page.wait_for_timeout(200)
        assert picture(visit.page) == before
        assert visit.page.get_by_role("button", name="Turn").first.get_attribute("aria-pressed") == "false"


def test_tables_sort_by_number_and_by_text(browser: Any, file: Path) -> None:
    with Visit(browser, file) as visit:
        table = visit.page.locator("table.sortable").first
        heads = table.locator("thead th").all_inner_texts()
        r2 = next(i for i, text in enumerate(heads) if text.strip().startswith("R²"))

        def column(i: int) -> list[str]:
            return table.locator(f"tbody tr td:nth-child({i + 1})").all_inner_texts()

        table.locator("thead th").nth(r2).get_by_role("button").click()
        values = [float(text.split()[0]) for text in column(r2)]
        assert values == sorted(values)
        assert table.locator("thead th").nth(r2).get_attribute("aria-sort") == "ascending"
        table.locator("thead th").nth(r2).get_by_role("button").press("Enter")  # from the keyboard, downwards
        values = [float(text.split()[0]) for text in column(r2)]
        assert values == sorted(values, reverse=True)
        table.locator("thead th").nth(0).get_by_role("button").click()
        assert column(0) == sorted(column(0))
        assert table.locator("thead th").nth(r2).get_attribute("aria-sort") == "none"


def test_the_theme_switches_and_is_kept(browser: Any, file: Path) -> None:
    with Visit(browser, file, color_scheme="light") as visit:
        page, button = visit.page, visit.page.locator("#theme")

        def paper() -> str:
            return page.evaluate("getComputedStyle(document.body).backgroundColor")

        light = paper()
        button.click()
        assert button.inner_text() == "Theme: light"
        button.click()
        assert button.inner_text() == "Theme: dark"
        assert paper() != light
        page.reload()
        assert button.inner_text() == "Theme: dark"
        button.click()
        assert button.inner_text() == "Theme: auto"
        assert paper() == light


def test_markup_and_other_letters_are_shown_and_never_run(browser: Any, file: Path) -> None:
    with Visit(browser, file) as visit:
        page = visit.page
        page.wait_for_timeout(200)
        assert page.title() == "viewspan report"
        assert page.locator("main script, main img[src='x']").count() == 0
        text = page.locator("#audits").inner_text()
        assert '<script>document.title="run"</script>' in text
        assert "\u6f22\u5b57 \u0420\u0443\u0441" in text


def test_every_control_is_reached_by_the_keyboard(browser: Any, file: Path) -> None:
    with Visit(browser, file) as visit:
        page = visit.page
        page.wait_for_selector(".ball canvas[data-angle]")
        seen = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.add(
                page.evaluate(
                    "document.activeElement.className || document.activeElement.id || document.activeElement.tagName"
                )
            )
        assert seen >= {
            "skip",
            "theme",
            "A",
            "group",
            "colour",
            "turn",
            "CANVAS",
            "scroll",
            "BUTTON",
            "SUMMARY",
        }


def test_it_prints_on_white_paper(browser: Any, file: Path) -> None:
    with Visit(browser, file, color_scheme="dark") as visit:
        visit.page.wait_for_selector(".ball canvas[data-angle]")
        visit.page.emulate_media(media="print", color_scheme="light")
        assert visit.page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert len(visit.page.pdf()) > 50_000


def test_the_page_of_one_audit(browser: Any, tmp_path: Path) -> None:
    made.audits(tmp_path)
    ((path, record),) = records.read_all([tmp_path])[0]
    file = tmp_path / "audit.html"
    file.write_text(report.audit_page(record, path), encoding="utf-8")
    with Visit(browser, file, viewport={"width": 390, "height": 844}) as visit:
        assert visit.page.locator(".strip img").evaluate_all(
            "all => all.every(i => i.complete && i.naturalWidth === 32)"
        )
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
