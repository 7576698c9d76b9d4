"""`bert-embed`: losses and figures beside sentence-transformers; steps in parts, half types, XLA and on replicas."""

import sys
import types

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import torch
import toy_training
from bfloat16 import needs_bfloat16

from keras_bert import BertBackbone, BertTextEmbedder
from keras_bert.errors import InputError
from tasks.embed import data, objectives, retrieval
from tasks.embed.model import embed_groups
from tasks.embed.task import Embed
from tasks.engine.strategy import set_mixed_precision, wrap_loss_scale
from tasks.engine.train_step import TrainStep
from tasks.text.bad_rows import BadRows

RNG = np.random.default_rng(3)
EMBEDDINGS = RNG.normal(size=(6, 3, 8)).astype("float32")  # B, K, D
REPLICATED = ["multiple_negatives_ranking", "cosent"]
SCORES = np.array([0.1, 0.9, 0.5, 0.5, 0.0, 1.0], "float32")


# === Losses ===


def theirs(name, vectors, dims):
    """Loss and gradient of sentence-transformers, whose model is replaced by given embeddings."""
    from sentence_transformers.sentence_transformer import losses

    class Given(torch.nn.Module):
        def get_embedding_dimension(self):
            return vectors.shape[-1]

        def forward(self, features):
            return features

    of_name = {
        "multiple_negatives_ranking": losses.MultipleNegativesRankingLoss,
        "cosine_similarity": losses.CosineSimilarityLoss,
        "cosent": losses.CoSENTLoss,
        "triplet": losses.TripletLoss,
    }
    loss = of_name[name](Given())
    if dims:
        loss = losses.MatryoshkaLoss(loss.model, loss, list(dims))
    texts = [torch.tensor(vectors[:, index], requires_grad=True) for index in range(vectors.shape[1])]
    value = loss([{"sentence_embedding": text} for text in texts], torch.tensor(SCORES[: len(vectors)]))
    value.backward()
    return float(value.detach()), np.stack([text.grad.numpy() for text in texts], axis=1)


@pytest.mark.oracle
@pytest.mark.parametrize("dims", [(), (8, 4)], ids=["whole", "matryoshka"])
@pytest.mark.parametrize(
    "name, num_texts",
    [
        ("multiple_negatives_ranking", 2),
        ("multiple_negatives_ranking", 3),
        ("cosine_similarity", 2),
        ("cosent", 2),
        ("triplet", 3),
    ],
)
def test_losses_and_gradients_are_those_of_sentence_transformers(name, num_texts, dims):
    vectors = tf.Variable(EMBEDDINGS[:, :num_texts])
    labels = {"labels": tf.constant(SCORES)}
    objective = objectives.OBJECTIVES[name](dims)
    with tf.GradientTape() as tape:
        loss = objective.sums(vectors, labels)["loss"] / objective.weights({}, labels)["loss"]
    expected, gradient = theirs(name, EMBEDDINGS[:, :num_texts], dims)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(tape.gradient(loss, vectors), gradient, rtol=1e-5, atol=1e-5)


def test_the_whole_embedding_is_trained_beside_its_beginnings():
    labels = {"labels": tf.constant(SCORES)}
    losses = [float(objectives.CoSent(dims).sums(EMBEDDINGS, labels)["loss"]) for dims in ([2], [2, 8], [8, 2, 2])]
    assert losses == [losses[0]] * 3 and losses[0] > float(objectives.CoSent().sums(EMBEDDINGS, labels)["loss"])


# === Steps ===


def features_of(count, length=5, num_texts=2):
    ids = np.random.default_rng(1).integers(5, 25, (count, num_texts, length)).astype("int32")
    return {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": np.ones_like(ids)}


def small_model(dropout=0.0):
    keras.utils.set_random_seed(7)
    backbone = BertBackbone(25, 2, 2, 8, 16, dropout=dropout, attention_dropout=dropout, initializer_range=0.5)
    return embed_groups(BertTextEmbedder(backbone, embedding_dim=4))


def stepped(strategy, num_parts, count, name="multiple_negatives_ranking", jit_compile=False):
    """Losses of two steps of the same batch, and the weights after them."""
    with strategy.scope():
        model = small_model()
        optimizer = keras.optimizers.SGD(0.5)  # Adam makes steps of rounding errors, where a gradient is 0.
    counter = tf.Variable(0, dtype=tf.int64)
    objective = objectives.OBJECTIVES[name]()
    options = {"gradient_accumulation_steps": num_parts, "jit_compile": jit_compile}
    step = TrainStep(model, optimizer, objective, strategy=strategy, step=counter, **options)
    labels = {"labels": np.linspace(0, 1, count).astype("float32")}
    rows = tf.data.Dataset.from_tensor_slices((features_of(count), labels))
    batches = rows.batch(count, drop_remainder=jit_compile).repeat(2)
    run = tf.function(lambda *batch: strategy.run(step, batch), autograph=False)
    losses = []
    for batch in strategy.experimental_distribute_dataset(batches):
        losses.append(float(strategy.experimental_local_results(run(*batch)["loss"])[0]))
        counter.assign_add(1)
    return losses, [variable.numpy() for variable in model.trainable_variables]


def test_a_batch_in_parts_has_the_plain_gradient():
    """Parts know nothing of each other's texts, so the plain sum over parts would be another loss."""
    strategy = tf.distribute.get_strategy()
    losses, weights = stepped(strategy, 1, 8)
    for jit_compile in (False, True):
        again, in_parts = stepped(strategy, 4, 8, jit_compile=jit_compile)
        np.testing.assert_allclose(again, losses, rtol=1e-5)
        for plain, cached in zip(weights, in_parts, strict=True):
            np.testing.assert_allclose(cached, plain, atol=1e-4)


@pytest.fixture(scope="module", name="half", params=[pytest.param("bfloat16", marks=needs_bfloat16), "float16"])
def _half(request):
    """A type, and a model that computes in it."""
    set_mixed_precision(request.param)
    model = small_model()
    set_mixed_precision("float32")
    return request.param, model


@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("name", objectives.OBJECTIVES)
def test_half_types_train_by_every_loss(half, name, num_parts):
    dtype, model = half
    objective, count = objectives.OBJECTIVES[name](), 8
    features, labels = features_of(count, num_texts=3), {"labels": tf.linspace(0.0, 1.0, count)}
    embeddings = model(features)
    assert embeddings.dtype == tf.float32
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=-1), 1.0, atol=1e-5)
    expected = objective.sums(embeddings, labels)["loss"] / objective.weights(features, labels)["loss"]
    optimizer, counter = wrap_loss_scale(keras.optimizers.SGD(0.1), dtype), tf.Variable(0, dtype=tf.int64)
    optimizer.initial_scale = 4.0  # A training finds its own within some steps.
    options = {"strategy": tf.distribute.get_strategy(), "gradient_accumulation_steps": num_parts}
    step = TrainStep(model, optimizer, objective, step=counter, **options)
    before = [variable.numpy() for variable in model.trainable_variables]
    figures = step(tf.nest.map_structure(tf.constant, features), labels)
    assert figures["loss"].dtype == tf.float32 and float(figures["loss"]) == pytest.approx(float(expected), rel=0.02)
    assert float(figures["gradient_norm"]) > 0 and float(figures.get("skipped", 0.0)) == 0
    changed = [(old != new.numpy()).any() for old, new in zip(before, model.trainable_variables, strict=True)]
    assert any(changed)


def test_both_passes_over_a_part_drop_the_same_units():
    """With other masks in the second pass the gradient would be that of another network."""
    strategy = tf.distribute.get_strategy()
    with strategy.scope():
        model = small_model(dropout=0.5)
        optimizer = keras.optimizers.SGD(1.0)
    step = TrainStep(
        model,
        optimizer,
        objectives.MultipleNegativesRanking(),
        strategy=strategy,
        step=tf.Variable(0, dtype=tf.int64),
        gradient_accumulation_steps=2,
        clip_norm=None,
    )
    features, labels = features_of(8), {"labels": tf.zeros(8)}
    before = [variable.numpy() for variable in model.trainable_variables]
    loss = float(tf.function(step, autograph=False)(features, labels)["loss"])
    after = [variable.numpy() for variable in model.trainable_variables]
    for variable, value in zip(model.trainable_variables, before, strict=True):
        variable.assign(value)

    @tf.function(autograph=False)
    def differentiate():
        step._seed_dropout(tf.distribute.get_replica_context())
        halves = [{name: value[half] for name, value in features.items()} for half in (slice(0, 4), slice(4, 8))]
        with tf.GradientTape() as tape, step._fused_layers(model):
            outputs = tf.concat([model(half, training=True) for half in halves], 0)
            expected = step.objective.sums(outputs, labels)["loss"] / 8
        return expected, tape.gradient(expected, [variable.value for variable in model.trainable_variables])

    expected, gradients = differentiate()
    assert loss == pytest.approx(float(expected), rel=1e-5)
    for old, new, gradient in zip(before, after, gradients, strict=True):
        if gradient is not None:
            np.testing.assert_allclose(old - new, tf.convert_to_tensor(gradient), atol=1e-4)


@pytest.mark.parametrize("name", REPLICATED)
def test_two_replicas_have_the_loss_of_one_device(name, replicas):
    losses, weights = stepped(tf.distribute.get_strategy(), 1, 8, name)
    np.testing.assert_allclose(replicas[f"{name} losses"], losses, rtol=1e-5)
    for index, weight in enumerate(weights):
        np.testing.assert_allclose(replicas[f"{name} {index}"], weight, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [1, 2])
def test_two_replicas_compile_the_model(num_parts, compiled_replicas):
    """XLA compiles no gathering of several replicas, so that the loss stays outside."""
    losses, weights = stepped(tf.distribute.get_strategy(), 1, 8)
    np.testing.assert_allclose(compiled_replicas[f"{num_parts} losses"], losses, rtol=1e-5)
    for index, weight in enumerate(weights):
        np.testing.assert_allclose(compiled_replicas[f"{num_parts} {index}"], weight, atol=1e-4)


def on_two_devices(mode, directory):
    """What two logical devices, which a process must ask for before it uses TensorFlow, make of the same batches."""
    result = toy_training.run_as_script(__file__, mode, directory)
    assert result.returncode == 0, result.stderr
    return np.load(directory / f"{mode}.npz")


@pytest.fixture(scope="module", name="replicas")
def _replicas(tmp_path_factory):
    return on_two_devices("mirrored", tmp_path_factory.mktemp("replicas"))


@pytest.fixture(scope="module", name="compiled_replicas")
def _compiled_replicas(tmp_path_factory):
    return on_two_devices("compiled", tmp_path_factory.mktemp("replicas"))


# === Figures ===


@pytest.mark.oracle
def test_search_figures_are_those_of_sentence_transformers():
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    questions = [f"q{number % 25}" for number in range(30)]  # Five questions have two matches.
    texts = [[question, f"p{number}", f"n{number % 7}"] for number, question in enumerate(questions)]
    of_text = {text: RNG.normal(size=4) for row in texts for text in row}
    vectors = retrieval_vectors = np.array([[of_text[text] for text in row] for row in texts], "float32")
    vectors /= np.linalg.norm(retrieval_vectors, axis=-1, keepdims=True)
    matches = {}
    for question, match, _ in texts:
        matches.setdefault(question, set()).add(match)
    passages = {text: text for row in texts for text in row[1:]}
    evaluator = InformationRetrievalEvaluator({text: text for text in matches}, passages, matches, corpus_chunk_size=10)

    class Model:
        similarity_fn_name, similarity = "cosine", None
        model_card_data = None

    by_vector = {text: vectors[row, place] for row, of_row in enumerate(texts) for place, text in enumerate(of_row)}
    scores = np.stack([by_vector[text] for text in matches]) @ np.stack([by_vector[text] for text in passages]).T
    hits = [[{"corpus_id": list(passages)[index], "score": row[index]} for index in np.argsort(-row)] for row in scores]
    expected = evaluator.compute_metrics(hits)
    ranking = retrieval.rank(texts, vectors)
    assert ranking.figures["recall@10"].mean() == pytest.approx(expected["recall@k"][10])
    assert ranking.figures["recall@1"].mean() == pytest.approx(expected["recall@k"][1])
    assert ranking.figures["mrr@10"].mean() == pytest.approx(expected["mrr@k"][10])
    assert ranking.figures["ndcg@10"].mean() == pytest.approx(expected["ndcg@k"][10])


class _Rows(dict):
    """What stands for a dataset: columns by name."""

    column_names = property(list)

    def to_pandas(self):
        return pd.DataFrame(self)


@pytest.mark.oracle
@pytest.mark.parametrize("margin", [None, 0.3])
def test_mined_negatives_are_those_of_sentence_transformers(monkeypatch, margin):
    from sentence_transformers.util import hard_negatives

    texts = [[f"q{number % 25}", f"p{number}"] for number in range(60)]
    of_text = {
        text: row / np.linalg.norm(row) for text, row in zip(sum(texts, []), RNG.normal(size=(120, 6)), strict=True)
    }

    class Model:
        device = "cpu"

        def encode_query(self, sentences, **_):
            return np.array([of_text[text] for text in sentences], "float32")

        encode_document = encode_query

        def similarity(self, some, others):
            return torch.as_tensor(some) @ torch.as_tensor(others).T

        def similarity_pairwise(self, some, others):
            return (torch.as_tensor(some) * torch.as_tensor(others)).sum(-1)

    monkeypatch.setattr(hard_negatives, "is_datasets_available", lambda: True)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(Dataset=types.SimpleNamespace(from_dict=dict)))
    rows = _Rows(zip(("anchor", "positive"), map(list, zip(*texts, strict=True)), strict=True))
    settings = {"num_negatives": 4, "relative_margin": margin, "range_max": 57, "verbose": False}
    triplets = hard_negatives.mine_hard_negatives(rows, Model(), **settings)
    expected = {}
    for question, negative in zip(triplets["anchor"], triplets["negative"], strict=True):
        if negative not in expected.setdefault(question, []):
            expected[question].append(negative)
    vectors = np.array([[of_text[text] for text in row] for row in texts], "float32")
    mined = retrieval.mine(texts, vectors, 4, margin)
    assert [row[:2] for row in mined] == texts
    assert all(negatives == expected.get(question, []) for question, _, *negatives in mined)
    assert sum(map(len, expected.values())) == 100 if margin is None else 50 < sum(map(len, expected.values())) < 100


def test_negatives_are_never_in_a_row_of_the_question():
    texts = [["a", "b", "c"], ["b", "a", "d"], ["a", "e", "f"]]
    vectors = np.ones((3, 3, 1), "float32")
    assert [row[3:] for row in retrieval.mine(texts, vectors, 1)] == [["d"], ["c"], ["d"]]
    with pytest.raises(InputError, match="--num_negatives=2: only 1 passages .* do not belong to 'a'"):
        retrieval.mine(texts, vectors, 2)


# === Data ===


def read(path, content, **columns):
    path.write_text(content)
    return data.read_table(str(path), columns.get("texts"), columns.get("score"), BadRows("refuse"))


def test_the_order_of_the_columns_says_what_they_are(tmp_path):
    table = read(tmp_path / "a.csv", "sentence1,sentence2,score\na b,c,2.5\n")
    assert (table.texts, table.scores) == ([["a b", "c"]], [2.5])
    assert read(tmp_path / "a.csv", "first,Similarity_Score,second\na,2.5,b\n").scores == [2.5]
    table = read(tmp_path / "b.tsv", "anchor\tpositive\tnegative\na\tb\tc\n")
    assert (table.texts, table.scores, table.num_texts) == ([["a", "b", "c"]], None, 3)
    table = read(tmp_path / "c.jsonl", '{"query": "a", "answer": "b"}\n{"answer": "d", "query": "c"}\n')
    assert table.texts == [["a", "b"], ["c", "d"]]
    table = read(tmp_path / "d.csv", "id,x,y\n1,a,b\n", texts=["y", "x"])
    assert table.texts == [["b", "a"]]


def test_a_number_among_the_texts_of_objects_names_the_flags(tmp_path):
    content = '{"id": 7, "text": "a", "match": "b"}\n'
    with pytest.raises(InputError, match="x.jsonl:1: column 'id': expected a text, found int.*with --text_columns and"):
        read(tmp_path / "x.jsonl", content)
    with pytest.raises(InputError, match="x.jsonl:1: column 'id': expected a text, found int 7"):
        read(tmp_path / "x.jsonl", content, texts=["id"])


def test_an_object_with_other_keys_than_the_first_is_a_bad_row(tmp_path):
    """Its text or score was left out without a word."""
    content = '{"text": "a", "match": "b"}\n{"text": "c", "match": "d", "score": 0.5}\n'
    with pytest.raises(InputError, match="x.jsonl:2: key 'score' is not in the first object, whose keys are the col"):
        read(tmp_path / "x.jsonl", content)
    assert read(tmp_path / "x.jsonl", content, texts=["text", "match"]).texts == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(
    "content, columns, message",
    [
        ("a,b\n", {}, "the file holds no rows. Expected one or more texts in each row"),
        ("score\n1\n", {}, "no text beside 'score'. Name the right ones with --text_columns"),
        (
            "a,b,score\nx,y,much\n",
            {},
            "column 'score': expected a number, found 'much'.* with --text_columns and --score_",
        ),
        (
            "id,a,b\n1,x,y\n2,z,7\n",
            {},
            "column 'id' holds numbers, not texts to embed. Name the right ones with --text_",
        ),
        ("a,b,similarity\nx,y,4.5\n", {}, "column 'similarity' holds numbers, .* --text_columns and --score_column"),
        ("a,b,c,score\nx,y,z,1\n", {}, "similarity of two texts, but a row has 3: a, b, c"),
        ("a,b\nx,y\n", {"texts": ["q"]}, "no column 'q' in the header. Columns there: 'a', 'b'. Name the right ones"),
        ("a,b\nx,\n", {}, "column 'b' is empty"),
        ("a,b\nx,y\n", {"texts": ["a", "a"]}, "--text_columns=a,a: names a column twice"),
        ("a plane,a jet,4.5\nx,y,3\n", {}, "a.csv:1: expected the names of the columns, found the number '4.5'"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, content, columns, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path / "a.csv", content, **columns)


def test_raw_text_has_a_sentence_on_each_line(tmp_path):
    path = tmp_path / "TEXT.TXT"  # As Windows names them.
    path.write_bytes(b"\xef\xbb\xbfa one\r\n b, two\r\n\r\n\r\nd four\r\n")
    table = data.read_sentences(str(path))
    assert table.texts == [["a one"], ["b, two"], ["d four"]] and table.lines == [1, 2, 5] and table.scores is None
    settings = Embed.Settings(output_dir="run", train_file=str(path), do_train=True)
    assert [part.rows for part in Embed(settings).read("train", BadRows())] == [table]
    path.write_text("\n  \n")
    with pytest.raises(InputError, match="TEXT.TXT: the file holds no text. Expected a sentence per line"):
        data.read_sentences(str(path))


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    arrays, both = {}, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # A second one would reuse its keys.
    runs = {
        "mirrored": {name: {"num_parts": 1, "name": name} for name in REPLICATED},
        "compiled": {num_parts: {"num_parts": num_parts, "jit_compile": True} for num_parts in (1, 2)},
    }
    for name, options in runs[sys.argv[1]].items():
        losses, weights = stepped(both, count=8, **options)
        arrays |= {f"{name} losses": losses, **{f"{name} {index}": weight for index, weight in enumerate(weights)}}
    np.savez(f"{sys.argv[2]}/{sys.argv[1]}.npz", **arrays)
