"""softnpu.ownership: whose files are trusted."""

from __future__ import annotations

import os
import stat

import pytest

from softnpu import ownership

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture(autouse=True)
def shared_groups(monkeypatch):
    monkeypatch.setattr(ownership, "_only_ours", lambda group: False)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o600, 0o444])
def test_closed_to_other_writers(tmp_path, mode):
    file = tmp_path / "file"
    file.touch()
    file.chmod(mode)
    ownership.check(file)


@pytest.mark.parametrize(
    ("mode", "who"), [(0o666, "everybody"), (0o702, "everybody"), (0o664, "group")]
)
def test_open_to_other_writers(tmp_path, mode, who):
    file = tmp_path / "file"
    file.touch()
    file.chmod(mode)
    with pytest.raises(
        ownership.Untrusted, match=rf"{file} may be written by {who}.*\(mode {mode:o}\)"
    ):
        ownership.check(file)


def test_group_of_the_user_alone(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    file.chmod(0o664)
    monkeypatch.setattr(ownership, "_only_ours", lambda group: True)
    ownership.check(file)


def test_every_folder_on_the_way(tmp_path):
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    ownership.check_path(inner)
    ownership.check_path(inner / "not" / "there")
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(ownership.Untrusted, match="/a may be written by everybody"):
        ownership.check_path(inner)


def test_behind_links_too(tmp_path):
    (tmp_path / "open" / "inner").mkdir(parents=True)
    (tmp_path / "way").mkdir()
    (tmp_path / "way" / "link").symlink_to("../open/inner")
    ownership.check_path(tmp_path / "way" / "link" / "x")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ownership.Untrusted, match="/open may be written by everybody"):
        ownership.check_path(tmp_path / "way" / "link" / "x")


def test_links_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ownership.Untrusted, match="more than 40 links"):
        ownership.check_path(tmp_path / "a" / "x")


@as_root
def test_sticky_folders_of_root_alone(tmp_path):
    sticky = tmp_path / "sticky"
    (sticky / "mine").mkdir(parents=True)
    sticky.chmod(0o1777)
    ownership.check_path(sticky / "mine")
    os.chown(sticky, 12345, 12345)
    with pytest.raises(ownership.Untrusted, match="/sticky belongs to user 12345"):
        ownership.check_path(sticky / "mine")


@as_root
def test_links_of_others(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(ownership.Untrusted, match="/link belongs to user 12345"):
        ownership.check_path(tmp_path / "link" / "x")


def test_opened(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    with ownership.opened(tmp_path / "link") as opened:
        assert opened.read() == b"text"
    with (
        pytest.raises(ownership.Untrusted, match="link is a link"),
        ownership.opened(tmp_path / "link", follow=False),
    ):
        pass
    os.mkfifo(tmp_path / "pipe")
    with (
        pytest.raises(ownership.Untrusted, match="pipe is not a regular file"),
        ownership.opened(tmp_path / "pipe"),
    ):
        pass
    with pytest.raises(FileNotFoundError), ownership.opened(tmp_path / "none", follow=False):
        pass


def test_read_text_is_bounded(tmp_path):
    file = tmp_path / "file"
    file.write_text("äöü", "utf-8")
    assert ownership.read_text(file, 6) == "äöü"
    with pytest.raises(ownership.Untrusted, match="file has more than 5 bytes"):
        ownership.read_text(file, 5)


def test_make_private(tmp_path):
    ownership.make_private(tmp_path / "a" / "b")
    for made in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(ownership.Untrusted, match="may be written by everybody"):
        ownership.make_private(tmp_path / "a" / "c")
    assert not (tmp_path / "a" / "c").exists()
