"""The quickstart's search over functions: pairs to learn from, BM25 to compare with, and an index to ask.

A function's summary, the first sentence of its docstring, has to find what follows it. The user's own text has
documents in place of functions.
"""

import collections
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from keras_bert.files import read_json, read_lines, write_lines
from tasks.quickstart.corpus import Corpus
from tasks.quickstart.pipeline import StageRun, run_command
from tasks.quickstart.settings import QuickstartSettings

QUESTION = "how do I read a csv file"
_NUM_SENTENCES = 3  # Of what follows the summary; they fill a sequence of 64 tokens.
_NUM_SHOWN = 3
_CUTOFF = 10
# An epoch at 3e-3 reaches 48.7% recall@10, where two at 1e-3, which take twice as long, reach 51.6%.
_BATCH = 64
_TRAINING = {"learning_rate": 3e-3, "num_train_epochs": 1, "optimizer": "adamw"}
_K1, _B = 1.5, 0.75  # Of BM25, as in most libraries.


# === Text ===


def pairs(corpus: Corpus, seen: set[str]) -> list[tuple[str, str, str]]:
    """Returns name, summary and what follows of each function, or else document; texts that were `seen` are left out.

    Args:
        corpus: the functions or documents.
        seen: summaries and what followed them of earlier calls; those of this one are added.
    """
    functions = corpus.functions or [(one.module, one.module, one.sentences) for one in corpus.documents]
    rows = []
    for _, name, (summary, *others) in functions:
        summary, rest = " ".join(summary.split()), " ".join(" ".join(others[:_NUM_SENTENCES]).split())  # No tabs.
        if rest and seen.isdisjoint((summary, rest)):
            seen.update((summary, rest))
            rows.append((name, summary, rest))
    return rows


def write_texts(run: StageRun, training: Corpus, held_out: Corpus) -> list[int]:
    """Writes pairs to train on, pairs to evaluate on, and a passage of each function: `pandas.read_csv: Read a ...`.

    No held-out pair shares a text with a training one: packages copy docstrings.

    Returns:
        The numbers of pairs. Of fewer than two there is nothing to learn.
    """
    seen: set[str] = set()
    rows = [pairs(training, seen), pairs(held_out, seen)]
    for part, found in zip(("train", "dev"), rows, strict=True):
        columns = [("summary", "text"), *((summary, rest) for _, summary, rest in found)]
        write_lines(run.path("corpus", f"pairs_{part}.tsv"), map("\t".join, columns))
    passages = (f"{name}: {summary} {rest}" for found in rows for name, summary, rest in found)
    write_lines(run.path("corpus", "passages.txt"), passages)
    return [len(found) for found in rows]


def bm25_recall(rows: Sequence[tuple[str, str]], cutoff: int = _CUTOFF) -> float:
    """Returns the share of questions whose passage is among the first `cutoff` by BM25; rows as of `bm25_scores`."""
    scores = enumerate(bm25_scores(rows))
    return sum(np.count_nonzero(found > found[number]) < cutoff for number, found in scores) / len(rows)


def bm25_scores(rows: Sequence[tuple[str, str]]) -> Iterator[np.ndarray]:
    """Yields the scores of all N passages for each question, float, shape (N,).

    The score of a passage d is the sum over the question's words w, which n passages have, of
    log(1 + (N - n + 0.5) / (n + 0.5)) * f (k1 + 1) / (f + k1 (1 - b + b |d| / mean |d|)), where w is f times in d
    (Robertson and Zaragoza, 2009, section 3.2; the 1 in the logarithm keeps it positive, as in Lucene).

    Args:
        rows: N questions, each with its passage.
    """
    counts = [collections.Counter(_words(passage)) for _, passage in rows]
    lengths = np.array([count.total() for count in counts])
    norms = _K1 * (1 - _B + _B * lengths / lengths.mean())
    postings: dict[str, list] = collections.defaultdict(list)
    for number, count in enumerate(counts):
        for word, times in count.items():
            postings[word].append((number, times))
    for question, _ in rows:
        scores = np.zeros(len(rows))
        for word in filter(postings.__contains__, _words(question)):
            passages, times = np.array(postings[word]).T
            weight = math.log(1 + (len(rows) - len(passages) + 0.5) / (len(passages) + 0.5))
            scores[passages] += weight * times * (_K1 + 1) / (times + norms[passages])
        yield scores


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


# === Stages ===


def train(run: StageRun, settings: QuickstartSettings, name: str, load_weights: bool) -> dict:
    """Trains an embedder; returns its figures on the held-out pairs, and BM25's."""
    dev_file = run.path("corpus", "pairs_dev.tsv")
    run_command(
        "bert-embed",
        train_file=run.path("corpus", "pairs_train.tsv"),
        dev_file=dev_file,
        preset=run.path("pretrained", "preset"),
        load_weights=load_weights,
        output_dir=run.path(name),
        max_seq_length=settings.max_seq_length,
        eval_batch_size=64,
        save_checkpoints_steps=100_000,  # None before the last: each evaluates.
        random_seed=settings.random_seed,
        do_train=True,
        do_eval=True,
        train_batch_size=min(_BATCH, run.records["corpus"]["pairs"][0]),
        **_TRAINING,
    )
    metrics = read_json(run.path(name, "metrics.json"))
    bm25 = bm25_recall([line.split("\t") for number, line in read_lines(dev_file) if number > 1])
    start = "from pre-training" if load_weights else "from random weights"
    figure = f"recall@{_CUTOFF} {metrics[f'recall@{_CUTOFF}']:.1%} {start} (BM25: {bm25:.1%})"
    return {"figure": figure, **metrics, "bm25_recall@10": bm25}


def export(run: StageRun, question: str) -> dict:
    """Exports the embedder with all passages, and asks it."""
    passages, base = run.path("corpus", "passages.txt"), run.path("search")
    run_command(
        "bert-export",
        model_dir=run.path("embedder", "model"),
        task="search",
        passages=passages,
        export_dir=base,
    )
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (the graph has its ops)

    found = tf.saved_model.load(f"{base}/1").signatures["query"](text=tf.constant([question]))
    texts = [text.decode() for text in found["passages"][0].numpy()]
    print(f"  {question}", *(f"    -> {text}" for text in texts[:_NUM_SHOWN]), sep="\n", flush=True)
    count = sum(1 for _ in read_lines(passages))
    figure = f"{count:,} passages; {question!r} finds {texts[0].split(': ')[0]}"
    return {"figure": figure, "passages": count, "question": question, "found": texts}
