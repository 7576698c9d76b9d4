"""`bert-embed`: losses and figures beside sentence-transformers, batches in parts and on replicas, and whole runs."""

import json
import sys
import types

import keras
import numpy as np
import pandas as pd
import pytest
import run_tasks
import tensorflow as tf
import torch
import toy_training
import toy_words

from keras_bert import BertBackbone, BertPreprocessor, BertTextClassifier, BertTextEmbedder, BertTokenizer
from keras_bert.errors import InputError
from tasks.convert import ConversionSettings, convert
from tasks.embedding import data, objectives, retrieval, task
from tasks.embedding.model import embed_groups
from tasks.engine.train_step import TrainStep
from tasks.fine_tuning.model_files import save_model
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


# === Steps ===


def features_of(count, length=5):
    ids = np.random.default_rng(1).integers(5, 25, (count, 2, length)).astype("int32")
    return {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": np.ones_like(ids)}


def small_model(dropout=0.0):
    keras.utils.set_random_seed(7)
    backbone = BertBackbone(25, 2, 2, 8, 16, dropout=dropout, attention_dropout=dropout, initializer_range=0.5)
    return embed_groups(BertTextEmbedder(backbone, embedding_dim=4))


def stepped(strategy, parts, count, name="multiple_negatives_ranking"):
    """Losses of two steps of the same batch, and the weights after them."""
    with strategy.scope():
        model = small_model()
        optimizer = keras.optimizers.SGD(0.5)  # Adam makes steps of rounding errors, where a gradient is 0.
    counter = tf.Variable(0, dtype=tf.int64)
    objective = objectives.OBJECTIVES[name]()
    step = TrainStep(model, optimizer, objective, strategy=strategy, step=counter, gradient_accumulation_steps=parts)
    labels = {"labels": np.linspace(0, 1, count).astype("float32")}
    batches = tf.data.Dataset.from_tensor_slices((features_of(count), labels)).batch(count).repeat(2)
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
    again, in_parts = stepped(strategy, 4, 8)
    np.testing.assert_allclose(again, losses, rtol=1e-5)
    for plain, cached in zip(weights, in_parts, strict=True):
        np.testing.assert_allclose(cached, plain, atol=1e-4)


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
        with tf.GradientTape() as tape, step._fused_layers(), step._layer_graphs(model):
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


@pytest.fixture(scope="module", name="replicas")
def _replicas(tmp_path_factory):
    """What two logical devices, which a process must ask for before it uses TensorFlow, make of the same batches."""
    directory = tmp_path_factory.mktemp("replicas")
    result = toy_training.run_as_script(__file__, "mirrored", directory)
    assert result.returncode == 0, result.stderr
    return np.load(directory / "mirrored.npz")


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
    evaluator = InformationRetrievalEvaluator({one: one for one in matches}, passages, matches, corpus_chunk_size=10)

    class Model:
        similarity_fn_name, similarity = "cosine", None
        model_card_data = None

    by_vector = {text: vectors[row, place] for row, of_row in enumerate(texts) for place, text in enumerate(of_row)}
    scores = np.stack([by_vector[one] for one in matches]) @ np.stack([by_vector[one] for one in passages]).T
    found = [
        [{"corpus_id": list(passages)[index], "score": row[index]} for index in np.argsort(-row)] for row in scores
    ]
    expected = evaluator.compute_metrics(found)
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

        def encode_query(self, found, **_):
            return np.array([of_text[text] for text in found], "float32")

        encode_document = encode_query

        def similarity(self, some, others):
            return torch.as_tensor(some) @ torch.as_tensor(others).T

        def similarity_pairwise(self, some, others):
            return (torch.as_tensor(some) * torch.as_tensor(others)).sum(-1)

    monkeypatch.setattr(hard_negatives, "is_datasets_available", lambda: True)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(Dataset=types.SimpleNamespace(from_dict=dict)))
    rows = _Rows(zip(("anchor", "positive"), map(list, zip(*texts, strict=True)), strict=True))
    settings = {"num_negatives": 4, "relative_margin": margin, "range_max": 57, "verbose": False}
    found = hard_negatives.mine_hard_negatives(rows, Model(), **settings)
    expected = {}
    for question, negative in zip(found["anchor"], found["negative"], strict=True):
        if negative not in expected.setdefault(question, []):
            expected[question].append(negative)
    vectors = np.array([[of_text[text] for text in row] for row in texts], "float32")
    mined = retrieval.mine(texts, vectors, 4, margin)
    assert [row[:2] for row in mined] == texts
    for question, _, *negatives in mined:
        assert negatives[: len(expected.get(question, []))] == expected.get(question, []) and len(set(negatives)) == 4
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
    table = read(tmp_path / "b.tsv", "anchor\tpositive\tnegative\na\tb\tc\n")
    assert (table.texts, table.scores, table.num_texts) == ([["a", "b", "c"]], None, 3)
    table = read(tmp_path / "c.jsonl", '{"query": "a", "answer": "b"}\n{"answer": "d", "query": "c"}\n')
    assert table.texts == [["a", "b"], ["c", "d"]]
    table = read(tmp_path / "d.csv", "id,x,y\n1,a,b\n", texts=["y", "x"])
    assert table.texts == [["b", "a"]]


@pytest.mark.parametrize(
    "content, columns, message",
    [
        ("a,b\n", {}, "the file holds no texts that can be used"),
        ("a,b,score\nx,y,much\n", {}, "column 'score': expected a number, found 'much'"),
        ("a,b,c,score\nx,y,z,1\n", {}, "similarity of two texts, but a row has 3: a, b, c"),
        ("a,b\nx,y\n", {"texts": ["q"]}, "no column 'q' in the header. Columns there: 'a', 'b'. Name the right ones"),
        ("a,b\nx,\n", {}, "column 'b' is empty"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, content, columns, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path / "a.csv", content, **columns)


def test_raw_text_gives_a_sentence_and_the_rest_of_its_document(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a one\nb two\nc three\n\nalone\n\n\nd four\ne five\n")
    table = data.read_documents(str(path), seed=1)
    documents = [["a one", "b two", "c three"], ["d four", "e five"]]
    assert [sorted(" ".join(row).split()) for row in table.texts] == [
        sorted(" ".join(one).split()) for one in documents
    ]
    assert [row[0] in document for row, document in zip(table.texts, documents, strict=True)] == [True, True]
    assert [path.read_text().splitlines()[line - 1] for line in table.lines] == [row[0] for row in table.texts]
    assert data.read_documents(str(path), seed=1) == table
    path.write_text("alone\n\nalone\n")
    with pytest.raises(InputError, match="no document has two sentences"):
        data.read_documents(str(path), seed=1)


# === Runs ===


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_words.write_preset(tmp_path_factory.mktemp("preset"))


def rows_of(count, seed):
    """A text and its match share their words, in another order."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        words = generator.choice(toy_words.WORDS, 4, replace=False)
        yield " ".join(words), " ".join(generator.permutation(words))


def write_pairs(path, count, seed, header="question\tpassage"):
    path.write_text("\n".join([header, *("\t".join(row) for row in rows_of(count, seed))]) + "\n")
    return str(path)


def as_retrieval(rows):
    """Questions, passages, and the match of each, by number."""
    questions, passages = (dict(enumerate(column)) for column in zip(*rows, strict=True))
    by_text = {text: number for number, text in passages.items()}
    return questions, passages, {number: {by_text[passages[number]]} for number in questions}


def evaluated(tmp_path, name, *data):
    """The figures of sentence-transformers' evaluator on the model that `bert-embed` wrote."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import evaluation

    source, target = str(tmp_path / "run" / "model"), str(tmp_path / "theirs")
    convert(ConversionSettings(source=source, target=target, to_format="hugging_face"))
    return getattr(evaluation, name)(*data, write_csv=False)(SentenceTransformer(target, device="cpu"))


def test_search_is_learned_and_served_anew(tmp_path, preset):
    files = {
        "train_file": write_pairs(tmp_path / "train.tsv", 256, 1),
        "dev_file": write_pairs(tmp_path / "dev.tsv", 64, 2),
        "test_file": write_pairs(tmp_path / "test.tsv", 5, 3),
    }
    settings = {"max_seq_length": 16, "train_batch_size": 32, "learning_rate": 3e-3, "gradient_accumulation_steps": 2}
    run = str(tmp_path / "run")
    raw = {"dev_file": files["dev_file"], "max_seq_length": 16, "output_dir": str(tmp_path / "raw")}
    before = run_tasks.embed(preset=preset, do_eval=True, **raw)
    results = run_tasks.embed(
        preset=preset, output_dir=run, do_train=True, do_eval=True, num_train_epochs=4, **settings, **files
    )
    assert results["loss"] < 0.5 * before["loss"] and results["ndcg@10"] > 0.95
    assert results["questions"] == results["passages"] == 64
    low, high = results["intervals"]["ndcg@10"]
    assert low <= results["ndcg@10"] <= high
    expected = evaluated(tmp_path, "InformationRetrievalEvaluator", *as_retrieval(rows_of(64, 2)))
    for name in ("recall@10", "mrr@10", "ndcg@10"):
        assert results[name] == pytest.approx(expected[f"cosine_{name}"], abs=1e-9)
    after = run_tasks.embed(output_dir=run, test_file=files["test_file"], do_predict=True)
    vectors = np.load(tmp_path / "run" / "predictions.npy")
    assert vectors.shape == (5, 2, 32) and after["test_rows"] == 5
    embedder = keras.saving.load_model(tmp_path / "run" / "model" / "model.keras")
    assert type(embedder) is BertTextEmbedder
    texts = [text for row in rows_of(5, 3) for text in row]
    preprocessor = BertPreprocessor(BertTokenizer.from_preset(str(tmp_path / "run" / "model")), 16)
    np.testing.assert_allclose(embedder(preprocessor(texts)), vectors.reshape(10, 32), atol=1e-5)


def test_scores_are_learned(tmp_path, preset):
    generator = np.random.default_rng(4)
    # No two texts are equal: a cosine of 1 is one up to rounding, by which Spearman would rank them.
    rows = [(*generator.choice(toy_words.WORDS, 2, replace=False), generator.integers(0, 2)) for _ in range(64)]
    rows = [(str(a), f"{a} {b}" if same else str(b), 5 * same) for a, b, same in rows]
    content = "\n".join(["a,b,score", *(",".join(map(str, row)) for row in rows)]) + "\n"
    (tmp_path / "all.csv").write_text(content)
    results = run_tasks.embed(
        preset=preset,
        output_dir=str(tmp_path / "run"),
        train_file=str(tmp_path / "all.csv"),
        dev_file=str(tmp_path / "all.csv"),
        do_train=True,
        do_eval=True,
        max_seq_length=8,
        train_batch_size=16,
        learning_rate=3e-3,
        num_train_epochs=3,
        loss="cosine_similarity",
        matryoshka_dims=[32, 8],
    )
    expected = evaluated(tmp_path, "EmbeddingSimilarityEvaluator", *zip(*rows, strict=True))
    assert results["spearman"] == pytest.approx(expected["spearman_cosine"], abs=1e-3)
    assert results["pearson"] == pytest.approx(expected["pearson_cosine"], abs=1e-6)
    assert results["pearson"] > 0.8 and list(results)[0] == "train_seconds"
    assert json.loads((tmp_path / "run" / "model" / "task.json").read_text())["score_scale"] == 5.0


@pytest.fixture(scope="module", name="reranker", params=[1, 2], ids=["score", "two labels"])
def _reranker(request, tmp_path_factory):
    """A cross-encoder of random weights, as bert-classify saves it."""
    directory = str(tmp_path_factory.mktemp("reranker") / "model")
    keras.utils.set_random_seed(3)
    backbone = BertBackbone(len(toy_words.VOCABULARY), 1, 2, 16, 32, max_sequence_length=32, initializer_range=0.5)
    preprocessor = BertPreprocessor(BertTokenizer(toy_words.VOCABULARY), 16)
    model = BertTextClassifier(backbone, request.param, preprocessor, compile=False)
    save_model(
        directory, model, preprocessor.tokenizer, {"task": "classification", "sequence_length": 16, "num_texts": 2}
    )
    return directory


@pytest.mark.oracle
def test_a_reranker_is_a_cross_encoder(tmp_path, preset, reranker):
    from sentence_transformers import CrossEncoder

    convert(
        ConversionSettings(source=f"{reranker}/model.keras", target=str(tmp_path / "theirs"), to_format="hugging_face")
    )
    cross = CrossEncoder(str(tmp_path / "theirs"), device="cpu", max_length=16)
    rows = list(rows_of(24, 5))
    pairs = [(question, passage) for question, _ in rows for _, passage in rows]
    logits = cross.predict(pairs, activation_fn=torch.nn.Identity()).reshape(len(pairs), -1)
    scores = logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0)
    np.testing.assert_allclose(task.load_scorer(reranker, 32)(pairs), scores, atol=1e-4)
    settings = {"dev_file": write_pairs(tmp_path / "dev.tsv", 24, 5), "max_seq_length": 16, "do_eval": True}
    results = run_tasks.embed(
        preset=preset, output_dir=str(tmp_path / "run"), reranker_dir=reranker, rerank_top_k=24, **settings
    )
    scores = scores.reshape(24, 24)
    ranks = 1 + np.sum(scores > np.diag(scores)[:, np.newaxis], axis=1)
    assert results["reranked_recall@10"] == pytest.approx(np.mean(ranks <= 10))
    assert results["reranked_ndcg@10"] == pytest.approx(np.mean(np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0)))
    assert results["reranked_ndcg@10"] != results["ndcg@10"]
    assert list(results["intervals"])[4:] == [f"reranked_{name}" for name in list(results["intervals"])[:4]]


def test_the_first_passages_alone_are_reranked():
    texts = [[f"q{number}", f"p{number}"] for number in range(5)]
    vectors = np.stack([np.eye(5) + 0.1 * np.arange(5), np.eye(5)], axis=1)
    plain = retrieval.rank(texts, vectors)
    turned = retrieval.rank(texts, vectors, lambda pairs: -np.arange(len(pairs))[::-1].astype(float), 2)
    np.testing.assert_array_equal(turned.best[:, :2], plain.best[:, 1::-1])
    np.testing.assert_array_equal(turned.best[:, 2:], plain.best[:, 2:])
    np.testing.assert_array_equal(turned.ranks, 2)


def test_a_reranker_of_single_texts_is_refused(tmp_path):
    model = BertTextClassifier(BertBackbone(len(toy_words.VOCABULARY), 1, 2, 16, 32), 2, compile=False)
    trained = {"task": "classification", "sequence_length": 16, "num_texts": 1, "labels": ["0", "1"]}
    save_model(str(tmp_path / "model"), model, BertTokenizer(toy_words.VOCABULARY), trained)
    with pytest.raises(InputError, match="a model of pairs of texts with a score or two labels, found one of 1"):
        task.load_scorer(str(tmp_path / "model"), 32)


def test_negatives_are_mined_by_the_start(tmp_path, preset, monkeypatch):
    seen = []
    monkeypatch.setattr(retrieval, "mine", lambda *given: seen.append(given) or [[*row, "w1"] for row in given[0]])
    run_tasks.embed(
        preset=preset,
        train_file=write_pairs(tmp_path / "train.tsv", 16, 1),
        output_dir=str(tmp_path / "run"),
        do_train=True,
        max_seq_length=16,
        num_train_epochs=1,
        train_batch_size=16,
        num_negatives=1,
        relative_margin=0.1,
    )
    ((texts, vectors, *others),) = seen
    assert others == [1, 0.1] and texts == [list(row) for row in rows_of(16, 1)]
    start = BertTextEmbedder.from_preset(preset)
    start.preprocessor.sequence_length = 16
    np.testing.assert_allclose(start.predict(texts[3], verbose=0), vectors[3], atol=1e-5)


@pytest.mark.parametrize("header, loss", [("a,b,score", None), ("a", None), ("a,b,c", "triplet")])
def test_rows_that_take_no_negatives(tmp_path, preset, header, loss):
    row = ",".join("1" if name == "score" else f"w{number}" for number, name in enumerate(header.split(",")))
    (tmp_path / "train.csv").write_text(f"{header}\n{row}\n")
    with pytest.raises(InputError, match="train.csv: --num_negatives adds to rows of a text and its match"):
        settings = {"output_dir": str(tmp_path / "run"), "data_dir": str(tmp_path), "do_train": True, "loss": loss}
        run_tasks.embed(preset=preset, num_negatives=1, **settings)


@pytest.mark.parametrize(
    "loss, header, message",
    [("cosent", "a,b", "--loss=cosent needs a score"), ("triplet", "a,b", "--loss=triplet needs a text, its match")],
)
def test_rows_that_a_loss_cannot_use(tmp_path, preset, loss, header, message):
    (tmp_path / "train.csv").write_text(f"{header}\nw1,w2\n")
    with pytest.raises(InputError, match=message):
        run_tasks.embed(
            preset=preset, output_dir=str(tmp_path / "run"), data_dir=str(tmp_path), do_train=True, loss=loss
        )


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    found, both = {}, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # A second one would reuse its keys.
    for name in REPLICATED:
        losses, weights = stepped(both, 1, 8, name)
        found |= {f"{name} losses": losses, **{f"{name} {index}": weight for index, weight in enumerate(weights)}}
    np.savez(f"{sys.argv[2]}/mirrored.npz", **found)
