"""TensorFlow Serving's configuration files: models, policies, labels, and what is wrong with some."""

import pytest

from export.server.config_files import ModelSettings, VersionPolicy, in_precision, read_model_config
from keras_bert.errors import InputError


@pytest.fixture(name="read")
def _read(tmp_path):
    def read(text):
        path = tmp_path / "models.config"
        path.write_text(text.replace("PLATFORM", "model_platform: 'tensorflow'"), encoding="utf-8")
        return read_model_config(str(path))

    return read


def test_several_models(read):
    """As in TensorFlow Serving's page on its configuration."""
    models = read("""
        model_config_list {
          config { name: 'my_first_model' base_path: '/tmp/my_first_model/' model_platform: 'tensorflow' }
          config {
            name: 'my_second_model'
            base_path: '/second' model_type: TENSORFLOW
            model_version_policy { specific { versions: 42 versions: 43 } }
            version_labels { key: 'stable' value: 42 }
            version_labels { key: 'canary' value: 43 }
          }
          config { name: 'all' base_path: '/a' PLATFORM model_version_policy { all {} } }
          config { name: 'latest' base_path: 'gs://b/l' PLATFORM model_version_policy { latest { num_versions: 3 } } }
        }""")
    assert models == [
        ModelSettings("my_first_model", "/tmp/my_first_model/", VersionPolicy(1, None), {}),
        ModelSettings("my_second_model", "/second", VersionPolicy(None, (42, 43)), {"stable": 42, "canary": 43}),
        ModelSettings("all", "/a", VersionPolicy(None, None), {}),
        ModelSettings("latest", "gs://b/l", VersionPolicy(3, None), {}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "Error parsing text-format tensorflow.serving.ModelServerConfig: expected TensorFlow Serving's"),
        ("", "expected a model_config_list with at least one config"),
        ("model_config_list {}", "expected a model_config_list with at least one config"),
        ("model_config_list { config { base_path: '/a' } }", "'' cannot be a model's name"),
        ("model_config_list { config { name: 'a b' base_path: '/a' } }", "'a b' cannot be a model's name"),
        ("model_config_list { config { name: 'a' PLATFORM } }", "expected model 'a' to have an absolute base_path"),
        (
            "model_config_list { config { name: 'a' base_path: 'b' PLATFORM } }",
            "expected model 'a' to have an absolute base_path. Received: 'b'",
        ),
        (
            "model_config_list { config { name: 'a' base_path: '/a' PLATFORM } "
            "config { name: 'a' base_path: '/b' PLATFORM } }",
            "names the model 'a' twice",
        ),
        (
            "model_config_list { config { name: 'a' base_path: '/a' model_platform: 'other' } }",
            "expected model 'a' to have the model_platform 'tensorflow'. Received: 'other'",
        ),
        (
            "model_config_list { config { name: 'a' base_path: '/a' } }",
            "expected model 'a' to have the model_platform 'tensorflow'. Received: ''",
        ),
        (
            "model_config_list { config { name: 'a' base_path: '/a' PLATFORM model_version_policy { specific {} } } }",
            "specific version policy without versions",
        ),
    ],
)
def test_what_is_wrong_is_one_line(read, text, message):
    with pytest.raises(InputError) as caught:
        read(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert "models.config" in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match="no.config: cannot be read"):
        read_model_config("no.config")


def test_versions_in_bfloat16_have_their_own_base_path(tmp_path):
    model = ModelSettings("mood", str(tmp_path))
    assert in_precision([model], "auto") == in_precision([model], "int8") == [model]
    with pytest.raises(InputError, match="has no versions in bfloat16. Export the model by bert-export --bfloat16"):
        in_precision([model], "bfloat16")
    (tmp_path / "bfloat16").mkdir()
    assert in_precision([model], "bfloat16") == [model._replace(base_path=str(tmp_path / "bfloat16"))]
