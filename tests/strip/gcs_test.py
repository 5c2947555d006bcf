"""gs:// as input and output, with a small fake of Google's storage service.

TensorFlow connects to fixed hosts by HTTPS, through the proxy in https_proxy. The fake is that
proxy. It answers CONNECT by serving the TLS connection itself, with its own certificate.
"""

import http.server
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import urllib.parse

import numpy as np
import pytest
import tensorflow as tf
from finished import finished

from tf_hvd.core import _native

API = "/storage/v1/b/bucket"


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection; the server's `objects` are the bucket's contents by name."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Log nothing: the tests check results."""

    def do_CONNECT(self):
        self.send_response(200, "Connection established")
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = self.connection.makefile("wb", 0)

    def answer(self, code, body=b"", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def target(self):
        """The object path in the bucket, and the query."""
        url = urllib.parse.urlsplit(self.path)
        path = url.path.partition("/bucket")[2]
        names = [urllib.parse.unquote(part) for part in re.split("/o(?:/|$)", path)[1:]]
        return url.path, names, dict(urllib.parse.parse_qsl(url.query))

    def resource(self, name):
        size = str(len(self.server.objects[name]))
        return {"name": name, "size": size, "generation": "1", "updated": "2026-01-01T00:00:00Z"}

    def do_GET(self):
        path, names, query = self.target()
        if not path.startswith(API):
            self.download(urllib.parse.unquote(path.removeprefix("/bucket/")))
        elif not names:
            self.answer(200, {"name": "bucket", "location": "US"})
        elif names == [""]:
            self.answer(200, self.listing(query.get("prefix", ""), query.get("delimiter")))
        elif names[0] in self.server.objects:
            self.answer(200, self.resource(names[0]))
        else:
            self.answer(404)

    def listing(self, prefix, delimiter):
        items, prefixes = [], set()
        for name in sorted(self.server.objects):
            first, found, _ = name[len(prefix) :].partition(delimiter or "\n")
            if name.startswith(prefix) and found:
                prefixes.add(prefix + first + delimiter)
            elif name.startswith(prefix):
                items.append(self.resource(name))
        return {"items": items, "prefixes": sorted(prefixes)}

    def download(self, name):
        data = self.server.objects.get(name)
        begin, end = map(int, re.findall(r"\d+", self.headers["Range"]))
        if data is None:
            self.answer(404)
        else:
            self.answer(206 if begin < len(data) else 416, data[begin : end + 1])

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_POST(self):
        path, names, query = self.target()
        body = self.body()
        if "/rewriteTo/" in path:
            source = names[0].partition("/rewriteTo/")[0]
            self.server.objects[names[1]] = self.server.objects[source]
            self.answer(200, {"done": True, "resource": self.resource(names[1])})
        elif query["uploadType"] == "resumable":
            self.answer(200, Location=f"https://www.googleapis.com/bucket/o/{query['name']}")
        else:
            self.server.objects[query["name"]] = body
            self.answer(200, self.resource(query["name"]))

    def do_PUT(self):
        _, names, _ = self.target()
        self.server.objects[names[0]] = self.body()
        self.answer(200, self.resource(names[0]))

    def do_DELETE(self):
        _, names, _ = self.target()
        self.answer(404 if self.server.objects.pop(names[0], None) is None else 204)


@pytest.fixture
def service(tmp_path, monkeypatch):
    """The service, which programs started by a test find as the internet."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    hosts = "subjectAltName=DNS:www.googleapis.com,DNS:storage.googleapis.com"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=googleapis",
         "-addext", hosts, "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.objects = {}
        server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.tls.load_cert_chain(certificate, key)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("CURL_CA_BUNDLE", str(certificate))
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
        monkeypatch.setenv("NO_GCE_CHECK", "1")
        monkeypatch.setenv("GCS_RETRY_CONFIG_MAX_RETRIES", "1")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


# Several commands in one process, because TensorFlow loads slowly.
COMMANDS = """
import json, sys
import tf_hvd_command
codes = []
for line in json.loads(sys.argv.pop(1)):
    sys.argv[1:] = ["strip-ops", *line]
    codes.append(tf_hvd_command.main())
print(codes)
"""


def test_graphs_and_models(service, tmp_path):
    with tf.Graph().as_default() as graph:
        # Larger than one read, so that reads request ranges.
        tf.constant(np.arange(3 << 20, dtype=np.float64), name="weights")
        x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
        _native.ops.horovod_broadcast(x, 0, name="y")
    service.objects["in/graph.pb"] = graph.as_graph_def().SerializeToString()
    module = tf.Module()
    module.v = tf.Variable([1.0, 2.0])
    module.f = tf.function(
        lambda x: _native.ops.horovod_broadcast(x, 0) * module.v,
        input_signature=[tf.TensorSpec([2])],
    )
    tf.saved_model.save(module, str(tmp_path / "model"))
    for path in (tmp_path / "model").rglob("*"):
        if path.is_file():
            service.objects[f"in/{path.relative_to(tmp_path)}"] = path.read_bytes()
    before = set(service.objects)

    commands = [
        ["--input", "gs://bucket/in/graph.pb", "--output", "gs://bucket/out.pb"],
        ["--input", "gs://bucket/in/model", "--output", "gs://bucket/models/stripped"],
        ["--check", "--input", "gs://bucket/models/stripped"],
    ]
    result = finished(
        [sys.executable, "-P", "-c", COMMANDS, json.dumps(commands)], env=dict(os.environ)
    )
    assert result.stdout.endswith("[0, 0, 0]\n"), result.stdout + result.stderr
    stripped = tf.compat.v1.GraphDef.FromString(service.objects["out.pb"])
    assert [node.op for node in stripped.node] == ["Const", "Placeholder", "Identity"]

    written = service.objects.keys() - before
    assert not [name for name in written if "tmp" in name]
    for name in written:
        if name.startswith("models/stripped/") and not name.endswith("/"):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(service.objects[name])
    loaded = tf.saved_model.load(str(tmp_path / "models" / "stripped"))
    assert loaded.f(tf.constant([3.0, 4.0])).numpy().tolist() == [3.0, 8.0]
