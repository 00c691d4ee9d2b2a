"""Accept mail on port 2525 and POST requests on 8098, and write them to /root/mail and /root/hook."""

import http.server
import socketserver
import threading


class Mail(socketserver.StreamRequestHandler):
    """The few words of SMTP that a client needs."""

    def handle(self) -> None:
        self.wfile.write(b"220 sink ESMTP\r\n")
        while line := self.rfile.readline():
            word = line.strip().upper()
            if word == b"DATA":
                self.wfile.write(b"354 go\r\n")
                with open("/root/mail", "ab") as file:
                    while (line := self.rfile.readline()) not in (b".\r\n", b""):
                        file.write(line)
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


class Hook(http.server.BaseHTTPRequestHandler):
    """Writes each body on a line."""

    def do_POST(self) -> None:
        with open("/root/hook", "ab") as file:
            file.write(self.rfile.read(int(self.headers["Content-Length"])).replace(b"\n", b" ") + b"\n")
        self.send_response(200)
        self.end_headers()


socketserver.ThreadingTCPServer.allow_reuse_address = True
threading.Thread(target=socketserver.ThreadingTCPServer(("127.0.0.1", 2525), Mail).serve_forever).start()
http.server.HTTPServer(("127.0.0.1", 8098), Hook).serve_forever()
