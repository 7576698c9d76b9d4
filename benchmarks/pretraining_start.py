"""Measures the seconds from the records to the first batch of pre-training, by size of the data and by step.

    .venv/bin/python benchmarks/pretraining_start.py

Makes one file of random instances and links it, with its index, under as many names as a size needs, so that larger
data take no disk space. Each figure comes from a fresh process, without TensorFlow's import. The first line is for the
first training that reads a file, which also checks the records and makes the index.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from absl import flags
from machine import describe_machine

from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("megabytes", ["10", "100", "1000", "10000"], "Sizes of the data.")
flags.DEFINE_integer("batch_size", 256, "Instances of a batch.", lower_bound=1)
flags.DEFINE_string("worker", None, "Directory of files; what the benchmark's own processes are started with.")
flags.DEFINE_float("share", 0.0, "Share of an epoch that is done before the start.")

_LENGTHS = {"max_seq_length": 128, "max_predictions_per_seq": 20}
_VOCABULARY, _RECORDS = 30522, 11_000  # 10 MB


def write_records(path: str) -> None:
    """Writes 10 MB of random instances."""
    import numpy as np

    from tasks.pretraining.data.masking import MaskingRules, mask_batch
    from tasks.pretraining.data.record_bytes import instance_features, serialize_batch

    rng = np.random.default_rng(0)
    lengths = np.full(_RECORDS, _LENGTHS["max_seq_length"])
    token_ids = rng.integers(1000, _VOCABULARY, (_RECORDS, _LENGTHS["max_seq_length"])).astype(np.int32)
    rules = MaskingRules(101, 102, 103, _VOCABULARY, 0.15, _LENGTHS["max_predictions_per_seq"], None)
    batch = mask_batch(token_ids, lengths, rules, np.arange(_RECORDS, dtype=np.uint64))
    with open(path, "wb") as file:
        features = instance_features(batch, lengths, lengths // 2, np.arange(_RECORDS) % 2)
        file.write(serialize_batch(features)[0])


def first_batch() -> float:
    """Returns the seconds until the first batch is there."""
    import tensorflow as tf

    from keras_bert.files import expand_files
    from tasks.pretraining.data.shard_index import read_records
    from tasks.pretraining.train.batches import TrainBatches

    tf.zeros([])
    start = time.perf_counter()
    files = expand_files(os.path.join(FLAGS.worker, "*.tfrecord"))
    records = read_records(files, _VOCABULARY, **_LENGTHS)
    batches = TrainBatches(records, batch_size=FLAGS.batch_size, random_seed=0)
    next(iter(batches(int(FLAGS.share * records.num_records / FLAGS.batch_size))))
    return time.perf_counter() - start


def ask(directory: str, share: float) -> float:
    """Returns what a fresh process measures."""
    flags_given = [f"--worker={directory}", f"--share={share}", f"--batch_size={FLAGS.batch_size}"]
    done = subprocess.run([sys.executable, __file__, *flags_given], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(_) -> None:
    """Prints the table."""
    if FLAGS.worker:
        print(json.dumps(first_batch()))
        return
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        source = os.path.join(directory, "source")
        os.mkdir(source)
        record_file = os.path.join(source, "0.tfrecord")
        write_records(record_file)
        size = os.path.getsize(record_file)
        print(f"10 MB, first training: {ask(source, 0.0):.2f} s")
        print("megabytes  start of an epoch  1% of it done  90% of it done")
        for megabytes in map(int, FLAGS.megabytes):
            linked = os.path.join(directory, str(megabytes))
            os.mkdir(linked)
            for number in range(max(1, round(megabytes * 1e6 / size))):
                for name in (f"{number}.tfrecord", f".{number}.tfrecord.index.npz"):
                    os.link(os.path.join(source, name.replace(str(number), "0", 1)), os.path.join(linked, name))
            seconds = "".join(f"{ask(linked, share):16.2f}" for share in (0.0, 0.01, 0.9))
            print(f"{megabytes:>9} {seconds}", flush=True)
            shutil.rmtree(linked)


if __name__ == "__main__":
    task_flags.run(main)
