"""Accept mail on port 2525, POST requests on 8098 and, as a proxy, on 8095; write /root/mail, hook and proxied."""

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
    """Writes each body on a line, a proxy the URL before it."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).replace(b"\n", b" ")
        is_proxy = "://" in self.path
        with open("/root/proxied" if is_proxy else "/root/hook", "ab") as file:
            file.write((f"{self.path} ".encode() if is_proxy else b"") + body + b"\n")
        self.send_response(200)
        self.end_headers()


socketserver.ThreadingTCPServer.allow_reuse_address = True
threading.Thread(target=socketserver.ThreadingTCPServer(("127.0.0.1", 2525), Mail).serve_forever).start()
threading.Thread(target=http.server.HTTPServer(("127.0.0.1", 8095), Hook).serve_forever).start()
http.server.HTTPServer(("127.0.0.1", 8098), Hook).serve_forever()
