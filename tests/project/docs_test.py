"""The pages keep their promises: links lead somewhere, paths and flags exist, examples run."""

import contextlib
import doctest
import io
import itertools
import os
import re
import shlex
import sys

import pytest
from repository import ROOT, listed_commands
from room_rules import FLOORS

PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "recipes/README.md"]
PAGES += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))

_FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w./-])((?:keras_bert|tasks|export|benchmarks|tests|recipes|docs)/[\w./-]*[\w/])")


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page):
    """The page without its code blocks."""
    return _FENCE.sub("", read(page))


def anchors(page):
    """The anchors that GitHub gives a page's headings."""
    seen, slugs = {}, set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", _LINK.sub("", heading).lower()).replace(" ", "-")
        slugs.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
        seen[slug] = seen.get(slug, 0) + 1
    return slugs


def broken_links(page):
    """The page's relative links that lead to no file or heading."""
    broken = []
    for target in _LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not (ROOT / place).exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    return broken


# === Links and paths ===


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("# A page: it's `b`\n[x](b.md) [y](#a-page-its-b) [z](#c) [w](a.md#a-page-its-b)\n")
    assert broken_links("a.md") == ["b.md", "#c"]


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page):
    written = re.findall(r"Write `([^`]+)`", read(page))  # Written by a reader of the page, as extending_test.py does.
    assert [path for path in _PATH.findall(prose(page)) if not (ROOT / path).exists() and path not in written] == []


def test_every_page_is_linked_from_the_readme():
    linked = {target.partition("#")[0] for target in _LINK.findall(read("README.md"))}
    assert {page for page in PAGES if page != "README.md"} <= linked


def test_where_is_names_a_place_in_each_row():
    section = read("docs/architecture.md").split("## Where is...?")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|") and not re.match(r"\| (---|question)", line)]
    assert len(rows) > 60
    assert [row for row in rows if not re.search(r"`[\w./-]+`", row.split("|")[2])] == []


def test_the_drawing_has_the_floors_of_the_rooms():
    drawing = _FENCE.search(read("docs/architecture.md"))[2]
    cells = [line.split("|")[1] for line in drawing.splitlines() if "|" in line]
    column = cells[0].index("a folder")  # Left of it stand the rooms, right of it what they hold.
    floors = [tuple(cell[:column].split()) for cell in cells if cell[:column].strip()]
    assert floors == list(reversed(FLOORS))


@pytest.mark.parametrize(("setting", "most"), [("learning_rate", 6), ("num_heads", 4)])
def test_a_setting_acts_after_a_few_files(setting, most):
    """Each file names what the next one has, or the next one names it; both ends name the setting."""
    section = read("docs/architecture.md").split("## From a setting")[1].split("\n## ")[0]
    rows = section[section.index(f"| `{setting}`") :].splitlines()
    last = next(number for number, row in enumerate(rows) if row.startswith("| acts: "))
    stops = [re.search(r"\| `([\w/.]+)` \| `(\w+)` \|$", row).groups() for row in rows[: last + 1]]
    assert len({path for path, _ in stops}) == len(stops) <= most
    for path, name in stops:
        assert re.search(rf"^\s*(def |class )?{name}\b", read(path), re.MULTILINE), (path, name)
    for (path, name), (next_path, next_name) in itertools.pairwise(stops):
        assert re.search(rf"\b{next_name}\b", read(path)) or re.search(rf"\b{name}\b", read(next_path)), next_path
        assert names_or_hands_on(setting, read(path)), path
    assert re.search(rf"\b{setting}\b", read(stops[0][0])) and re.search(rf"\b{setting}\b", read(stops[-1][0]))


def names_or_hands_on(setting: str, text: str) -> bool:
    """Whether a module names the setting, or passes the settings on as a whole."""
    return bool(re.search(rf"\b{setting}\b|\w\((\w+, )*settings\b|settings=", text))


def test_the_walks_name_what_is_there():
    section = read("docs/architecture.md").split("## Three walks")[1].split("\n## ")[0]
    stops = re.findall(r"\| `([\w/.]+)` \| `(\w+)` \|$", section, re.MULTILINE)
    assert len(stops) > 15 and section.count("\n### ") == 3
    assert [stop for stop in stops if not re.search(rf"^\s*(def|class) {stop[1]}\b", read(stop[0]), re.MULTILINE)] == []


def test_extending_names_what_a_task_a_head_and_a_format_have():
    task, head, form = read("docs/extending.md").split("\n## ")[1:4]
    needed = {
        "tasks/fine_tuning/task.py": "read make_spec match model_class model_arguments objective encode "
        "evaluate write_predictions foreign_spec checkpoint_figures build_training_model",
        "export/heads/base.py": "task trained_settings settings expected about",
        "keras_bert/formats/keras_preset.py": "matches read_config open_checkpoint read_tokenizer",
    }
    for (path, names), section in zip(needed.items(), (task, head, form), strict=True):
        for name in names.split():
            assert re.search(rf"\b{name}\b", section), (path, name)
            assert re.search(rf"^\s*(def )?{name}\b", read(path), re.MULTILINE), (path, name)


def test_the_readme_is_short():
    assert len(read("README.md").splitlines()) <= 150
    assert not re.search(r"^[A-Z][A-Z_]{5,}$", read("README.md"), re.MULTILINE), "a placeholder"


# === Commands ===


def command_lines(page):
    """Each call of one of our commands in the page's code blocks, as a list of words."""
    for info, block in _FENCE.findall(read(page)):
        if info:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("bert-"):
                yield shlex.split(line, comments=True)


def flags_of_commands():
    """Names and choices of each command's flags; `no` before a name counts as one too."""
    return {
        command: {name: choices for flag, choices in flags.items() for name in (flag, f"no{flag}")}
        for (command, _), flags in listed_commands().items()
    }


def flags_of_benchmarks():
    scripts = [path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")]
    return {name for script in scripts for name in re.findall(r'DEFINE_\w+\(\s*"(\w+)"', script)}


def test_command_lines_have_the_flags_that_they_name():
    flags = flags_of_commands()
    lines = [line for page in PAGES for line in command_lines(page)]
    assert {line[0] for line in lines} == flags.keys(), "the pages show every command, and no other"
    for command, *words in lines:
        for word in words:
            flag = re.fullmatch(r"--(\w+)(?:=(.*))?", word)
            assert flag and flag[1] in flags[command], f"{command} {word}"
            choices = flags[command][flag[1]]
            assert not choices or {flag[2], flag[2].lower()} & set(choices), f"{command} {word}"


@pytest.mark.parametrize("page", PAGES)
def test_flags_in_the_prose_exist(page):
    others = {"help", "durations", "keep_guides", "dask_client_address"}  # The last one is Beam's.
    known = others.union(*flags_of_commands().values(), flags_of_benchmarks())
    known |= {f"no{name}" for name in known}
    named = {name for code in re.findall(r"`(?!pip )([^`]+)`", prose(page)) for name in re.findall(r"--(\w+)", code)}
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES)
def test_make_has_the_targets(page):
    targets = re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE)
    assert set(re.findall(r"(?:`|^)make ([\w-]+)", read(page), re.MULTILINE)) <= set(targets)


# === Examples ===

# Blocks of Python that this module does not run, and what does.
RUN_ELSEWHERE = {
    "docs/extending.md": "tests/project/extending_test.py",
    "docs/migrating.md": "tests/project/migrating_test.py",
    "docs/models.md": "tests/keras_bert/models/models_page_test.py",
    "docs/testing.md": "tests/project/processes_test.py",
}
# Commands in blocks: how they are checked, or why they are not run.
CHECKED = {
    "bert-": "test_command_lines_have_the_flags_that_they_name",
    "make": "test_make_has_the_targets",
    ".venv/bin/python": "a path, looked for below",
    "pip": "needs an index; the locks are tested in packaging_test.py",
    "docker": "needs a docker engine",
    "kubectl": "needs a cluster; deployment_test.py checks the manifest",
    "gcloud": "needs an account",
    "curl": "needs docker's server; extras_test.py runs the README's of an export",
    "export": "sets the variable of the command that follows",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_code_block_is_checked_or_says_why_not(page):
    for info, block in _FENCE.findall(read(page)):
        if info in ("python", "diff"):
            assert (ROOT / RUN_ELSEWHERE[page]).exists()
        elif info == "":
            for line in block.replace("\\\n", " ").splitlines():
                command = line.split(maxsplit=1)[0] if line.strip() else "make"
                assert command.startswith(tuple(CHECKED)), f"{line}: output is marked ```text"
                script = re.match(r"\.venv/bin/python (\S+\.py)", line)
                assert script is None or (ROOT / script[1]).exists() or f"Write `{script[1]}`" in read(page)
        else:
            assert info in ("text", "python runnable"), info


def examples():
    """Yields each example with the output that the page shows right under it, None if it shows none."""
    for page in PAGES:
        blocks = [*_FENCE.finditer(read(page)), None]
        for number, (block, following) in enumerate(itertools.pairwise(blocks)):
            if block[1] == "python runnable":
                is_output = following and following[1] == "text" and following.start() == block.end() + 2
                yield pytest.param(block[2], following[2] if is_output else None, id=f"{page}-{number}")


@pytest.fixture(name="workplace")
def _workplace(tmp_path, monkeypatch):
    """A directory with a small preset at `path/to/preset`, and under the name `base`."""
    from keras_bert import BertBackbone, BertTokenizer

    words = "strings in a batch at time the film was good bad dull great".split()
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    backbone = BertBackbone(tokenizer.vocabulary_size(), 2, 2, 16, 64, max_sequence_length=128)
    for preset in (tmp_path / "path/to/preset", tmp_path / "home/base"):
        backbone.save_to_preset(str(preset))
        tokenizer.save_to_preset(str(preset))
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def assert_like(printed, shown):
    """Compares outputs: words exactly, percentages within 5 points, since processors differ in the last bits."""
    number = r"(\d+\.\d+)(?=%)"
    assert re.sub(number, "N", printed) == re.sub(number, "N", shown)
    numbers = [list(map(float, re.findall(number, text))) for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], abs=5.0), printed


@pytest.mark.parametrize(("block", "output"), [*examples()])
def test_examples_run(block, output, workplace):
    if ">>>" in block:
        test = doctest.DocTestParser().get_doctest(block, {}, "example", "page", 0)
        report = io.StringIO()
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.write).failed == 0, (
            report.getvalue()
        )
    else:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, "example", "exec"), {})
        if output is not None:
            assert_like(printed.getvalue(), output)
