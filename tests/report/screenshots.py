"""Screenshots of a report: ``python tests/report/screenshots.py report.html FOLDER``; of a made-up check for ``""``.

Those of the documentation are of the demo: see docs/same.md.
"""

import sys
import tempfile
from pathlib import Path

from report.browser import DESKTOP, PHONE, Browser
from report.fixtures import make_check

from rootscale.report import write_page

#: Name, window, dark, and the headings (their ids) between which the picture is taken; None is the top.
PICTURES = (
    ("light", DESKTOP, False, None, "curves"),
    ("dark", DESKTOP, True, None, "curves"),
    ("phone", PHONE, False, None, "curves"),
)


def main(report, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, Browser() as browser:
        path = Path(report) if report else write_page(make_check(), Path(temporary) / "report.html")
        for name, size, dark, start, end in PICTURES:
            browser.look(size, dark)
            browser.open(path)
            place = "document.getElementById('{}').getBoundingClientRect().top - 24"
            top = browser.run(place.format(start)) if start else 0
            picture = folder / f"report-{name}.png"
            browser.screenshot(picture, top, browser.run(place.format(end)))
            print(picture, f"{picture.stat().st_size // 1000} kB", *browser.problems)


if __name__ == "__main__":
    main(*sys.argv[1:])
