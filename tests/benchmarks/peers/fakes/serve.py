"""A peer over HTTP that doubles what it is sent, or does what ``--fault`` says."""

import argparse
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

WRONG_FROM = 20
DIES_AT = 12


class Doubling(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fault = ""
    requests = 0

    def do_POST(self) -> None:
        Doubling.requests += 1
        if self.fault == "dies" and self.requests == DIES_AT:
            os._exit(3)
        x = np.frombuffer(self.rfile.read(int(self.headers["Content-Length"])), np.float32)
        is_wrong = self.fault == "wrong" and self.requests >= WRONG_FROM
        body = (x * (3 if is_wrong else 2)).tobytes()
        self.send_response(200 if self.path == "/double" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        return


class Server(ThreadingHTTPServer):
    request_queue_size = 128


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--threads", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    parser.add_argument("--fault", default="")
    given = parser.parse_args()
    Doubling.fault = given.fault
    Path(given.model).with_suffix(f".{given.fault or 'right'}.starts").open("a").write("start\n")
    if given.fault == "spins":
        threading.Thread(target=spin, daemon=True).start()
    server = Server(("127.0.0.1", int(given.port)), Doubling)
    print("UP", flush=True)
    print("READY", flush=True)
    server.serve_forever()
