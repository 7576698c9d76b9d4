"""Reads checkpoints of strangers in one process, each with little memory to spare."""

import json
import sys

import processes

SPARE = 500 * 2**20  # Bytes that a file may take beyond what the process has mapped.
_SCRIPT = """
import contextlib, json, resource, sys, time
from absl import logging
from keras_bert import BertBackbone, BertTextClassifier, BertTextEmbedder, BertTokenizer
logging.set_verbosity("error")
READ = {
    "weights": BertBackbone.from_preset,
    "sizes": lambda path: BertBackbone.from_preset(path, load_weights=False),
    "task": lambda path: BertTextClassifier.from_preset(path, preprocessor=None),
    "task's sizes": lambda path: BertTextClassifier.from_preset(path, load_weights=False, preprocessor=None),
    "embedder": lambda path: BertTextEmbedder.from_preset(path, preprocessor=None),
    "tokenizer": BertTokenizer.from_preset,
}
ordinary, spare = map(int, sys.argv[1:])
for number, (kind, path) in enumerate(json.load(sys.stdin)):
    if number >= ordinary:  # Whatever the libraries map once is mapped.
        mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + spare, resource.RLIM_INFINITY))
    start, answer = time.process_time(), ["", "nothing"]
    try:
        READ[kind](path)
    except BaseException as error:
        answer = [type(error).__name__, str(error)]
    print(json.dumps([*answer, time.process_time() - start]), flush=True)
"""


def read(ordinary, asked, spare=SPARE):
    """Reads files in turn: pairs of what is read (`READ`'s keys) and the path.

    Args:
        ordinary: files that must be read without an error, before memory is limited.
        asked: files whose answers are returned.
        spare: int, bytes.

    Returns:
        The class of the error (empty: none), its message, and seconds of processor time, for each file of `asked`.
    """
    questions = [(kind, str(path)) for kind, path in (*ordinary, *asked)]
    done = processes.run(
        [sys.executable, "-c", _SCRIPT, str(len(ordinary)), str(spare)],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer[:2] for answer in told[: len(ordinary)]] == [["", "nothing"]] * len(ordinary), told
    ended = ["the process ended", f"status {done.returncode}: {done.stderr[-500:]}", 0]
    return (told + [ended] * (len(questions) - len(told)))[len(ordinary) :]
