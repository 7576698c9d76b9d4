"""report.html: well-formed, without anything from outside, whatever the texts hold; figures by hand-computed values."""

import doctest
import html.parser
import pathlib
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from tasks.fine_tuning import sweep
from tasks.report import bootstrap, card, figures, formatting
from tasks.report import page as report
from tasks.report.page import Mistake, Report, Score, write_report

STYLE = (pathlib.Path(report.__file__).parent / "report.css").read_text(encoding="utf-8")
VOID = {"meta", "br"}
TAGS = set(
    "html head meta title style body header h1 h2 h3 nav a ul ol li main section div p span svg line path rect circle "
    "text figure figcaption table caption thead tbody tr th td br dl dt dd details summary".split()
)
HOSTILE = [
    "<script>document.title = 'taken'</script>",
    "</dd></dl></li></ol></main></body></html><h1>out</h1>",
    '"><img src=\'//evil.example/x.png\' onerror="alert(1)">',
    "]]><!-- --><style>* { display: none }</style>&lt;&amp;&#x3c;",
    "null \x00 bell \x07 escape \x1b return \r next \x85 surrogate \ud83d none \ufffe",
    "رائع جدا \u202e override \u2066 isolate",
    "味道不错,就是送餐太慢了。",
]
HISTORY = {
    "training": [
        {"step": 50, "loss": 0.7, "learning_rate": 5e-5, "gradient_norm": 3.0},
        {"step": 100, "loss": 0.4, "learning_rate": 2.5e-5, "gradient_norm": 2.0},
        {"step": 150, "loss": float("nan"), "learning_rate": 0.0, "gradient_norm": 2.0},
    ],
    "evaluations": [{"step": 100, "loss": 0.5, "accuracy": 0.8, "exact": 71.5}, {"step": 150, "accuracy": 0.85}],
}


class Page(html.parser.HTMLParser):
    """Reads a page strictly: elements must nest; keeps texts and attributes by element."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert len({name for name, _ in attributes}) == len(attributes)
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag, kind=None):
        return [a for name, a in self.elements if name == tag and kind in (None, *a.get("class", "").split())]

    def text(self):
        return " ".join(" ".join(text for tag, text in self.texts if tag != "style").split())


@pytest.fixture(name="write")
def _write(tmp_path):
    def write(**arguments):
        path = tmp_path / "report.html"
        write_report(str(path), Report(**{"title": "SST-2", "max_length": 128, **arguments}))
        write.source = path.read_text(encoding="utf-8")
        return Page(write.source)

    return write


def full():
    return {
        "title": HOSTILE[0],
        "scores": [Score(text, 0.9, 0.87, 0.92) for text in HOSTILE],
        "history": HISTORY,
        "confusion": (HOSTILE, np.arange(49).reshape(7, 7)),
        "predictions": (np.array([1.0, 5.0]), np.array([1.5, -1.0])),
        "lengths": {text: np.array([3, 9, 200]) for text in HOSTILE},
        "mistakes": [Mistake(1.0, [(text, text), ("expected", text)]) for text in HOSTILE],
        "settings": {text: text for text in HOSTILE},
        "notes": HOSTILE,
        "tables": [(text, [text, "n"], [[text, 1]]) for text in HOSTILE],
        "long_examples": HOSTILE[0],
    }


def test_hostile_text_stays_text(write):
    page = write(**full())
    assert {tag for tag, _ in page.elements} <= TAGS
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    answers = [text for tag, text in page.texts if tag == "dd"]
    assert answers[::2] == answers[1::2]
    assert answers[::2][:4] == HOSTILE[:4] and answers[::2][5:] == HOSTILE[5:]
    assert answers[8] == r"null \x00 bell \x07 escape \x1b return \r next \x85 surrogate \ud83d none \ufffe"


def test_nothing_comes_from_outside(write):
    page = write(**full())
    links = [value for _, attributes in page.elements for name, value in attributes.items() if name in ("href", "src")]
    assert links and all(link.startswith("#") for link in links)
    targets = {attributes.get("id") for _, attributes in page.elements}
    assert {link[1:] for link in links} <= targets
    assert not re.search(r"url\(|@import|@font-face", STYLE)
    policy = next(a["content"] for a in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_drawings_are_xml_and_have_names(write):
    write(**full())
    drawings = re.findall(r"<svg.*?</svg>", write.source, re.DOTALL)
    assert len(drawings) > 15
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        if root.get("aria-hidden") != "true":
            assert root.get("role") == "img"
            assert root.get("aria-label") == root.find("title").text
        for element in root.iter():
            numbers = " ".join(value for name, value in element.items() if name in ("d", "x", "y", "x1", "cx", "width"))
            assert "nan" not in numbers and "inf" not in numbers


def test_ids_are_there_once(write):
    ids = [attributes["id"] for _, attributes in write(**full()).elements if "id" in attributes]
    assert len(set(ids)) == len(ids) and "mistakes" in ids


def test_same_arguments_give_the_same_bytes(write):
    write(**full())
    first = write.source
    write(**full())
    assert write.source == first


def test_a_run_with_nothing_to_show_is_a_page_too(write):
    page = write()
    assert not page.of("section") and page.of("h1")


def test_texts_of_any_direction_are_set_by_themselves(write):
    page = write(mistakes=[Mistake(1.0, [("text", HOSTILE[5])])])
    assert [attributes["dir"] for attributes in page.of("dd")] == ["auto"]
    assert "unicode-bidi: plaintext" in STYLE


def test_a_failure_leaves_the_old_report(tmp_path, write):
    write()
    before = write.source
    with pytest.raises(ValueError, match="zero-size array"):
        write(predictions=(np.empty(0), np.empty(0)))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before


# === Scores ===


def test_scores_are_shown_with_their_intervals(write):
    page = write(scores=[Score("accuracy", 0.87443, 0.8512, 0.8966), Score("loss", 0.34121, percent=False)])
    values = [text for tag, text in page.texts if tag == "div"]
    assert values == ["87.4", "0.3412"]
    labels = [attributes["aria-label"] for attributes in page.of("svg")]
    assert labels == ["accuracy: 87.4%, 95% interval 85.1 to 89.7, on a scale from 0.0 to 100.0"]
    band, mark = page.of("rect", "band")[0], page.of("line", "mark")[0]
    # 232 units from 4 on.
    assert float(mark["x1"]) == pytest.approx(4 + 232 * 0.87443, abs=0.06)
    assert float(band["x"]) == pytest.approx(4 + 232 * 0.8512, abs=0.06)
    assert float(band["x"]) + float(band["width"]) == pytest.approx(4 + 232 * 0.8966, abs=0.11)
    assert "1,000 redraws" in page.text()


def test_a_correlation_below_zero_has_a_scale_on_both_sides(write):
    page = write(scores=[Score("correlation", -0.02, -0.2, 0.2)])
    assert "−2.0" in page.text()
    assert float(page.of("line", "mark")[0]["x1"]) == pytest.approx(4 + 116 * 0.98, abs=0.06)


def test_a_score_that_is_not_defined_is_said_to_be_so(write):
    page = write(scores=[Score("F1", float("nan")), Score("accuracy", 0.5, float("nan"), float("nan"))])
    assert "not defined" in page.text() and "nan" not in page.text() and "redraws" not in page.text()


# === Curves ===


def test_curves_show_each_point(write):
    page = write(history=HISTORY)
    labels = [attributes["aria-label"] for attributes in page.of("svg") if "aria-label" in attributes]
    assert labels == [
        "Loss over the steps: training loss from 0.7 to 0.4; evaluation loss from 0.5 to 0.5.",
        "Evaluation over the steps: accuracy from 0.8 to 0.85.",
        "exact over the steps: exact from 71.5 to 71.5.",
        "Learning rate over the steps: learning rate from 5e-05 to 0.",
    ]
    titles = [text for tag, text in page.texts if tag == "title"]
    assert "training loss, step 50: 0.7" in titles and "accuracy, step 150: 0.85" in titles
    assert not any("step 150: nan" in title for title in titles)


def test_points_lie_where_the_axes_say(write):
    write(history={"training": [], "evaluations": [{"step": 0, "loss": 0.2}, {"step": 100, "loss": 1.0}]})
    root = ElementTree.fromstring(re.search(r"<svg.*?</svg>", write.source, re.DOTALL)[0])
    points = [(float(circle.get("cx")), float(circle.get("cy"))) for circle in root.iter("circle")]
    ticks = {label.text: (float(label.get("x")), float(label.get("y")) - 4) for label in root.iter("text")}
    assert points[0][1] == ticks["0.2"][1] and points[1][1] == ticks["1"][1]
    assert points[0][0] == ticks["0"][0] and points[1][0] == ticks["100"][0]
    assert points[0][1] > points[1][1] and points[0][0] < points[1][0]
    line = next(curve for curve in root.iter("path")).get("d")
    assert line == "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def test_long_histories_stay_small(write):
    write(history={"training": [{"step": step, "loss": 1.0 / (step + 1)} for step in range(20_000)]})
    assert len(write.source) < 30_000  # The style sheet takes 10 kB.


@pytest.mark.parametrize("history", [{"training": [], "evaluations": []}, {}, None])
def test_no_history_no_section(write, history):
    assert not write(history=history).of("section")


def test_a_training_of_one_interval_is_a_point(write):
    page = write(history={"training": HISTORY["training"][:1], "evaluations": []})
    assert len(page.of("circle")) == 2 and len(page.of("path")) == 1  # The key's.


def test_further_curves_are_counted(write):
    row = {"step": 1, **{f"part_{number}": 0.1 * number for number in range(8)}}
    page = write(history={"training": [], "evaluations": [row]})
    assert "3 more in history.json" in page.text() and "part 4" in page.text() and "part 5" not in page.text()


# === Confusions ===


def test_confusions_are_a_table_with_shares(write):
    page = write(confusion=(["negative", "positive"], np.array([[20, 20], [0, 60]])))
    cells = [text for tag, text in page.texts if tag == "td"]
    assert cells == ["20", "20", "40", "50.0%", "60", "60", "100.0%"]  # The empty cell has no text.
    shares = [attributes.get("style") for attributes in page.of("td")]
    assert shares == ["--share:0.53", "--share:0.53", None, None, None, "--share:1.00", None, None]
    assert "80 of 100 are on the diagonal" in page.text()


def test_a_class_without_rows_has_no_share(write):
    page = write(confusion=(["a", "b"], np.array([[0, 0], [1, 2]])))
    assert [text for tag, text in page.texts if tag == "td"] == ["0", "–", "1", "2", "3", "66.7%"]


def test_150_classes_fit_a_file_that_opens(write):
    generator = np.random.default_rng(0)
    counts = generator.poisson(0.1, (150, 150)) + 30 * np.eye(150, dtype=int)
    page = write(confusion=([f"intent {number}" for number in range(150)], counts))
    assert len(page.of("td")) >= 150 * 152 and page.of("table", "many")
    assert len(write.source) < 1_000_000  # Measured: 0.4 MB.
    assert "Classes confused most often" in page.text()


@pytest.mark.slow
def test_beyond_200_classes_those_with_the_most_mistakes_are_shown(write):
    counts = 5 * np.eye(260, dtype=int)
    counts[np.arange(60, 259), np.arange(61, 260)] = 1
    page = write(confusion=([f"class {number}" for number in range(260)], counts))
    names = [attributes["title"] for attributes in page.of("span", "name")]
    assert names[:200] == [f"class {number}" for number in range(60, 260)]
    assert "The 200 of 260 classes" in page.text()


def test_the_largest_confusions_come_first():
    counts = np.array([[50, 3, 0], [7, 40, 3], [0, 0, 9]])
    table = report.most_confused(["a", "b", "c"], counts)
    assert table.rows == [("b", "a", "7", "14.0%"), ("a", "b", "3", "5.7%"), ("b", "c", "3", "6.0%")]
    assert counts[0, 0] == 50  # The argument stays as it is.
    assert report.most_confused(["a", "b"], np.eye(2, dtype=int)) is None


# === Predictions of a regression ===


def test_predictions_are_points_beside_the_line_of_equal_values(write):
    write(predictions=(np.array([0.0, 5.0, 2.5]), np.array([0.0, 4.0, 2.5])))
    drawing = ElementTree.fromstring(re.search(r"<svg.*?</svg>", write.source, re.DOTALL)[0])
    assert "of 3 examples" in drawing.get("aria-label") and "differ by 0.333 on average" in drawing.get("aria-label")
    line = next(segment for segment in drawing.iter("line") if segment.get("class") == "equal")
    left, bottom, right, top = (float(line.get(name)) for name in ("x1", "y1", "x2", "y2"))
    middle = ((left + right) / 2, (top + bottom) / 2)
    path = next(scatter for scatter in drawing.iter("path")).get("d")
    points = [tuple(map(float, pair)) for pair in re.findall(r"M(\S+) (\S+?)h0", path)]
    assert sorted(points) == [(left, bottom), middle, (right, pytest.approx(bottom + (top - bottom) * 4 / 5))]


def test_a_random_part_of_very_many_predictions_is_drawn(write):
    values = np.arange(10_000.0)
    write(predictions=(values, values))
    assert "one of 10,000 examples" in write.source and write.source.count("h0") == 2000


# === Lengths ===


def test_lengths_tell_what_is_over_the_limit(write):
    lengths = {"train": np.array([5] * 90 + [128] * 6 + [129, 140, 160, 200]), "dev": np.array([4, 128, 128])}
    page = write(lengths=lengths, long_examples="split into windows")
    assert "Longer than 128 tokens, and split into windows: 4 of 100 (4.0%)." in page.text()
    assert "Half have at most 5, the longest has 200." in page.text()
    assert "Filling all 128 tokens: 2 of 3 (66.7%)." in page.text()
    over = len(page.of("rect", "over"))
    assert over >= 3 and len(page.of("line", "limit")) == 2


def test_an_empty_split_is_left_out(write):
    assert not write(lengths={"dev": np.zeros(0, int)}).of("section")


def test_rare_lengths_are_not_told_as_none(write):
    page = write(lengths={"train": np.array([5] * 5000 + [300])})
    assert "1 of 5,001 (under 0.1%)" in page.text()


# === Mistakes, settings, tables ===


def test_the_worst_twenty_come_first(write):
    mistakes = [Mistake(loss, [("text", f"row {number}")]) for number, loss in enumerate([*np.arange(30.0), 29.0])]
    mistakes.append(Mistake(float("nan"), [("text", "no number")]))
    page = write(mistakes=mistakes)
    shown = [text for tag, text in page.texts if tag == "dd"]
    assert shown == ["row 29", "row 30", *(f"row {number}" for number in range(28, 10, -1))]


def test_expected_and_predicted_stand_out(write):
    page = write(mistakes=[Mistake(1.0, [("text", "t"), ("expected", "e"), ("predicted", "p" * 61)])])
    assert [attributes.get("class") for attributes in page.of("dd")] == [None, "expected brief", "predicted"]


def test_words_are_marked_by_their_shares(write):
    words = [(0, 0, 4, 2.0), (0, 5, 7, 0.1), (0, 8, 11, -0.5), (1, 0, 4, -1.0)]
    page = write(mistakes=[Mistake(1.0, [("a", "<hen> is old"), ("b", "<i>!"), ("predicted", "cat")], words)])
    marks = [(attributes["class"], attributes.get("title")) for attributes in page.of("mark")]
    assert marks == [
        ("for", None),
        ("against", None),
        ("for", "+2.00"),
        ("against weak", "−0.50"),
        ("against", "−1.00"),
    ]
    assert [text for tag, text in page.texts if tag == "mark"][2:] == ["<hen", " ol", "<i>!"]


def test_long_texts_scroll_and_endless_ones_are_cut(write):
    page = write(mistakes=[Mistake(1.0, [("text", "x" * 500), ("text", "y" * 30_000)])])
    assert [attributes.get("tabindex") for attributes in page.of("dd")] == ["0", "0"]
    assert "(20,000 more characters)" in page.text() and len(write.source) < 40_000


def test_settings_are_folded_away_in_order(write):
    page = write(settings={"train_batch_size": 32, "labels": ["a", "b"], "tpu": None, "learning_rate": 5e-05})
    names = [text for tag, text in page.texts if tag == "th"]
    assert names == ["labels", "learning_rate", "tpu", "train_batch_size"]
    assert [text for tag, text in page.texts if tag == "td"] == ["a, b", "5e-05", "–", "32"]
    assert page.of("details") == [{}]


def test_numbers_are_lined_up(write):
    rows = [["negative", 1428, 0.87, "5 of 5"], ["positive", 7, 0.8812, "4 of 5"], ["neutral", 3, None, ""]]
    page = write(tables=[("Per class", ["class", "rows", "f1", "runs"], rows)])
    assert [attributes.get("class") for attributes in page.of("th")] == [None, "number", "number", "number"]
    cells = [text for tag, text in page.texts if tag == "td"]
    assert cells == ["negative", "1,428", "0.8700", "5 of 5", "positive", "7", "0.8812", "4 of 5", "neutral", "3", "–"]


def test_a_sweeps_tables_are_taken(write, tmp_path):
    grid = {"learning_rate": [5e-5], "random_seed": [7, 8]}
    result = sweep.run_sweep(str(tmp_path), grid, lambda settings, directory: {"accuracy": 0.5}, "accuracy", {})
    assert "accuracy of each run" in write(tables=sweep.tables(result)).text()


def test_a_cards_notes_and_mistakes_are_no_markdown(tmp_path, monkeypatch):
    """REVIEW2.md, A11: a label that was left out became an image, HTML and a link in README.md."""
    hostile = "`![t](https://evil.example/p.png) <img src=x>\n# [click me](https://evil.example) www.evil.example"
    known = {"config": None, "num_parameters": 7, "data": [], "metrics": {}, "scores": []}
    vocabulary = {"do_lower_case": True, "vocabulary_checksum": 1}
    notes, mistakes = [f"The first: x.tsv:3: label {hostile}"], [Mistake(1.0, [("text", hostile)])]
    shown = Report("A run", max_length=16, notes=notes, mistakes=mistakes)
    content = card.Card(shown, task="classification", tokenizer=vocabulary, **known)
    monkeypatch.setattr(card, "available_cores", lambda: 3)  # The container's limit.
    card.write_card(str(tmp_path), content)
    assert "\n- Hardware: 3 cores of " in (tmp_path / "README.md").read_text()
    limits = (tmp_path / "README.md").read_text().partition("## Limits\n")[2].rpartition("<!-- ")[0]
    assert limits.count("evil") == 6 and limits.count("\n# ") == 0
    shown = re.sub(r"\\.|`[^`\n]*`", "", limits)
    assert not any(mark in shown for mark in ("](", "<", "`", "://", "www."))


def test_what_somebody_else_wrote_is_kept(tmp_path, capsys):
    first, second = tmp_path / "README.md", tmp_path / "model_card.md"
    for text in ("---\na: 1\n---\none\n", "---\na: 2\n---\ntwo\n"):
        card.save(str(tmp_path), text)
        assert card.find_card(str(tmp_path)) == text and not second.exists()
    edited = first.read_text().replace("a: 2", "license: mit")
    first.write_text(edited)
    card.save(str(tmp_path), "---\na: 3\n---\nthree\n")
    assert first.read_text() == edited and "three" in second.read_text()
    assert capsys.readouterr().out == f"{first}: is kept, since it was edited or is no model card.\n"
    assert card.find_card(str(tmp_path)) == "---\nlicense: mit\n---\ntwo\n"
    first.write_text("# My project\n")
    card.save(str(tmp_path), "---\na: 4\n---\nfour\n")
    assert first.read_text() == "# My project\n" and card.find_card(str(tmp_path)) == "---\na: 4\n---\nfour\n"


@pytest.mark.parametrize("module", [bootstrap, figures, formatting, sweep, card])
def test_examples_in_docstrings_are_right(module):
    assert doctest.testmod(module).failed == 0
