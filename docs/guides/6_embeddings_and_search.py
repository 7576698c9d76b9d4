# %% [markdown]
# # Embeddings and search
#
# This guide trains an encoder of texts on pairs that match, and searches your passages with it: in Python, and with one
# SavedModel that takes a question and returns passages. It takes two minutes on two cores, and needs no download.
#
# The pairs are functions of Python's standard library: a name, such as `read text`, and what its documentation says.
# The encoder is tiny and starts from random weights. From a real preset the same commands give far better vectors.

# %% [markdown]
# ## Pairs
#
# A row has a text and its match. No labels are needed: within a batch each text has to find its match among all others.

# %%
import ast
import csv
import pathlib
import random
import re
import subprocess
import sysconfig

import numpy as np

import keras_bert


def documented_functions(path):
    """Names and first sentences of the functions of a module."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if text and len(node.name) > 3 and not node.name.startswith(("_", "test")):
            name = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", node.name).strip().lower()
            yield name, " ".join(text.split("\n\n")[0].split())[:200]


folder = pathlib.Path(sysconfig.get_path("stdlib"))
files = [path for path in sorted(folder.glob("**/*.py")) if not {"test", "tests", "site-packages"} & set(path.parts)]
pairs = sorted({pair for path in files for pair in documented_functions(path) if len(pair[1].split()) > 3})
random.Random(0).shuffle(pairs)
dev, train = pairs[:300], pairs[300:4000]
for name, rows in (("train", train), ("dev", dev)):
    with open(f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("name", "documentation"), *rows])
pathlib.Path("text.txt").write_text("\n".join(text for pair in train for text in pair), encoding="utf-8")
print(f"{len(train)} pairs to train on, {len(dev)} to test; such as {dev[0]}")

# %% [markdown]
# ## A vocabulary and an encoder to start from
#
# With a network or a filled cache, use `--preset=hf://sentence-transformers/all-MiniLM-L6-v2` or `--preset=base` below,
# and skip this step.


# %%
def sh(command):
    """Runs a command line and shows what it prints."""
    done = subprocess.run(command, shell=True, text=True, capture_output=True)
    print(done.stdout.strip() or done.stderr.strip()[-2000:])
    done.check_returncode()


sh("bert-train-vocab --input_file=text.txt --vocab_file=vocab.txt --vocab_size=3000")
tokenizer = keras_bert.BertTokenizer("vocab.txt", lowercase=True)
backbone = keras_bert.BertBackbone(
    tokenizer.vocabulary_size(), num_layers=1, num_heads=2, hidden_dim=128, intermediate_dim=256, max_sequence_length=64
)
backbone.save_to_preset("preset")
tokenizer.save_to_preset("preset")

# %% [markdown]
# ## Train
#
# `recall@1` is the share of the 300 names that find their own documentation first, among all 300. By chance, one does.

# %%
sh("""bert-embed --train_file=train.csv --dev_file=dev.csv --preset=preset --max_seq_length=48 \\
    --learning_rate=2e-3 --num_train_epochs=6 --train_batch_size=128 --do_train --do_eval --output_dir=run""")

# %% [markdown]
# ## Search in Python
#
# The trained embedder takes texts. Its vectors have length one, so a matrix product gives the cosines.

# %%
embedder = keras_bert.BertTextEmbedder.from_preset("run/model")
passages = sorted({text for _, text in dev})


def embed(texts):
    vectors = embedder.predict(texts, verbose=0)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


index = embed(passages)
for row in (embed([dev[0][0], dev[1][0]]) @ index.T).argsort(axis=-1)[:, ::-1][:, :3]:
    print([passages[number][:60] for number in row])

# %% [markdown]
# ## One SavedModel that searches
#
# The export contains the encoder, and the vectors and texts of all passages. TensorFlow Serving serves it unchanged.

# %%
pathlib.Path("passages.txt").write_text("\n".join(passages), encoding="utf-8")
sh("bert-export --model_dir=run/model --task=search --passages=passages.txt --top_k=3 --export_dir=served/library")

# %%
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its ops are in the graph)

served = tf.saved_model.load("served/library/1").signatures["serving_default"]
answer = served(text=tf.constant([dev[0][0]]))
print(dev[0][0])
for passage, score in zip(answer["passages"].numpy()[0], answer["scores"].numpy()[0], strict=True):
    print(f"  {score:.2f} {passage.decode()[:80]}")

# %% [markdown]
# ## What to change
#
# - **The start.** From `hf://sentence-transformers/all-MiniLM-L6-v2` or `base`, with `--learning_rate=2e-5` and two
#   epochs. Run `--do_eval` alone first: the preset may be good enough without training.
# - **Harder negatives.** Add a third column with a text that looks right but does not match.
# - **Scores instead of matches.** Two texts and a column `score` train with `--loss=cosent`.
# - **No pairs.** `--train_file=text.txt` trains on raw text, a sentence per line.
# - **Memory.** `--matryoshka_dims=64,128` also trains shorter vectors; `bert-export --passages_dtype=int8` takes a
#   quarter of the memory. See [sentence embeddings](../fine_tuning.md#sentence-embeddings) and
#   [search](../serving.md#search).
