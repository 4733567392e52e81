"""Folders that a guest has filled, and may still change: entered, emptied, weighed."""

from __future__ import annotations

import os
import stat

MOST_INODES, DEEPEST = 16384, 256


def enter_folder(name, parent):
    """Opens a folder, also one that its owner shut; None for what is none."""
    for _ in range(2):
        try:
            return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except PermissionError:
            os.chmod(name, 0o700, dir_fd=parent)  # a link has no mode that could be refused
        except OSError:
            return None
    return None


def empty_folder(top):
    """Removes all in a folder, however deep: folders in folders are moved up, so that no path becomes too long."""
    number = 0
    while True:
        with os.scandir(top) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if not names:
            return
        for name, is_folder in names:
            if not is_folder:
                os.unlink(name, dir_fd=top)
                continue
            fd = enter_folder(name, top)
            if fd is None:
                continue
            os.fchmod(fd, 0o700)
            with os.scandir(fd) as entries:
                inner = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            for one, is_folder in inner:
                if is_folder:
                    number += 1
                    move_up(one, fd, top, f".{os.getpid()}.{number}")
                else:
                    os.unlink(one, dir_fd=fd)
            os.close(fd)
            os.rmdir(name, dir_fd=top)


def move_up(name, fd, top, to):
    try:
        os.rename(name, to, src_dir_fd=fd, dst_dir_fd=top)
    except PermissionError:  # a folder that is shut cannot get another parent
        os.chmod(name, 0o700, dir_fd=fd)
        os.rename(name, to, src_dir_fd=fd, dst_dir_fd=top)


def remove_folder(path):
    try:
        os.rmdir(path)
        return
    except OSError:
        pass
    fd = enter_folder(path, None)
    if fd is None:
        return
    try:
        empty_folder(fd)
    finally:
        os.close(fd)
    os.rmdir(path)


def weigh(path, most):
    """Bytes below a folder; more than `most` as soon as that is certain, or as soon as it is too much to count."""
    total, seen, inodes = 0, 0, MOST_INODES + (most >> 14)
    opened = []
    try:
        opened.append((enter_folder(path, None), None))
        while opened:
            fd, names = opened.pop()
            if fd is None:
                continue
            if names is None:
                names = []
                with os.scandir(fd) as entries:
                    for entry in entries:
                        info = entry.stat(follow_symlinks=False)
                        seen, total = seen + 1, total + info.st_blocks * 512
                        if stat.S_ISDIR(info.st_mode):
                            names.append(entry.name)
                        if total > most or seen > inodes:
                            opened.append((fd, names))
                            return most + 1
            if not names:
                os.close(fd)
                continue
            opened.append((fd, names))
            if len(opened) > DEEPEST:
                return most + 1
            opened.append((enter_folder(names.pop(), fd), None))
    except OSError:
        pass  # it changes while we look: the next look counts again
    finally:
        for fd, _ in opened:
            if fd is not None:
                os.close(fd)
    return total
