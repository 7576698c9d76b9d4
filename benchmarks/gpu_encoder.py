"""Compares the pre-training step on Keras's JAX backend with Hugging Face's on torch: speed, share of peak, and memory.

    python benchmarks/gpu_encoder.py --preset=base --sequence_length=512 --batch_size=64 --dtype=bfloat16
    python benchmarks/gpu_encoder.py --preset=mini --sequence_length=128 --batch_size=8 --dtype=float32   # a CPU

A step is the forward pass with dropout, the losses of masked LM and next sentence, and the gradients of all weights.
15% of the tokens are masked, and both sides compute the vocabulary's logits only at these. Torch runs with its fused
attention, compiled if --torch_compile is given. Each side has a process of its own, and they take turns
(benchmarks/sides.py). Prints per side the tokens per second, the time relative to torch, the share of the peak (of
matrix products of the same type; the larger of both sides' measurements), the first loss, and memory: on a GPU the peak
that was allocated, on a CPU, for ours, the arrays that the forward pass keeps for the gradients.

Needs an environment with keras, keras-hub, keras-nlp, absl-py, jax, torch and transformers; TensorFlow may be missing.
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable

import numpy as np
from absl import flags
from machine import describe_machine
from sides import Side, serve, take_turns, timed

from keras_bert.config import BertConfig
from keras_bert.presets.catalog import PRESETS
from tasks import flags as task_flags

FLAGS = flags.FLAGS

SIDES = {"torch": "torch", "ours": "jax", "ours, rematerialized": "jax_rematerialized"}
_MASKED_SHARE, _ROUNDS_OF_PEAK = 0.15, 10
_PASSED = ("preset", "sequence_length", "batch_size", "dtype", "steps", "torch_compile", "attention_dropout")

flags.DEFINE_enum("preset", "base", list(PRESETS), "Architecture, with random weights.")
flags.DEFINE_integer("sequence_length", 512, "Tokens of an example, all of them real.", lower_bound=8)
flags.DEFINE_integer("batch_size", 64, "Examples of a step.", lower_bound=1)
flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32"], "Number type of activations and products.")
flags.DEFINE_float("attention_dropout", 0.1, "Dropout of the attention probabilities; 0 lets ours use cuDNN's kernel.")
flags.DEFINE_integer("rounds", 7, "Turns of each side.", lower_bound=1)
flags.DEFINE_integer("steps", 5, "Steps of a turn.", lower_bound=1)
flags.DEFINE_bool("torch_compile", False, "Compile torch's side; it takes a C++ compiler on a CPU.")
flags.DEFINE_integer("peak_size", None, "Rows of the square matrices of the peak; default: 8192 on a GPU, 1024 else.")
flags.DEFINE_enum("side", None, list(SIDES.values()), "What the benchmark's own processes are started with.")


def make_batch(config: BertConfig) -> dict[str, np.ndarray]:
    """Makes the inputs and answers of a step, int32."""
    generator = np.random.default_rng(0)
    rows, length = FLAGS.batch_size, FLAGS.sequence_length
    count = round(_MASKED_SHARE * length)
    positions = np.argsort(generator.random((rows, length)), axis=1)[:, :count]
    token_ids = generator.integers(0, config.vocabulary_size, (rows, length))
    batch = {
        "token_ids": token_ids,
        "segment_ids": np.arange(length)[None] * 2 // length + 0 * token_ids,
        "padding_mask": np.ones_like(token_ids),
        "mask_positions": np.sort(positions, axis=1),
        "mask_ids": generator.integers(0, config.vocabulary_size, (rows, count)),
        "next_sentence_labels": generator.integers(0, 2, rows),
    }
    return {name: value.astype(np.int32) for name, value in batch.items()}


def flops_per_token(config: BertConfig) -> float:
    """Returns the operations of a step per token: a multiplication is two, and the backward pass twice the forward."""
    hidden = config.hidden_dim
    layer = 4 * hidden**2 + 2 * hidden * config.intermediate_dim + 2 * hidden * FLAGS.sequence_length
    return 6 * (config.num_layers * layer + _MASKED_SHARE * (hidden**2 + hidden * config.vocabulary_size))


# === The sides: each returns a call that does steps and returns the loss, one that does products, and the memory ===


def jax_side(config: BertConfig, rematerializes: bool) -> tuple[Callable, Callable, Callable]:
    """Makes the step of the backbone with both heads as one XLA program."""
    import jax
    import keras

    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.encoder.heads import MaskedLMHead, output_head

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16" if FLAGS.dtype == "bfloat16" else "float32")
    backbone = BertBackbone(**config.to_dict())
    encoded = backbone(backbone.input)
    if rematerializes:
        for index in range(config.num_layers):
            rematerialize(backbone.get_layer(f"transformer_layer_{index}"))
    positions = keras.Input((None,), dtype="int32", name="mask_positions")
    head = MaskedLMHead(backbone.token_embedding, initializer_range=config.initializer_range, name="masked_lm")
    outputs = {
        "masked_lm": head(encoded["sequence_output"], mask_positions=positions),
        "next_sentence": output_head(2, config.initializer_range, "next_sentence")(encoded["pooled_output"]),
    }
    model = keras.Model({**backbone.input, "mask_positions": positions}, outputs)
    batch = {name: jax.numpy.asarray(value) for name, value in make_batch(config).items()}
    weights = [
        [variable.value for variable in held] for held in (model.trainable_variables, model.non_trainable_variables)
    ]

    def loss_of(trained, others, batch):
        logits, others = model.stateless_call(
            trained, others, {name: batch[name] for name in model.input}, training=True
        )
        loss = keras.ops.sparse_categorical_crossentropy
        masked_lm = loss(batch["mask_ids"], logits["masked_lm"], from_logits=True).mean()
        return masked_lm + loss(batch["next_sentence_labels"], logits["next_sentence"], from_logits=True).mean(), others

    step = jax.jit(jax.value_and_grad(loss_of, has_aux=True)).lower(*weights, batch).compile()
    state = {"others": weights[1]}

    def train() -> float:
        for _ in range(FLAGS.steps):
            (loss, state["others"]), gradients = step(weights[0], state["others"], batch)
        jax.block_until_ready(gradients)
        return float(loss)

    size = FLAGS.peak_size or (1024 if jax.default_backend() == "cpu" else 8192)
    matrix = jax.numpy.eye(size, dtype=FLAGS.dtype)
    product = jax.jit(lambda left, right: left @ right)

    def multiply() -> float:
        result = matrix
        for _ in range(_ROUNDS_OF_PEAK):
            result = product(result, matrix)
        jax.block_until_ready(result)
        return 2.0 * size**3 * _ROUNDS_OF_PEAK

    def memory() -> float:
        figures = jax.devices()[0].memory_stats()
        if figures:
            return figures["peak_bytes_in_use"]
        # XLA undoes rematerialization on a CPU; what the gradients' function holds shows it nevertheless.
        held = jax.eval_shape(
            lambda *given: jax.vjp(lambda trained: loss_of(trained, *given[1:]), given[0], has_aux=True)[1],
            *weights,
            batch,
        )
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(held))

    return train, multiply, memory


def rematerialize(layer) -> None:
    """Makes a layer compute its activations again for the gradients. Keras's `RematScope` traces `training` in JAX."""
    import jax
    import keras

    variables, original = layer.variables, layer.call

    def call(rows, layout, training=None):
        @jax.checkpoint
        def run(values, rows, layout):
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))) as scope:
                rows = original(rows, layout=layout, training=training)
            return rows, [scope.get_current_value(variable) for variable in variables]

        rows, values = run([variable.value for variable in variables], rows, layout)
        for variable, value in zip(variables, values, strict=True):
            if not variable.trainable:  # The seeds of dropout.
                variable.assign(value)
        return rows

    layer.call = call


def torch_side(config: BertConfig) -> tuple[Callable, Callable, Callable]:
    """Makes the step of Hugging Face's model, whose weights stay float32 under autocast as Keras's do."""
    import torch
    import transformers

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    sizes = {
        "vocab_size": config.vocabulary_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.intermediate_dim,
    }
    sizes["attention_probs_dropout_prob"] = config.attention_dropout
    options = transformers.BertConfig(**sizes, hidden_act="gelu_new", attn_implementation="sdpa")
    model = transformers.BertForPreTraining(options).to(device).train()
    arrays = {name: torch.tensor(value, device=device).long() for name, value in make_batch(config).items()}
    dtype = getattr(torch, FLAGS.dtype)

    def loss_of():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=FLAGS.dtype == "bfloat16"):
            encoded = model.bert(arrays["token_ids"], arrays["padding_mask"], arrays["segment_ids"])
            places = arrays["mask_positions"][..., None].expand(-1, -1, config.hidden_dim)
            rows = torch.gather(encoded.last_hidden_state, 1, places)
            masked_lm, next_sentence = model.cls(rows, encoded.pooler_output)
            loss = torch.nn.functional.cross_entropy
            return loss(masked_lm.flatten(0, 1).float(), arrays["mask_ids"].flatten()) + loss(
                next_sentence.float(), arrays["next_sentence_labels"]
            )

    run = torch.compile(loss_of) if FLAGS.torch_compile else loss_of

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def train() -> float:
        for _ in range(FLAGS.steps):
            model.zero_grad(set_to_none=True)
            loss = run()
            loss.backward()
        wait()
        return loss.item()

    size = FLAGS.peak_size or (1024 if device == "cpu" else 8192)
    matrix = torch.eye(size, dtype=dtype, device=device)

    def multiply() -> float:
        result = matrix
        for _ in range(_ROUNDS_OF_PEAK):
            result = result @ matrix
        wait()
        return 2.0 * size**3 * _ROUNDS_OF_PEAK

    def memory() -> float:
        return torch.cuda.max_memory_allocated() if device == "cuda" else 0.0

    return train, multiply, memory


def run_side(side: str) -> None:
    """Measures a turn of steps and one of products; returns seconds, seconds per operation, loss and memory."""
    config = dataclasses.replace(PRESETS[FLAGS.preset].config, attention_dropout=FLAGS.attention_dropout)
    if side == "torch":
        train, multiply, memory = torch_side(config)
    else:
        train, multiply, memory = jax_side(config, side == "jax_rematerialized")
    first_loss = train()
    multiply()

    def work(_: str) -> tuple[float, float, float, float]:
        seconds = timed(train)[0]
        peak_bytes = memory()
        operations = []
        seconds_of_products = timed(lambda: operations.append(multiply()))[0]
        return seconds, operations[0] / seconds_of_products, first_loss, peak_bytes

    serve(work)


def describe_gpu() -> str:
    """Returns the GPU's name after a comma; empty if there is none."""
    if not shutil.which("nvidia-smi"):
        return ""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return f", {subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]}"


def main(argv: list[str]) -> None:
    """Prints the table."""
    if FLAGS.side:
        run_side(FLAGS.side)
        return
    passed = [FLAGS[name].serialize() for name in (*_PASSED, "peak_size") if FLAGS[name].value is not None]
    environment = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with contextlib.ExitStack() as stack:

        def start(side: str) -> Side:
            started = Side(os.path.abspath(argv[0]), f"--side={side}", *passed, environment=environment)
            stack.callback(started.stop)
            return started

        with concurrent.futures.ThreadPoolExecutor() as pool:  # Compiling takes a minute, and each side one core.
            sides = list(pool.map(start, SIDES.values()))
        rows = take_turns(sides, [""] * (FLAGS.rounds + 1), warm_up=1)
    tokens = FLAGS.steps * FLAGS.batch_size * FLAGS.sequence_length
    peak = max(turn[1] for row in rows for turn in row)
    operations = flops_per_token(PRESETS[FLAGS.preset].config)
    print(describe_machine() + describe_gpu())
    print(f"{FLAGS.preset}, {FLAGS.batch_size} x {FLAGS.sequence_length} tokens, {FLAGS.dtype}, ", end="")
    print(f"attention dropout {FLAGS.attention_dropout:g}, ", end="")
    print(f"torch {'compiled' if FLAGS.torch_compile else 'eager'}; products: {peak / 1e12:.3g} TFLOP/s")
    print("| side | tokens/s | time of torch | share of the peak | first loss | memory |\n|" + " --- |" * 6)
    for name, row in zip(SIDES, rows, strict=True):
        speed = statistics.median(tokens / turn[0] for turn in row)
        ratio = statistics.median(turn[0] / other[0] for turn, other in zip(row, rows[0], strict=True))
        memory = f"{max(turn[3] for turn in row) / 2**20:,.0f} MiB" if row[0][3] else "not measured"
        share = speed * operations / peak
        print(f"| {name} | {speed:,.0f} | {ratio:.2f} | {share:.0%} | {row[0][2]:.2f} | {memory} |")


if __name__ == "__main__":
    task_flags.run(main)
