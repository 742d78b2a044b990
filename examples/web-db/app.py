"""A tiny application: answers every HTTP request with its name and the path. Usage: app.py NAME PORT"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, PORT = sys.argv[1], int(sys.argv[2])


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{NAME} says hello; you asked for {self.path}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        # One request a connection, so that a changed intention is seen at once.
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", PORT), Answer).serve_forever()
