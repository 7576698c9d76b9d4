"""Compares bert-train-vocab with the tokenizers library alone: time and memory from text to vocabulary.

    .venv/bin/python benchmarks/vocabulary_training.py --input_file='text/*.txt'

The text is repeated, with a number before each document, until it is `--megabytes` long. The runs are interleaved, each
in a process of its own. Time is the median over rounds of the time relative to the tokenizers library with the same
number of threads in the same round. Memory is the largest peak of the command and all of its processes. Takes about
10 s per round.
"""

import os
import platform
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from absl import flags

from keras_bert.files import expand_files, read_lines
from tasks import flags as task_flags

FLAGS = flags.FLAGS

_CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "shared", "data", "corpus")

# The first two are bert-train-vocab's too, whose module the runs import.
flags.DEFINE_string("input_file", f"{_CORPUS}/*.txt,{_CORPUS}/*/*.txt", "Text, a document a file.", allow_override=True)
flags.DEFINE_integer("vocab_size", 30522, "Most pieces that a vocabulary may hold.", allow_override=True)
flags.DEFINE_integer("megabytes", 48, "Length of the text.", lower_bound=1)
flags.DEFINE_integer("rounds", 7, "Runs of everything.", lower_bound=1)

_WORKERS = (1, 2)


def write_text(files: list[str], num_bytes: int, path: str) -> None:
    """Writes the documents of `files` again and again, each time with another number, up to `num_bytes`."""
    documents = ["\n".join(line for _, line in read_lines(file)).strip() for file in files]
    number = 0
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < num_bytes:
            for document in documents:
                number += 1
                file.write(f"Document {number}\n{document}\n\n")


def ours(path: str, vocab_size: int, workers: int) -> None:
    """Trains a vocabulary as bert-train-vocab does."""
    from tasks.pretraining.train_vocab import VocabularySettings, train_vocab

    settings = {"vocab_size": vocab_size, "num_workers": workers}
    train_vocab(VocabularySettings(input_file=path, vocab_file=f"{path}.vocab", **settings))


def tokenizers_alone(path: str, vocab_size: int, workers: int) -> None:
    """Trains a vocabulary with the library's own pipeline. The environment sets its number of threads."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    from tasks.pretraining.train_vocab import SPECIAL_TOKENS

    del workers
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train([path], trainer)
    tokenizer.save(f"{path}.json")


_CONTENDERS = {"tokenizers alone": tokenizers_alone, "bert-train-vocab": ours}


def cost(contender: str, path: str, vocab_size: int, workers: int) -> tuple[float, float]:
    """Runs a contender in this process; returns its seconds and the peak of its memory in MB."""
    with open(os.devnull, "w") as silence:
        os.dup2(silence.fileno(), 2)
    start = time.perf_counter()
    _CONTENDERS[contender](path, vocab_size, workers)
    seconds = time.perf_counter() - start
    own, child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return seconds, (own + workers * child) / 1024  # `child` is the largest one's.


def fresh_cost(contender: str, path: str, vocab_size: int, workers: int) -> tuple[float, float]:
    """Does the same in a new process with a given number of threads."""
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(cost, contender, path, vocab_size, workers).result()


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    costs: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "text.txt")
        write_text(expand_files(FLAGS.input_file), FLAGS.megabytes << 20, path)
        for _ in range(FLAGS.rounds):
            for workers in _WORKERS:
                for contender in _CONTENDERS:
                    run = fresh_cost(contender, path, FLAGS.vocab_size, workers)
                    costs.setdefault((contender, workers), []).append(run)
    print(f"{platform.machine()}, {os.cpu_count()} cores; {FLAGS.megabytes} MB of text, {FLAGS.rounds} rounds")
    print(f"{'':20}{'threads':>10}{'time':>10}{'seconds':>10}{'MB':>10}")
    for (contender, workers), runs in costs.items():
        peers = costs["tokenizers alone", workers]
        ratio = statistics.median(run[0] / peer[0] for run, peer in zip(runs, peers, strict=True))
        seconds = statistics.median(run[0] for run in runs)
        print(f"{contender:20}{workers:10}{ratio:10.2f}{seconds:10.1f}{max(run[1] for run in runs):10.0f}")


if __name__ == "__main__":
    task_flags.run(main)
