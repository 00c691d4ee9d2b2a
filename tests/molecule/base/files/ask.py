"""Ask one name server for one name's IPv4 address: ask.py SERVER NAME. Uses no resolver of the node."""

import socket
import struct
import sys

server, name = sys.argv[1:]
question = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
query = struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0) + question + struct.pack(">2H", 1, 1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
    channel.settimeout(5)
    channel.sendto(query, (server, 53))
    answer = channel.recv(512)
code, count = answer[3] & 15, struct.unpack(">H", answer[6:8])[0]
if code == 3:
    print("no such name")
elif code or not count:
    sys.exit(f"answer {code} with {count} records")
else:
    print(socket.inet_ntoa(answer[-4:]) if count == 1 else sys.exit("more than one record"))
