"""A tiny application: answers every request with its name and what it was asked. Usage: app.py NAME PORT

GET /break makes it answer 503 to its health check, GET /mend makes it well again. GET /search fails every other time.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, PORT = sys.argv[1], int(sys.argv[2])


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body leave together.
    wbufsize = -1
    healthy = True
    searches = 0

    def do_GET(self):
        if self.path in ("/break", "/mend"):
            Answer.healthy = self.path == "/mend"
        status = 200
        if self.path == "/health" and not Answer.healthy:
            status = 503
        if self.path == "/search":
            Answer.searches += 1
            status = 503 if Answer.searches % 2 else 200
        canary = " as the canary" if self.headers["x-canary"] else ""
        body = f"{NAME} answers {self.path}{canary}\n".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET


ThreadingHTTPServer(("127.0.0.1", PORT), Answer).serve_forever()
