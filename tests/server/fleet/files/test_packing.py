import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from braid.core.errors import InvalidArtefact
from braid.server.fleet.files.packing import pack, unpack


def folder(path: Path, **files: bytes) -> Path:
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def tar_of(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def member(name: str, **facts: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for fact, value in facts.items():
        setattr(made, fact, value)
    return made


def test_a_folder_comes_back_as_it_was(tmp_path: Path) -> None:
    made = folder(tmp_path / "made", graph=b"{}", weights=os.urandom(1 << 20), empty=b"")

    pack(made, tmp_path / "tar")
    unpack(tmp_path / "tar", tmp_path / "back")

    back = {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()}
    assert back == {path.name: path.read_bytes() for path in made.iterdir()}


def test_equal_folders_make_equal_files(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", a=b"1", b=b"2")
    other = folder(tmp_path / "other", b=b"2", a=b"1")
    os.utime(other / "a", (1, 1))
    (other / "b").chmod(0o644)

    pack(one, tmp_path / "1.tar")
    pack(other, tmp_path / "2.tar")

    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside", size=3),
        member("/tmp/outside", size=3),
        member("sub/file", size=3),
        member(".hidden", size=3),
        member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("hard", type=tarfile.LNKTYPE, linkname="ok"),
        member("folder", type=tarfile.DIRTYPE),
        member("device", type=tarfile.CHRTYPE),
        member("pipe", type=tarfile.FIFOTYPE),
        member("ok", size=3),  # twice
    ],
    ids=lambda bad: bad.name,
)
def test_nothing_but_plain_files_leaves_a_tar(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    tar = tar_of(tmp_path / "tar", member("ok", size=5), bad)

    with pytest.raises(InvalidArtefact):
        unpack(tar, tmp_path / "back")

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["back", "ok", "tar"]


@pytest.mark.parametrize("change", [lambda tar: tar[:700], lambda tar: b"no tar" * 200])
def test_a_file_that_is_no_whole_tar_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    tar = tar_of(tmp_path / "tar", member("ok", size=5000))
    tar.write_bytes(change(tar.read_bytes()))

    with pytest.raises(InvalidArtefact):
        unpack(tar, tmp_path / "back")


def test_a_folder_with_a_link_is_not_packed(tmp_path: Path) -> None:
    made = folder(tmp_path / "made", a=b"1")
    (made / "link").symlink_to("/etc/passwd")

    with pytest.raises(InvalidArtefact, match="'link', which is no file"):
        pack(made, tmp_path / "tar")
