"""A headless Chromium that a test drives by the DevTools protocol, over two pipes: opens pages, types, measures."""

import base64
import contextlib
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-pipe"
).split()


class Page:
    """One tab."""

    def __init__(self, process: subprocess.Popen, requests, answers):
        self._process, self._requests, self._answers = process, requests, answers
        self._incoming: queue.Queue = queue.Queue()
        self._last_id, self._session = 0, None
        self.complaints: list[str] = []  # warnings and errors of scripts, and what the security policy stopped
        threading.Thread(target=self._read, daemon=True).start()
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")

    def _read(self) -> None:
        buffer = b""
        while piece := os.read(self._answers, 1 << 16):
            *messages, buffer = (buffer + piece).split(b"\0")
            for message in messages:
                self._incoming.put(json.loads(message))

    def command(self, method: str, **parameters) -> dict:
        """Sends a command of the protocol; returns its result."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._incoming.get(timeout=60)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict) -> None:
        if event.get("method") == "Log.entryAdded":
            self.complaints.append(event["params"]["entry"]["text"])
        elif event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(event["params"])[:500])

    def evaluate(self, script: str):
        """The value of a JavaScript expression; a promise is awaited."""
        result = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, url: str, width: int, *, height: int = 900, dark: bool = False) -> None:
        """Opens an address on a screen of a size."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.command("Emulation.setEmulatedMedia", features=scheme)
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.command("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def wait(self, condition: str) -> None:
        """Waits until a JavaScript condition holds."""
        script = f"""new Promise((resolve, reject) => {{
            const end = Date.now() + 120000;
            (function look() {{
                if ({condition}) resolve(true);
                else if (Date.now() > end) reject(new Error("It never came: " + {json.dumps(condition)}));
                else setTimeout(look, 10);
            }})();
        }})"""
        self.evaluate(script)

    def press(self, key: str, *, code: int, text: str = "", modifiers: int = 0) -> None:
        """Presses a key, as a keyboard does."""
        same = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.command("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **same)
        self.command("Input.dispatchKeyEvent", type="keyUp", **same)

    def type(self, text: str) -> None:
        """Types a text into what has the focus."""
        self.command("Input.insertText", text=text)

    def screenshot(self, path: str) -> None:
        """Draws the whole page into a PNG file."""
        data = self.command("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))


@contextlib.contextmanager
def open_page() -> Iterator[Page]:
    """A browser of its own, with one tab, for as long as the block runs."""
    commands, requests = os.pipe()
    answers, results = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser reads commands from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{commands} 4>&{results}'
        process = subprocess.Popen(
            ["bash", "-c", shell, BROWSER, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, results),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(results)
        timer = threading.Timer(170, process.kill)  # so that no read waits for ever
        timer.start()
        try:
            yield Page(process, requests, answers)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            os.close(requests)
