"""Measures what 8-bit products cost trained models: `bert-export --int8`, and ONNX Runtime's dynamic quantization.

    .venv/bin/python benchmarks/int8.py --runs=runs/sst2_1/model,runs/stsb_1/model,runs/wnut17_1/model

Each model was trained by a task's command and scored on a dev file (SST-2, STS-B, WNUT-17, SQuAD's slice, with some
seeds); at most 2,000 of its rows are asked. The peer quantizes the same encoder as sentence-transformers does:
`quantize_dynamic` with a scale for each channel, including the embedding tables, and with 7 bits where sums of 8 bits
would saturate. Figures are points of the task's metric, and the names (labels, tags) that changed. `--output_file`
keeps finished cells.
"""

import os
import tempfile

import numpy as np
import onnxruntime
from absl import flags
from machine import describe_machine, instructions
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic

from export.graph.onnx_encoder import EncoderGraph
from export.heads.loading import load_head
from export.targets import int8
from export.targets.real_text import cost_of
from keras_bert.files import is_file, read_json, write_json
from tasks import flags as task_flags
from tasks import held_out

FLAGS = flags.FLAGS

flags.DEFINE_list("runs", [], "Directories of trained models, a run's model/.")
flags.DEFINE_string("output_file", "int8_cells.json", "Keeps the finished cells; they are not measured again.")
_INPUTS = ("token_ids", "segment_ids", "padding_mask")
_OUTPUTS = ("pooled_output", "sequence_output")


def quantized_by_runtime(trial: int8.Trial):
    """Returns the encoder as ONNX Runtime quantizes it, as a function of the three inputs."""
    graph = EncoderGraph(trial.description, trial.weights.__getitem__, unpadded=False)
    outputs = graph.encode("token_ids", "segment_ids", graph.node("Cast", "padding_mask", to=TensorProto.BOOL))
    plain = graph.model(
        "encoder", dict.fromkeys(_INPUTS, ("batch", "sequence")), {name: (outputs[name], None) for name in _OUTPUTS}
    )
    saturates = not any("vnni" in name or "amx" in name for name in instructions())
    with tempfile.TemporaryDirectory() as directory:
        paths = [os.path.join(directory, name) for name in ("plain.onnx", "int8.onnx")]
        with open(paths[0], "wb") as file:
            file.write(plain)
        quantize_dynamic(*paths, weight_type=QuantType.QInt8, per_channel=True, reduce_range=saturates)
        session = onnxruntime.InferenceSession(paths[1], providers=["CPUExecutionProvider"])

    def encode(*ids):
        pooled, states = session.run(list(_OUTPUTS), dict(zip(_INPUTS, ids, strict=True)))
        is_real = ids[2][:, : states.shape[1], np.newaxis]  # Ours gives zeros at padding.
        return pooled, states * is_real.astype(np.float32)

    return encode


def cell(directory: str) -> dict[str, list]:
    """Returns metric, points in float32 and in 8 bits, and changed names of a model, by side."""
    head = load_head(directory)
    rows = held_out.find(directory, head.preprocessor.tokenizer)
    trial = int8.Trial(head)
    requests, _ = int8.ask(head, rows)
    right, points = trial.answers(trial.encode, requests), rows.points(trial.model)
    figures = {"metric": rows.metric, "float32": points}
    encoders = {"ours": trial.encoder(trial.products), "ONNX Runtime": quantized_by_runtime(trial)}
    for side, encode in encoders.items():
        cost = cost_of(right, trial.answers(encode, requests))
        figures[side] = [rows.points(trial.model), cost.num_changed, cost.num_named, cost.noise]
    return figures


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    cells = read_json(FLAGS.output_file) if is_file(FLAGS.output_file) else {}
    print(describe_machine())
    for directory in FLAGS.runs:
        if directory not in cells:
            cells[directory] = cell(directory)
            write_json(FLAGS.output_file, cells)
        figures = cells[directory]
        print(f"{directory}: {figures['metric']} in float32 {figures['float32']:.2f}", flush=True)
        for side in ("ours", "ONNX Runtime"):
            points, changed, named, noise = figures[side]
            lost = figures["float32"] - points
            print(f"    {side:14}{points:8.2f}, loses {lost:+.2f}; {changed} of {named} names changed, {noise:.2f}%")


if __name__ == "__main__":
    task_flags.run(main)
