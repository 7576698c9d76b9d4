"""The encoder is written in `keras.ops` alone: on Keras's other backends it gives what it gives on TensorFlow's."""

import os
import subprocess
import sys

import numpy as np
import pytest

from keras_bert.encoder.backbone import BertBackbone

TINY = {"vocabulary_size": 100, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 64}
BATCH = {
    "token_ids": np.arange(21, dtype="int32").reshape(3, 7),
    "segment_ids": np.array([[0] * 4 + [1] * 3] * 3, "int32"),
    "padding_mask": np.array([[1] * 7, [1] * 5 + [0] * 2, [1] + [0] * 6], "int32"),
}

ON_ANOTHER_BACKEND = """if True:
    import sys
    import numpy as np
    import keras
    from keras_bert.encoder.backbone import BertBackbone
    directory, layout, backend = sys.argv[1:]
    assert keras.backend.backend() == backend
    backbone = BertBackbone.from_preset(directory, layout=layout)
    outputs = backbone.predict_on_batch(dict(np.load(f"{directory}/batch.npz").items()))
    outputs = {name: keras.ops.convert_to_numpy(value) for name, value in outputs.items()}
    np.savez(f"{directory}/outputs.npz", **outputs)
    batch = dict(np.load(f"{directory}/batch.npz").items())
    for training, differ in ((True, True), (False, False)):  # Dropout draws new masks for each call of training.
        calls = [backbone(batch, training=training)["pooled_output"] for _ in range(2)]
        first, second = map(keras.ops.convert_to_numpy, calls)
        assert np.any(first != second) == differ
"""


@pytest.mark.slow(keep=["jax-packed"])
@pytest.mark.oracle
@pytest.mark.parametrize("layout", ["rectangular", "unpadded", "packed"])
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_another_backend_gives_what_tensorflow_gives(tmp_path, backend, layout):
    pytest.importorskip(backend)
    backbone = BertBackbone(**TINY, initializer_range=0.5, layout=layout)
    backbone.save_to_preset(str(tmp_path))
    np.savez(tmp_path / "batch.npz", **BATCH)
    command = [sys.executable, "-c", ON_ANOTHER_BACKEND, str(tmp_path), layout, backend]
    done = subprocess.run(
        command, env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True, timeout=600
    )
    if (backend, layout) == ("jax", "unpadded"):
        assert done.returncode and "Choose 'rectangular' or 'packed'" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    outputs = np.load(tmp_path / "outputs.npz")
    for name, expected in backbone(BATCH).items():
        np.testing.assert_allclose(outputs[name], expected, atol=2e-5)
