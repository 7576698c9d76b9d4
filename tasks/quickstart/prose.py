"""Extracts the English sentences of a docstring: splits it into paragraphs, then sentences, and keeps only prose.

Doctests, code blocks, tables of arguments, directives and fields are dropped. Markup (reStructuredText, Markdown, HTML)
is removed, but its words are kept.
"""

import inspect
import itertools
import re
from collections.abc import Iterator

# --- Paragraphs of a docstring ---------------------------------------------------------------------------------
# Sections of code, names and citations, whose bodies are dropped.
_TABLES = (
    "methods|see also|references?|examples?|example usage|usage|usage examples?|doctests?|inputs?|outputs?|input shape|"
    "output shape|shape|routine listings|todo|authors?|fields|call signatures?"
)
_TABLE_HEADER = re.compile(rf"(?:{_TABLES})\s*::?$", re.IGNORECASE)
_TABLE_TITLE = re.compile(rf"#*\s*(?:{_TABLES}):?$", re.IGNORECASE)
# Sections of `name: description` entries, of which the descriptions are kept.
_ENTRIES_HEADER = re.compile(
    r"(?:(?:keyword |other |call )?(?:args|arguments|parameters|params)|attributes|attrs|properties|returns?|yields?|"
    r"raises|warns):$",
    re.IGNORECASE,
)
_ENTRY = re.compile(r"[`*]{0,2}\w[\w., *|\[\]`]{0,60}?(?:\([^)]*\))?[`*]{0,2}:\s+")
_FIELD = re.compile(r"[:@](?:param|type|arg|return|raise|rtype|keyword|var|ivar|cvar)\w*\b[^:]*:?\s*")
_UNDERLINE = re.compile(r"([-=~^\"*+#.`])\1{2,}$")
_PROSE_DIRECTIVE = re.compile(r"\.\. (?:note|warning|tip|important|caution|hint|attention)::\s*", re.IGNORECASE)
_BULLET = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+")
_NOT_PROSE = re.compile(
    r"[|+#%$@]|//|import |from \S+ import|def |class \w+[(:]|return\b.*[(\[]|\w+ : \S|.*\s=\s|.*\S {3,}\S|.*\($"
)


class _Paragraphs:
    """Collects the paragraphs of one docstring, line by line."""

    def __init__(self):
        self.done: list[str] = []
        self._lines: list[str] = []
        self._indent = 0
        self._is_hanging = False  # The next line may be indented deeper and still belong to the paragraph.
        self._dropped_below: int | None = None  # Lines indented deeper than this belong to a dropped block,
        self._entries_below: int | None = None  # or to a block of `name: description` entries.
        self._in_doctest = self._in_fence = self._in_table = False

    def flush(self) -> None:
        """Ends the current paragraph."""
        if self._lines:
            self.done.append(" ".join(self._lines))
        self._lines = []
        self._is_hanging = False

    def title(self, text: str) -> None:
        """Reads a heading; the section is dropped if the heading announces a table."""
        self.flush()
        self._in_table = bool(_TABLE_TITLE.match(text))
        self._dropped_below = self._entries_below = None

    def line(self, line: str) -> None:
        """Reads a line that is neither a heading nor its underline."""
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith("```"):
            self.flush()
            self._in_fence = not self._in_fence and not (len(text) > 3 and text.endswith("```"))
        elif self._in_fence or self._in_table:
            return
        elif not text:
            self.flush()
            self._in_doctest = False
        elif self._dropped_below is not None and indent > self._dropped_below:
            return
        else:
            self._dropped_below = None
            if self._entries_below is not None and indent <= self._entries_below:
                self.flush()
                self._entries_below = None
            self._block(text, indent)

    def _block(self, text: str, indent: int) -> None:
        """Starts or ends a block, or passes the line on as prose."""
        if text.startswith((">>>", "$ ", "In [")):
            self.flush()
            self._in_doctest = True
        elif _PROSE_DIRECTIVE.match(text):
            self.flush()
            self._prose(_PROSE_DIRECTIVE.sub("", text), indent + 4)
        elif _ENTRIES_HEADER.match(text):
            self.flush()
            self._entries_below = indent
        elif text.startswith(".. ") or _TABLE_HEADER.match(text):
            self.flush()
            self._dropped_below = indent
        elif not self._in_doctest:
            self._prose(text, indent)

    def _prose(self, text: str, indent: int) -> None:
        own_indent = indent
        bullet = _BULLET.match(text)
        if bullet:
            indent += bullet.end()
            text = text[bullet.end() :]
        is_continued = self._is_hanging and indent > self._indent
        entry = _FIELD.match(text)
        if not entry and self._entries_below is not None and not is_continued:
            entry = _ENTRY.match(text)
        if entry:
            text = text[entry.end() :]
        if bullet or entry or not (is_continued or indent == self._indent):
            self.flush()
        self._is_hanging = bool(bullet or entry)
        self._indent = indent
        if _NOT_PROSE.match(text):
            self.flush()
        elif text:
            self._lines.append(text)
        if text.endswith("::"):
            self.flush()
            self._dropped_below = own_indent


def paragraphs(docstring: str) -> list[str]:
    """Returns the paragraphs of prose in a docstring, each as one line, with markup."""
    lines = inspect.cleandoc(docstring).splitlines()
    collector = _Paragraphs()
    for line, following in itertools.pairwise([*lines, ""]):
        if _UNDERLINE.match(line.strip()) and not line.startswith("```"):
            continue
        if line.strip() and (_UNDERLINE.match(following.strip()) or line.startswith("#")):
            collector.title(line.strip())
        else:
            collector.line(line)
    collector.flush()
    return collector.done


# --- Sentences of a paragraph ----------------------------------------------------------------------------------
_ROLE = re.compile(r":[a-zA-Z][\w:+.-]*:`([^`]*)`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}|\[([^\]]+)\]\([^)\s]*\)")
_MARKS = [
    (re.compile(r"\[(?:\d+|[A-Z]\w*)\]_?"), ""),  # citations: [1]_ [Knuth]
    (re.compile(r"</?[a-zA-Z][^<>]*>"), ""),
    (re.compile(r"`+([^`]*)`+_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*\*(\S(?:[^*]*\S)?)\*\*(?![\w*])"), r"\1"),
    (re.compile(r"(?<![\w*])\*(\S(?:[^*]*\S)?)\*(?![\w*])"), r"\1"),
    (re.compile(r"\b([A-Za-z]+)__?(?=[\s.,;)])"), r"\1"),  # references: word_
    (re.compile(r"\s+([.,;:!?)])(?!\w)"), r"\1"),
    (re.compile(r"\s+"), " "),
]
# A sentence ends at one of .!? followed by white space and a capital, unless the last word is an abbreviation.
_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+(?=[\"'(\[]?[A-Z])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|al|approx|resp|fig|figs|eq|eqs|sec|no|vol|pp|dr|mr|ms|st|inc)|\b[A-Z])\.$", re.I
)
_WORD = re.compile(r"[A-Za-z][a-z]*(?:['’-][a-z]+)*[,;:.!?]?")
_FUNCTION_WORDS = frozenset(
    "the a an is are was be been of to for in on by with from as at and or if this that these those it its which "
    "when will can may must not you we has have".split()
)
_FORBIDDEN = re.compile(
    r"[{}\[\]\\|<>=^~@$#*`]|https?:|www\.|::|\.\.|\w\(\w|[^\x20-\x7e]|"
    r"copyright|licen[sc]e|all rights reserved|\btodo\b",
    re.IGNORECASE,
)


def _role_text(match: re.Match) -> str:
    text = match[1]
    if "<" in text:
        return text.split("<")[0].strip()
    return text.rsplit(".", 1)[-1] if text.startswith("~") else text.lstrip("!")


def strip_markup(text: str) -> str:
    """Removes inline markup of reStructuredText, Markdown and HTML, but keeps its words."""
    text = _LINK.sub(lambda match: match[1] or match[2], _ROLE.sub(_role_text, text))
    for pattern, replacement in _MARKS:
        text = pattern.sub(replacement, text)
    return text.strip()


def is_prose(sentence: str, min_words: int = 5, max_words: int = 60) -> bool:
    """Returns whether a text looks like an English sentence: a capital, a final stop, words, and a function word."""
    words = sentence.split()
    if not (min_words <= len(words) <= max_words and sentence[0].isupper() and sentence.rstrip("\"')")[-1] in ".!?"):
        return False
    if _FORBIDDEN.search(sentence) or sentence.count("(") != sentence.count(")"):
        return False
    plain = sum(bool(_WORD.fullmatch(word.strip("()\"'"))) for word in words)
    return plain >= 0.8 * len(words) and not _FUNCTION_WORDS.isdisjoint(word.lower() for word in words)


def sentences(docstring: str) -> Iterator[str]:
    """Yields the English sentences of a docstring, without markup."""
    for paragraph in paragraphs(docstring):
        pending = ""
        for piece in _END.split(strip_markup(paragraph)):
            pending = f"{pending} {piece}" if pending else piece
            if _ABBREVIATION.search(piece):
                continue
            if is_prose(pending):
                yield pending
            pending = ""
        if pending and is_prose(pending):
            yield pending
