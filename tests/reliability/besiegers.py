"""Besiege a port: connections that stay silent, requests that never end, and requests without TLS.

python tests/reliability/besiegers.py HOST PORT SILENT SLOW

It keeps up so many silent connections and slow requests until it is ended by a line on its standard input;
then it prints, as JSON, how many connections of each kind it has had, and what was answered to requests without TLS.
"""

import contextlib
import json
import socket
import ssl
import sys
import threading
import time
from collections import Counter

HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\n"


def besiege(host: str, port: int, silent: int, slow: int, over: threading.Event) -> Counter[str]:
    """Keep it up until it is over; return what came of it."""
    seen = Counter[str]()
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE

    def quiet() -> None:
        with socket.create_connection((host, port), timeout=5) as opened:
            seen["silent"] += 1
            opened.settimeout(0.5)
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    if not opened.recv(1):
                        return

    def slowly() -> None:
        with socket.create_connection((host, port), timeout=5) as plain, unverified.wrap_socket(plain) as opened:
            seen["slow"] += 1
            opened.sendall(HEAD)
            while not over.wait(0.3):
                opened.sendall(b"x")

    def stripped() -> None:
        with socket.create_connection((host, port), timeout=5) as opened:
            opened.sendall(HEAD + b"Content-Length: 0\r\n\r\n")
            answer = opened.recv(100).split(b"\r\n")[0].decode(errors="replace")
            seen[f"without TLS: {answer or 'closed'}"] += 1
        over.wait(0.3)

    def kept_up(attack) -> None:
        while not over.is_set():
            try:
                attack()
            except OSError:
                over.wait(0.2)

    attacks = [quiet] * silent + [slowly] * slow + [stripped]
    threads = [threading.Thread(target=kept_up, args=(attack,), daemon=True) for attack in attacks]
    for thread in threads:
        thread.start()
        time.sleep(0.002)
    over.wait()
    return seen


if __name__ == "__main__":
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    print(json.dumps(besiege(sys.argv[1], *map(int, sys.argv[2:5]), ended)))
