# %% [markdown]
# # Pre-train on your domain
#
# This guide continues the pre-training of a BERT on your own text, on this machine and then on two workers, and shows
# whether it helped. It takes two minutes on two cores, and needs no download.
#
# The model is tiny and the text small, so that everything runs at once. With `base` and some hundred megabytes of text
# the commands are the same, and take days on a GPU.

# %%
import ast
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sysconfig


def sh(command):
    """Runs a command line and shows what it prints."""
    done = subprocess.run(command, shell=True, text=True, capture_output=True)
    print(done.stdout.strip() or done.stderr.strip()[-2000:])
    done.check_returncode()


# %% [markdown]
# ## General text, and the domain's
#
# The general text is the documentation of Python's standard library, and the domain's text is that of numpy. Both have
# one sentence per line, and an empty line between documents.


# %%
def documents_of(folder):
    for path in sorted(pathlib.Path(folder).glob("*/*.py")):
        if {"test", "tests", "site-packages"} & set(path.parts[len(pathlib.Path(folder).parts) :]):
            continue
        nodes = ast.walk(ast.parse(path.read_bytes()))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        texts = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
        joined = " ".join(" ".join(text.split()) for text in texts if text)
        sentences = [
            sentence.strip()
            for sentence in re.split(r"(?<=[a-z]\.) (?=[A-Z])", joined)
            if 5 < len(sentence.split()) < 40
        ]
        if len(sentences) > 4:
            yield "\n".join(sentences)


def write(name, documents):
    random.Random(0).shuffle(documents)
    share = len(documents) // 6
    pathlib.Path(f"{name}.txt").write_text("\n\n".join(documents[share:]), encoding="utf-8")
    pathlib.Path(f"{name}_held_out.txt").write_text("\n\n".join(documents[:share]), encoding="utf-8")
    print(f"{name}: {len(documents)} documents")


import numpy

write("general", list(documents_of(sysconfig.get_path("stdlib"))))
write("domain", list(documents_of(os.path.dirname(numpy.__file__))))

# %% [markdown]
# ## The model to continue from
#
# Usually this is `base`, or any checkpoint with its heads. Here the guide first pre-trains a model on the general text.
# The vocabulary comes from both texts. If a checkpoint lacks the domain's words, `bert-adapt` adds them: see
# [own words](../pretraining.md#own-words).

# %%
LENGTHS = "--max_seq_length=64 --max_predictions_per_seq=10"
SIZES = "--preset=tiny --num_layers=2 --num_heads=2 --hidden_dim=64"
RATES = "--train_batch_size=32 --optimizer=muon --adam_lr_ratio=0.5 --num_warmup_steps=10"

sh("bert-train-vocab --input_file=general.txt,domain.txt --vocab_file=vocab.txt --vocab_size=2000 | head -3")
for name in ("general", "domain", "domain_held_out"):
    sh(f"""bert-create-pretraining-data --input_file={name}.txt --output_file={name}.tfrecord --vocab_file=vocab.txt \\
        --dupe_factor=2 {LENGTHS} | head -2""")
sh(f"""bert-pretrain --input_file=general.tfrecord --eval_input_file=domain_held_out.tfrecord --vocab_file=vocab.txt \\
    {SIZES} {LENGTHS} {RATES} --num_train_steps=80 --learning_rate=0.004 --initial_attention=neighbors \\
    --do_train --do_eval --output_dir=general""")

# %% [markdown]
# ## Continue on the domain
#
# `--init_checkpoint` loads sizes, encoder and heads. The optimizer starts anew, so warm up again, at a lower rate.

# %%
CONTINUE = f"""bert-pretrain --input_file=domain.tfrecord --eval_input_file=domain_held_out.tfrecord \\
    --vocab_file=vocab.txt --init_checkpoint=general/preset {LENGTHS} {RATES} --num_train_steps=40 \\
    --learning_rate=0.002 --do_train --do_eval"""
sh(f"{CONTINUE} --output_dir=domain")


def accuracy(directory):
    return json.loads(pathlib.Path(directory, "metrics.json").read_text())["masked_lm_accuracy"]


print(f"held-out accuracy on the domain: {accuracy('general'):.1%} before, {accuracy('domain'):.1%} after")

# %% [markdown]
# ## The same on two workers
#
# Run the same command on every machine, each with its own index in `TF_CONFIG`. Here both workers are processes on this
# machine. Each computes half of every batch, so that the weights equal those of one device, up to rounding.

# %%
ports = []
for _ in range(2):
    with socket.socket() as tcp_socket:
        tcp_socket.bind(("127.0.0.1", 0))
        ports.append(tcp_socket.getsockname()[1])
workers = [f"127.0.0.1:{port}" for port in ports]
running = []
for index in range(2):
    config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
    command = f"{CONTINUE} --distribution_strategy=multi_worker_mirrored --output_dir=two_workers"
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    running.append(subprocess.Popen(command, shell=True, env={**os.environ, "TF_CONFIG": config}, text=True, **streams))
for process in running:
    _, errors = process.communicate()
    assert process.returncode == 0, errors[-2000:]
print(f"held-out accuracy: {accuracy('domain'):.4f} on one device, {accuracy('two_workers'):.4f} on two workers")

# %% [markdown]
# ## What to change
#
# - **The start.** `--init_checkpoint=hf://google-bert/bert-base-uncased` with its own vocabulary, and
#   `--optimizer=adamw --learning_rate=5e-5 --train_batch_size=256`. `--do_eval` alone gives its scores before training.
#   Heads that a checkpoint lacks, as sentence encoders do, start from random weights; a warning names them.
# - **Your text.** Put one sentence on each line, or use `--sentence_splitter=sentencex`, which splits paragraphs into
#   sentences. With `--input_format=document_per_file`, each file is a document.
# - **More text.** `--num_shards` writes several files, and `--runner=dask` uses a
#   [cluster](../pretraining.md#on-a-cluster). `--packing` avoids padding, `--dynamic_masking` draws masks each epoch.
# - **A killed run.** The same command continues from the last checkpoint, even with another number of workers.
# - **Then fine-tune.** `bert-classify --preset=domain/preset`, as in [your own table](2_own_table.py), and compare with
#   a start from the general preset.
