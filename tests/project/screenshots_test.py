"""The command that draws the README's pictures, on a toy model."""

import importlib.util
import os
import struct

import browser
import pytest
import toy_answers
from repository import ROOT

from tasks.report.page import Report, Score, write_report


@pytest.mark.skipif(browser.BROWSER is None, reason="No chromium, chromium-browser or google-chrome is installed.")
def test_both_pictures_are_drawn(tmp_path):
    spec = importlib.util.spec_from_file_location("screenshots", os.path.join(ROOT, "docs", "screenshots.py"))
    screenshots = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(screenshots)
    write_report(str(tmp_path / "report.html"), Report(title="A title", scores=[Score("accuracy", 0.9)]))
    models = toy_answers.save_all(str(tmp_path / "models"))
    screenshots.main([str(tmp_path / "report.html"), models["classification"], "a text", "--output_dir", str(tmp_path)])
    for name, width in (("report.png", 1160), ("served_page.png", 760)):
        picture = (tmp_path / name).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert struct.unpack(">I", picture[16:20])[0] == width


@pytest.mark.parametrize("name", ["report.png", "served_page.png"])
def test_the_pictures_load_fast(name):
    assert os.path.getsize(os.path.join(ROOT, "docs", name)) < 150_000
