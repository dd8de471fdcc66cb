"""Speed of plain TCP on a link: each of two ranks sends `--bytes` to the other and receives as many, a connection for each direction, `--steps` times.
RANK, MASTER_ADDR and MASTER_PORT as for ddp.py. Rank 0 writes a JSON object to --out: the seconds of each step. The first does not count."""
import argparse
import json
import os
import pathlib
import socket
import threading
import time

PART_BYTES = 1 << 20
ANSWER_S = 60


def two_connections():
    """(to send on, to receive on)."""
    address, is_first = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), os.environ["RANK"] == "0"
    if is_first:
        with socket.create_server(address) as server:
            server.settimeout(ANSWER_S)
            found = [server.accept()[0] for _ in range(2)]
    else:
        found = [connect(address) for _ in range(2)]
    for one in found:
        one.settimeout(ANSWER_S)
    return found if is_first else found[::-1]


def connect(address):
    end = time.monotonic() + ANSWER_S
    while True:
        try:
            return socket.create_connection(address, ANSWER_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def receive(connection, part, num_bytes):
    while num_bytes:
        got = connection.recv_into(part, min(num_bytes, len(part)))
        if not got:
            raise ConnectionError("the other rank has ended")
        num_bytes -= got


def send(connection, part, num_bytes):
    for begin in range(0, num_bytes, len(part)):
        connection.sendall(part[:num_bytes - begin])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    out, incoming = two_connections()
    parts = [memoryview(bytearray(PART_BYTES)) for _ in range(2)]
    seconds = []
    for _ in range(options.steps + 1):
        begin = time.perf_counter()
        sender = threading.Thread(target=send, args=(out, parts[0], options.bytes))
        sender.start()
        receive(incoming, parts[1], options.bytes)
        sender.join()
        seconds.append(time.perf_counter() - begin)
    if os.environ["RANK"] == "0":
        options.out.write_text(json.dumps({"seconds": seconds[1:]}))


if __name__ == "__main__":
    main()
