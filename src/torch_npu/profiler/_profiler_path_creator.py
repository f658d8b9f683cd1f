"""Where profiles go: upstream's ProfPathCreator, which programs that move profiles import.

A profile is a directory `{worker}_{pid}_{time}_ascend_pt` in the directory that `tensorboard_trace_handler` names, else in
`$ASCEND_WORK_PATH/profiling_data`, else in the current one. Without a handler and that variable it is temporary.
"""

from __future__ import annotations

import os
import shutil
import socket
from datetime import datetime

from torch_npu.profiler._messages import warn
from torch_npu.utils._path_manager import PathManager

__all__: list[str] = []

_MAX_WORKER = 226
_TEMPORARY = "export_only_prof_dir"


class ProfPathCreator:
    """One for the process: every call returns the same object."""

    _instance: ProfPathCreator | None = None
    _dir: str | None
    _worker: str | None
    _path: str | None
    _temporary: bool
    is_prof_inited: bool

    def __new__(cls) -> ProfPathCreator:
        if cls._instance is None:
            cls._instance = self = super().__new__(cls)
            self._dir = self._worker = self._path = None
            self._temporary = self.is_prof_inited = False
        return cls._instance

    def init(
        self,
        worker_name: str | None = None,
        dir_name: str | None = None,
        export_only_mode: bool = False,
    ) -> None:
        """Sets where the next profile goes; a wrong name is replaced by the default, with a warning."""
        self._temporary = export_only_mode
        self._worker = self._valid_worker(worker_name)
        self._dir = None
        if dir_name is None:
            return
        if not isinstance(dir_name, str) or not dir_name:
            warn(f"Invalid parameter dir_name: {dir_name!r}; the current directory is used.")
            return
        path = os.path.abspath(os.path.expanduser(dir_name))
        PathManager.check_input_directory_path(path)
        self._dir = path

    @staticmethod
    def _valid_worker(name: object) -> str | None:
        if name is None:
            return None
        if isinstance(name, str) and 0 < len(name) < _MAX_WORKER and "/" not in name:
            return name
        warn(f"Invalid parameter worker_name: {name!r}; the host's name is used.")
        return None

    def create_prof_dir(self) -> None:
        """Makes the directory of a new profile."""
        directory = self._directory()
        stamp = datetime.now().astimezone().strftime("%Y%m%d%H%M%S%f")[:-3]
        worker = self._worker or socket.gethostname()
        path = os.path.join(directory, f"{worker}_{os.getpid()}_{stamp}_ascend_pt")
        PathManager.make_dir_safety(path)
        PathManager.check_directory_path_writeable(path)
        self._path = path
        self.is_prof_inited = True

    def _directory(self) -> str:
        if self._dir:
            return self._dir
        work = os.environ.get("ASCEND_WORK_PATH")
        if work:
            self._temporary = False
            return os.path.join(os.path.abspath(work), "profiling_data")
        return os.path.join(os.getcwd(), _TEMPORARY) if self._temporary else os.getcwd()

    def get_prof_dir(self) -> str | None:
        return self._path

    def delete_prof_dir(self) -> None:
        """Removes the last profile, and the directory of temporary ones once it is empty."""
        path, self._path = self._path, None
        if path is None:
            return
        shutil.rmtree(path, ignore_errors=True)
        parent = os.path.dirname(path)
        empty = os.path.isdir(parent) and not os.listdir(parent)
        if empty and os.path.basename(parent) == _TEMPORARY:
            os.rmdir(parent)

    def delete_export_only_prof(self) -> None:
        """Removes the last profile if it was temporary."""
        if self._temporary:
            self.delete_prof_dir()
