"""A file system that stops responding, as a hung network mount: who reads it cannot be killed until the program ends.

The kernel waits for the answer to a request that a FUSE daemon has received, even after SIGKILL (fs/fuse/dev.c,
request_wait_answer). It runs on a node: python3 - DIRECTORY
"""

import ctypes
import os
import struct
import sys

INIT = 26
HEADER = struct.Struct("=IIQ")  # length, error or opcode, number of the request


def main(directory: str) -> None:
    """Mount the file system, answer the kernel's first request, and read further ones without an answer."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hung", directory.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    while request := os.read(device, 1 << 18):
        _, opcode, number = HEADER.unpack_from(request)
        if opcode == INIT:
            answer = struct.pack("=IIIIHHII32x", 7, 31, 0, 0, 12, 9, 4096, 1)
            os.write(device, HEADER.pack(HEADER.size + len(answer), 0, number) + answer)


if __name__ == "__main__":
    main(sys.argv[1])
