"""Zip files: what leads outside, lies about its size or is damaged is refused, and leaves nothing behind."""

import io
import os
import random
import shutil
import stat
import struct
import tarfile
import zipfile

import pytest

from keras_bert.errors import InputError
from keras_bert.formats import archive

NOISE = random.Random(0).randbytes(200_000)


def write_zip(path, members, compression=zipfile.ZIP_STORED):
    """Writes members of `{name or ZipInfo: content}`."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for member, content in members.items():
            file.writestr(member, content)
    return str(path)


def special(name, mode):
    member = zipfile.ZipInfo(name)
    member.create_system = 3  # Unix
    member.external_attr = mode << 16
    return member


def extract(path, directory):
    directory.mkdir()
    archive.extract(path, str(directory))


def refused(path, tmp_path, message):
    """Extracts into `tmp_path/out/here`: an InputError that names the file, and nothing written anywhere."""
    target = tmp_path / "out" / "here"
    target.mkdir(parents=True)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(InputError, match=message) as caught:
        archive.extract(path, str(target))
    assert path in str(caught.value) and "\n" not in str(caught.value)
    assert os.listdir(target) == [] and os.listdir(tmp_path / "out") == ["here"]
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_arrive_with_their_folders(tmp_path, compression):
    members = {"bert/config.json": b"{}", "bert/assets/vocab.txt": "[PAD]\nä".encode(), "bert/w": NOISE, "a..b": b"x"}
    path = write_zip(tmp_path / "z.zip", members, compression)
    extract(path, tmp_path / "out")
    for name, content in members.items():
        assert (tmp_path / "out" / name).read_bytes() == content


@pytest.mark.parametrize(
    "name",
    ["../evil", "a/../../evil", "/tmp/evil", "..", "a\\..\\..\\evil", "\\evil", "\\\\host\\evil", "C:evil", "c:/evil"],
)
def test_members_that_lead_outside_are_refused_before_anything_is_written(tmp_path, name):
    path = write_zip(tmp_path / "z.zip", {"first": b"harmless", name: b"evil"})
    refused(path, tmp_path, "member .*evil.* leads outside|member '..' leads outside")


def test_a_name_with_a_zero_byte_is_refused(tmp_path):
    content = io.BytesIO()
    write_zip(content, {"aXevil": b"x"})
    (tmp_path / "z.zip").write_bytes(content.getvalue().replace(b"aXevil", b"a\0evil"))
    refused(str(tmp_path / "z.zip"), tmp_path, r"member 'a\\x00evil'")


@pytest.mark.parametrize(
    ("mode", "message"),
    [(stat.S_IFLNK | 0o777, "'link' is a symbolic link"), (stat.S_IFIFO | 0o666, "'link' is neither file nor dir")],
)
def test_links_and_devices_are_refused(tmp_path, mode, message):
    path = write_zip(tmp_path / "z.zip", {"first": b"x", special("link", mode): b"/etc/passwd"})
    refused(path, tmp_path, message)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_rare_compressions_are_refused(tmp_path, compression):
    path = write_zip(tmp_path / "z.zip", {"first": b"x"}, compression)
    refused(path, tmp_path, f"member 'first' is compressed by method {compression}. Expected stored or deflated")


def test_an_encrypted_member_is_named(tmp_path):
    path = write_zip(tmp_path / "z.zip", {"first": b"x", "secret": b"y"})
    content = bytearray((tmp_path / "z.zip").read_bytes())
    entry = content.rindex(b"PK\x01\x02")  # The last entry of the central directory; its flags stand at byte 8.
    struct.pack_into("<H", content, entry + 8, 1)
    (tmp_path / "z.zip").write_bytes(content)
    refused(path, tmp_path, "member 'secret' is encrypted. Expected a zip without a password")


@pytest.mark.parametrize("kept", [0, 3, 1000, 199_000, -1])
def test_a_truncated_zip(tmp_path, kept):
    path = write_zip(tmp_path / "z.zip", {"weights": NOISE})
    with open(path, "r+b") as file:
        file.truncate(kept if kept >= 0 else os.path.getsize(path) - 1)
    refused(path, tmp_path, "not a whole zip file")


def test_a_damaged_member_is_named(tmp_path):
    path = write_zip(tmp_path / "z.zip", {"fine": b"x", "weights": NOISE}, zipfile.ZIP_DEFLATED)
    content = bytearray((tmp_path / "z.zip").read_bytes())
    content[100_000] ^= 0xFF
    (tmp_path / "z.zip").write_bytes(content)
    with pytest.raises(InputError, match="member 'weights' cannot be extracted .*Fetch the file again") as caught:
        extract(path, tmp_path / "out")
    assert path in str(caught.value)


def test_a_file_that_is_also_a_folder_is_an_input_error(tmp_path):
    path = write_zip(tmp_path / "z.zip", {"a": b"x", "a/b": b"y"})
    with pytest.raises(InputError, match="member 'a/b' cannot be extracted"):
        extract(path, tmp_path / "out")


def test_a_bomb_is_refused_and_a_small_file_of_zeros_is_not(tmp_path):
    bomb = write_zip(tmp_path / "bomb.zip", {"zeros": bytes(archive._NEVER_A_BOMB + 1)}, zipfile.ZIP_DEFLATED)
    refused(bomb, tmp_path, r"would take at least 524,289 bytes, \d\d\d times the file's")
    small = write_zip(tmp_path / "small.zip", {"zeros": bytes(2**19)}, zipfile.ZIP_DEFLATED)
    extract(small, tmp_path / "small")
    assert os.path.getsize(tmp_path / "small" / "zeros") == 2**19


def test_members_that_lie_one_over_another_count_each(tmp_path):
    """The bomb without nesting: a thousand entries of the directory that name the same bytes."""
    content = io.BytesIO()
    write_zip(content, {"zeros0000": bytes(2**18)}, zipfile.ZIP_DEFLATED)
    raw = content.getvalue()
    start, end = raw.index(b"PK\x01\x02"), raw.index(b"PK\x05\x06")
    entries = b"".join(raw[start:end].replace(b"zeros0000", b"zeros%04d" % index) for index in range(1000))
    tail = bytearray(raw[end:])
    struct.pack_into("<HHII", tail, 8, 1000, 1000, len(entries), start)
    (tmp_path / "z.zip").write_bytes(raw[:start] + entries + bytes(tail))
    refused(str(tmp_path / "z.zip"), tmp_path, "would take at least 1,310,720 bytes")


def test_more_than_the_disk_holds_is_refused(tmp_path, monkeypatch):
    path = write_zip(tmp_path / "z.zip", {"weights": NOISE})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    refused(path, tmp_path, "take 200,000 bytes, and .*here has 1,000 free")


def test_a_missing_file_is_an_input_error(tmp_path):
    refused(str(tmp_path / "nowhere.zip"), tmp_path, "not a whole zip file")


# === Tar files ===


def write_tar(path, members, mode="w:gz"):
    """Writes members of `{name or TarInfo: content}`."""
    with tarfile.open(path, mode) as file:
        for member, content in members.items():
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return str(path)


def tar_member(name, kind):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    return member


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_members_arrive_with_their_folders(tmp_path, mode):
    members = {"bert/bert_config.json": b"{}", "bert/w": NOISE}
    extract(write_tar(tmp_path / "t.tar.gz", members, mode), tmp_path / "out")
    for name, content in members.items():
        assert (tmp_path / "out" / name).read_bytes() == content


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("../evil", "member '../evil' leads outside"),
        ("/etc/evil", "member '/etc/evil' leads outside"),
        (tar_member("link", tarfile.SYMTYPE), "member 'link' is neither file nor directory"),
        (tar_member("link", tarfile.LNKTYPE), "member 'link' is neither file nor directory"),
        (tar_member("pipe", tarfile.FIFOTYPE), "member 'pipe' is neither file nor directory"),
    ],
)
def test_tar_members_that_lead_elsewhere_are_refused(tmp_path, member, message):
    refused(write_tar(tmp_path / "t.tar.gz", {"fine": b"x", member: b""}), tmp_path, message)


def test_a_tar_that_is_cut_or_a_bomb_is_refused(tmp_path):
    path = write_tar(tmp_path / "t.tar.gz", {"w": NOISE})
    with open(path, "r+b") as file:
        file.truncate(100_000)
    refused(path, tmp_path, "not a whole tar file")
    shutil.rmtree(tmp_path / "out")
    refused(write_tar(tmp_path / "b.tar.gz", {"w": bytes(100 * 2**20)}), tmp_path, "times the file's")
