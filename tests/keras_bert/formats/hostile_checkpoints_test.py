"""Checkpoints of strangers do not fill memory or disk: every size is compared before anything is read.

One process reads all files below with little memory to spare. Each must be refused, by what is wrong with it, at once.
"""

import gzip
import json
import math
import os
import pickle
import re
import shutil
import struct
import tarfile
import zipfile
import zlib

import h5py
import hostile_reader
import numpy as np
import pytest
import tensorflow as tf
import toy_checkpoints
from tensorflow.core.protobuf import tensor_bundle_pb2, trackable_object_graph_pb2
from toy_checkpoints import TINY, pickled, torch_tensor

from keras_bert.encoder.backbone import BertBackbone

MUCH = 600 * 2**20
HUGE = 10**12
CASES = {}  # name -> (what is read, the function that makes the file, the expected message)


def case(name, message, kind="weights"):
    """Adds a hostile file: a function of a directory and of the ordinary checkpoints that returns its path."""

    def add(make):
        CASES[name] = (kind, make, message)
        return make

    return add


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    return toy_checkpoints.make(
        tmp_path_factory.mktemp("ordinary"), "keras_preset", "hugging_face", "google", "archive"
    )


@pytest.fixture(scope="module")
def answers(ordinary, tmp_path_factory):
    """What a process answered to each case: the error's class, its message, and the seconds that it took."""
    root = tmp_path_factory.mktemp("hostile")
    asked = []
    for number, (kind, make, _) in enumerate(CASES.values()):
        (root / str(number)).mkdir()
        asked.append((kind, make(root / str(number), ordinary)))
    told = hostile_reader.read(toy_checkpoints.questions(ordinary), asked)
    shutil.rmtree(root)
    return {name: (str(path), *answer) for name, (_, path), answer in zip(CASES, asked, told, strict=True)}


def copied(directory, source):
    return shutil.copytree(source, directory / "model")


def changed(path, **values):
    """Changes settings of a JSON file, wherever they stand."""

    def change(item):
        if isinstance(item, dict):
            item.update({name: value for name, value in values.items() if name in item})
            for value in item.values():
                change(value)

    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# === Archives ===


def zeros(size):
    """A gzip of zeros in 1/1000 of them, made at once: a gzip may have many parts."""
    return gzip.compress(bytes(10 * 2**20)) * (size // (10 * 2**20))


def tar_header(kind, size, name="x"):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def tar_gz(directory, *chunks):
    """A tar of gzipped chunks."""
    (directory / "model.tar.gz").write_bytes(b"".join(chunks))
    return directory / "model.tar.gz"


@case("tar: a name of 600 MB", "the names and headers of its members take more than 262,144 bytes")
def tar_long_name(directory, _):
    """REVIEW.md, Serious 6: a 0.6 MB tar.gz with a GNU long-name header took 625 MB."""
    return tar_gz(directory, gzip.compress(tar_header(tarfile.GNUTYPE_LONGNAME, MUCH)), zeros(MUCH))


@case("tar: a pax header of 600 MB", "the names and headers of its members take more than 262,144 bytes")
def tar_pax_header(directory, _):
    return tar_gz(directory, gzip.compress(tar_header(tarfile.XHDTYPE, MUCH)), zeros(MUCH))


@case("tar: a name of 600 MB behind the first member", "the names and headers of its members take more than 262,144")
def tar_later_long_name(directory, _):
    first = tar_header(tarfile.REGTYPE, 0) + tar_header(tarfile.GNUTYPE_LONGNAME, MUCH)
    return tar_gz(directory, gzip.compress(first), zeros(MUCH))


@case("tar: a million members", "the names and headers of its members take more than 262,144 bytes")
def tar_many_members(directory, _):
    return tar_gz(directory, gzip.compress(tar_header(tarfile.REGTYPE, 0) * 10_000) * 100)


@case("tar: a header for all members that each one copies", "member 'x' is neither file nor directory")
def tar_global_header(directory, _):
    records = "".join(f"10 {number}=\n" for number in range(10**4, 10**4 + 9000)).encode()
    header = tar_header(tarfile.XGLTYPE, len(records)) + records.ljust(-len(records) // 512 * -512, b"\0")
    return tar_gz(directory, gzip.compress(header + tar_header(tarfile.REGTYPE, 0) * 200))


@case("tar: headers about headers", "not a whole tar file")
def tar_chain(directory, _):
    header = tar_header(tarfile.GNUTYPE_LONGNAME, 1) + b"y".ljust(512, b"\0")
    return tar_gz(directory, gzip.compress(tar_header(tarfile.REGTYPE, 0) + header * 250))


@case("tar: a hole of a terabyte", "member 'x' is neither file nor directory")
def tar_sparse(directory, _):
    member = tarfile.TarInfo("x")
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"%011o\0" % 2**33  # The size with its holes.
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return tar_gz(directory, gzip.compress(bytes(header)), zeros(10 * 2**20))


@case("tar: 8 MB of JSON in 8 KB", "its members would take at least 8,388,60. bytes, 1,... times the file's")
def tar_lists(directory, _):
    content = b"[" + b"[]," * (2**23 // 3) + b"1]"
    member = tar_header(tarfile.REGTYPE, len(content), "config.json") + content
    return tar_gz(directory, gzip.compress(member + bytes(-len(member) % 512 + 1024)))


@case("tar: a member of less than no bytes", "member 'x' is neither file nor directory")
def tar_negative_size(directory, _):
    """tarfile goes in circles over it (CVE-2025-8194)."""
    return tar_gz(directory, gzip.compress(tar_header(tarfile.REGTYPE, -512) + bytes(1024)))


@case("tar: a member of a terabyte", "its members would take at least 1,000,000,000,000 bytes")
def tar_large_member(directory, _):
    return tar_gz(directory, gzip.compress(tar_header(tarfile.REGTYPE, HUGE)), zeros(10 * 2**20))


def zip_of(directory, members, name="model.zip", compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(directory / name, "w", compression) as file:
        for member, content in members.items():
            file.writestr(member, content)
    return directory / name


@case("zip: 100,000 members", "the names and headers of its members take more than 262,144 bytes")
def zip_many_members(directory, _):
    path = zip_of(directory, {"x": b""})
    content = path.read_bytes()
    start, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    entries = content[start:end] * 100_000
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, len(entries), start, 0)
    path.write_bytes(content[:start] + entries + tail)
    return path


@case("zip: a zip64 member of a terabyte", "its members would take at least 1,000,000,000,000 bytes")
def zip64_large_member(directory, _):
    path = zip_of(directory, {"x": b"some bytes"})
    content = path.read_bytes()
    start, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    entry = bytearray(content[start:end])
    extra = struct.pack("<HHQ", 1, 8, HUGE)
    struct.pack_into("<I", entry, 24, 0xFFFFFFFF)
    struct.pack_into("<H", entry, 30, len(extra))
    entry += extra
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entry), start, 0)
    path.write_bytes(content[:start] + entry + tail)
    return path


# === HDF5 ===


def with_array(directory, ordinary, make, place="layers/bert_embeddings/token_embedding/vars/0", **sizes):
    """A preset of ours with another token table, made by a function of the group and the name."""
    path = copied(directory, ordinary / "keras_preset")
    changed(path / "config.json", **sizes)
    with h5py.File(path / "model.weights.h5", "a") as file:
        del file[place]
        make(file, place)
    return path


ROWS = MUCH // 4 // TINY["hidden_dim"]


@case("HDF5: a compressed array, as large as the configuration says", "Expected at least .* bytes by the shapes of its")
def hdf5_compressed(directory, ordinary):
    """REVIEW.md, Serious 6: an HDF5 data set is read before its shape is compared (78 KB file: 1.9 GB)."""

    def make(file, place):
        chunk = (ROWS // 100, TINY["hidden_dim"])
        array = file.create_dataset(place, (ROWS // 100 * 100, chunk[1]), "float32", chunks=chunk, compression="gzip")
        packed = zlib.compress(bytes(chunk[0] * chunk[1] * 4), 1)
        for row in range(100):
            array.id.write_direct_chunk((row * chunk[0], 0), packed)

    return with_array(directory, ordinary, make, vocabulary_size=ROWS // 100 * 100)


@case("HDF5: an array that was never written", "Expected at least .* bytes by the shapes of its arrays")
def hdf5_hollow(directory, ordinary):
    make = lambda file, place: file.create_dataset(place, (ROWS, TINY["hidden_dim"]), "float32")  # noqa: E731
    return with_array(directory, ordinary, make, vocabulary_size=ROWS)


@case("HDF5: a small array in a large compressed chunk", "/token_embedding/vars/0: expected an array in one piece")
def hdf5_chunk(directory, ordinary):
    def make(file, place):
        chunk = (MUCH // 32, 8)
        array = file.create_dataset(place, (16, 8), "float32", chunks=chunk, maxshape=(None, 8), compression="gzip")
        packer = zlib.compressobj(1)
        first, other = (packer.compress(bytes(10 * 2**20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
        array.id.write_direct_chunk((0, 0), first + other * (MUCH // (10 * 2**20) - 1) + packer.flush())

    return with_array(directory, ordinary, make)


@case("HDF5: an array of arrays", "Expected at least .* bytes by the shapes of its arrays")
def hdf5_array_type(directory, ordinary):
    make = lambda file, place: file.create_dataset(place, (16, 8), np.dtype(("float32", (MUCH // 4,))))  # noqa: E731
    return with_array(directory, ordinary, make)


@case("HDF5: numbers that are lists", "/token_embedding/vars/0: expected floats, found object")
def hdf5_lists(directory, ordinary):
    def make(file, place):
        rows = np.zeros((16, 8), object)
        rows[:] = [[np.zeros(10, "float32")] * 8] * 16
        file.create_dataset(place, data=rows, dtype=h5py.vlen_dtype(np.float32))

    return with_array(directory, ordinary, make)


@case("HDF5: a view of other arrays", "/token_embedding/vars/0: expected an array with its data in this file")
def hdf5_virtual(directory, ordinary):
    def make(file, place):
        layout = h5py.VirtualLayout((16, 8), "float32")
        layout[:] = h5py.VirtualSource("elsewhere.h5", "x", (16, 8))
        file.create_virtual_dataset(place, layout)

    return with_array(directory, ordinary, make)


@case("HDF5: two ways to each of 60 groups", "not a whole HDF5 file")
def hdf5_ways(directory, ordinary):
    path = copied(directory, ordinary / "keras_preset")
    with h5py.File(path / "model.weights.h5", "a") as file:
        inner = file.create_group("end")
        inner["array"] = 1.0
        for number in range(60):
            outer = file.create_group(f"group{number}")
            outer["a"] = outer["b"] = inner
            inner = outer
    return path


# === Hugging Face's files ===


def safetensors(directory, ordinary, header, size=64):
    path = copied(directory, ordinary / "hugging_face")
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return path


def tensor(shape, *offsets):
    return {"dtype": "F32", "shape": shape, "data_offsets": offsets}


TABLE = "embeddings.word_embeddings.weight"


@case("safetensors: a header of a terabyte", "model.safetensors: not a whole safetensors file")
def safetensors_header_length(directory, ordinary):
    path = safetensors(directory, ordinary, {})
    (path / "model.safetensors").write_bytes(struct.pack("<Q", HUGE) + b"{}")
    return path


@case("safetensors: 100,000 tensors", "model.safetensors: expected a header of at most 4,194,304 bytes, found")
def safetensors_count(directory, ordinary):
    description = json.dumps(tensor([0], 0, 0)).encode()
    header = b"{" + b",".join(b'"%d":%s' % (number, description) for number in range(100_000)) + b"}"
    return safetensors(directory, ordinary, header, 0)


SAFETENSORS = {
    "beyond the file": {TABLE: tensor([HUGE, 8], 0, 32 * HUGE)},
    "one over another": {f"{number}": tensor([16], 0, 64) for number in range(100)},
    "of another shape": {TABLE: tensor([HUGE, 8], 0, 64)},
    "without an end": {TABLE: tensor([2**63, 8], 0, 64)},
}
for _name, _header in SAFETENSORS.items():
    case(f"safetensors: tensors {_name}", "model.safetensors: not a whole safetensors file")(
        lambda directory, ordinary, header=_header: safetensors(directory, ordinary, header)
    )


def torch_file(directory, ordinary, content, old=False):
    """A `pytorch_model.bin` with a pickle of these bytes, or as PyTorch saved them before 1.6."""
    path = copied(directory, ordinary / "hugging_face")
    os.remove(path / "model.safetensors")
    if old:
        before = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
        sections = [*(pickle.dumps(header, 2) for header in before), content, pickle.dumps(["0"], 2), bytes(72)]
        (path / "pytorch_model.bin").write_bytes(b"".join(sections))
    else:
        toy_checkpoints.torch_zip(path / "pytorch_model.bin", content, bytes(64))
    return path


def called(module, name, *arguments):
    """What calls a function, in pickle's words."""
    return b"\x80\x02c%s\n%s\n" % (module.encode(), name.encode()) + pickled(arguments) + b"R"


def state_dict(tensor, name=TABLE):
    return b"\x80\x02}" + pickled(name) + tensor + b"s."


def doubled(depth):
    """A tuple of one tuple twice, so many levels of them."""
    return b")q\0" + b"".join(b"h%c\x86q%c" % (level, level + 1) for level in range(depth))


def doubled_list(depth):
    inner = b"".join(b"ah%ca" % level for level in range(depth - 1, 0, -1))
    return b"".join(b"]q%c" % level for level in range(depth)) + inner


def shaped(shape):
    return state_dict(torch_tensor(16, (), ()).replace(pickled(()), shape, 1))


_ITEMS = pickled([(f"{number}", number) for number in range(20_000)])
TORCH = {
    # torch.load(weights_only=True) fills 600 MB for this one.
    "that asks for 600 MB": (called("__builtin__", "bytearray", MUCH) + b".", "it names __builtin__.bytearray"),
    "with a storage of 600 MB": (called("torch", "FloatStorage", MUCH) + b".", "not a whole PyTorch file"),
    "of 20 million lists": (b"\x80\x02" + b"]" * (MUCH // 30) + b".", "not a whole PyTorch file of tensors"),
    "that remembers its four billionth object": (b"\x80\x02}r\xff\xff\xff\xef.", "lacks embeddings|.0.\\)"),
    "with a name of 4 GB": (b"\x80\x02X\xff\xff\xff\xffx.", "not a whole PyTorch file of tensors"),
    "that copies a dictionary 2,000 times": (
        b"\x80\x02](ccollections\nOrderedDict\nq\0" + _ITEMS + b"q\x01\x85R" + b"h\0h\x01\x85R" * 2000 + b"e.",
        "expected a model's state_dict, tensors by name, found list|no attribute",
    ),
    "with a tensor beyond the file": (
        state_dict(torch_tensor(HUGE, (HUGE // 8, 8), (8, 1))),
        r"Expected at least 4,000,000,000,000 bytes by the shapes of its arrays",
    ),
    "with a tensor that repeats a number": (
        state_dict(torch_tensor(16, (HUGE, 8), (0, 0))),
        "beyond its storage of 16",
    ),
    "with a tensor that ends before it begins": (
        state_dict(torch_tensor(16, (16, 8), (-8, 1))),
        "beyond its storage of 16",
    ),
    "with a shape of 40 levels of lists": (shaped(doubled_list(40)), "beyond its storage of 16"),
    # REVIEW2.md, A6: the message printed the shape, four times as long each two levels.
    **{
        f"with a {what} of {depth} levels": (content, "it has a tuple that no tensor needs")
        for depth in (24, 28, 40)
        for what, content in (("shape", shaped(doubled(depth))), ("name", b"\x80\x02}%sK\1s." % doubled(depth)))
    },
    "with names that a dictionary finds slowly": (
        b"\x80\x02}(" + b"".join(pickled(number * (2**61 - 1)) + b"K\1" for number in range(1, 40_000)) + b"u.",
        "it names something by something else than a string",
    ),
    "with one of two names that is a number": (b"\x80\x02}(" + pickled(TABLE) + b"K\1K\2K\3u.", "else than a string"),
    "that names a megabyte": (b"\x80\x02c" + b"a" * 10**6 + b"\nb\n.", "it names a{99}, which is no part of a tensor"),
}
for _name, (_content, _message) in TORCH.items():
    for _old in (False, True):
        case(
            f"pytorch_model.bin: a pickle {_name}{', before PyTorch 1.6' * _old}", f"pytorch_model.bin: .*({_message})"
        )(lambda directory, ordinary, content=_content, old=_old: torch_file(directory, ordinary, content, old))


@case(
    "pytorch_model.bin: 450 MB, compressed a million times", "is compressed by method 12. Expected stored or deflated"
)
def torch_compressed(directory, ordinary):
    path = torch_file(directory, ordinary, b"")
    zip_of(path, {"archive/data.pkl": bytes(450 * 10**6)}, "pytorch_model.bin", zipfile.ZIP_BZIP2)
    return path


# === TensorFlow's ===


def checksum(data):
    """What LevelDB calls a masked CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def entry(shape, size, dtype=1, **others):
    message = tensor_bundle_pb2.BundleEntryProto(dtype=dtype, size=size, **others)
    for axis in shape:
        message.shape.dim.add(size=axis)
    return message.SerializeToString()


def block(items, restarts=(0,)):
    """A block of a table: `(bytes of the key that are as before, the rest of it, value)`."""
    packed = (varint(shared) + varint(len(key)) + varint(len(value)) + key + value for shared, key, value in items)
    return b"".join(packed) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def index(directory, entries, restarts=(0,), handle=None, footer=None, data=bytes(64)):
    """A TensorFlow checkpoint with an index of these entries; `handle` and `footer` are places in it."""
    header = tensor_bundle_pb2.BundleHeaderProto(num_shards=1)
    header.version.producer = 1
    content, handles = b"", []

    def add(part):
        nonlocal content
        handles.append(varint(len(content)) + varint(len(part)))
        content += part + b"\0" + checksum(part + b"\0")

    add(block([(0, b"", header.SerializeToString()), *entries], restarts))
    add(block([]))
    add(block([(0, b"\xff", handle or handles[0])]))
    content += (footer or b"".join(handles[1:])).ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    (directory / "bert_model.ckpt.index").write_bytes(content)
    (directory / "bert_model.ckpt.data-00000-of-00001").write_bytes(data)
    return directory


def google_index(directory, ordinary, entries, **others):
    return index(copied(directory, ordinary / "google"), entries, **others)


WORDS = b"bert/embeddings/word_embeddings"
FAR = varint(HUGE) + varint(HUGE)
INDEXES = {
    "a footer that leads a terabyte away": ([], {"footer": FAR + FAR}, "a block that is .* beyond the file"),
    "a block that is a terabyte away": ([], {"handle": FAR}, "blocks that overlap"),
    "a variable of -3 rows": ([(0, WORDS, entry([-3, 8], 96))], {}, r"a variable in parts, or of shape \(-3, 8\)"),
    "a variable of 2^80 numbers": ([(0, WORDS, entry([2**40, 2**40], 64))], {}, "a variable in parts, or of shape"),
    "a variable of 300 axes": ([(0, WORDS, entry([1] * 300, 4))], {}, "a variable in parts, or of shape"),
    "a variable of an unknown type": ([(0, WORDS, entry([1], 4, dtype=99))], {}, "99 to a TensorFlow DType"),
    "a variable of other bytes": ([(0, WORDS, entry([HUGE, 8], 64))], {}, r"of shape \(1000000000000, 8\) in 64 bytes"),
    "an entry that is none": ([(0, WORDS, b"\xff\xff\xff")], {}, "Wire format was corrupt"),
    "two variables of one name": ([(0, WORDS, entry([1], 4))] * 2, {}, "two variables of one name"),
    "names that continue a name of 10,000 bytes": (
        [(0, b"a" * 10_000, entry([1], 4)), *[(10_000, b"%d" % number, b"") for number in range(10**4, 2 * 10**4)]],
        {},
        "a key that is too long",
    ),
    "names of 1,000 bytes for each four": (
        [(0, b"a" * 1000, entry([1], 4)), *[(997, b"%03d" % number, b"") for number in range(1000)]],
        {},
        "a key that is too long",
    ),
    "a second entry inside the first": ([(0, WORDS, entry([1], 4))], {"restarts": (0, 50)}, "keys in other places"),
}
for _name, (_entries, _others, _message) in INDEXES.items():
    case(f"TensorFlow: {_name}", f"bert_model.ckpt.index: not a whole checkpoint index .*{_message}")(
        lambda directory, ordinary, entries=_entries, others=_others: google_index(
            directory, ordinary, entries, **others
        )
    )


@case("TensorFlow: an index of numbers without end", "checkpoint index .a number of more than 10 bytes")
def tensorflow_varints(directory, ordinary):
    """REVIEW2.md, A6: reading took quadratic time, minutes for 2 MB."""
    path = google_index(directory, ordinary, [], footer=varint(0) * 2 + varint(2**21 - 5 - 100) + varint(0))
    file = path / "bert_model.ckpt.index"
    footer = b"\0\0" + varint(0) + varint(2**21 - 100)
    content = b"\x80" * (2**21 - 104) + struct.pack("<I", 0) + bytes(52 - 48)
    file.write_bytes(content + footer.ljust(40, b"\0") + file.read_bytes()[-8:])
    return path


@case("TensorFlow: a variable beyond the data", "data-00000-of-00001: truncated.* at least 3,200,000,000,000 bytes")
def tensorflow_beyond(directory, ordinary):
    return google_index(directory, ordinary, [(0, WORDS, entry([10**11, 8], 32 * 10**11))])


@case("TensorFlow: variables one over another", "data-00000-of-00001: truncated.* at least 6,400 bytes")
def tensorflow_overlap(directory, ordinary):
    return google_index(directory, ordinary, [(0, b"%02d" % number, entry([16], 64)) for number in range(100)])


@case("TensorFlow: strings of 2 GB in place of numbers", "cannot read bert/embeddings/word_embeddings, .*strings")
def tensorflow_strings(directory, ordinary):
    shapes = {name.encode(): shape for name, shape in tf.train.list_variables(str(ordinary / "google"))}
    entries = [
        (0, name, entry(shape, 900, dtype=7) if name == WORDS else entry(shape, 4 * math.prod(shape), offset=900))
        for name, shape in sorted(shapes.items())
    ]
    lengths = varint(2**31) * 128 + checksum(struct.pack("<I", 2**31) * 128)
    return google_index(directory, ordinary, entries, data=lengths + bytes(2**20))


GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"


@case("TensorFlow: a graph of objects of 2 GB", "bert_model.ckpt: its graph of objects is damaged")
def tensorflow_graph(directory, _):
    data = varint(2**31) + checksum(struct.pack("<I", 2**31)) + bytes(64)
    return index(directory, [(0, GRAPH, entry([], len(data), dtype=7))], data=data)


@case("TensorFlow: a graph of four million objects", "bert_model.ckpt: its graph of objects is damaged")
def tensorflow_nodes(directory, _):
    data = varint(2**23) + checksum(struct.pack("<I", 2**23)) + b"\x0a\0" * 2**22
    return index(directory, [(0, GRAPH, entry([], len(data), dtype=7))], data=data)


@case(
    "TensorFlow: 20,000 objects that share 40,000 layers", "expected one encoder .* in its graph of objects, found none"
)
def tensorflow_shared_layers(directory, ordinary):
    graph, num_nodes = trackable_object_graph_pb2.TrackableObjectGraph(), 20_000
    for _ in range(num_nodes + 1):
        child = graph.nodes.add().children.add(local_name="_transformer_layers", node_id=num_nodes + 1)
    graph.nodes[0].children.extend([type(child)(local_name=f"{number}", node_id=number) for number in range(num_nodes)])
    layers = graph.nodes.add()
    layers.children.extend([type(child)(local_name=f"{number}", node_id=0) for number in range(2 * num_nodes)])
    content = graph.SerializeToString()
    data = varint(len(content)) + checksum(struct.pack("<I", len(content))) + content
    return index(directory, [(0, GRAPH, entry([], len(data), dtype=7))], data=data)


# === Text beside the weights ===


def enlarged(path):
    os.truncate(path, MUCH)  # A hole: it takes no space on the disk.


for _format, _file, _kind in (
    ("hugging_face", "config.json", "weights"),
    ("hugging_face", "tokenizer_config.json", "tokenizer"),
    ("hugging_face", "vocab.txt", "tokenizer"),
    ("google", "vocab.txt", "tokenizer"),
    ("google", "bert_config.json", "weights"),
    ("google", "checkpoint", "weights"),
    ("keras_preset", "config.json", "weights"),
    ("keras_preset", "tokenizer.json", "tokenizer"),
):

    @case(f"{_format}: a {_file} of 600 MB", f"{_file}: expected at most 16,777,216 bytes, found 629,145,600", _kind)
    def large_text(directory, ordinary, format=_format, file=_file):
        path = copied(directory, ordinary / format)
        enlarged(path / file)
        return path


for _file in ("model.safetensors.index.json", "pytorch_model.bin.index.json", "model.weights.json"):

    @case(f"an index of shards of 600 MB, {_file}", f"{_file}: expected at most 16,777,216 bytes, found 629,145,600")
    def large_shard_index(directory, ordinary, file=_file):
        path = copied(directory, ordinary / ("keras_preset" if "weights" in file else "hugging_face"))
        for weights_file in path.glob("model.*"):
            weights_file.unlink()
        (path / file).touch()
        enlarged(path / file)
        return path


@case("vocab.txt: a million pieces", "vocab.txt: expected at most 1,000,000 pieces", "tokenizer")
def many_pieces(directory, ordinary):
    path = copied(directory, ordinary / "hugging_face")
    (path / "vocab.txt").write_text("\n".join(f"{number:x}" for number in range(1_000_001)))
    return path


@case("tokenizer.json: five million lists", "tokenizer.json: expected a JSON object, found list", "tokenizer")
def many_lists(directory, ordinary):
    path = copied(directory, ordinary / "hugging_face")
    (path / "tokenizer.json").write_text("[" + "[]," * 5_500_000 + "1]")
    return path


@case("config.json: 900 objects, one in another", "no BERT checkpoint")
def deep_config(directory, ordinary):
    path = copied(directory, ordinary / "keras_preset")
    (path / "config.json").write_text('{"a":' * 900 + "1" + "}" * 900)
    return path


@case("params.yaml: a setting of 40 levels", r"expected a BERT encoder, found 'bert', norm_first=\[\[\[...\]", "sizes")
def doubled_yaml(directory, _):
    levels = [f"m{n}: &m{n} [*m{n - 1}, *m{n - 1}]" for n in range(1, 40)]
    task = "task: {model: {encoder: {type: bert, bert: {norm_first: *m39}}}}"
    (directory / "params.yaml").write_text("\n".join(["m0: &m0 [1, 2]", *levels, task]))
    return index(directory, [(0, GRAPH, entry([], 64, dtype=7))])


@case("config.json: 40,000 encoders", "expected one keras_bert>BertBackbone, found 40000 of different sizes", "sizes")
def many_configs(directory, ordinary):
    path = copied(directory, ordinary / "keras_preset")
    backbone = json.loads((path / "config.json").read_text())
    sizes = {name: backbone["config"][name] for name in TINY}
    others = [{**backbone, "config": {**sizes, "vocabulary_size": number}} for number in range(1, 40_001)]
    (path / "config.json").write_text(json.dumps(others))
    return path


@case("params.yaml: a mapping that copies itself ten million times", "expected task.model.encoder", "sizes")
def copying_yaml(directory, _):
    lines = ["m0: &m0 {a: 1, b: 2}"]
    lines += [f"m{n}: &m{n}\n  <<: [{', '.join(10 * [f'*m{n - 1}'])}]" for n in range(1, 8)]
    (directory / "params.yaml").write_text("\n".join(lines))
    return index(directory, [(0, GRAPH, entry([], 64, dtype=7))])


# === Configurations of more than there is ===

for _format, _name, _ours in (
    ("hugging_face", "num_hidden_layers", "num_layers"),
    ("google", "num_hidden_layers", "num_layers"),
    ("keras_preset", "num_layers", "num_layers"),
    ("google", "vocab_size", "vocabulary_size"),
):

    @case(f"{_format}: {_name} of a billion", f"config.json: .*`{_ours}` must be at most .*{_ours}=1,000,000,000,000")
    def impossible_size(directory, ordinary, format=_format, name=_name):
        path = copied(directory, ordinary / format)
        changed(path / ("bert_config.json" if format == "google" else "config.json"), **{name: HUGE})
        return path


LARGE = 10**8
SIZES = {
    "hugging_face": ("vocab_size", r"model.safetensors: .*word_embeddings.weight: expected shape \(100000000, 8\)"),
    "google": ("intermediate_size", r"intermediate/dense/kernel: expected shape \(8, 100000000\) by the configuration"),
    "keras_preset": (
        "max_sequence_length",
        r"position_embedding.*: expected shape \(1000000, 8\) by the configuration",
    ),
}
for _format, (_name, _message) in SIZES.items():

    @case(f"{_format}: a {_name} that the weights do not have", _message)
    def other_size(directory, ordinary, format=_format, name=_name):
        path = copied(directory, ordinary / format)
        size = LARGE if "positions" not in name and name != "max_sequence_length" else 10**6
        changed(path / ("bert_config.json" if format == "google" else "config.json"), **{name: size})
        return path


@case("random weights of a terabyte", "config.json|model: a model of these sizes takes 6,400,.* bytes, and", "sizes")
def large_random_model(directory, ordinary):
    path = copied(directory, ordinary / "hugging_face")
    changed(path / "config.json", vocab_size=10**9, hidden_size=1600)
    return path


def with_task(directory, ordinary, num_classes):
    from keras_bert.models.text_classifier import BertTextClassifier

    path = directory / "model"
    BertTextClassifier(BertBackbone(**TINY), num_classes=2).save_to_preset(str(path))
    changed(path / "task.json", num_classes=num_classes)
    return path


@case("task.json: a billion classes, and none of their weights", "its task has num_classes=1000000000", "task")
def many_classes(directory, ordinary):
    return with_task(directory, ordinary, 10**9)


@case("task.json: a billion classes of random weights", "its task has num_classes=1000000000", "task's sizes")
def many_random_classes(directory, ordinary):
    return with_task(directory, ordinary, 10**9)


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_at_once_in_little_memory(answers, name):
    """REVIEW.md, Serious 6: memory bombs pass the checkpoint checks."""
    path, error, message, seconds = answers[name]
    assert error == "InputError", f"{error}: {message}"
    assert re.search(CASES[name][2], message) and path in message and "\n" not in message, message
    # A refusal takes up to 3 s of a slow processor; what these files ask for would take minutes.
    assert "MemoryError" not in message and seconds < 20, f"{seconds:.1f} s: {message}"
