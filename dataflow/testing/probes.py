"""Programs that find out what the links of a lab carry; each runs at a station, given as the text of ``python -c``.

Those that listen print a line once they do. All read the machine's one monotonic clock.
"""

from __future__ import annotations

RECEIVE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listening", flush=True)
    taker, _ = server.accept()
    count = 0
    while piece := taker.recv(1 << 18):
        count += len(piece)
print(count, time.monotonic())
"""
"""Takes one stream at an address; prints its bytes, and when the last one came."""

SEND = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], 5000)) as giver:
    giver.sendall(bytes(int(sys.argv[2])))
print(began)
"""
"""Sends so many bytes to `RECEIVE` at an address; prints when it began to connect."""

ECHO = """
import socket, sys
server = socket.socket(type=socket.SOCK_DGRAM)
server.bind((sys.argv[1], 6000))
print("listening", flush=True)
while True:
    server.sendto(*server.recvfrom(100))
"""
"""Sends packets to an address back, until it is killed."""

ASK = """
import socket, sys, time
asker = socket.socket(type=socket.SOCK_DGRAM)
asker.settimeout(10)
asker.connect((sys.argv[1], 6000))
for _attempt in range(int(sys.argv[2])):
    began = time.monotonic()
    asker.send(b"?")
    asker.recv(100)
    print(time.monotonic() - began)
    time.sleep(0.002)
"""
"""Sends so many packets of one byte to `ECHO` at an address, one after the other; prints the seconds of each trip."""
