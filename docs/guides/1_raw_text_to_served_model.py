# %% [markdown]
# # From raw text to a served model
#
# This guide runs every stage from raw text to a served BERT: vocabulary, training data, pre-training, fine-tuning,
# export, and a question over REST. It takes two minutes on two cores, and needs no download.
#
# The stages are those of `make quickstart`, at a hundredth of the size, so the model learns little. Read this guide to
# see what each stage passes to the next. Run the [quickstart](../quickstart.md) for a useful model.

# %% [markdown]
# ## 1. Text
#
# Put one sentence on each line, and a blank line between documents, since the next-sentence task needs to know where a
# document ends. The text here is the documentation of Python's standard library.

# %%
import ast
import json
import pathlib
import random
import re
import subprocess
import sysconfig
import time
import urllib.request


def sh(command):
    """Runs a command line and shows what it prints."""
    done = subprocess.run(command, shell=True, text=True, capture_output=True)
    print(done.stdout.strip() or done.stderr.strip()[-2000:])
    done.check_returncode()


def sentences_of(path):
    """The sentences of all docstrings of a module."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = ast.walk(ast.parse(path.read_bytes()))
    texts = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
    joined = " ".join(" ".join(text.split()) for text in texts if text)
    return [
        sentence.strip() for sentence in re.split(r"(?<=[a-z]\.) (?=[A-Z])", joined) if 5 < len(sentence.split()) < 40
    ]


folder = pathlib.Path(sysconfig.get_path("stdlib"))
files = [path for path in sorted(folder.glob("*/*.py")) if not {"test", "tests", "site-packages"} & set(path.parts)]
documents = [sentences for path in files if len(sentences := sentences_of(path)) > 4]
random.Random(0).shuffle(documents)
for name, part in (("held_out", documents[:20]), ("train", documents[20:])):
    pathlib.Path(f"{name}.txt").write_text("\n\n".join("\n".join(document) for document in part), encoding="utf-8")
print(f"{len(documents)} documents, {sum(map(len, documents))} sentences, such as: {documents[0][0]}")

# %% [markdown]
# ## 2. Vocabulary
#
# A WordPiece vocabulary has frequent words whole, and rare words in pieces. `unknown_share` should be close to 0.

# %%
sh("bert-train-vocab --input_file=train.txt --vocab_file=vocab.txt --vocab_size=2000")

# %% [markdown]
# ## 3. Training data
#
# The training data are pairs of segments, with 15% of the tokens masked. In half of the pairs, the second segment is a
# random one.

# %%
for name in ("train", "held_out"):
    sh(f"""bert-create-pretraining-data --input_file={name}.txt --output_file={name}.tfrecord --vocab_file=vocab.txt \\
        --max_seq_length=64 --max_predictions_per_seq=10 --dupe_factor=2""")

# %% [markdown]
# ## 4. Pre-training
#
# Compare `masked_lm_accuracy` with `unigram_accuracy`, the score of always predicting the most frequent token.

# %%
sh("""bert-pretrain --input_file=train.tfrecord --eval_input_file=held_out.tfrecord --vocab_file=vocab.txt \\
    --preset=tiny --num_layers=2 --num_heads=2 --hidden_dim=64 --max_seq_length=64 --max_predictions_per_seq=10 \\
    --train_batch_size=32 --num_train_steps=200 --num_warmup_steps=20 --optimizer=muon --learning_rate=0.004 \\
    --adam_lr_ratio=0.5 --initial_attention=neighbors --do_train --do_eval \\
    --output_dir=pretrained""")

# %% [markdown]
# `pretrained/preset` holds encoder, heads and tokenizer.
#
# ## 5. Fine-tuning
#
# The task: does a sentence document a package about networks, or another one? The labels are the names of folders.

# %%
network = {"http", "email", "urllib", "asyncio", "xmlrpc"}
rows = [(sentence, path.parent.name in network) for path in files for sentence in sentences_of(path)]
yes, no = ([text for text, label in rows if label == wanted] for wanted in (True, False))
rows = [(text, "network") for text in yes] + [(text, "other") for text in random.Random(1).sample(no, len(yes))]
random.Random(2).shuffle(rows)
for name, part in (("train", rows[200:]), ("dev", rows[:200])):
    lines = ["text\tlabel", *(f"{text}\t{label}" for text, label in part)]
    pathlib.Path(f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
sh("""bert-classify --train_file=train.tsv --dev_file=dev.tsv --text_column=text --label_column=label \\
    --preset=pretrained/preset --learning_rate=1e-3 --num_train_epochs=3 --max_seq_length=64 --do_train --do_eval \\
    --output_dir=classifier""")

# %% [markdown]
# ## 6. Export
#
# `bert-export` writes a SavedModel that contains the tokenizer, and verifies it in a fresh process before it gets its
# version number.

# %%
sh("bert-export --model_dir=classifier/model --export_dir=served/topic")

# %% [markdown]
# ## 7. Ask it over REST
#
# `bert-serve` has TensorFlow Serving's API. TensorFlow Serving itself takes the same directory.

# %%
server = subprocess.Popen(
    ["bert-serve", "--model_name=topic", "--model_base_path=served/topic", "--rest_api_port=0", "--port=-1"],
    stdout=subprocess.PIPE,
    text=True,
)
url = server.stdout.readline().split()[-1]
body = json.dumps({"instances": ["Send a request to the server and read the answer."]}).encode()
started = time.perf_counter()
answer = json.load(urllib.request.urlopen(f"{url}:predict", body))
print(answer, f"{1000 * (time.perf_counter() - started):.0f} ms", sep="\n")
server.terminate()
_ = server.wait()

# %% [markdown]
# ## What to change
#
# - **More text and steps.** [Pre-training](../pretraining.md) says which flags suit which size; from random weights a
#   small model needs some thousand steps before it uses a token's neighbours.
# - **Real weights.** Leave out stages 2 to 4, and fine-tune from `--preset=base`.
# - **Your own table.** [Fine-tune on your own table](2_own_table.py) continues stage 5.
# - **A real server.** `served/topic/README.md` has the command for docker, and clients for this model.
