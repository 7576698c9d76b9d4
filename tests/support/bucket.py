"""A bucket for TensorFlow's own gs://, emulated on this machine by the package gcp-storage-emulator.

TensorFlow always asks https://storage.googleapis.com. So its libcurl is told of a proxy, which is the emulator, and of
the proxy's own certificate. TensorFlow reads these variables when it is imported: give them to a new process.
"""

import contextlib
import datetime
import functools
import http.server
import ssl
import threading
from collections.abc import Iterator

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from gcp_storage_emulator import server
from gcp_storage_emulator.handlers import buckets, objects
from gcp_storage_emulator.storage import Storage

CLOSED = "closed"  # A bucket that one may not use.
_HOSTS = ("www.googleapis.com", "storage.googleapis.com")


@contextlib.contextmanager
def emulated(directory, name: str) -> Iterator[dict[str, str]]:
    """Runs the emulator with one bucket; gives the environment variables with which TensorFlow finds it.

    Args:
        directory: pathlib.Path, gets the certificate.
        name: of the bucket.
    """
    certificate = directory / "bucket.pem"
    certificate.write_bytes(_certificate())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    storage = Storage(use_memory_fs=True)
    buckets.create_bucket(name, storage)
    with http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(_Proxy, storage, context)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield {
            "https_proxy": f"http://localhost:{running.server_port}",
            "CURL_CA_BUNDLE": str(certificate),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "NO_GCE_CHECK": "true",
            "GCS_READ_CACHE_MAX_STALENESS": "0",
            "GCS_RETRY_CONFIG_MAX_RETRIES": "1",
            "GCS_METADATA_REQUEST_TIMEOUT_SECS": "10",
        }
        running.shutdown()


class _Proxy(server.RequestHandler):
    """Answers the requests that come through a CONNECT as the hosts themselves would."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()  # The storage has none.

    def __init__(self, storage, context, *args):
        self._context = context
        super().__init__(storage, *args)

    def _encrypt(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.connection = self._context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        self.close_connection = False

    def _answer(self) -> None:
        if f"/b/{CLOSED}" in self.path:
            self.send_error(403)
            return
        with self.lock:
            server.Router(self).handle(self.command)

    do_CONNECT = _encrypt  # noqa: N815
    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815


# What TensorFlow does, and the emulator does not expect: an upload of no bytes, one in chunks that gives its length
# too, and https.
_read_data, _begin_upload = server._read_data, objects._create_resumable_upload


def _read_any_data(handler, query):
    if handler.headers.get("Transfer-Encoding") == "chunked":
        del handler.headers["Content-Length"]
    return _read_data(handler, query) or b""


def _begin_upload_by_https(request, response, storage):
    _begin_upload(request, response, storage)
    response["Location"] = response["Location"].replace("http:", "https:", 1)


server._read_data = _read_any_data
objects._create_resumable_upload = _begin_upload_by_https


def _certificate() -> bytes:
    """Returns a certificate of the hosts that it signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _HOSTS[0])])
    now = datetime.datetime.now(datetime.UTC)
    ends = now + datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, ends)
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in _HOSTS])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem) + private
