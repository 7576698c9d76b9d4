"""Draws the pictures of the README: the page of bert-serve with an answer, and the report of a fine-tuning.

    bert-classify --train_file=train.tsv --dev_file=dev.tsv --text_column=review --label_column=sentiment \\
        --preset=... --do_train --do_eval --output_dir=runs/movie-reviews
    bert-export --model_dir=runs/movie-reviews/model --export_dir=runs/served/movie-reviews
    python docs/screenshots.py runs/movie-reviews/report.html runs/served/movie-reviews \\
        "A warm and funny film, and the two leads are a joy to watch."

Needs Chromium (`apt-get install chromium`).
"""

import argparse
import base64
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, "tests", "support")]

import browser  # noqa: E402

from export.server.assembly import running_server  # noqa: E402
from export.server.config_files import ModelSettings  # noqa: E402
from export.server.server_settings import ServerSettings  # noqa: E402


def draw(page: browser.Page, path: str, end: str) -> None:
    """Draws a page from its top to where an element, chosen by a CSS selector, begins."""
    width, height = page.evaluate(f"""[
        document.documentElement.clientWidth,
        scrollY + document.querySelector({json.dumps(end)}).getBoundingClientRect().top,
    ]""")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    data = page.command("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
    with open(path, "wb") as file:
        file.write(base64.b64decode(data))


def ask(page: browser.Page, text: str) -> None:
    """Asks the served model, and waits for the answer."""
    page.evaluate("document.getElementById('answer').hidden = true")
    page.evaluate(f"document.querySelector('#fields textarea').value = {json.dumps(text)}; null")
    page.evaluate("document.getElementById('ask').click()")
    page.wait("!document.getElementById('answer').hidden")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", help="report.html of a run")
    parser.add_argument("export_dir", help="directory that bert-export wrote")
    parser.add_argument("text", help="question to the served model")
    parser.add_argument("--output_dir", default=os.path.join(ROOT, "docs"), help="directory of the pictures")
    arguments = parser.parse_args(arguments)
    export_dir = os.path.abspath(arguments.export_dir)
    models = [ModelSettings(os.path.basename(export_dir), export_dir)]
    with browser.open_page() as page, running_server(models, ServerSettings(rest_api_port=0, port=-1)) as server:
        page.command("Emulation.setScrollbarsHidden", hidden=True)
        page.open(f"file://{os.path.abspath(arguments.report)}", 1160)
        draw(page, os.path.join(arguments.output_dir, "report.png"), "#mistakes")
        page.open(f"http://127.0.0.1:{server.rest.server_port}/", 760)
        page.wait("!document.getElementById('form').hidden")
        for _ in range(3):  # The first answers are slower.
            ask(page, arguments.text)
        draw(page, os.path.join(arguments.output_dir, "served_page.png"), "#answer details")


if __name__ == "__main__":
    main()
