"""What importing costs: nothing heavy before it is needed, and never more than KerasHub."""

import subprocess
import sys

import pytest
from repository import ROOT

HEAVY = ("tensorflow", "tensorflow_text", "keras", "keras_hub", "keras_nlp", "torch", "transformers")


def run(code):
    """Runs code in a fresh process; returns what it prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "use",
    [
        "",
        "keras_bert.BertConfig(30522, 12, 12, 768, 3072)",
        "str(keras_bert.list_presets())",
        "from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer",
    ],
)
def test_what_needs_no_tensorflow_imports_none(use):
    assert run(f"import sys, keras_bert\n{use}\nprint([name for name in {HEAVY} if name in sys.modules])") == "[]"


def test_a_program_that_has_keras_can_load_saved_models_at_once():
    lookup = "keras.saving.get_registered_object('keras_bert>BertMaskedLM')"
    assert "BertMaskedLM" in run(f"import keras, keras_bert; print({lookup})")


def test_without_tensorflow_a_program_that_has_keras_can_use_the_rest():
    hidden = "import sys, types; sys.modules |= {'keras': types.ModuleType('keras'), 'tensorflow': None}"
    assert run(f"{hidden}\nimport keras_bert; print(len(keras_bert.list_presets()) > 30)") == "True"


@pytest.mark.slow
def test_the_backbone_imports_no_module_of_tensorflow_or_keras_that_keras_nlp_does_not():
    listed = "import sys; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    theirs = set(run(f"import keras_nlp; {listed}").split())
    ours = set(run(f"import keras_bert; keras_bert.BertBackbone; {listed}").split()) - theirs
    assert ours <= {"keras_bert", "absl", "h5py", "safetensors", "yaml"}, ours
