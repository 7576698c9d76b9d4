"""The task models, as Keras classes. Importing this package registers them all with Keras and KerasHub."""

# ruff: noqa: F401  (The imports are the names of this package.)

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.models.masked_lm import BertMaskedLM, BertMaskedLMPreprocessor
from keras_bert.models.multiple_choice import BertMultipleChoice, BertMultipleChoicePreprocessor
from keras_bert.models.pretrainer import BertPretrainer, BertPretrainerPreprocessor
from keras_bert.models.span_labeler import BertSpanLabeler, BertSpanLabelerPreprocessor
from keras_bert.models.text_classifier import BertTextClassifier
from keras_bert.models.text_embedder import BertTextEmbedder
from keras_bert.models.token_classifier import BertTokenClassifier, BertTokenClassifierPreprocessor
from keras_bert.tokenization.preprocessor import BertPreprocessor
from keras_bert.tokenization.tokenizer import BertTokenizer
