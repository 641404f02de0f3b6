"""Folders of a model repository, as one look finds them.

    ROOT/NAME/config.pbtxt            optional; other files beside it may hold labels of classes
    ROOT/NAME/VERSION/model.onnx      VERSION: a number from 1, without leading zeros

Links are followed. Hidden names (".git", the names that copying programs write to) are passed over,
and so are files beside the models' folders; every other name that cannot be used gets a line that
says why. What cannot be read now is not taken for removed.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from braid.core.errors import InvalidRequest
from braid.server.store.records import check_model_name

CONFIG_FILE = "config.pbtxt"

_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_MOST_FOLDERS = 4  # a model may be a folder, and its data may lie in folders below
_CUSTOM_CONFIGS = "configs"  # where Triton keeps other configurations of a model

Stamp = tuple[tuple[str, int, int, int], ...]
"""Path, size, and times of change (content, entry; ns) of each file: equal while none changes.

Without inodes: some network file systems number files anew at each look.
"""


@dataclass(frozen=True, slots=True)
class VersionFolder:
    """Folder of one version of a model."""

    number: int
    path: Path
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Folder of one model."""

    name: str
    path: Path
    config: Stamp  # of config.pbtxt; empty: there is none
    versions: Mapping[int, VersionFolder]
    unreadable: str = ""  # why it is not known what lies there; "" usually
    is_gone: bool = False  # it was there before
    beside: Stamp = ()  # of the other files beside config.pbtxt

    @property
    def stamp(self) -> tuple[Stamp, ...]:
        """Stamps that change with anything that is read of the folder."""
        versions = (version.stamp for _, version in sorted(self.versions.items()))
        return self.config, self.beside, *versions

    @property
    def changed_unix(self) -> float:
        """Time of the latest change of a file, in seconds; 0 if there is no file."""
        times = (max(entry[2:4]) for stamp in self.stamp for entry in stamp)
        return max(times, default=0) / 1e9


@dataclass(frozen=True, slots=True)
class RepositoryContents:
    """Contents of a repository."""

    models: Mapping[str, ModelFolder]
    lines: Mapping[Path, str] = field(default_factory=dict)  # what is not used -> why


def look_at(root: Path) -> RepositoryContents:
    """Look at a repository; blocks while the disk is read. OSError: it cannot be read."""
    models, lines = {}, {}
    for entry in _entries(root):
        path = Path(entry.path)
        if not (entry.is_dir() or _leads_nowhere(entry)):
            continue
        try:
            check_model_name(entry.name)
        except InvalidRequest as error:
            lines[path] = str(error)
            continue
        model, others = _model_folder(path)
        models[model.name] = model
        lines.update(others)
    return RepositoryContents(models, lines)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        children = sorted(entries, key=lambda entry: entry.name)
    return (entry for entry in children if not entry.name.startswith("."))


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a link to what is not there now, which may well come back."""
    return entry.is_symlink() and not os.path.exists(entry.path)


def _model_folder(path: Path) -> tuple[ModelFolder, dict[Path, str]]:
    """Return a model's folder, and lines about what in it is not used."""
    versions: dict[int, VersionFolder] = {}
    lines: dict[Path, str] = {}
    config: Stamp = ()
    beside: Stamp = ()
    try:
        for entry in _entries(path):
            inside = Path(entry.path)
            if entry.name == CONFIG_FILE:
                config = _stamp(inside) or ((CONFIG_FILE, 0, 0, 0),)  # an empty folder
            elif entry.is_file():
                beside += _stamp(inside)
            elif not (entry.is_dir() or _leads_nowhere(entry)) or entry.name == _CUSTOM_CONFIGS:
                continue
            elif _VERSION.fullmatch(entry.name):
                number = int(entry.name)
                versions[number] = VersionFolder(number, inside, _stamp(inside))
            else:
                lines[inside] = "not a version: those are numbers from 1, without leading zeros"
    except OSError as error:
        return ModelFolder(path.name, path, (), {}, unreadable=str(error.strerror)), lines
    return ModelFolder(path.name, path, config, versions, beside=beside), lines


def _stamp(path: Path) -> Stamp:
    """Return the stamp of a file, or of the files in a folder; what cannot be read shows, too."""
    return tuple(_stamps(path, path.name))


def _stamps(path: Path, name: str) -> Iterator[tuple[str, int, int, int]]:
    try:
        status = path.stat()
        inside = sorted(os.listdir(path)) if stat.S_ISDIR(status.st_mode) else []
    except OSError as error:
        yield f"{name}: {error.strerror}", 0, 0, 0
        return
    if not stat.S_ISDIR(status.st_mode):
        yield name, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    elif name.count("/") < _MOST_FOLDERS:
        for entry in inside:
            yield from _stamps(path / entry, f"{name}/{entry}")
