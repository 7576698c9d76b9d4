"""The site: every public name, flag and file is on a page, guides become pages, nothing comes from elsewhere."""

import ast
import functools
import importlib
import re
import subprocess
import sys

import browser
import pytest
from repository import COMMANDS, ROOT, listed_commands

import keras_bert

sys.path.insert(0, str(ROOT / "docs" / "site"))
build, docstrings, guides, reference = map(importlib.import_module, ("build", "docstrings", "guides", "reference"))
SPHINX = ROOT / ".venv-docs" / "bin" / "python"


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


# === The reference ===


@pytest.fixture(scope="module")
def pages():
    return reference.pages()


def test_every_public_name_has_a_page_with_its_arguments(pages):
    for name in keras_bert.__all__:
        page = pages[f"reference/python/{name}.md"]
        assert page.startswith(f"# {name}\n") and len(page) > 200, name
    assert "- `num_classes`: int; 1 makes a regressor." in pages["reference/python/BertTextClassifier.md"]
    assert "BertBackbone.from_preset(" in pages["reference/python/BertBackbone.md"]
    assert "## export.saved_model.export_model" in pages["reference/python/functions.md"]


def test_every_flag_of_every_command_is_on_its_page(pages):
    for (command, _), flags in listed_commands().items():
        page = pages[f"reference/commands/{command}.md"]
        assert set(re.findall(r"^- `--(\w+)[`=]", page, re.MULTILINE)) == flags.keys(), command
        assert "**Arguments**" not in page
    page = pages["reference/commands/bert-classify.md"]
    assert "\n- `--saved_model_tags=serve`: " in pages["reference/commands/bert-serve.md"]
    assert "\n- `--allowed_hosts`: " in pages["reference/commands/bert-serve.md"]
    assert re.search(r"^- `--train_batch_size=32`: .* \*\(int, .*at least 1, several", page, re.MULTILINE)


def test_the_reference_needs_no_tensorflow():
    code = "import sys; sys.path.insert(0, 'docs/site'); import reference; reference.pages(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not {"tensorflow", "keras"} & set(done.stdout.split())


def test_docstrings_become_markdown():
    text = "Does it.\n\nArgs:\n    a, b: two.\n        More.\n\nReturns:\n    A sum.\n\n>>> f(1)\n1\n"
    assert docstrings.markdown(text).splitlines() == [
        *("Does it.", "", "**Arguments**", "", "- `a, b`: two.", "  More.", "", "**Returns**", "", "A sum.", ""),
        *("```python", ">>> f(1)", "1", "```"),
    ]


def test_names_of_arguments_may_go_on_in_the_next_line():
    assert docstrings.markdown("It.\n\nArgs:\n    a, b,\n    c: three.\n").splitlines()[-1] == "- `a, b, c`: three."


def test_a_long_signature_has_an_argument_a_line(monkeypatch):
    functions = "def f(self, a, b: int=1, *, c=2, **d) -> int: ...\ndef g(a, /, *b, c): ..."
    f, g = ast.parse(functions).body
    assert docstrings.signature(f, "f", True) == "f(a, b: int=1, *, c=2, **d) -> int"
    assert docstrings.signature(g, "g", False) == "g(a, /, *b, c)"
    monkeypatch.setattr(docstrings, "_MAX_LINE", 20)
    lines = ["f(", "    a,", "    b: int=1,", "    *,", "    c=2,", "    **d,", ") -> int"]
    assert docstrings.signature(f, "f", True).splitlines() == lines


# === Files and messages ===


@functools.cache
def texts_of_the_code():
    """Every string of the three packages; what an f-string fills in is a `\\0`."""
    texts = set()
    for room in ("keras_bert", "tasks", "export"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.add(node.value)
                elif isinstance(node, ast.JoinedStr):
                    pieces = (piece.value if isinstance(piece, ast.Constant) else "\0" for piece in node.values)
                    texts.add("".join(pieces))
    return texts


def printed(node):
    """The texts of an expression, without the values that it fills in."""
    if isinstance(node, ast.Constant):
        return {node.value.strip()}
    fields = {ast.JoinedStr: "values", ast.BinOp: ("left", "right"), ast.IfExp: ("body", "orelse")}.get(type(node), ())
    children = node.values if fields == "values" else [getattr(node, field) for field in fields]
    return set().union(*map(printed, children))


def test_every_message_of_an_error_is_on_the_page(pages):
    page = re.sub(r"\\(.)", r"\1", pages["reference/errors.md"]).replace("`", "")
    texts = set()
    for room in ("keras_bert", "tasks", "export"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(call, ast.Call) and ast.unparse(call.func) in ("InputError", "WorkerLostError", "Broken"):
                    texts |= printed(call.args[0])
    assert len(texts) > 600
    assert [
        text for text in sorted(texts) if " ".join(text.replace("`", "").split()) not in " ".join(page.split())
    ] == []
    assert "- *{path}*: this version exists. Choose another --version.\n" in page
    assert "- unknown label *{label}*. Expected *{labels}*.\n" in page
    assert "--*{flag}*=*{item}*: [must be one of *{choices}* | must be a finite number | must be at least" in page


WRITTEN = re.compile(r"[\w.-]*\w\.(?:json|html|png|tsv|npz|npy|csv|conll|keras|pbtxt|md)")
# Names of files that are read, or belong to another program's format.
NOT_WRITTEN = set(
    "bert_config.json config.json generation_config.json model.safetensors.index.json modules.json "
    "pytorch_model.bin.index.json sentence_bert_config.json tokenizer_config.json special_tokens_map.json "
    "config_sentence_transformers.json added_tokens.json tf_model.h5.index.json model.weights.json train.tsv dev.tsv "
    "test.tsv settings.json plan.npy report.json".split()
)


def test_every_file_that_a_command_writes_is_on_the_page():
    page = read("docs/files.md")
    named = {text for text in texts_of_the_code() if WRITTEN.fullmatch(text)}
    assert len(named) > 25
    packaged = {path.name for room in ("keras_bert", "tasks", "export") for path in (ROOT / room).rglob("*.*")}
    assert {name for name in named - NOT_WRITTEN - packaged if name not in page and not name.startswith(".")} == set()


def test_the_messages_of_the_faq_are_those_of_the_code():
    headings = re.findall(r"^### (.+)$", read("docs/faq.md"), re.MULTILINE)
    messages = [heading for heading in headings if "..." in heading or heading.endswith(".")]
    assert len(messages) >= 15
    for message in messages:
        pattern = re.compile(re.escape(message.rstrip(".")).replace(r"\.\.\.", r".*"), re.DOTALL)
        assert any(pattern.search(text) for text in texts_of_the_code()), message


# === The pages ===


def test_every_page_is_in_the_sidebar_and_links_become_links_of_the_site(tmp_path):
    build.assemble(tmp_path)
    made = {str(path.relative_to(tmp_path).with_suffix("")) for path in tmp_path.rglob("*.md")}
    listed = [entry for entries in build.CONTENTS.values() for entry in entries]
    made |= {f"docs/guides/{path.stem}" for path in guides.GUIDES} | {"docs/reference/signatures"}
    inner = {name for name in made if name.startswith("docs/reference/") and name not in listed}
    assert made - {"index"} - inner == set(listed) and len(listed) == len(set(listed))
    assert "docs/reference/python/BertBackbone" in inner and len(inner) == len(COMMANDS) + len(keras_bert.__all__) + 1
    assert "](docs/quickstart.md)" in (tmp_path / "index.md").read_text(encoding="utf-8")
    assert (tmp_path / "docs" / "report.png").exists()


GUIDE = """\
# %% [markdown]
# # A guide
#
# Some words.

# %%
import os
print("one")
1 + 1

# %%
x = 3
"""


def test_a_guide_that_fails_shows_the_line_and_what_came_before(tmp_path):
    path = tmp_path / "guide.py"
    path.write_text('# %%\nprint("before")\n\n# %%\nprint("now")\n[][0]\n')
    done = subprocess.run([sys.executable, guides.__file__, path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "before\nnow\n" in done.stderr and 'File "guide", line 2' in done.stderr and "    [][0]\n" in done.stderr


def test_a_guide_becomes_a_page_and_a_notebook():
    shown = guides.run_cells(GUIDE)
    assert shown == ["one\n2", ""]
    page = guides.page(GUIDE, shown, "a_guide", 3.0)
    assert page.startswith("# A guide\n") and "Some words." in page and ":class: output\n\none\n2\n```" in page
    notebook = guides.notebook(GUIDE, shown)
    assert [cell["cell_type"] for cell in notebook["cells"]] == ["markdown", "code", "code"]
    assert notebook["cells"][1]["outputs"][0]["text"] == "one\n2\n"


@pytest.mark.parametrize("path", guides.GUIDES, ids=lambda path: path.stem)
def test_guides_say_what_one_gets_and_what_to_change(path):
    """Running them takes minutes: `make docs` does."""
    cells = guides.cells(path.read_text(encoding="utf-8"))
    assert cells[0][0] == "markdown" and cells[0][1].startswith("# ")
    assert re.search(r"\b(second|minute)s?\b", cells[0][1]), "how long it takes"
    assert cells[-1][0] == "markdown" and cells[-1][1].startswith("## What to change")
    for kind, text in cells:
        if kind == "code":
            compile(text, str(path), "exec")


@pytest.fixture(scope="module", name="html")
def _html(tmp_path_factory):
    """The site, with the guides and signatures as headings alone."""
    tmp_path = tmp_path_factory.mktemp("site")
    build.assemble(tmp_path / "source")
    sidebar = tmp_path / "source" / "docs"
    (sidebar / "reference" / "signatures.md").write_text("# Signatures\n")
    (sidebar / "guides").mkdir(exist_ok=True)
    for path in guides.GUIDES:
        (sidebar / "guides" / f"{path.stem}.md").write_text("# A guide\n")
    command = [SPHINX, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", tmp_path / "source", tmp_path / "html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return tmp_path / "html"


@pytest.mark.slow
@pytest.mark.skipif(not SPHINX.exists(), reason="Sphinx is not installed; make docs does.")
def test_the_site_loads_nothing_from_elsewhere(html):
    assets = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"(?:https?:)?//|@import|url\([\"']?https?:")
    files = [path for kind in ("*.html", "*.css") for path in html.rglob(kind)]
    assert len(files) > 50
    assert [str(path) for path in files if assets.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
@pytest.mark.skipif(not SPHINX.exists(), reason="Sphinx is not installed; make docs does.")
@pytest.mark.skipif(browser.BROWSER is None, reason="No chromium is installed.")
def test_no_page_is_wider_than_the_screen(html):
    """Tables and code scroll by themselves."""
    wide = []
    with browser.open_page() as page:
        for path in sorted(html.rglob("*.html")):
            for width in (390, 1024, 1280, 1440):
                page.open(path.as_uri(), width)
                if page.evaluate("document.scrollingElement.scrollWidth") > width:
                    wide.append((path.name, width))
    assert wide == []
