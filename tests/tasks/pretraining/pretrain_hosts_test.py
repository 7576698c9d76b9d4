"""bert-pretrain on four processes, which lose a worker, and on two, which lose the chief: the weights of one device.

Run as a script (`pretrain_hosts_test.py all|lose_worker|lose_chief|finish DIRECTORY`) it is one process, and finds its
part in TF_CONFIG, if there is one.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time

import numpy as np
import processes
import pytest
import tensorflow as tf
from toy_instances import draw_tokens, mask, masking_rules, write_records
from toy_run import NO_ARCHITECTURE
from toy_workers import start_workers

from keras_bert.errors import InputError
from tasks.engine.checkpoints import Checkpoints
from tasks.engine.training import Trainer
from tasks.engine.workers import LOST_STATUS
from tasks.pretraining.data import shard_index
from tasks.pretraining.run import pretrain
from tasks.pretraining.train import batches
from tasks.pretraining.train.settings import PretrainingSettings

LENGTHS = {"max_seq_length": 256, "max_predictions_per_seq": 4}
RECORDS, VOCABULARY, SAVE_STEPS = 3000, 60, 16
STEPS = {"num_train_steps": 3 * SAVE_STEPS, "num_warmup_steps": 2, "save_checkpoints_steps": SAVE_STEPS}
SIZES = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
KEPT = rf"The checkpoint of step {2 * SAVE_STEPS} is kept\."


def die(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def bytes_read() -> int:
    """By what the system counts for this process."""
    return int(re.search(r"rchar: (\d+)", pathlib.Path("/proc/self/io").read_text())[1])


def watch(mode: str, index: int, report: str) -> None:
    """Has this process tell what it reads between its first checkpoints, and be killed at a moment of this mode."""
    save, save_files, counted = Trainer.save, Checkpoints.save, []

    def watched_save(trainer):
        counted.append(bytes_read())
        if len(counted) == 2:
            pathlib.Path(report).write_text(str(counted[1] - counted[0]))
        save(trainer)
        counted[-1] = bytes_read()
        if (mode, index, len(counted)) == ("lose_worker", 2, 2):
            die()

    def half_saved(checkpoints, keep):
        if mode == "lose_chief":
            pathlib.Path(checkpoints.directory, f"ckpt-{3 * SAVE_STEPS}.data-00000-of-00001").write_bytes(b"half")
            die()
        save_files(checkpoints, keep)

    Trainer.save, Checkpoints.save = watched_save, half_saved


def main(mode: str, directory: str) -> None:
    shard_index.GROUP, batches._READ_BYTES = 16, 1 << 12  # So that few steps read several blocks.
    tf_config = os.environ.get("TF_CONFIG")
    index = json.loads(tf_config)["task"]["index"] if tf_config else 0
    watch(mode, index, os.path.join(directory, f"{mode}{index}.bytes"))
    files = os.path.join(directory, f"of{index}") if mode == "stale" else directory
    given = {
        **dict.fromkeys(NO_ARCHITECTURE),
        **STEPS,
        **LENGTHS,
        "input_file": os.path.join(files, "?.tfrecord"),
        "vocab_file": os.path.join(files, "vocab.txt"),
        "bert_config_file": os.path.join(files, "config.json"),
        "output_dir": os.path.join(directory, "one" if mode == "all" else f"disk{index}"),
        "train_batch_size": 8,
        "learning_rate": 1e-3,
        "do_train": True,
        "distribution_strategy": "multi_worker_mirrored" if tf_config else "one_device",
    }
    try:
        pretrain(PretrainingSettings(**given))
    except InputError as error:
        sys.exit(str(error))


def finish(workers, directory: pathlib.Path) -> tuple[list[int], float]:
    """Waits for processes; returns their exit statuses, and seconds between the first one's end and the last one's."""
    end, ends = time.monotonic() + 400, {}
    try:
        while len(ends) < len(workers):
            for number, process in enumerate(workers):
                if number not in ends and process.poll() is not None:
                    ends[number] = time.monotonic()
            if time.monotonic() > end:
                pytest.fail("".join(path.read_text()[-2000:] for path in sorted(directory.glob("log*.txt"))))
            time.sleep(0.05)
    finally:
        for process in workers:
            process.kill()
    return [process.returncode for process in workers], max(ends.values()) - min(ends.values())


def weights_of(run: pathlib.Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(run / "checkpoints" / f"ckpt-{3 * SAVE_STEPS}")
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("weights/")]
    return {name: reader.get_tensor(name) for name in names}


def steps_of(run: pathlib.Path) -> list[int]:
    return sorted(int(path.stem[5:]) for path in run.glob("checkpoints/ckpt-*.index"))


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hosts")
    token_ids, lengths, first_lengths = draw_tokens(RECORDS, LENGTHS["max_seq_length"], VOCABULARY)
    masked = mask(token_ids, lengths, masking_rules(VOCABULARY, LENGTHS["max_predictions_per_seq"]))
    write_records(directory, masked, lengths, first_lengths, num_files=2)
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *(f"w{number}" for number in range(VOCABULARY - 5))]
    (directory / "vocab.txt").write_text("\n".join(words))
    config = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTHS["max_seq_length"], **SIZES, **NO_DROPOUT}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.slow
def test_four_processes_lose_a_worker_and_two_the_chief_and_all_ends_as_on_one_device(data):
    with open(data / "log_one.txt", "w") as log:
        command = [sys.executable, __file__, "all", str(data)]
        assert processes.popen(command, stdout=log, stderr=log).wait(300) == 0, (data / "log_one.txt").read_text()
    whole = int((data / "all0.bytes").read_text())
    assert whole > 8 * SAVE_STEPS * 900, "the bytes of the records"

    statuses, seconds = finish(start_workers(__file__, "lose_worker", data, 4), data)
    assert statuses == [LOST_STATUS, LOST_STATUS, -signal.SIGKILL, LOST_STATUS]
    assert seconds < 120
    for survivor in (0, 1, 3):
        said = (data / f"log{survivor}.txt").read_text()
        messages = re.findall(rf"^This training has lost worker 2 \(127\S+:\d+\)\. {KEPT} Start all 4", said, re.M)
        assert len(messages) == 1 and "Traceback" not in said, said[-2000:]
    for index in range(4):
        assert int((data / f"lose_worker{index}.bytes").read_text()) == pytest.approx(whole / 4, rel=0.2)

    statuses, seconds = finish(start_workers(__file__, "lose_chief", data, 2), data)
    assert statuses == [-signal.SIGKILL, LOST_STATUS] and seconds < 120
    said = (data / "log1.txt").read_text()
    assert re.search(rf"^This training has lost worker 0 \(127\S+:\d+\)\. {KEPT} Start all 2", said, re.M), said[-2000:]
    assert steps_of(data / "disk0") == [SAVE_STEPS, 2 * SAVE_STEPS]

    assert finish(start_workers(__file__, "finish", data, 2), data)[0] == [0, 0]
    assert steps_of(data / "disk0") == [SAVE_STEPS, 2 * SAVE_STEPS, 3 * SAVE_STEPS]
    expected, weights = weights_of(data / "one"), weights_of(data / "disk0")
    assert len(expected) > 20 and expected.keys() == weights.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(weights[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1.tfrecord", "vocab.txt"])
def test_a_stale_file_is_named_with_its_host(data, tmp_path, name):
    """Worker 1's file has the same size."""
    for index in range(2):
        (tmp_path / f"of{index}").mkdir()
        for path in data.glob("[01vc]*.*"):
            shutil.copy(path, tmp_path / f"of{index}")
    if name == "vocab.txt":
        path = tmp_path / "of1" / name
        path.write_text(path.read_text().replace("w1\nw2\n", "w2\nw1\n"))
    else:
        shutil.copy(data / "0.tfrecord", tmp_path / "of1" / name)
    statuses, _ = finish(start_workers(__file__, "stale", tmp_path), tmp_path)
    assert statuses == [1, 1]
    for index in range(2):
        said = (tmp_path / f"log{index}.txt").read_text()
        refusal = rf"^/.*of{index}/{name}: differs between worker 1 \(127.*:\d+\) and worker 0 \("
        assert re.search(refusal, said, re.M), said


if __name__ == "__main__":
    main(*sys.argv[1:])
