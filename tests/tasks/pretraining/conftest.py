"""One small pre-training that the tests of bert-pretrain share."""

import pytest
from toy_run import run, write_data


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Directory with vocab.txt, and train and held_out as .txt and .tfrecord."""
    directory = tmp_path_factory.mktemp("data")
    write_data(directory)
    return directory


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory):
    """The output directory of a finished training, not to be changed, and its metrics."""
    output_dir = tmp_path_factory.mktemp("run") / "out"
    return output_dir, run(data, output_dir)
