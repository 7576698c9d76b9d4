# %% [markdown]
# # Your own Keras model on BertBackbone
#
# This guide builds a Keras model of your own design: a BERT encoder for a text, joined with a column of numbers. The
# model is trained by `fit`, saved to a `.keras` file and loaded again. This takes half a minute on two cores, and no
# download.
#
# The encoder here is tiny and starts from random weights, so that everything runs at once. With
# `BertBackbone.from_preset("base")` the same code fine-tunes BERT-base.

# %% [markdown]
# ## A table of texts and numbers
#
# Each row is a parcel: what the customer wrote, and how many days the parcel has been on its way. It is urgent if the
# words are angry and the days are more than five. Neither column alone is enough.

# %%
import random

import keras
import numpy as np

import keras_bert

rng = random.Random(0)
calm = ["no hurry at all", "thank you for the update", "take your time", "all is fine"]
angry = ["this is not acceptable", "where is my parcel", "i want my money back", "answer me at last"]
things = ["a lamp", "two books", "the green chair", "a kettle", "my shoes"]


def make_rows(count):
    rows = [(rng.random() < 0.5, rng.uniform(0, 10), rng.choice(things)) for _ in range(count)]
    texts = [f"i ordered {thing} , {rng.choice(angry if is_angry else calm)}" for is_angry, _, thing in rows]
    days = np.array([[day] for _, day, _ in rows], "float32")
    urgent = np.array([is_angry and day > 5 for is_angry, day, _ in rows], "float32")
    return texts, days, urgent


train, dev = make_rows(2000), make_rows(500)
print(train[0][0], "|", train[1][0], "|", train[2][0])
print(f"urgent: {train[2].mean():.0%}")

# %% [markdown]
# ## A tokenizer and an encoder
#
# A tokenizer takes a list of WordPieces, or a `vocab.txt`. `bert-train-vocab` makes one from text; here every word is a
# piece. The preprocessor turns texts into the encoder's three inputs.

# %%
words = sorted({word for text in train[0] for word in text.split()})
tokenizer = keras_bert.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
preprocessor = keras_bert.BertPreprocessor(tokenizer, sequence_length=16)
backbone = keras_bert.BertBackbone(
    tokenizer.vocabulary_size(), num_layers=2, num_heads=2, hidden_dim=64, intermediate_dim=128, max_sequence_length=16
)
encoded = preprocessor(train[0][:1])
print({name: value.shape for name, value in encoded.items()})

# %% [markdown]
# ## The model
#
# The backbone is an ordinary functional Keras model. It takes a dict of `token_ids`, `segment_ids` and `padding_mask`,
# and returns `sequence_output`, a vector for each token, and `pooled_output`, one for the text. Add your own layers.

# %%
days = keras.Input((1,), name="days")
pooled = backbone(backbone.input)["pooled_output"]
number = keras.layers.Dense(64, activation="relu")(keras.layers.Normalization(mean=5.0, variance=9.0)(days))
joined = keras.layers.Dense(64, activation="relu")(keras.layers.Concatenate()([pooled, number]))
model = keras.Model({**backbone.input, "days": days}, keras.layers.Dense(1, activation="sigmoid")(joined))
model.compile(keras.optimizers.Adam(1e-3), loss="binary_crossentropy", metrics=["accuracy"])
print(f"{model.count_params():,} parameters")

# %% [markdown]
# ## Train
#
# `fit` takes arrays, so preprocess once.


# %%
def inputs_of(rows):
    return {**{name: np.asarray(value) for name, value in preprocessor(rows[0]).items()}, "days": rows[1]}


history = model.fit(inputs_of(train), train[2], batch_size=32, epochs=4, verbose=0)
print("loss by epoch:", [round(loss, 3) for loss in history.history["loss"]])
accuracy = model.evaluate(inputs_of(dev), dev[2], verbose=0)[1]
print(f"accuracy {accuracy:.1%}, always answering the most frequent class: {max(1 - dev[2].mean(), dev[2].mean()):.1%}")

# %% [markdown]
# ## Save, load, ask
#
# The file holds your layers and the encoder. A program that imports `keras` and then `keras_bert` can load it.

# %%
model.save("urgent.keras")
loaded = keras.saving.load_model("urgent.keras")
questions = (["i ordered a lamp , where is my parcel"] * 2, np.array([[1.0], [9.0]], "float32"))
print(loaded.predict(inputs_of((*questions, None)), verbose=0).round(2).tolist())

# %% [markdown]
# ## What to change
#
# - **Real weights.** `BertBackbone.from_preset("base")` and `BertPreprocessor.from_preset("base", sequence_length=128)`
#   replace the two constructors. Lower the learning rate to 2e-5. Any [format](../formats.md) can be loaded.
# - **A standard head.** For a class, a tag or an answer for each text, `BertTextClassifier` and the other
#   [task models](../models.md) include head, loss and preprocessing.
# - **A vector for each token.** Take `sequence_output`. Keras then warns that `pooled_dense` has no gradients, since
#   nothing uses it.
# - **Many texts.** `dataset.batch(32).map(lambda texts, labels: (preprocessor(texts), labels))` preprocesses them when
#   they are read.
# - **Less memory.** `backbone.trainable = False` trains only your layers; `backbone.enable_lora(8)` adds small
#   factors.
