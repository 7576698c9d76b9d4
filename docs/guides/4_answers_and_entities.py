# %% [markdown]
# # Question answering and entities, to TensorFlow Serving
#
# This guide trains two models: one answers a question from a context, with the position of the answer, and one finds
# names in a sentence. Both become SavedModels that take strings of any length. It takes two minutes on two cores, and
# needs no download.
#
# The encoder is tiny and starts from random weights, and the texts follow a few patterns, so that everything runs at
# once. The commands for SQuAD and CoNLL are the same.

# %%
import json
import pathlib
import random
import subprocess
import urllib.request

import keras_bert


def sh(command):
    """Runs a command line and shows what it prints."""
    done = subprocess.run(command, shell=True, text=True, capture_output=True)
    print(done.stdout.strip() or done.stderr.strip()[-2000:])
    done.check_returncode()


rng = random.Random(0)
NAMES = ["Ada", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo"]
PLACES = ["Paris", "Lima", "Oslo", "Cairo", "Kyoto", "Quito", "Riga", "Accra"]
THINGS = ["lamp", "clock", "chair", "radio", "kettle"]

# %% [markdown]
# ## Questions
#
# SQuAD's JSON has contexts with questions, and for each question the answer and the character where it starts.


# %%
def question(number):
    name, place, thing = rng.choice(NAMES), rng.choice(PLACES), rng.choice(THINGS)
    context = rng.choice([f"{name} bought a {thing} in {place} .", f"In {place} , {name} bought a {thing} ."])
    questions = {"Who bought it ?": name, "Where was it bought ?": place, "What was bought ?": thing}
    asked, answer = rng.choice(list(questions.items()))
    answers = [{"text": answer, "answer_start": context.index(answer)}]
    return {"context": context, "qas": [{"id": str(number), "question": asked, "answers": answers}]}


for split, count in (("train", 1000), ("dev", 200)):
    paragraphs = [question(number) for number in range(count)]
    content = {"version": "1.1", "data": [{"title": split, "paragraphs": paragraphs}]}
    pathlib.Path(f"{split}.json").write_text(json.dumps(content))
print(paragraphs[0])

# %% [markdown]
# ## Entities
#
# CoNLL's columns have a token and its tag on each line, and an empty line between sentences.


# %%
def sentence():
    name, place = rng.choice(NAMES), rng.choice(PLACES)
    pattern = rng.choice(["{n} went to {p} .", "In {p} we met {n} .", "{p} is cold , says {n} ."])
    tags = {name: "B-PER", place: "B-LOC"}
    return "\n".join(f"{word} {tags.get(word, 'O')}" for word in pattern.format(n=name, p=place).split())


for split, count in (("train", 800), ("dev", 100)):
    pathlib.Path(f"{split}.conll").write_text("\n\n".join(sentence() for _ in range(count)) + "\n")
print(sentence())

# %% [markdown]
# ## A preset to start from
#
# With a network or a filled cache, use `--preset=base` instead, and a cased preset for names.

# %%
grammar = "bought a in In , . Who it ? Where was What went to we met is cold says".split()
words = sorted({*NAMES, *PLACES, *THINGS, *grammar})
tokenizer = keras_bert.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], lowercase=False)
sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": 64, "intermediate_dim": 128, "max_sequence_length": 64}
# A narrow encoder starts from larger weights than BERT's 0.02: one over the root of its width.
backbone = keras_bert.BertBackbone(tokenizer.vocabulary_size(), **sizes, initializer_range=0.125)
backbone.save_to_preset("preset")
tokenizer.save_to_preset("preset")

# %% [markdown]
# ## Train both
#
# `f1` and `exact_match` are those of SQuAD's official script, in percent; the F1 of entities equals seqeval's.

# %%
sh("""bert-squad --train_file=train.json --predict_file=dev.json --preset=preset --learning_rate=2e-3 \\
    --train_batch_size=16 --num_train_epochs=8 --max_seq_length=32 --max_query_length=10 --doc_stride=8 \\
    --do_train --do_predict --do_eval --output_dir=answers""")
sh("""bert-ner --train_file=train.conll --dev_file=dev.conll --preset=preset --learning_rate=2e-3 \\
    --num_train_epochs=2 --max_seq_length=16 --do_train --do_eval --output_dir=names""")

# %% [markdown]
# ## Export both
#
# The graph cuts long texts into windows, finds the best answer, and returns positions in characters of the request's
# text.

# %%
sh("bert-export --model_dir=answers/model --export_dir=served/answers")
sh("bert-export --model_dir=names/model --export_dir=served/names")

# %% [markdown]
# ## Serve and ask
#
# One server serves both, from a configuration file of TensorFlow Serving. Here `bert-serve` reads the file;
# `tensorflow_model_server --model_config_file` reads the same file.

# %%
configs = "".join(
    f'config {{ name: "{name}" base_path: "{pathlib.Path("served", name).absolute()}" model_platform: "tensorflow" }}\n'
    for name in ("answers", "names")
)
pathlib.Path("models.config").write_text(f"model_config_list {{\n{configs}}}\n")
server = subprocess.Popen(
    ["bert-serve", "--model_config_file=models.config", "--rest_api_port=0", "--port=-1"],
    stdout=subprocess.PIPE,
    text=True,
)
urls = [server.stdout.readline().split()[-1] for _ in range(2)]


def ask(url, **row):
    body = json.dumps({"instances": [row]}).encode()
    return json.load(urllib.request.urlopen(f"{url}:predict", body))["predictions"][0]


prediction = ask(urls[0], question="Where was it bought ?", context="In Lima , Greta bought a clock .")
print({name: prediction[name] for name in ("answer", "start", "end", "score")})
print(ask(urls[1], text="In Kyoto we met Clara ."))
server.terminate()
_ = server.wait()

# %% [markdown]
# ## What to change
#
# - **Real data.** `--train_file=train-v2.0.json --version_2_with_negative` learns to say that there is no answer, and
#   `--preset=base --learning_rate=3e-5 --max_seq_length=384` are the usual settings. For entities give a cased preset.
# - **A fine-tuned checkpoint.** `bert-squad --preset=hf://... --do_predict --do_eval` applies and evaluates it without
#   training.
# - **TensorFlow Serving.** `served/answers/README.md` has the command for docker. [Deployment](../deployment.md) has
#   compose and Kubernetes.
