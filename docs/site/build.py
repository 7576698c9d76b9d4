"""Builds the site: `make docs`, or `.venv/bin/python docs/site/build.py`, where Sphinx is in `.venv-docs`.

Copies README, pages and recipes into `docs/_build/source`, each under its own path, adds the reference and the guides,
which it executes, and runs Sphinx, which makes `docs/_build/html`. A warning, such as a link to nowhere, is an error.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import guides  # noqa: E402
import reference  # noqa: E402

from tasks.flags import ENVIRONMENT  # noqa: E402

HOME = "index.md"  # What README.md is called on the site.
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
# The sidebar: captions and pages. A page that is missing here fails the build.
CONTENTS = {
    "Begin": ["docs/quickstart", "docs/migrating", "docs/faq"],
    "Guides": [f"docs/guides/{path.stem}" for path in guides.GUIDES],
    "How to": [
        *("docs/models", "docs/formats", "docs/pretraining", "docs/fine_tuning", "docs/serving", "docs/choosing"),
        *("docs/deployment", "docs/tokenization", "recipes/README"),
    ],
    "Reference": [
        *("docs/reference/commands/index", "docs/reference/python/index", "docs/files", "docs/reference/signatures"),
        "docs/reference/errors",
    ],
    "Background": ["docs/architecture", "docs/benchmarks", "CHANGELOG"],
    "Contribute": ["CONTRIBUTING", "docs/extending", "docs/testing"],
}


def assemble(source: pathlib.Path) -> None:
    """Writes all sources of Sphinx but the guides and what needs TensorFlow."""
    shutil.rmtree(source, ignore_errors=True)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "recipes" / "README.md"]
    for page in pages:
        _copy(page, source)
    text = (source / "README.md").read_text(encoding="utf-8")
    (source / "README.md").unlink()
    trees = (
        "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *(f"/{entry}" for entry in entries), "```"])
        for caption, entries in CONTENTS.items()
    )
    (source / HOME).write_text("\n\n".join([text.rstrip(), *trees]) + "\n", encoding="utf-8")
    shutil.copy(ROOT / "docs" / "site" / "conf.py", source)
    (source / "_static").mkdir()
    shutil.copy(ROOT / "docs" / "site" / "page.css", source / "_static")
    reference.write(source / "docs", reference.pages)


def _copy(page: pathlib.Path, source: pathlib.Path) -> None:
    """Copies a page, and the files of the repository that it links to; those to README.md and to
    what pages are made from lead to the pages."""
    here = page.parent

    def link(match: re.Match) -> str:
        target = (here / match[2]).resolve()
        name = target.relative_to(ROOT).as_posix()
        anchor = match[3] or ""
        if name == "README.md":
            return f"{match[1]}{os.path.relpath(ROOT / HOME, here)}{anchor})"
        if name == "docs/site/errors.py":
            return f"{match[1]}{os.path.relpath(ROOT / 'docs' / 'reference' / 'errors.md', here)})"
        if name.startswith("docs/guides/"):
            return f"{match[1]}{os.path.relpath(target.with_suffix('.md'), here)}{anchor})"
        if target.is_file() and target.suffix != ".md":
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, source / name)
        return match[0]

    copy = source / page.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(_LINK.sub(link, page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "_build", help="directory of the site")
    parser.add_argument("--sphinx", default=str(ROOT / ".venv-docs" / "bin" / "python"), help="a Python with Sphinx")
    parser.add_argument(
        "--keep_guides", action="store_true", help="execute only guides that changed since the last build"
    )
    arguments = parser.parse_args()
    for variable, setting in ENVIRONMENT.items():
        os.environ.setdefault(variable, setting)
    source, html = arguments.output / "source", arguments.output / "html"
    assemble(source)
    reference.write(source / "docs", reference.signature_pages)
    guides.execute_all(arguments.output / "guides", source / "docs" / "guides", arguments.keep_guides)
    shutil.rmtree(html, ignore_errors=True)
    options = ["-W", "--keep-going", "-q", "-j", "auto", "-d", str(arguments.output / "doctrees")]
    done = subprocess.run([arguments.sphinx, "-m", "sphinx", "-b", "html", *options, str(source), str(html)])
    if done.returncode == 0:
        print(f"The site: {html / 'index.html'}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
