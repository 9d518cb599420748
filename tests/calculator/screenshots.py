"""Screenshots of the calculator: ``python tests/calculator/screenshots.py FOLDER``; the docs have theirs in images."""

import sys
from pathlib import Path

from report.browser import DESKTOP, Browser

PAGE = Path(__file__).parents[2] / "docs" / "calculator" / "index.html"
#: Name, window, dark, and where the picture ends; None is the window's end.
PICTURES = (
    ("light", DESKTOP, False, "code-title"),
    ("dark", DESKTOP, True, "code-title"),
    ("phone", (390, 844), False, None),
)


def main(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for name, size, dark, end in PICTURES:
            browser.look(size, dark)
            browser.open(PAGE)
            if end is None:
                browser.run("document.getElementById('result').scrollIntoView({ behavior: 'instant' })")
            place = f"document.getElementById('{end}').getBoundingClientRect().top - 20"
            picture = folder / f"calculator-{name}.png"
            browser.screenshot(picture, *(() if end is None else (0, browser.run(place))))
            print(picture, f"{picture.stat().st_size // 1000} kB", *browser.problems)


if __name__ == "__main__":
    main(*sys.argv[1:])
