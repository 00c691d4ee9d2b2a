#!/usr/bin/python3 -I
"""Mount an NFSv4 export without the kernel's client: SIMULATED, for the lab only.

Kernels of build machines may have no NFS. The protocol and the server are real: libnfs speaks NFS version 4.0 with the
server, for a FUSE file system. As with a hard mount, a request waits as long as the server does not respond. There are
no locks and no caches, and of a user's groups the server knows only the first.

usage: mount.nfs4 SERVER:PATH DIRECTORY [-o OPTIONS]     mount(8) starts it
"""

import ctypes
import errno
import os
import stat
import sys
import time

import fusepy as fuse

KERNELS = ("nosuid", "nodev", "noexec", "ro", "rw")  # options for the kernel; all others are for NFS
STAT = "dev ino mode nlink uid gid rdev size blksize blocks atime mtime ctime atime_ns mtime_ns ctime_ns used".split()
LOST = (errno.EIO, errno.EINVAL, errno.ERANGE, errno.ETIMEDOUT, errno.EPIPE, errno.ENOTCONN, errno.EFAULT)  # of libnfs


class Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in STAT]


class Entry(ctypes.Structure):
    _fields_ = [("next", ctypes.c_void_p), ("name", ctypes.c_char_p)]


class Times(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("microseconds", ctypes.c_long)]


class Statvfs(ctypes.Structure):
    names = "f_bsize f_frsize f_blocks f_bfree f_bavail f_files f_ffree f_favail f_fsid f_flag f_namemax".split()
    _fields_ = [(name, ctypes.c_ulong) for name in names]


LIBRARY = ctypes.CDLL("libnfs.so.14")
for function in ("nfs_init_context", "nfs_readdir"):
    getattr(LIBRARY, function).restype = ctypes.c_void_p


class Files(fuse.Operations):
    """The calls of FUSE, each one as a call of libnfs. No file stays open, so nothing is lost with a connection."""

    use_ns = True  # times are whole nanoseconds

    def __init__(self, server, export):
        self._server, self._export, self._context = server.encode(), export.encode(), None
        if not self._connect():
            sys.exit("mount.nfs4 (simulated): the server does not respond, or does not export this")

    def _connect(self):
        """Return whether a new connection has mounted the export."""
        context = ctypes.c_void_p(LIBRARY.nfs_init_context())
        LIBRARY.nfs_set_version(context, 4)
        LIBRARY.nfs_set_autoreconnect(context, 0)
        LIBRARY.nfs_set_timeout(context, 10000)
        if LIBRARY.nfs_mount(context, self._server, self._export):
            LIBRARY.nfs_destroy_context(context)
            return False
        self._context = context
        return True

    def _call(self, name, *arguments):
        """Call a function for the user who asks. Retry it on a new connection: the lease may have expired."""
        uid, gid, _ = fuse.fuse_get_context()
        for is_last in (False, True):
            LIBRARY.nfs_set_uid(self._context, uid)
            LIBRARY.nfs_set_gid(self._context, gid)
            result = getattr(LIBRARY, "nfs_" + name)(self._context, *arguments)
            if result >= 0:
                return result
            if is_last or -result not in LOST:
                raise fuse.FuseOSError(-result)
            while not self._connect():
                time.sleep(1)

    def getattr(self, path, fh=None):
        found = Stat()
        self._call("lstat64", path.encode(), ctypes.byref(found))
        wanted = ("mode", "nlink", "uid", "gid", "size", "blocks", "atime", "mtime", "ctime")
        answer = {"st_" + name: getattr(found, name) for name in wanted}
        for name in ("atime", "mtime", "ctime"):
            answer["st_" + name] = answer["st_" + name] * 10**9 + getattr(found, name + "_ns")
        return answer

    def readdir(self, path, fh):
        directory, names = ctypes.c_void_p(), []
        self._call("opendir", path.encode(), ctypes.byref(directory))
        while entry := LIBRARY.nfs_readdir(self._context, directory):
            names.append(os.fsdecode(Entry.from_address(entry).name))
        LIBRARY.nfs_closedir(self._context, directory)
        return names if "." in names else [".", "..", *names]

    def _opened(self, path, flags, mode=0):
        handle = ctypes.c_void_p()
        self._call("open2", path.encode(), flags, mode, ctypes.byref(handle))
        return handle

    def open(self, path, flags):
        LIBRARY.nfs_close(self._context, self._opened(path, flags & os.O_ACCMODE))
        return 0

    def create(self, path, mode, fi=None):
        LIBRARY.nfs_close(self._context, self._opened(path, os.O_CREAT | os.O_RDWR, mode))
        self.chmod(path, mode)
        return 0

    def read(self, path, size, offset, fh):
        data, handle = ctypes.create_string_buffer(size), self._opened(path, os.O_RDONLY)
        count = self._call("pread", handle, ctypes.c_uint64(offset), ctypes.c_uint64(size), data)
        LIBRARY.nfs_close(self._context, handle)
        return data.raw[:count]

    def write(self, path, data, offset, fh):
        handle = self._opened(path, os.O_WRONLY)
        count = self._call("pwrite", handle, ctypes.c_uint64(offset), ctypes.c_uint64(len(data)), data)
        LIBRARY.nfs_close(self._context, handle)
        return count

    def truncate(self, path, length, fh=None):
        self._call("truncate", path.encode(), ctypes.c_uint64(length))

    def mkdir(self, path, mode):
        self._call("mkdir2", path.encode(), stat.S_IMODE(mode))

    def chmod(self, path, mode):
        self._call("chmod", path.encode(), stat.S_IMODE(mode))

    def chown(self, path, uid, gid):
        self._call("chown", path.encode(), uid, gid)

    def utimens(self, path, times=None):
        times = times or (time.time_ns(), time.time_ns())
        both = (Times * 2)(*(Times(one // 10**9, one % 10**9 // 1000) for one in times))
        self._call("utimes", path.encode(), both)

    def readlink(self, path):
        buffer = ctypes.create_string_buffer(4096)
        self._call("readlink", path.encode(), buffer, 4096)
        return os.fsdecode(buffer.value)

    def symlink(self, target, source):
        self._call("symlink", source.encode(), target.encode())

    def rename(self, old, new):
        self._call("rename", old.encode(), new.encode())

    def unlink(self, path):
        self._call("unlink", path.encode())

    def rmdir(self, path):
        self._call("rmdir", path.encode())

    def statfs(self, path):
        found = Statvfs()
        self._call("statvfs", path.encode(), ctypes.byref(found))
        return {name: getattr(found, name) for name in Statvfs.names if name != "f_fsid"}


def main(source, directory, *options):
    """Mount, and return when the file system is there; another process then answers the kernel."""
    server, _, export = source.rpartition(":")
    given = ",".join(options[1:2] if options[:1] == ("-o",) else ()).split(",")
    files = Files(server.strip("[]"), export)
    kernels = {name: True for name in given if name in KERNELS}
    fuse.FUSE(
        files,
        directory,
        nothreads=True,
        allow_other=True,
        default_permissions=True,
        fsname=source,
        subtype="nfs4",
        attr_timeout=0,
        entry_timeout=0,
        **kernels,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
