"""benchmarks/serving_speed.py: the batches it makes, and the arithmetic of its table.

Each in a process of its own, as its flags have names that others have, too.
"""

import json
import os
import sys

import processes
from repository import ROOT


def _run(code: str) -> dict:
    """What a program that has imported the benchmark prints as JSON."""
    folders = [str(ROOT), os.path.join(ROOT, "benchmarks")]
    code = f"import sys, json; sys.path[:0] = {folders}; import serving_speed as s\n{code}"
    return json.loads(processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_batches():
    batches = _run(
        "texts = ['word ' * (1 + (i * 7) % 40) for i in range(100)]\n"
        "print(json.dumps(s.make_batches(texts, lambda text: len(text.split()), 2, 3)))"
    )
    sizes = {kind: [len(batch) for batch in its_batches] for kind, its_batches in batches.items()}
    batched, single = [32, 32], [1, 1, 1]
    assert sizes == {"arrival": batched, "sorted": batched, "full": batched, "single": single, "single128": single}
    arrival, by_length = (sum(batches[kind], []) for kind in ("arrival", "sorted"))
    assert sorted(arrival) == sorted(by_length)
    assert by_length == sorted(arrival, key=len)
    assert arrival != by_length
    assert {len(text.split()) for text in sum(batches["full"] + batches["single128"], [])} == {128}


def test_even_batches():
    batches = _run(
        "texts = ['word ' * 40 + 'two-part ' * 10] * 30\n"
        "print(json.dumps(s.make_even_batches(texts, lambda text: len(text.replace('-', ' ').split()), 2, 3)))"
    )
    assert batches.pop("arrival") == [["word " * 40 + "two-part " * 10] * 30]
    sizes = {kind: [len(batch) for batch in its_batches] for kind, its_batches in batches.items()}
    assert sizes == {f"{size}x{n}": [size] * (3 if size == 1 else 2) for n in (10, 28, 128) for size in (1, 32)}
    for kind, its_batches in batches.items():
        lengths = {len(text.replace("-", " ").split()) for batch in its_batches for text in batch}
        length = int(kind.partition("x")[2])
        assert lengths <= {length, length - 1} and length in lengths


def test_sentences_of_squad(tmp_path):
    paragraphs = [{"context": "One. Two of 3.5 km! No."}, {"context": "Is it? It is"}]
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}, {"paragraphs": [{"context": "End."}]}]}))
    sentences = ["One.", "Two of 3.5 km!", "No.", "Is it?", "It is", "End."]
    assert _run(f"print(json.dumps(s.read_sentences({str(path)!r})))") == sentences


def test_the_table():
    lines = _run(
        "name = 'exported graph, oneDNN on'\n"
        "seconds = {'arrival': {s._REFERENCE: [1.0, 2.0, 4.0], name: [0.5, 0.5, 4.0]}}\n"
        "print(json.dumps(s.table(seconds, {'arrival': [['a'] * 32] * 3})))"
    )
    rows = [line.split() for line in lines]
    quartiles = ["quartile", "1.00-1.00", "0.38-0.75"]
    assert [row[-1] for row in rows] == ["arrival", "1.00", "0.50", *quartiles, "second", "14", "19"]


def test_single_requests_in_milliseconds():
    lines = _run(
        "seconds = {'single': {s._REFERENCE: [0.004, 0.002, 0.003], 'x': [0.006] * 3}}\n"
        "print(json.dumps(s.table(seconds, {'single': [['a']] * 3})))"
    )
    assert [line.split()[-1] for line in lines[-3:]] == ["ms", "3.00", "6.00"]


def test_peers_are_asked_in_changing_order():
    asked = _run(
        "import numpy\n"
        "order = []\n"
        "class Peer:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def ask(self, texts): order.append(self.name); return 1.0 + (self.name == 'b'), numpy.zeros([1, 2])\n"
        "seconds, largest, _ = s.measure({name: Peer(name) for name in 'abc'}, {'single': [['x']] * 4}, 3, 0.0)\n"
        "print(json.dumps([order, {name: values for name, values in seconds['single'].items()}, largest]))"
    )
    order, seconds, largest = asked
    rounds = [order[start : start + 3] for start in range(0, len(order), 3)]
    assert len(rounds) == 4 * (3 + 1)
    assert {tuple(sorted(names)) for names in rounds} == {("a", "b", "c")}
    assert len({tuple(names) for names in rounds}) > 1
    assert seconds == {"a": [1.0] * 4, "b": [2.0] * 4, "c": [1.0] * 4}
    assert largest == 0.0


def test_bfloat16_is_counted_and_not_compared():
    largest, rounded = _run(
        "import numpy\n"
        "answers = {'a': [0.4, 0.6], 'bfloat16': [0.55, 0.45], 'KerasHub': [1.0, 0.0], 'b': [0.4, 0.6]}\n"
        "class Peer:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def ask(self, texts): return 1.0, numpy.array([answers[self.name], [0.3, 0.7]])\n"
        "peers = {name: Peer(name) for name in answers}\n"
        "print(json.dumps(s.measure(peers, {'arrival': [['x', 'y']] * 3}, 2, 0.0)[1:]))"
    )
    assert largest == 0.0
    ((texts, changed, difference),) = rounded.values()
    assert (texts, changed) == (6, 3) and abs(difference - 0.15) < 1e-9


def test_a_missing_file_is_named():
    told = _run(
        "try: s.read_sentences('/nowhere/dev.tsv')\nexcept s.InputError as error: print(json.dumps(str(error)))"
    )
    cure = "Give SST-2's dev.tsv or SQuAD's dev.json as --input_file."
    assert told == f"/nowhere/dev.tsv: cannot be read (No such file or directory). {cure}"
