"""A server on this machine that speaks enough of Hugging Face's and Kaggle's protocols to download presets from.

As `huggingface_hub` needs it: `/api/models/<name>/revision/<revision>`, `/api/models/<name>/tree/<commit>`, and
`/<name>/resolve/<commit>/<file>` with ETag, X-Repo-Commit and ranges. As `kagglehub` needs it: the model service's
`DownloadModelInstanceVersion`, which leads to the file, and `GetModelInstance`, which says the newest version.
"""

import base64
import hashlib
import http.server
import json
import threading
import urllib.parse

STORED_APART = (".safetensors", ".bin", ".h5")  # large files, which Hugging Face names by their SHA-256

# Files of a model in Hugging Face's format and in KerasHub's.
SMALL = {"config.json": b"{}", "vocab.txt": b"[PAD]\n", "tokenizer_config.json": b'{"do_lower_case": true}'}
HUGGING_FACE = {**SMALL, "model.safetensors": b"weights", "pytorch_model.bin": b"pickle", "README.md": b"read me"}
KERAS_HUB = {
    "config.json": b"{}",
    "model.weights.h5": b"weights",
    "tokenizer.json": b'{"config": {}}',
    "assets/tokenizer/vocabulary.txt": b"[PAD]\n",
}


class ToyHub:
    """What the server has, what it does wrong, and what it was asked for.

    Attributes:
        models: at Hugging Face: name, or name@revision, to a dict of file to bytes.
        kaggle: at Kaggle: handle with version to a dict of file to bytes.
        faults: file to what happens to the next request for its content: `"cut"` (the connection breaks halfway),
            `"corrupt"` (a byte is wrong), `"short"` (a byte is missing), `"error"` (status 500).
        requests: list of (method, file or service, Range header or None) in the order of arrival.
    """

    def __init__(self):
        self.models, self.kaggle, self.faults, self.requests = {}, {}, {}, []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *arguments: None  # a client that breaks off is no news
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def fetched(self):
        """Names of the files whose content was asked for since the last call."""
        names = [name for method, name, _ in self.requests if method == "GET"]
        self.requests.clear()
        return names


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):  # noqa: N802, the base class's name
        self._serve(with_body=False)

    def do_GET(self):  # noqa: N802
        self._serve(with_body=True)

    def do_POST(self):  # noqa: N802
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        service = self.path.rpartition("/")[2]
        self.hub.requests.append(("POST", service, None))
        handle = "/".join([request["ownerSlug"], request["modelSlug"], "keras", request["instanceSlug"]])
        if service == "GetModelInstance":
            versions = [int(name.rpartition("/")[2]) for name in self.hub.kaggle if name.startswith(f"{handle}/")]
            return self._send_json({"versionNumber": max(versions)}) if versions else self._send_status(404)
        handle = f"{handle}/{request['versionNumber']}"
        if request["path"] not in self.hub.kaggle.get(handle, {}):
            return self._send_status(404)
        self.send_response(302)
        self.send_header("Location", f"{self.hub.url}/kaggle/{handle}/{request['path']}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _serve(self, with_body):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            return self._describe(*path.removeprefix("/api/models/").split("/", 3))
        if path.startswith("/kaggle/"):
            _, _, *handle, name = path.split("/", 7)
            content = self.hub.kaggle["/".join(handle)][name]
            digest = base64.b64encode(hashlib.md5(content).digest()).decode()
            return self._send_file(name, content, {"x-goog-hash": f"crc32c=AAAAAA==,md5={digest}"}, with_body)
        owner, repository, _, commit, name = (*path[1:].split("/", 4), *[""] * 4)[:5]
        _, files = self._model(f"{owner}/{repository}", commit)
        if name not in (files or {}):
            return self._send_status(404, {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{_digest(name, files[name])}"', "X-Repo-Commit": commit}
        return self._send_file(name, files[name], headers, with_body)

    def _describe(self, owner, repository, kind="revision", revision="main"):
        """Answers what a model is (`kind` "revision") or which files it has ("tree")."""
        name = f"{owner}/{repository}"
        branch, files = self._model(name, revision)
        if files is None:
            return self._send_status(404, {"X-Error-Code": "RepoNotFound"})
        if kind == "revision":
            return self._send_json({"id": name, "sha": _commit(name, branch), "siblings": []})
        entries = []
        for file, content in files.items():
            entry = {"type": "file", "path": file, "size": len(content), "oid": _git_digest(content)}
            if file.endswith(STORED_APART):
                entry["lfs"] = {"oid": _digest(file, content), "size": len(content), "pointerSize": 100}
            entries.append(entry)
        return self._send_json(entries)

    def _model(self, name, revision):
        """Branch and files of a model at a branch or commit; two None if there is no such."""
        for key, files in self.hub.models.items():
            repository, _, branch = key.partition("@")
            branch = branch or "main"
            if repository == name and revision in (branch, _commit(name, branch)):
                return branch, files
        return None, None

    def _send_json(self, value):
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send_status(self, status, headers=None):
        self._send(status, b"", headers or {})

    def _send(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_file(self, name, content, headers, with_body):
        asked = self.headers.get("Range")
        self.hub.requests.append((self.command, name, asked))
        fault = self.hub.faults.pop(name, None) if with_body else None
        if fault == "error":
            return self._send_status(500)
        if fault == "corrupt":
            content = bytes([content[0] ^ 1]) + content[1:]
        if fault == "short":
            content = content[:-1]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        headers = {**headers, "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if fault != "cut":
            return self._send(206 if asked else 200, content[start:], headers)
        self.send_response(200)
        for header, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        self.close_connection = True
        return None


def _commit(name, branch):
    return hashlib.sha1(f"{name}@{branch}".encode()).hexdigest()


def _git_digest(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _digest(name, content):
    return hashlib.sha256(content).hexdigest() if name.endswith(STORED_APART) else _git_digest(content)
