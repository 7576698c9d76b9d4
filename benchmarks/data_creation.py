"""Compares bert-create-pretraining-data with Model Garden's command: throughput per core and peak memory.

    .venv/bin/python benchmarks/data_creation.py [--corpus_megabytes=8] [--rounds=3] [--memory_megabytes=1000]

The text is that of ../shared/data/corpus, one sentence per line, repeated, with a number in the first sentence of each
document. Both commands get the same text, vocabulary and settings, and take turns in processes of their own. Throughput
is text per second of processor time (user and system, over all processes of the command), without the time for two
documents of two sentences, which is spent on imports and the vocabulary. Peak memory is the largest sum of the resident
sets of the command's processes, sampled twenty times per second. With --memory_megabytes, ours runs once more on that
much text. ru_maxrss is that of the largest process. With --cluster_megabytes, in .venv-cluster, ours also runs on two
Dask workers, in turns with two local processes; the memory is then that of the driver, the command's own process.
"""

import glob
import itertools
import logging
import os
import re
import statistics
import sys
import tempfile

from absl import flags
from machine import describe_machine
from process_cost import Cost, measure

from keras_bert.errors import InputError
from keras_bert.files import read_json
from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_integer("corpus_megabytes", 8, "Text of the comparison.", lower_bound=1)
flags.DEFINE_integer("memory_megabytes", 0, "Text of another run of ours alone, for its peak memory.", lower_bound=0)
flags.DEFINE_integer("cluster_megabytes", 0, "Text of a comparison with Dask, in place of the others.", lower_bound=0)
flags.DEFINE_integer("rounds", 3, "Rounds, interleaved.", lower_bound=1)
flags.DEFINE_integer("dupe_factor", 10, "Times the text is gone through.", lower_bound=1)
flags.DEFINE_integer("memory_dupe_factor", 1, "The same, for --memory_megabytes.", lower_bound=1)
flags.DEFINE_integer("num_workers", None, "Our processes; default: one for each core.", lower_bound=1)

DATA = os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data")
MODULES = {"keras-bert-zoo": "tasks.pretraining.create_data", "official": "official.nlp.data.create_pretraining_data"}


def read_documents() -> list[list[str]]:
    """Reads the documents of the corpus as lists of sentences, split by a regular expression."""
    articles = os.path.join(DATA, "corpus", "wikitext2-valid.txt")
    if not os.path.exists(articles):
        raise InputError(f"{articles}: no such file. The benchmark needs the text of ../shared/data/corpus.")
    with open(articles, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith(" = = ")]
    documents = [
        [f"{sentence} ." for line in group for sentence in line.removesuffix(" .").split(" . ")]
        for is_title, group in itertools.groupby(lines, key=lambda line: line.startswith("= "))
        if not is_title
    ]
    for path in sorted(glob.glob(os.path.join(DATA, "corpus", "*", "*.txt"))):
        with open(path, encoding="utf-8") as file:
            text = " ".join(file.read().split())
        documents.append(re.split(r"(?<=[.!?]) (?=[A-Z])", text))
    return documents


def write_corpus(path: str, num_bytes: int) -> int:
    """Repeats the numbered documents until the file has a given size. Returns the size."""
    documents = read_documents()
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        for number, document in enumerate(itertools.cycle(documents)):
            if written >= num_bytes:
                return written
            text = "\n".join([f"Document number {number} .", *document, "\n"])
            file.write(text)
            written += len(text.encode())


def run_command(name: str, input_file: str, output_file: str, **settings) -> Cost:
    """Runs a command in a process of its own, and waits for it.

    Raises:
        InputError: it failed.
    """
    arguments = {
        "input_file": input_file,
        "output_file": output_file,
        "vocab_file": os.path.join(DATA, "vocab", "uncased_en.txt"),
        **settings,
    }
    if name == "keras-bert-zoo" and FLAGS.num_workers:
        arguments["num_workers"] = FLAGS.num_workers
    command = [sys.executable, "-m", MODULES[name], *(f"--{key}={value}" for key, value in arguments.items())]
    return measure(command)


def compare(directory: str, num_bytes: int) -> dict[str, list[tuple[Cost, float]]]:
    """Runs the commands in turn: by name the cost of each round, and the processor seconds of starting."""
    corpus, tiny = os.path.join(directory, "corpus.txt"), os.path.join(directory, "tiny.txt")
    with open(tiny, "w", encoding="utf-8") as file:
        file.write("one sentence\nanother sentence\n\na third one\na fourth one\n")
    costs: dict[str, list[tuple[Cost, float]]] = {name: [] for name in MODULES}
    for _ in range(FLAGS.rounds):
        for name in MODULES:
            output_file = os.path.join(directory, f"{name}.tfrecord")
            settings = {"dupe_factor": FLAGS.dupe_factor}
            starting = run_command(name, tiny, output_file, **settings).cpu_seconds
            costs[name].append((run_command(name, corpus, output_file, **settings), starting))
    return costs


def compare_cluster(directory: str) -> None:
    """Prints time and memory of each round, on two processes of this machine and on two workers of Dask."""
    from distributed import LocalCluster

    corpus = os.path.join(directory, "corpus.txt")
    settings = {"dupe_factor": FLAGS.memory_dupe_factor, "num_shards": 8}
    ratios = []
    print("| round | local, s | Dask, s | speed | driver's peak MB |\n| --- | --- | --- | --- | --- |")
    with LocalCluster(
        n_workers=2, threads_per_worker=1, protocol="tcp", dashboard_address=None, silence_logs=logging.ERROR
    ) as cluster:
        address = f"--dask_client_address={cluster.scheduler_address}"
        engines = {"local": {"num_workers": 2}, "dask": {"runner": "dask", "beam_options": address}}
        for number in range(FLAGS.rounds):
            costs = {}
            for name, flags_of_engine in engines.items():
                output_file = os.path.join(directory, f"{name}.tfrecord")
                costs[name] = run_command("keras-bert-zoo", corpus, output_file, **settings, **flags_of_engine)
            local, dask = costs.values()
            ratios.append(local.seconds / dask.seconds)
            figures = f"{local.seconds:.0f} | {dask.seconds:.0f} | {ratios[-1]:.2f} | {dask.largest_megabytes:.0f}"
            print(f"| {number + 1} | {figures} |", flush=True)
    print(
        f"\nspeed on Dask: {statistics.median(ratios):.2f} of the local engine's ({min(ratios):.2f}-{max(ratios):.2f})"
    )


def print_comparison(costs: dict[str, list[tuple[Cost, float]]], num_bytes: int) -> None:
    print(
        "| command | start, CPU s | CPU s | wall s | text MB / CPU s | peak MB |\n| --- | --- | --- | --- | --- | --- |"
    )
    rates = {}
    for name, rounds in costs.items():
        rates[name] = [num_bytes / 1e6 / (cost.cpu_seconds - starting) for cost, starting in rounds]
        figures = [
            statistics.median(starting for _, starting in rounds),
            statistics.median(cost.cpu_seconds for cost, _ in rounds),
            statistics.median(cost.seconds for cost, _ in rounds),
        ]
        peak = max(cost.peak_megabytes for cost, _ in rounds)
        cells = " | ".join(f"{figure:.1f}" for figure in figures)
        print(f"| {name} | {cells} | {statistics.median(rates[name]):.3f} | {peak:.0f} |")
    ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
    print(
        f"\nthroughput a core: {statistics.median(ratios):.1f} times official's ({min(ratios):.1f}-{max(ratios):.1f})"
    )


def main(argv: list[str]) -> None:
    """Prints the tables."""
    del argv
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        corpus, output_file = os.path.join(directory, "corpus.txt"), os.path.join(directory, "large.tfrecord")
        if FLAGS.cluster_megabytes:
            write_corpus(corpus, FLAGS.cluster_megabytes * 10**6)
            compare_cluster(directory)
            return
        num_bytes = write_corpus(corpus, FLAGS.corpus_megabytes * 10**6)
        print(f"{num_bytes / 1e6:.1f} MB of text, dupe_factor {FLAGS.dupe_factor}, {FLAGS.rounds} rounds\n", flush=True)
        print_comparison(compare(directory, num_bytes), num_bytes)
        if FLAGS.memory_megabytes:
            num_bytes = write_corpus(corpus, FLAGS.memory_megabytes * 10**6)
            cost = run_command("keras-bert-zoo", corpus, output_file, dupe_factor=FLAGS.memory_dupe_factor)
            instances = read_json(f"{output_file}.report.json")["instances"]
            print(
                f"\n{num_bytes / 1e6:.0f} MB of text, dupe_factor {FLAGS.memory_dupe_factor}, {instances:,} instances: "
                f"{cost.seconds:.0f} s, {cost.cpu_seconds:.0f} CPU s; peak memory of all processes together "
                f"{cost.peak_megabytes:.0f} MB, of the largest {cost.largest_megabytes:.0f} MB"
            )


if __name__ == "__main__":
    task_flags.run(main)
