"""Upstream's PathManager: checks of paths before they are used."""

from __future__ import annotations

import os
import shutil

from torch_npu._errors import ErrCode, pta_error


class PathManager:
    """Static checks and actions; each error names the path."""

    MAX_PATH_LENGTH = 4096

    @classmethod
    def _fail(cls, text: str, code: ErrCode) -> RuntimeError:
        return RuntimeError(text + pta_error(code))

    @classmethod
    def check_directory_path_readable(cls, path: str) -> None:
        """The path exists, is no link and can be read."""
        cls._check_access(path, os.R_OK, "read")

    @classmethod
    def check_directory_path_writeable(cls, path: str) -> None:
        """The path exists, is no link and can be written."""
        cls._check_access(path, os.W_OK, "written")

    @classmethod
    def _check_access(cls, path: str, mode: int, verb: str) -> None:
        if not os.path.exists(path):
            raise cls._fail(f"The path {path!r} does not exist", ErrCode.NOT_FOUND)
        if os.path.islink(path):
            raise cls._fail(f"The path {path!r} is a symbolic link", ErrCode.PARAM)
        if not os.access(path, mode):
            raise cls._fail(f"The path {path!r} cannot be {verb}", ErrCode.PERMISSION)

    @classmethod
    def check_input_directory_path(cls, path: str) -> None:
        """The path can name a directory."""
        cls._check_form(path)
        if os.path.isfile(path):
            raise cls._fail(f"The path {path!r} is a file, not a directory", ErrCode.PARAM)

    @classmethod
    def check_input_file_path(cls, path: str) -> None:
        """The path can name a file."""
        cls._check_form(path)
        if os.path.isdir(path):
            raise cls._fail(f"The path {path!r} is a directory, not a file", ErrCode.PARAM)

    @classmethod
    def _check_form(cls, path: str) -> None:
        if not path or len(path) > cls.MAX_PATH_LENGTH:
            raise cls._fail(f"The path {path!r} is empty or too long", ErrCode.PARAM)
        if os.path.islink(path):
            raise cls._fail(f"The path {path!r} is a symbolic link", ErrCode.PARAM)

    @classmethod
    def make_dir_safety(cls, path: str) -> None:
        """Makes a directory, readable by the owner and the group, unless it exists."""
        cls.check_input_directory_path(path)
        try:
            os.makedirs(path, mode=0o750, exist_ok=True)
        except OSError as error:
            raise cls._fail(f"Cannot make the directory {path!r}", ErrCode.SYSCALL) from error

    @classmethod
    def create_file_safety(cls, path: str) -> None:
        """Makes an empty file, readable by the owner and the group, unless it exists."""
        cls.check_input_file_path(path)
        if os.path.exists(path):
            return
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o640))
        except OSError as error:
            raise cls._fail(f"Cannot make the file {path!r}", ErrCode.SYSCALL) from error

    @classmethod
    def remove_path_safety(cls, path: str) -> None:
        """Removes a directory with everything in it, if it exists."""
        cls.check_input_directory_path(path)
        if os.path.exists(path):
            shutil.rmtree(path)

    @classmethod
    def remove_file_safety(cls, file: str) -> None:
        """Removes a file, if it exists."""
        cls.check_input_file_path(file)
        if os.path.exists(file):
            os.remove(file)
