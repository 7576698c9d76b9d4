"""The published BERTs: names, sizes, case, and where copies of each are kept. Data only.

Sources: google-research/bert's README (archives, sizes, case) and its `tokenization.py:28` (which are lower-cased);
Turc et al. 2019, arXiv:1908.08962 (the miniatures); `keras_hub/src/models/bert/bert_presets.py` (Kaggle handles) and
KerasHub's conversion scripts (which Hugging Face repository each was made from).
"""

import dataclasses

from keras_bert.config import BertConfig

UNCASED, CASED, CHINESE = 30_522, 28_996, 21_128  # WordPieces of Google's vocabularies
SENTENCE_PIECES_OF_E5 = 250_037


@dataclasses.dataclass(frozen=True)
class Preset:
    """A published BERT.

    Attributes:
        name: str, the short name, or the full one where there is no short one.
        full_name: str, its publisher's name of the checkpoint.
        config: BertConfig. Google trained with the tanh gelu; the sentence encoders were trained with the erf gelu.
            KerasHub knows the tanh form only: it runs those with tanh too, and so does a copy in its format.
        lowercase: bool, whether its vocabulary is uncased; None where the vocabulary is not BERT's WordPieces.
        keras_hub: str, KerasHub's name of the same weights, or None.
        hugging_face: str, `owner/name` of the copy in Hugging Face's format, or None.
        kaggle: str, `owner/model/framework/variation/version` of the copy in KerasHub's format, or None.
        archive: str, folder and file in Google's bucket of BERTs, or None.
    """

    name: str
    full_name: str
    config: BertConfig
    lowercase: bool | None
    keras_hub: str | None = None
    hugging_face: str | None = None
    kaggle: str | None = None
    archive: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names of this preset, the short one first, the repository's name at Hugging Face last."""
        at_hugging_face = self.hugging_face.rpartition("/")[2] if self.hugging_face else None
        names = (self.name, self.full_name, self.keras_hub, at_hugging_face)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def parameters(self) -> int:
        """The number of weights of the encoder with its pooler."""
        return self.config.num_parameters


def _sizes(vocabulary: int, layers: int, hidden: int, heads: int, **others) -> BertConfig:
    return BertConfig(vocabulary, layers, heads, hidden, 4 * hidden, **others)


# === Google's 33 ===
# Archive, size of the vocabulary, lower-cased, the archive's folder, repository at Hugging Face, KerasHub's name.
_PAPER = (
    ("uncased_L-12_H-768_A-12", UNCASED, True, "2018_10_18", "bert-base-uncased", "bert_base_en_uncased"),
    ("uncased_L-24_H-1024_A-16", UNCASED, True, "2018_10_18", "bert-large-uncased", "bert_large_en_uncased"),
    ("cased_L-12_H-768_A-12", CASED, False, "2018_10_18", "bert-base-cased", "bert_base_en"),
    ("cased_L-24_H-1024_A-16", CASED, False, "2018_10_18", "bert-large-cased", "bert_large_en"),
    ("wwm_uncased_L-24_H-1024_A-16", UNCASED, True, "2019_05_30", "bert-large-uncased-whole-word-masking", None),
    ("wwm_cased_L-24_H-1024_A-16", CASED, False, "2019_05_30", "bert-large-cased-whole-word-masking", None),
    ("multilingual_L-12_H-768_A-12", 105_879, True, "2018_11_03", "bert-base-multilingual-uncased", None),
    ("multi_cased_L-12_H-768_A-12", 119_547, False, "2018_11_23", "bert-base-multilingual-cased", "bert_base_multi"),
    ("chinese_L-12_H-768_A-12", CHINESE, True, "2018_11_03", "bert-base-chinese", "bert_base_zh"),
)
_SHORT_NAMES = {"uncased_L-12_H-768_A-12": "base", "uncased_L-24_H-1024_A-16": "large"}
_NAMED_MINIATURES = {  # (layers, hidden): short name, KerasHub's name
    (2, 128): ("tiny", "bert_tiny_en_uncased"),
    (4, 256): ("mini", None),
    (4, 512): ("small", "bert_small_en_uncased"),
    (8, 512): ("medium", "bert_medium_en_uncased"),
}


def _kaggle(keras_hub: str | None, family: str, version: int) -> str | None:
    return f"keras/{family}/keras/{keras_hub}/{version}" if keras_hub else None


def _google(full_name: str, sizes: tuple, lowercase: bool, archive: str, hugging_face: str, keras_hub, name) -> Preset:
    kaggle = _kaggle(keras_hub, "bert", 3)
    name = name or full_name
    return Preset(name, full_name, _sizes(*sizes), lowercase, keras_hub, hugging_face, kaggle, f"{archive}.zip")


def _paper(full_name, vocabulary, lowercase, folder, repository, keras_hub) -> Preset:
    sizes = (vocabulary, *((24, 1024, 16) if "L-24" in full_name else (12, 768, 12)))
    places = (f"{folder}/{full_name}", f"google-bert/{repository}")
    return _google(full_name, sizes, lowercase, *places, keras_hub, _SHORT_NAMES.get(full_name))


def _miniature(layers: int, hidden: int) -> Preset:
    sizes = f"uncased_L-{layers}_H-{hidden}_A-{hidden // 64}"
    # The largest has the archive name of the base model of 2018, but other weights: it needs another name.
    full_name = f"miniature_{sizes}" if (layers, hidden) == (12, 768) else sizes
    name, keras_hub = _NAMED_MINIATURES.get((layers, hidden), (None, None))
    places = (f"2020_02_20/{sizes}", f"google/bert_{sizes}")
    return _google(full_name, (UNCASED, layers, hidden, hidden // 64), True, *places, keras_hub, name)


_MINIATURES = tuple(_miniature(layers, hidden) for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768))


# === KerasHub's others ===
_MINILM = {layers: _sizes(UNCASED, layers, 384, 12, activation="gelu") for layers in (3, 6, 12)}
_BASE, _LARGE = (_sizes(UNCASED, *sizes, activation="gelu") for sizes in ((12, 768, 12), (24, 1024, 16)))
_SMALL_ZH, _BASE_ZH, _LARGE_ZH = (
    _sizes(CHINESE, *sizes, activation="gelu") for sizes in ((4, 512, 8), (12, 768, 12), (24, 1024, 16))
)
_E5 = _sizes(SENTENCE_PIECES_OF_E5, 12, 384, 12, activation="gelu")
# KerasHub's name, repository at Hugging Face, sizes. Kaggle keeps a family in one model.
_ENCODERS = {
    ("sentence-transformers", "sentence-transformers"): (
        ("all_minilm_l6_v2_en", "all-MiniLM-L6-v2", _MINILM[6]),
        ("all_minilm_l6_v1_en", "all-MiniLM-L6-v1", _MINILM[6]),
        ("all_minilm_l12_v2_en", "all-MiniLM-L12-v2", _MINILM[12]),
        ("paraphrase_minilm_l3_v2_en", "paraphrase-MiniLM-L3-v2", _MINILM[3]),
        ("paraphrase_minilm_l6_v2_en", "paraphrase-MiniLM-L6-v2", _MINILM[6]),
        ("paraphrase_minilm_l12_v2_en", "paraphrase-MiniLM-L12-v2", _MINILM[12]),
        ("multi_qa_minilm_l6_cos_v1_en", "multi-qa-MiniLM-L6-cos-v1", _MINILM[6]),
        ("multi_qa_minilm_l6_dot_v1_en", "multi-qa-MiniLM-L6-dot-v1", _MINILM[6]),
        ("msmarco_minilm_l6_cos_v5_en", "msmarco-MiniLM-L6-cos-v5", _MINILM[6]),
        ("msmarco_minilm_l12_cos_v5_en", "msmarco-MiniLM-L12-cos-v5", _MINILM[12]),
    ),
    ("bge", "BAAI"): (
        ("bge_small_en", "bge-small-en", _MINILM[12]),
        ("bge_base_en", "bge-base-en", _BASE),
        ("bge_large_en", "bge-large-en", _LARGE),
        ("bge_small_v1.5_en", "bge-small-en-v1.5", _MINILM[12]),
        ("bge_base_v1.5_en", "bge-base-en-v1.5", _BASE),
        ("bge_large_v1.5_en", "bge-large-en-v1.5", _LARGE),
        ("bge_base_zh", "bge-base-zh", _BASE_ZH),
        ("bge_large_zh", "bge-large-zh", _LARGE_ZH),
        ("bge_small_v1.5_zh", "bge-small-zh-v1.5", _SMALL_ZH),
        ("bge_base_v1.5_zh", "bge-base-zh-v1.5", _BASE_ZH),
        ("bge_large_v1.5_zh", "bge-large-zh-v1.5", _LARGE_ZH),
        ("bge_llm_embedder", "llm-embedder", _BASE),
    ),
    ("multilingual-e5", "intfloat"): (("multilingual_e5_small", "multilingual-e5-small", _E5),),
    ("mxbai-embed", "mixedbread-ai"): (
        ("mxbai_embed_large_v1_en", "mxbai-embed-large-v1", _LARGE),
        ("mxbai_embed_2d_large_v1_en", "mxbai-embed-2d-large-v1", _LARGE),
        ("mxbai_embed_xsmall_v1_en", "mxbai-embed-xsmall-v1", _MINILM[6].replace(max_sequence_length=4096)),
    ),
}


def _encoder(family: str, owner: str, keras_hub: str, repository: str, config: BertConfig) -> Preset:
    lowercase = None if config.vocabulary_size == SENTENCE_PIECES_OF_E5 else True
    places = (f"{owner}/{repository}", _kaggle(keras_hub, family, 1))
    return Preset(keras_hub, repository, config, lowercase, keras_hub, *places)


# Fine-tuned by KerasHub with its tanh gelu, and published at Kaggle only.
_SST2_NAME = "bert_tiny_en_uncased_sst2"
_SST2_KAGGLE = _kaggle(_SST2_NAME, "bert", 5)
_SST2 = Preset(_SST2_NAME, _SST2_NAME, _sizes(UNCASED, 2, 128, 2), True, keras_hub=_SST2_NAME, kaggle=_SST2_KAGGLE)

_PAPER_PRESETS = tuple(_paper(*row) for row in _PAPER)
SHORT = tuple(preset for preset in _MINIATURES if preset.name != preset.full_name) + _PAPER_PRESETS[:2]
GOOGLE = SHORT + _PAPER_PRESETS[2:] + tuple(preset for preset in _MINIATURES if preset.name == preset.full_name)
OTHERS = (_SST2, *(_encoder(*place, *row) for place, rows in _ENCODERS.items() for row in rows))
ALL = GOOGLE + OTHERS
