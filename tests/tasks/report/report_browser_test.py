"""report.html in a headless browser: it fits a phone and a desktop, nothing runs, and both colour schemes work."""

import base64
import re

import browser
import numpy as np
import pytest

from tasks.report.page import Mistake, Report, Score, write_report

pytestmark = pytest.mark.skipif(
    browser.BROWSER is None, reason="No chromium, chromium-browser or google-chrome is installed."
)

MEASURE = """(() => {
  const contrast = (a, b) => {
    const light = color => {
      const [red, green, blue] = color.match(/[\\d.]+/g).slice(0, 3).map(value => value / 255)
        .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
    };
    return Math.max(light(a) / light(b), light(b) / light(a));
  };
  const root = document.documentElement, all = [...document.body.querySelectorAll("*")];
  const boxes = [...document.querySelectorAll(".box")];
  const open = document.querySelector("details").open;
  document.querySelector("details").open = true;
  const outside = all.filter(
    one => !one.closest(".box, svg, dd") && one.getBoundingClientRect().right > root.clientWidth + 1);
  const texts = [...document.querySelectorAll("svg[viewBox='0 0 360 220'] text")];
  const paper = getComputedStyle(document.body).backgroundColor;
  const soft = [...document.querySelectorAll("p, dd, dt, td.number, figcaption, a, h1, h2, h3")];
  return {
    scroll: root.scrollWidth, client: root.clientWidth, title: document.title,
    outside: outside.map(one => one.outerHTML.slice(0, 80)),
    scripts: document.scripts.length, images: document.images.length,
    boxes: boxes.map(box => [box.scrollWidth, box.clientWidth, box.scrollHeight, box.clientHeight]),
    sticky: boxes.map(box => {
      box.scrollLeft = 200; box.scrollTop = 200;
      const name = box.querySelector(".confusion tbody tr:nth-child(20) th");
      return name && Math.round(name.getBoundingClientRect().left - box.getBoundingClientRect().left);
    }),
    text: Math.min(...texts.map(one => one.getBoundingClientRect().height)),
    paper, contrast: Math.min(...soft.map(one => contrast(getComputedStyle(one).color, paper))),
    directions: [...document.querySelectorAll("dd")].map(one => getComputedStyle(one).direction),
    answers: [...document.querySelectorAll("dd")].map(one => one.textContent),
    open,
  };
})()"""
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"> \x00 \ud83d"
ENDLESS = "x" * 3000
WIDTHS = (320, 375, 768, 1280)
WIDTHS_OF_MANY = (375, 1280)


def make_report(path, num_classes):
    generator = np.random.default_rng(0)
    history = {
        "training": [{"step": step, "loss": 10.0 / step, "learning_rate": 1e-5} for step in range(10, 800, 10)],
        "evaluations": [{"step": step, "accuracy": 0.8, "loss": 0.5} for step in range(100, 800, 100)],
    }
    texts = [HOSTILE, ENDLESS, "الخدمة كانت سيئة", "味道不错,就是送餐太慢了。" * 40, "plain\nlines"]
    labels = [f"label_{number}_{'z' * 40}" for number in range(num_classes)]
    write_report(
        str(path),
        Report(
            title="A title that is long enough to need several lines on a phone: " + "w" * 90,
            scores=[Score("accuracy", 0.874, 0.851, 0.896), Score("a_name_without_any_place_to_break_" * 3, 0.5)],
            history=history,
            confusion=(labels, generator.poisson(2, (num_classes, num_classes)) * 1000),
            predictions=(generator.normal(size=300), generator.normal(size=300)),
            lengths={"train": generator.integers(2, 300, 4000), "dev": generator.integers(2, 90, 800)},
            max_length=128,
            mistakes=[
                Mistake(5.0 - number, [("text", text), ("expected", ENDLESS)]) for number, text in enumerate(texts)
            ],
            settings={"output_dir": "/a/path/" + "y" * 300, "train_batch_size": 32},
            notes=[ENDLESS[:200]],
            tables=[(ENDLESS[:90], [f"column_{number}" for number in range(20)], [["q" * 60] * 20])],
        ),
    )


@pytest.fixture(scope="module", name="page")
def _page():
    with browser.open_page() as page:
        yield page


def measure(page, directory, num_classes, widths, dark):
    path, figures = directory / "report.html", {}
    make_report(path, num_classes)
    for width in widths:
        page.open(f"file://{path}", width, height=800, dark=dark)
        figures[width] = page.evaluate(MEASURE)
    return figures


@pytest.fixture(scope="module", name="light")
def _light(page, tmp_path_factory):
    return measure(page, tmp_path_factory.mktemp("light"), 2, WIDTHS, dark=False)


@pytest.fixture(scope="module", name="many")
def _many(page, tmp_path_factory):
    return measure(page, tmp_path_factory.mktemp("many"), 150, WIDTHS_OF_MANY, dark=True)


@pytest.mark.parametrize(
    "name, width", [*(("light", width) for width in WIDTHS), *(("many", width) for width in WIDTHS_OF_MANY)]
)
def test_the_page_never_scrolls_sideways(request, name, width):
    figures = request.getfixturevalue(name)[width]
    assert figures["scroll"] <= figures["client"] <= width
    assert figures["outside"] == []


@pytest.mark.parametrize("width", WIDTHS_OF_MANY)
def test_a_large_matrix_scrolls_in_its_own_box(many, width):
    scroll_width, box_width, scroll_height, height = many[width]["boxes"][0]
    assert scroll_width > box_width and scroll_height > height and height <= 800
    assert many[width]["sticky"][0] in (0, 1)  # The classes' names stay in view.


def test_hostile_text_is_only_text(light):
    for figures in light.values():
        assert figures["title"].startswith("A title")
        assert figures["scripts"] == 0 and figures["images"] == 0
        assert figures["answers"][0] == HOSTILE.replace("\x00", r"\x00").replace("\ud83d", r"\ud83d")
        assert figures["answers"][8] == "plain\nlines"


def test_right_to_left_text_runs_so(light):
    assert light[375]["directions"][::2] == ["ltr", "ltr", "rtl", "ltr", "ltr"]


def test_drawn_text_stays_readable(light):
    for width, figures in light.items():
        assert figures["text"] >= 9, width


def test_both_colour_schemes_have_contrast(light, many):
    assert light[375]["paper"] == "rgb(255, 255, 255)" and many[375]["paper"] != "rgb(255, 255, 255)"
    for figures in (light[375], many[375]):
        assert figures["contrast"] >= 4.5  # WCAG 2, level AA.


def test_settings_are_closed_on_the_screen(light):
    assert not light[1280]["open"]


def test_it_prints(tmp_path, page):
    make_report(tmp_path / "report.html", num_classes=2)
    page.open(f"file://{tmp_path}/report.html", 1280)
    document = base64.b64decode(page.command("Page.printToPDF")["data"])
    assert document.startswith(b"%PDF")
    count = max(int(number) for number in re.findall(rb"/Count (\d+)", document))
    assert 3 <= count <= 15


def test_nothing_is_stopped_or_complained_about(light, many, page):
    assert page.complaints == []
