"""Texts keep to plain English word order: none opens with "Of each", says "is of other", or "for it has"."""

import re
import subprocess

from repository import ROOT

PHRASES = {
    r"\bfor (it|they) (has|have|is|are|was|were|holds?|gives?)\b": "since it has",
    r"\b(is|are|was|were) of (other|another|no|one|its|the same)\b": "belongs to another, has no",
    r"\bpassed over\b": "ignored, skipped",
    r"\bin vain\b": "without success, fails",
    r"\bwhoever\b": "the caller, the reader, the parent process",
    r"\bthat (is|are) no\b": "that is not, unknown",
    r"(?:^|[.:] |# |\"\"\")Of (a|an|all|each|every|more|one|other|the|these|those|what|which)\b": "verb first",
}


def _problems(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: {match[0]!r}; better: {better}"
        for number, line in enumerate(text.splitlines(), 1)
        for phrase, better in PHRASES.items()
        if (match := re.search(phrase, line))
    ]


def test_no_text_speaks_in_turned_around_sentences():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    paths = [path for path in listed if path.endswith((".py", ".md", ".j2", ".sh", ".html", ".txt", ".cc"))]
    assert len(paths) > 300 or not listed  # An archive of the repository has no list.
    texts = ((path, (ROOT / path).read_text(encoding="utf-8")) for path in paths if not path.endswith("prose_test.py"))
    assert [problem for path, text in texts for problem in _problems(path, text)] == []


def test_each_phrase_is_found():
    lines = (
        "It is left out, for it has no head.",
        "The file is of other text.",
        "It was passed over.",
        "We waited in vain.",
        "Bounds are for whoever reads them.",
        "Arguments that are no flags.",
        "# Of each layer the innermost first.",
        '"""Of the head, the scores."""',
    )
    assert [len(_problems("file.py", line)) for line in lines] == [1] * len(lines)
    assert (
        _problems("file.py", "# Most of the tokens of all files are of this type; none is used in place of others.")
        == []
    )
