"""Screenshots of the built site: ``python tests/docs/screenshots.py build/site FOLDER [page ...]``."""

import sys
from pathlib import Path

from report.browser import DESKTOP, Browser

PHONE = (390, 844)
#: Pages, each with the element at the top of the picture; None is the top of the page.
PAGES = {
    "index": None,
    "cases/more-gpus": None,
    "reference/optimizers": None,
    "calculator/index": None,
}
LOOKS = {"desktop": (DESKTOP, False), "dark": (DESKTOP, True), "phone": (PHONE, False)}


def open_page(browser, path):
    """Open a page of the site and wait until it is there."""
    browser.events.clear()
    browser.problems.clear()
    browser.send("Page.navigate", url=path.resolve().as_uri())
    while "Page.loadEventFired" not in browser.events:
        browser._note(browser._receive())
    browser.wait("document.readyState === 'complete'")


def main(site, folder, *pages):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for page in pages or PAGES:
            page, _, anchor = page.partition("#")
            path = Path(site) / f"{page}.html"
            if not path.exists():
                continue
            for name, (size, dark) in LOOKS.items():
                browser.look(size, dark)
                open_page(browser, path)
                browser.run("localStorage.clear()")  # Material remembers the colours of the last visit
                open_page(browser, path)
                browser.run(f"scrollTo(0, document.getElementById({anchor!r})?.offsetTop ?? 0)")
                width = browser.run("document.documentElement.scrollWidth")
                picture = folder / f"{page.replace('/', '-')}-{name}.png"
                browser.screenshot(picture)
                told = [] if width <= size[0] else [f"wider than the window: {width}"]
                print(picture, f"{picture.stat().st_size // 1000} kB", *told, *browser.problems)


if __name__ == "__main__":
    main(*sys.argv[1:])
