"""Compares in-graph tokenization with tensorflow-text's FastBertTokenizer and Hugging Face's tokenizers.

    .venv/bin/python benchmarks/tokenizer_speed.py [--rounds=25]

The texts are sentences of SST-2 and paragraphs of 500 to 1500 characters of WikiText-2, in ../shared/data beside the
repository, in batches of 32 and 256, uncased English. Both TensorFlow tokenizers run in a tf.data pipeline with one
call per thread. Hugging Face's Rust library gets each batch in one call, without padding, and uses the same number of
threads. Our pure Python tokenizer, which bert-create-pretraining-data uses, runs in one thread, text by text, and
caches the words it has seen, which here are all of them. There is one process per number of threads, and the runs are
interleaved. Each figure is the median over rounds of the time relative to FastBertTokenizer in the same round. The
pipelines keep running between rounds, so that their start does not count.
"""

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from absl import flags
from machine import describe_machine

from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_integer("rounds", 25, "Rounds, each giving the batches to every tokenizer in turn.", lower_bound=1)
flags.DEFINE_integer("threads", 0, "Measure with this many alone; 0: with one, then with two.", lower_bound=0)

_DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "shared", "data")
_VOCABULARY = os.path.join(_DATA, "vocab", "uncased_en.txt")
_SENTENCES = os.path.join(_DATA, "sst2", "train.tsv")
_PARAGRAPHS = os.path.join(_DATA, "corpus", "wikitext2-valid.txt")
_STOCK = "FastBertTokenizer"
_AHEAD = 4  # Batches; a pipeline holds one per thread.
_SECONDS = 0.1  # of each run in a round: what else the machine does changes more slowly


def read_texts() -> dict[str, list[str]]:
    """Reads the texts of each kind."""
    with open(_SENTENCES, encoding="utf-8") as lines:
        sentences = [line.split("\t")[0].strip() for line in lines][1:]
    with open(_PARAGRAPHS, encoding="utf-8") as lines:
        paragraphs = [line.strip() for line in lines if 500 <= len(line.strip()) <= 1500]
    return {"sentences": sentences[:8192], "paragraphs": paragraphs[:512]}


def tensorflow_runs(texts: list[str], batch_size: int, threads: int) -> dict[str, Iterator]:
    """Returns name -> an endless run over the batches."""
    import tensorflow as tf
    import tensorflow_text as tf_text

    from keras_bert.tokenization.tokenizer import BertTokenizer

    with open(_VOCABULARY, encoding="utf-8") as lines:
        vocabulary = [line.rstrip("\n") for line in lines]
    stock = tf_text.FastBertTokenizer(vocabulary, token_out_type=tf.int32, lower_case_nfd_strip_accents=True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    batches = tf.data.Dataset.from_tensor_slices(texts).batch(batch_size, drop_remainder=True).cache().repeat()

    def run(tokenize):
        return iter(batches.map(tokenize, num_parallel_calls=threads).with_options(options))

    return {_STOCK: run(stock.tokenize), "ours": run(BertTokenizer(_VOCABULARY).tokenize)}


def hugging_face_runs(texts: list[str], batch_size: int) -> dict[str, Iterator]:
    """Returns runs as `tensorflow_runs` does. The environment sets the number of threads."""
    import tokenizers

    tokenizer = tokenizers.BertWordPieceTokenizer(_VOCABULARY, lowercase=True)._tokenizer
    batches = [texts[i : i + batch_size] for i in range(0, len(texts) - batch_size + 1, batch_size)]

    def run(encode):
        return (encode(batch, add_special_tokens=False) for batch in itertools.cycle(batches))

    return {
        "Hugging Face, encode_batch": run(tokenizer.encode_batch),
        "Hugging Face, encode_batch_fast (no offsets)": run(tokenizer.encode_batch_fast),
    }


def python_runs(texts: list[str], batch_size: int) -> dict[str, Iterator]:
    """Returns runs as `tensorflow_runs` does."""
    from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer

    tokenize = PythonBertTokenizer(_VOCABULARY).tokenize
    batches = [texts[i : i + batch_size] for i in range(0, len(texts) - batch_size + 1, batch_size)]
    for text in texts:
        tokenize(text)
    return {"ours in pure Python": ([tokenize(text) for text in batch] for batch in itertools.cycle(batches))}


def seconds_of_a_batch(run: Iterator, count: int) -> float:
    """Times `count` batches, after those that the pipeline made while others ran."""
    for _ in range(_AHEAD):
        next(run)
    begin = time.perf_counter()
    for _ in range(count):
        next(run)
    return (time.perf_counter() - begin) / count


def measure(runs: dict[str, Iterator], rounds: int) -> tuple[float, dict[str, float]]:
    """Returns the stock tokenizer's seconds a batch, and of each run the time relative to it, medians."""
    counts = {name: max(8, round(_SECONDS / seconds_of_a_batch(run, 8))) for name, run in runs.items()}
    seconds = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name].append(seconds_of_a_batch(run, counts[name]))
    ratios = {
        name: statistics.median(a / b for a, b in zip(taken, seconds[_STOCK], strict=True))
        for name, taken in seconds.items()
    }
    return statistics.median(seconds[_STOCK]), ratios


def print_table(threads: int, rounds: int) -> None:
    """Measures with so many threads, in this process."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    columns = {}
    for kind, texts in read_texts().items():
        for size in (32, 256):
            runs = {**tensorflow_runs(texts, size, threads), **hugging_face_runs(texts, size)}
            if threads == 1:
                runs |= python_runs(texts, size)
            columns[f"{kind}/{size}"] = measure(runs, rounds)
    print(f"{f'{threads} thread' + 's' * (threads > 1):46}" + "".join(f"{column:>16}" for column in columns))
    print(f"{_STOCK + ', ms a batch':46}" + "".join(f"{1000 * stock:16.2f}" for stock, _ in columns.values()))
    for name in next(iter(columns.values()))[1]:
        print(f"{name:46}" + "".join(f"{ratios[name]:16.2f}" for _, ratios in columns.values()), flush=True)


def main(argv: list[str]) -> None:
    """Prints the tables."""
    missing = [path for path in (_VOCABULARY, _SENTENCES, _PARAGRAPHS) if not os.path.exists(path)]
    if missing:
        print(f"Skipped: {missing[0]} is not there.")
        return
    if FLAGS.threads:
        print_table(FLAGS.threads, FLAGS.rounds)
        return
    print(describe_machine())
    print(f"Time of a batch relative to {_STOCK}'s, median of {FLAGS.rounds} rounds", flush=True)
    for threads in (1, 2):
        environment = {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": str(threads > 1).lower()}
        command = [sys.executable, argv[0], f"--threads={threads}", f"--rounds={FLAGS.rounds}"]
        subprocess.run(command, env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    task_flags.run(main)
