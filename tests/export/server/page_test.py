"""The page at `/` in a real browser, headless: every kind of answer, by keyboard, on a phone and a desktop, in both
schemes.

Set BERT_SERVE_SCREENSHOTS to a directory to look at what was drawn.
"""

import json
import os
import re

import browser
import pytest
import toy_answers
import toy_server

from export.server import page
from export.server.assembly import running_server
from export.server.config_files import ModelSettings
from export.server.server_settings import ServerSettings

pytestmark = pytest.mark.skipif(
    browser.BROWSER is None, reason="No chromium, chromium-browser or google-chrome is installed."
)

KINDS = [function.__name__ for function in toy_answers.DESCRIPTIONS]
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"> \u202e'\"`${1}` \x01"

CONTRAST = """(() => {
  const light = color => {
    const [red, green, blue] = color.match(/[\\d.]+/g).slice(0, 3).map(value => value / 255)
      .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
  };
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const fill = one.matches(".bars li") ? one.querySelector(".fill") : one;
      const color = getComputedStyle(fill).backgroundColor;
      if (!/, 0\\)$/.test(color) && color !== "transparent") return color;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll(`h1, h2, p, label, label .soft, select, textarea, button, mark, .type,
      .name, .value, td, th, summary, pre, .headline span`)]
    .filter(one => one.checkVisibility() && one.textContent.trim())
    .map(one => {
      const ratio = light(getComputedStyle(one).color) / light(behind(one));
      return [Math.max(ratio, 1 / ratio), one.outerHTML.slice(0, 90)];
    })
    .filter(([ratio]) => ratio < 4.5);
})()"""
OUTSIDE = """[...document.body.querySelectorAll("*")]
  .filter(one => one.checkVisibility() && !one.closest(".passage, .scroll, pre, svg"))
  .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(one => one.outerHTML.slice(0, 90))"""


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory):
    paths = toy_answers.save_all(str(tmp_path_factory.mktemp("models")))
    models = [ModelSettings(name, path) for name, path in paths.items()]
    with running_server(models, ServerSettings(rest_api_port=0, port=-1)) as running:
        yield running


@pytest.fixture(scope="module", name="tab")
def _tab():
    with browser.open_page() as tab:
        yield tab


def show(tab, server, kind, width=1280, **settings):
    """Opens the page and chooses a model."""
    tab.complaints.clear()
    tab.open(f"http://127.0.0.1:{server.rest.server_port}/", width, **settings)
    tab.wait("!document.getElementById('form').hidden")
    tab.evaluate(f"""(() => {{
        const model = document.getElementById("model");
        model.value = {json.dumps(kind)};
        model.dispatchEvent(new Event("change"));
    }})()""")


def ask(tab, **fields):
    """Fills in fields, asks, and gives what the answer says in words."""
    for name, value in fields.items():
        tab.evaluate(f"document.getElementById('input-{name}').value = {json.dumps(value)}; null")
    tab.evaluate("document.getElementById('ask').click()")
    tab.wait("!document.getElementById('answer').hidden")
    return tab.evaluate("document.getElementById('answer').innerText")


def texts(tab, selector):
    return tab.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, False), (360, True)])
@pytest.mark.parametrize("kind", [*KINDS, "half_plus_two"])
def test_every_answer_fits_the_screen_and_can_be_read(tab, server, kind, width, dark):
    show(tab, server, kind, width, dark=dark)
    if kind == "half_plus_two":
        tab.evaluate("document.getElementById('input-').value = '3'; null")
    ask(tab)
    assert texts(tab, ".error") == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(OUTSIDE) == []
    assert (
        tab.evaluate("[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)") == []
    )
    assert tab.evaluate(CONTRAST) == []  # WCAG 2, level AA
    assert tab.complaints == []
    if folder := os.environ.get("BERT_SERVE_SCREENSHOTS"):
        tab.screenshot(os.path.join(folder, f"{kind}-{width}{'-dark' if dark else ''}.png"))


def test_probabilities_are_bars_the_largest_first(tab, server):
    show(tab, server, "classification")
    ask(tab)
    assert texts(tab, ".headline") == ["good 90.0\u00a0%"]
    assert texts(tab, ".bars .name") == ["good", "bad", "<img src=x onerror=\"document.title='taken'\">"]
    assert texts(tab, ".bars .value") == ["90.0\u00a0%", "7.0\u00a0%", "3.0\u00a0%"]
    widths = tab.evaluate("[...document.querySelectorAll('.fill')].map(one => one.getBoundingClientRect().width)")
    whole = tab.evaluate("document.querySelector('.bars li').getBoundingClientRect().width")
    assert [round(width / whole, 2) for width in widths] == [0.9, 0.07, 0.03]


def test_words_are_coloured_by_their_share_in_an_answer(tab, server):
    show(tab, server, "regression")
    ask(tab)
    assert texts(tab, "#why") == []
    show(tab, server, "classification", dark=True)
    ask(tab, text="a🦊 bc")
    tab.evaluate("document.querySelector('#why button').click()")
    tab.wait("document.querySelector('#why .passage') !== null")
    assert texts(tab, "#why .passage") == ["a🦊 bc"] and "speak for good" in texts(tab, "#why p")[0]
    assert texts(tab, "#why .passage mark") == ["a🦊", " ", "b"]
    titles = "[...document.querySelectorAll('#why .passage mark')].map(one => [one.className, one.title])"
    assert tab.evaluate(titles) == [["for", "+2"], ["against", "−1.5000"], ["for weak", "+0.5000"]]
    assert tab.evaluate("document.activeElement.className") == "passage"
    assert tab.evaluate(CONTRAST) == [] and tab.complaints == []


def test_a_number_is_shown(tab, server):
    show(tab, server, "regression")
    ask(tab, text="abc" * 3, text_pair="")
    assert texts(tab, ".headline") == ["3"]


def test_choices_are_given_one_a_line(tab, server):
    show(tab, server, "multiple_choice")
    ask(tab, text="and", choices="a\n\n  the longest of them  \nbc")
    assert texts(tab, ".bars .name") == ["a", "the longest of them", "bc"]
    assert texts(tab, ".bars .best .name") == ["the longest of them"]


def test_entities_are_marked_in_the_text_by_characters(tab, server):
    show(tab, server, "token_classification")
    ask(tab, text="🦊Zoë, in Paris")
    assert texts(tab, "mark") == ["🦊Zoëperson", " ilocation"]
    assert texts(tab, ".passage") == ["🦊Zoëperson, ilocationn Paris"]
    assert texts(tab, "tbody tr:first-child td") == ["🦊Zoë", "person", "98.0\u00a0%", "0–4"]
    ask(tab, text="Short.")
    assert texts(tab, ".headline") == ["0 entities"] and texts(tab, "mark") == []
    assert "cut off" in ask(tab, text="long text " * 300)


def test_the_answer_is_marked_in_its_context(tab, server):
    show(tab, server, "question_answering")
    ask(tab, question="Which?", context="The 🏙 Zürich tram")
    assert texts(tab, "mark") == ["🏙 Züri"] == texts(tab, ".bars .best .name")
    assert "null score -3.5" in ask(tab, question="", context="The Zürich tram")
    assert texts(tab, ".headline") == ["No answer in the context"] and texts(tab, "mark") == []


def test_words_of_the_question_are_marked_in_the_passages(tab, server):
    show(tab, server, "search")
    ask(tab, text="Is a BOOK of an apple?")
    assert texts(tab, ".headline") == ["2 passages"] and texts(tab, "#answer h2") == ["1. 0.7500", "2. 0.5000"]
    assert texts(tab, "mark") == ["apple", "book"]
    assert texts(tab, ".passage") == ["An apple a day is read of in many a book.", "A stone."]


def test_a_mask_is_filled_in(tab, server):
    show(tab, server, "fill_mask")
    ask(tab, text="The 🦊 lives in [MASK], they say")
    assert texts(tab, ".passage") == ["The 🦊 lives in Paris, they say"]
    assert texts(tab, ".bars .name") == ["Paris", "London", "Zürich"]
    assert "There is no [MASK]" in ask(tab, text="The fox")


def test_vectors_are_summed_up(tab, server):
    show(tab, server, "embeddings")
    ask(tab)
    assert texts(tab, "tbody td:first-child") == ["cls", "mean", "pooled"]
    assert texts(tab, "tbody td:nth-child(2)") == ["48", "48", "48"]
    counts = tab.evaluate("[...document.querySelectorAll('svg')].map(one => one.querySelectorAll('rect').length)")
    assert counts == [48, 48, 48]
    assert texts(tab, ".headline") == ["3 vectors of the text"]
    assert tab.evaluate("SHOW.vectors({}, [0.6, 0.8])[0].textContent") == "1 vector of the text"


def test_a_model_without_description_is_asked_in_json(tab, server):
    show(tab, server, "half_plus_two")
    assert "2.75" in ask(tab, **{"": "1.5"})
    answer = ask(tab, **{"": '"text"'})
    assert "expected a number" in answer and texts(tab, "[role=alert]")
    assert "JSON" in ask(tab, **{"": "nonsense"})


def test_the_command_of_a_request_names_the_key_of_the_server(tab, server):
    show(tab, server, "classification")
    ask(tab)
    assert texts(tab, "#answer pre")[0].startswith("curl -d ")
    tab.evaluate("key = 'first-key'; null")
    ask(tab)
    assert texts(tab, "#answer pre")[0].startswith('curl -H "Authorization: Bearer $KEY" -d ')


def test_what_people_and_models_write_is_only_text(tab, server):
    for kind, fields in {
        "classification": ["text"],
        "token_classification": ["text"],
        "multiple_choice": ["text", "choices"],
        "question_answering": ["question", "context"],
    }.items():
        show(tab, server, kind)
        answer = ask(tab, **dict.fromkeys(fields, HOSTILE))
        assert texts(tab, ".error") == [], answer
        assert tab.evaluate("document.title").startswith(kind)
        assert tab.evaluate("[document.images.length, document.scripts.length]") == [0, 1]
        assert tab.complaints == []


def test_the_policy_stops_scripts_and_requests_to_elsewhere(tab, server):
    show(tab, server, "classification")
    tab.evaluate("""(() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'taken'";
        document.body.append(script);
        document.body.setAttribute("onclick", "document.title = 'taken'");
        document.body.click();
    })()""")
    assert tab.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', error => 'stopped')") == "stopped"
    assert tab.evaluate("document.title").startswith("classification")
    assert any("Content Security Policy" in complaint for complaint in tab.complaints)


def test_it_works_by_keyboard_alone(tab, server):
    show(tab, server, "token_classification")
    tab.evaluate("document.getElementById('model').focus()")
    tab.press("Tab", code=9)
    assert tab.evaluate("document.activeElement.id") == "input-text"
    tab.evaluate("document.activeElement.select()")
    tab.type("Somebody typed this")
    tab.press("Enter", code=13, text="\r", modifiers=2)
    tab.wait("document.querySelector('mark') !== null")
    assert texts(tab, "mark")[0] == "Someperson"
    tab.press("Tab", code=9)
    assert tab.evaluate("document.activeElement.id") == "ask"
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_every_field_has_its_label(tab, server):
    for kind in KINDS:
        show(tab, server, kind)
        unnamed = tab.evaluate("""[...document.querySelectorAll("select, textarea")]
            .filter(one => one.checkVisibility() && !(one.labels.length && one.labels[0].textContent.trim()))
            .map(one => one.id)""")
        assert unnamed == []


def test_the_document_is_whole(server):
    """Nothing comes from elsewhere: no address but the server's own paths, and SVG's name, which nobody fetches."""
    document = page.HTML.decode()
    assert re.findall(r"https?://[^\s\"'`]+", document) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|<link(?! rel=\"icon\")", document)
    policy = page.HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy and policy.startswith("default-src 'none'")


def test_what_the_page_reads(server):
    status, listed = toy_server.ask(server, "GET", page.MODELS_PATH)
    assert status == 200
    models = {model["name"]: model for model in listed["models"]}
    assert list(models) == sorted([*KINDS, "half_plus_two"])
    assert models["half_plus_two"]["description"] is None
    shown = {"inputs": {"x": ["float32", 1]}, "outputs": {"y": ["float32", 1]}}
    assert models["half_plus_two"]["signatures"]["serving_default"] == shown
    assert models["classification"]["description"]["labels"][1] == "good"
    assert (models["classification"]["version"], models["classification"]["versions"]) == ("1", ["1"])
