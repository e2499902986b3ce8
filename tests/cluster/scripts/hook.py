"""A webhook that keeps what is posted, one JSON object a line. Arguments: port, file."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with Path(sys.argv[2]).open("ab") as file:
            file.write(body + b"\n")
        self.send_response(200)
        self.end_headers()


ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
