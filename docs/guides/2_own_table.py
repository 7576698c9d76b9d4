# %% [markdown]
# # Fine-tune on your own table
#
# You get a classifier of your own texts, its score with an interval beside the baseline that it has to beat, a report
# with its worst mistakes, and a model card. It takes a minute on two cores, and needs no download.
#
# The encoder here is tiny and starts from random weights, so that everything runs at once. On a real table give
# `--preset=base`: the commands stay the same.

# %% [markdown]
# ## The table
#
# `bert-classify` reads TSV, CSV and JSON Lines with named columns. Here are messages to a shop, and where they belong.
# Three in a hundred labels are wrong, as in many real tables.

# %%
import csv
import json
import random
import subprocess

import keras_bert

rng = random.Random(0)
TOPICS = {
    "delivery": ["my {0} has not arrived", "when will the {0} come", "the {0} was left at the wrong door"],
    "payment": ["i paid twice for the {0}", "the price of the {0} is wrong on the bill", "refund the {0} please"],
    "quality": ["the {0} is broken", "the {0} stopped working after a week", "the {0} has the wrong colour"],
}
THINGS = ["lamp", "kettle", "chair", "clock", "radio", "table", "phone", "bag"]
OPENINGS = ["hello ,", "dear all ,", "good morning ,", ""]


def write_table(path, count):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["message", "topic"])
        for _ in range(count):
            topic = rng.choice(list(TOPICS))
            message = f"{rng.choice(OPENINGS)} {rng.choice(TOPICS[topic]).format(rng.choice(THINGS))}".strip()
            writer.writerow([message, topic if rng.random() < 0.97 else rng.choice(list(TOPICS))])


write_table("train.csv", 1500)
write_table("dev.csv", 400)
print(*open("dev.csv").read().splitlines()[:4], sep="\n")

# %% [markdown]
# ## A preset to start from
#
# A preset is a directory with an encoder and its vocabulary. With a network or a filled cache you would write
# `--preset=base` below and leave this out.


# %%
def sh(command):
    """Runs a command line and shows what it prints."""
    done = subprocess.run(command, shell=True, text=True, capture_output=True)
    print(done.stdout.strip() or done.stderr.strip()[-2000:])
    done.check_returncode()


words = sorted({word for line in open("train.csv") for word in line.replace(",", " , ").split()})
tokenizer = keras_bert.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
backbone = keras_bert.BertBackbone(
    tokenizer.vocabulary_size(), num_layers=2, num_heads=2, hidden_dim=64, intermediate_dim=128, max_sequence_length=64
)
backbone.save_to_preset("preset")
tokenizer.save_to_preset("preset")

# %% [markdown]
# ## Train and evaluate
#
# A tiny model wants a higher rate than BERT-base, for which 2e-5 to 5e-5 is right.

# %%
sh("""bert-classify --train_file=train.csv --dev_file=dev.csv --text_column=message --label_column=topic \\
    --preset=preset --learning_rate=1e-3 --num_train_epochs=4 --max_seq_length=32 --do_train --do_eval \\
    --output_dir=run""")

# %% [markdown]
# `majority_accuracy` is what always answering the most frequent class scores. The interval says how far the accuracy
# would move with another 400 messages of the same kind.
#
# ## Read the report
#
# `run/report.html` opens in any browser, and may be sent by mail: scores, learning curve, confusions, lengths, worst
# mistakes. `metrics.json` has the same for programs.

# %%
metrics = json.load(open("run/metrics.json"))
for topic, figures in metrics["per_class"].items():
    print(f"{topic:10} {figures['rows']} rows, precision {figures['precision']:.2f}, recall {figures['recall']:.2f}")

# %% [markdown]
# Look at the worst mistakes first. Those on which the model is sure of another answer are often wrong labels. The model
# card, `run/README.md`, lists some, too:

# %%
card = open("run/README.md").read()
print(card[card.index("Its worst mistakes") :])

# %% [markdown]
# ## Apply it
#
# `--do_predict` without `--do_train` uses the model of `--output_dir`. A file to predict needs no labels. In a CSV, a
# text with a comma stands in quotes.

# %%
with open("new.csv", "w") as file:
    file.write('message\n"where is my lamp , it has not arrived"\nthe radio stopped working\n')
sh("bert-classify --test_file=new.csv --text_column=message --do_predict --output_dir=run")
print(open("run/predictions.tsv").read())

# %% [markdown]
# ## What to change
#
# - **The start.** `--preset=base`, a handle such as `hf://google-bert/bert-base-multilingual-cased`, or a directory,
#   with `--learning_rate=2e-5`.
# - **The search.** `--learning_rate=5e-5,3e-5,2e-5 --num_restarts=3` trains each and keeps the best on dev.
# - **Pairs and numbers.** `--text_pair_column` adds a second text; `--regression` learns numbers.
# - **A single file.** Without `--dev_file` the command holds out a fifth of the training rows, and evaluates on those.
# - **Bad rows.** `--bad_rows=skip` leaves them out and lists them.
# - **Other tasks.** [Fine-tuning](../fine_tuning.md) has entities, questions, choices, embeddings. The
#   [FAQ](../faq.md) helps if the accuracy stays at that of the most frequent class.
