"""A small fake of Google's storage service: the part of its JSON API that TensorFlow uses.

TensorFlow talks to fixed hosts by HTTPS, through the proxy that https_proxy names: this is that
proxy too. It answers CONNECT by taking the TLS connection itself, with a certificate of its own.
"""

import http.server
import json
import re
import ssl
import subprocess
import threading
import urllib.parse


def make_certificate(folder):
    """A certificate for the service's hosts, signed by itself: paths of certificate and key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    hosts = "subjectAltName=DNS:www.googleapis.com,DNS:storage.googleapis.com"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=www.googleapis.com", "-addext", hosts,
            "-keyout", str(key), "-out", str(certificate),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate, key


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection; the objects are the server's, by bucket/name."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Says nothing: the tests look at results."""

    def do_CONNECT(self):
        self.send_response(200, "Connection established")
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = self.connection.makefile("wb", 0)

    def answer(self, code, body=b"", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def target(self):
        url = urllib.parse.urlsplit(self.path)
        path = [urllib.parse.unquote(part) for part in url.path.split("/")]
        return url.path, path, dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))

    def resource(self, key):
        data = self.server.objects[key]
        return {
            "name": key[1],
            "bucket": key[0],
            "size": str(len(data)),
            "generation": "1",
            "updated": "2026-01-01T00:00:00.000Z",
        }

    def do_GET(self):
        path, parts, query = self.target()
        listed = re.fullmatch(r"/storage/v1/b/([^/]+)/o/?", path)
        if listed:
            self.answer(200, self.listing(listed[1], query))
        elif re.fullmatch(r"/storage/v1/b/[^/]+/?", path):
            self.answer(200, {"name": parts[4], "location": "US"})
        elif path.startswith("/storage/v1/b/"):
            key = (parts[4], parts[6])
            found = key in self.server.objects
            self.answer(200 if found else 404, self.resource(key) if found else b"{}")
        else:
            self.download((parts[1], "/".join(parts[2:])))

    def listing(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, prefixes = [], set()
        for key in sorted(self.server.objects):
            if key[0] != bucket or not key[1].startswith(prefix):
                continue
            rest = key[1][len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                items.append(self.resource(key))
        return {"items": items, "prefixes": sorted(prefixes)}

    def download(self, key):
        data = self.server.objects.get(key)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if data is None:
            self.answer(404)
        elif wanted and int(wanted[1]) >= len(data):
            self.answer(416)
        elif wanted:
            self.answer(206, data[int(wanted[1]) : int(wanted[2]) + 1])
        else:
            self.answer(200, data)

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_POST(self):
        _, parts, query = self.target()
        body = self.body()
        if "rewriteTo" in parts:
            at = parts.index("rewriteTo")
            source, target = (parts[4], parts[6]), (parts[at + 2], parts[at + 4])
            self.server.objects[target] = self.server.objects[source]
            self.answer(200, {"done": True, "resource": self.resource(target)})
        elif query.get("uploadType") == "resumable":
            location = f"https://www.googleapis.com/session/{parts[5]}/{query['name']}"
            self.answer(200, Location=location)
        else:
            self.server.objects[parts[5], query["name"]] = body
            self.answer(200, self.resource((parts[5], query["name"])))

    def do_PUT(self):
        _, parts, _ = self.target()
        body = self.body()
        key = (parts[2], "/".join(parts[3:]))
        self.server.writes += 1
        if self.server.full and len(body) > self.server.full:
            self.answer(403, {"error": {"code": 403, "message": "quota"}})
            return
        self.server.objects[key] = body
        self.answer(200, self.resource(key))

    def do_DELETE(self):
        _, parts, _ = self.target()
        found = self.server.objects.pop((parts[4], parts[6]), None) is not None
        self.answer(204 if found else 404)


class Service(http.server.ThreadingHTTPServer):
    """The service; `objects` are its contents, {(bucket, name): bytes}."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects = {}
        self.writes = 0
        self.full = 0  # the size of what is refused; 0: nothing
        certificate, key = make_certificate(folder)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)
        proxy = f"http://127.0.0.1:{self.server_port}"
        self.environ = {
            "https_proxy": proxy,
            "http_proxy": proxy,
            "no_proxy": "",
            "CURL_CA_BUNDLE": str(certificate),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "NO_GCE_CHECK": "1",
            "GCS_RETRY_CONFIG_MAX_RETRIES": "1",
        }
        threading.Thread(target=self.serve_forever, daemon=True).start()
