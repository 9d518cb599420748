"""Chromium without a window, driven over a pipe (DevTools protocol) with the standard library."""

import base64
import contextlib
import fcntl
import io
import json
import os
import select
import shutil
import signal
import tempfile
import time

from PIL import Image

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# No sandbox: it refuses root and many containers, and only our own pages are opened.
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-extensions "
    "--disable-background-networking --disable-component-update --no-first-run "
    "--no-default-browser-check --hide-scrollbars --font-render-hinting=none --remote-debugging-pipe"
).split()
DESKTOP, PHONE = (1280, 900), (360, 740)

#: Puts all controls of a report back and draws it anew.
FRESH = """
    for (const button of document.querySelectorAll('.legend button')) {
      if ((button.getAttribute('aria-pressed') === 'true') === (button.dataset.arm === 'warm')) button.click();
    }
    document.querySelectorAll('.card details').forEach((details) => { details.open = false; });
    document.activeElement.blur();
    scrollTo(0, 0);
    document.querySelector('[name=scale]').checked = true;
    document.querySelector('[name=function]').checked = true;
    document.querySelector('form').dispatchEvent(new Event('change'));
"""


class Browser:
    """One browser with one page; ``problems`` holds every error, warning and request beyond the page's own file."""

    def __init__(self, patience=60.0):
        self.patience = patience
        self.profile = tempfile.mkdtemp(prefix="rootscale-chromium-")
        self.problems, self.events, self.sent, self.rest, self.path = [], [], 0, b"", None
        flags = [*FLAGS, f"--user-data-dir={self.profile}"]
        (read, self.out), (self.inp, write) = os.pipe(), os.pipe()
        # It reads from 3 and writes to 4. The pipes go above 9 first, so that neither stands in the other's place.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (read, write)]
        nowhere = [(os.POSIX_SPAWN_OPEN, end, os.devnull, os.O_RDWR, 0) for end in (0, 1, 2)]
        placed = [(os.POSIX_SPAWN_DUP2, end, number) for end, number in zip(theirs, (3, 4), strict=True)]
        self.process = os.posix_spawn(
            CHROMIUM, [CHROMIUM, *flags, "about:blank"], os.environ, file_actions=[*nowhere, *placed]
        )
        for end in (read, write, *theirs):
            os.close(end)
        self.session = None
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self):
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Asks it to end, and makes it end if it does not."""
        self.session, self.patience = None, 10.0
        with contextlib.suppress(OSError, TimeoutError, EOFError):
            self.send("Browser.close")
        deadline = time.monotonic() + 10
        while os.waitpid(self.process, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
                break
            time.sleep(0.02)
        os.close(self.out)
        os.close(self.inp)
        shutil.rmtree(self.profile, ignore_errors=True)

    def send(self, method, **params):
        """Calls the browser and returns its answer."""
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def _receive(self):
        deadline = time.monotonic() + self.patience
        while b"\0" not in self.rest:
            if not select.select([self.inp], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no answer from {CHROMIUM} within {self.patience} s")
            chunk = os.read(self.inp, 1 << 20)
            if not chunk:
                raise EOFError(f"{CHROMIUM} has ended")
            self.rest += chunk
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        name, params = event.get("method", ""), event.get("params", {})
        self.events.append(name)
        if name == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(part.get("value", part.get("description"))) for part in params["args"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif name == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "blob:")
        ):
            self.problems.append(f"asked the network for {params['request']['url']}")

    def look(self, size=DESKTOP, dark=False, scale=1):
        """The size of the window in CSS pixels, and the colour scheme the reader prefers."""
        width, height = size
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=size == PHONE,
        )
        self.send("Emulation.setTouchEmulationEnabled", enabled=size == PHONE)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path):
        """Opens the file and waits until its plots are drawn."""
        self.events.clear()
        self.problems.clear()
        self.path = path
        self.send("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self._note(self._receive())
        self.wait("document.body.dataset.drawn")

    def show(self, path, size=DESKTOP, dark=False):
        """The report as it is when it is opened, without loading it anew where it is open: that takes a second."""
        self.look(size, dark)
        if path != self.path:
            self.open(path)
            return
        self.problems.clear()
        self.act(FRESH)

    def run(self, script):
        """The value of an expression of JavaScript, of a promise when it is kept."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, condition):
        """Until the expression is true."""
        deadline = time.monotonic() + self.patience
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {self.patience} s: {condition}; {self.problems}")
            time.sleep(0.02)

    def act(self, script):
        """Runs a script that makes the page draw again, and waits for that."""
        drawn = self.run("Number(document.body.dataset.drawn)")
        self.run(script)
        self.wait(f"Number(document.body.dataset.drawn) > {drawn}")

    def screenshot(self, path, top=0, bottom=None):
        """What is seen, or these pixels of the page, as PNG in 256 colours: a third of the size of all colours."""
        clip = {}
        if bottom is not None:
            part = {"x": 0, "y": top, "width": self.run("innerWidth"), "height": bottom - top, "scale": 1}
            clip = {"clip": part, "captureBeyondViewport": True}
        data = base64.b64decode(self.send("Page.captureScreenshot", format="png", **clip)["data"])
        with Image.open(io.BytesIO(data)) as image:
            image.convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)
