"""Chromium without a window, driven over its own pipe (DevTools protocol): nothing but the standard library is needed."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new --disable-gpu --disable-dev-shm-usage --disable-extensions --disable-background-networking "
    "--disable-component-update --no-first-run --no-default-browser-check --hide-scrollbars --font-render-hinting=none "
    "--remote-debugging-pipe"
).split()
DESKTOP, PHONE = (1280, 900), (360, 740)


class Browser:
    """One browser with one page; ``problems`` holds every error, warning and request beyond the page's own file."""

    def __init__(self, patience=120.0):
        self.patience = patience
        self.profile = tempfile.mkdtemp(prefix="rootscale-chromium-")
        self.problems, self.events, self.sent, self.rest = [], [], 0, b""
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={self.profile}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium's sandbox refuses root
        # It reads from 3 and writes to 4; the shell puts the pipes there.
        command = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["sh", "-c", command, "sh", CHROMIUM, *flags, "about:blank"], pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        with contextlib.suppress(OSError, TimeoutError, EOFError):
            self.session = None
            self.send("Browser.close")
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
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
        elif name == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:", "blob:")):
            self.problems.append(f"asked the network for {params['request']['url']}")

    def look(self, size=DESKTOP, dark=False, scale=1):
        """The size of the window in CSS pixels, and the colour scheme the reader prefers."""
        width, height = size
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=size == PHONE
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path):
        """Opens the file and waits until its plots are drawn."""
        self.events.clear()
        self.problems.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self._note(self._receive())
        self.wait("document.body.dataset.drawn")

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

    def screenshot(self, path, height=None):
        """What is seen, as PNG; with ``height``, so many pixels from the top of the page (None: the window)."""
        clip = {}
        if height is not None:
            width = self.run("innerWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}, "captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png", **clip)["data"]))
