"""Reads protocol buffers in text format, in which TensorFlow Serving takes its settings. Imports no TensorFlow."""

import functools
import os

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2
from google.protobuf.message import Message

from keras_bert.errors import InputError
from keras_bert.files import open_file


def read_text_message(path: str, message: Message, expected: str) -> Message:
    """Reads a file into `message` and returns it.

    Args:
        path: the file.
        message: an empty message of the right class.
        expected: the right content of the file in words, for errors.

    Raises:
        InputError: the file cannot be read, or is no such message.
    """
    try:
        with open_file(path) as file:
            return text_format.Parse(file.read().decode("utf-8"), message)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        received = " ".join(str(error).split())[:200]
        parsing = f"Error parsing text-format {message.DESCRIPTOR.full_name}"  # TensorFlow Serving's words.
        raise InputError(f"{path}: {parsing}: expected {expected}. Received: {received}") from error


@functools.cache
def _declared() -> descriptor_pool.DescriptorPool:
    """Returns the messages of `messages.pbtxt`."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    with open(os.path.join(os.path.dirname(__file__), "messages.pbtxt"), encoding="utf-8") as file:
        pool.Add(text_format.Parse(file.read(), descriptor_pb2.FileDescriptorProto()))
    return pool


def declared_message(name: str) -> Message:
    """Returns an empty message of TensorFlow Serving that tensorflow-serving-api lacks, such as `SSLConfig`."""
    return message_factory.GetMessageClass(_declared().FindMessageTypeByName(f"tensorflow.serving.{name}"))()
