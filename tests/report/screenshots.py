"""Screenshots of a report: ``python tests/report/screenshots.py report.html FOLDER``; without a report, of a made-up check.

``PYTHONPATH=src:tests python tests/report/screenshots.py "" docs/images`` made those of the documentation.
"""

import sys
import tempfile
from pathlib import Path

from report.browser import DESKTOP, PHONE, Browser
from report.fixtures import make_check

from rootscale.report import write


def main(report, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, Browser() as browser:
        path = Path(report) if report else write(make_check(), Path(temporary) / "report.html")
        for name, size, dark in (("light", DESKTOP, False), ("dark", DESKTOP, True), ("phone", PHONE, False)):
            browser.look(size, dark)
            browser.open(path)
            whole = browser.run("document.documentElement.scrollHeight")
            browser.screenshot(folder / f"report-{name}.png", whole)
            print(folder / f"report-{name}.png", f"{size[0]} x {whole}", browser.problems or "")


if __name__ == "__main__":
    main(*sys.argv[1:])
