"""Look at nodes from outside or from inside: which TCP ports accept a connection, and what a few services answer.

Runs as `python3 -` wherever it is to look from, with one JSON object as argument; prints one. Standard library alone.
"""

from __future__ import annotations

import errno
import json
import resource
import selectors
import socket
import ssl
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

AT_ONCE = 6000
CONNECT_SECONDS = 2.0  # the kernel accepts; what is dropped is never answered, and costs this for each batch of ports
ANSWER_SECONDS = 10.0  # a program answers, perhaps on a loaded machine
CONNECTED = 0
IP_BIND_ADDRESS_NO_PORT = 24  # or the ports here run out before those there


def open_ports(source: str, address: str, at_once: int) -> list[int]:
    """The ports that accept, by connecting to each."""
    found, waiting = [], list(range(65535, 0, -1))
    deadlines: dict[socket.socket, tuple[int, float]] = {}
    with selectors.DefaultSelector() as selector:
        while waiting or deadlines:
            while waiting and len(deadlines) < at_once:
                port = waiting.pop()
                one = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                one.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                one.bind((source, 0))
                code = one.connect_ex((address, port))
                if code == errno.EINPROGRESS:
                    selector.register(one, selectors.EVENT_WRITE, one)
                    deadlines[one] = (port, time.monotonic() + CONNECT_SECONDS)
                else:
                    found += [port] if code == CONNECTED else []
                    one.close()
            for key, _ in selector.select(0.05):
                one = key.data
                port, _ = deadlines.pop(one)
                selector.unregister(one)
                found += [port] if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == CONNECTED else []
                one.close()
            now = time.monotonic()
            for one, (_, deadline) in list(deadlines.items()):
                if deadline > now:
                    break  # in the order in which they were begun
                del deadlines[one]
                selector.unregister(one)
                one.close()
    return sorted(found)


def answers_udp(source: str, address: str, port: int, question: bytes) -> bool:
    """Whether a question by UDP is answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.bind((source, 0))
        asking.settimeout(ANSWER_SECONDS / 5)
        for _ in range(5):
            asking.sendto(question, (address, port))
            try:
                return bool(asking.recv(2048))
            except OSError:  # nothing came, or the node says that nothing is there
                continue
    return False


def http_status(source: str, address: str, port: int, path: str) -> str:
    """The first line that a server answers to GET by HTTPS, or else by HTTP; empty where it speaks neither."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    for wrap in (anyone.wrap_socket, lambda line: line):
        try:
            with wrap(socket.create_connection((address, port), ANSWER_SECONDS, (source, 0))) as asking:
                asking.sendall(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                answer = asking.recv(2048)
        except OSError:  # an SSLError is one
            continue
        if answer.startswith(b"HTTP/"):
            return answer.split(b"\r\n")[0].decode(errors="replace")
    return ""


def dns_question(name: str) -> bytes:
    """A question for a name's address (RFC 1035, section 4)."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)


NTP_QUESTION = b"\x23" + bytes(47)  # version 4, a client (RFC 5905, section 7.3)


def look(asked: dict[str, Any], address: str, at_once: int) -> dict[str, Any]:
    source = asked["source"]
    udp = {53: dns_question(asked["name"]), 123: NTP_QUESTION}
    # All at once: a port without an answer takes its whole time, and there are many.
    with ThreadPoolExecutor(32) as pool:
        answers = {port: pool.submit(answers_udp, source, address, port, question) for port, question in udp.items()}
        tcp = open_ports(source, address, at_once)
        pages = {
            port: [pool.submit(http_status, source, address, port, path) for path in asked["pages"]] for port in tcp
        }
        return {
            "tcp": tcp,
            "udp": [port for port, answer in answers.items() if answer.result()],
            "pages": {port: [page.result() for page in asked_for] for port, asked_for in pages.items()},
        }


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """{address: what was found there}; asked for are source, addresses, name and pages."""
    addresses, hard = asked["addresses"], resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    at_once = min(AT_ONCE, (hard - 100) // len(addresses))
    with ThreadPoolExecutor(len(addresses)) as pool:
        return dict(zip(addresses, pool.map(lambda address: look(asked, address, at_once), addresses), strict=True))


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
