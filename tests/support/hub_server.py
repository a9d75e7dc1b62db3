"""A small Hugging Face hub on loopback: the few endpoints that `huggingface_hub` calls.

    with HubServer() as hub:
        hub.add("org/name", directory)
        fetch("org/name", endpoint=hub.url, cache_dir=...)

It can ask for a token, gate a repository, break a connection, stall, or count ranges.
"""

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

_LFS_BYTES = 100_000


@dataclass
class Repo:
    """One repository: files by name, all under one commit."""

    files: dict[str, bytes]
    token: str | None = None
    gated: bool = False
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    branches: tuple[str, ...] = ("main",)
    gguf: dict[str, Any] | None = None  # what a hub has read of such files


@dataclass
class HubServer:
    """The server; see the module.

    Attributes:
        break_after: per file name, the byte counts after which its next transfers break off.
        stall_after: per file name, the byte count after which a transfer hangs until `release`.
        gets: (file, first byte) of every transfer.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    break_after: dict[str, list[int]] = field(default_factory=dict)
    stall_after: dict[str, int] = field(default_factory=dict)
    gets: list[tuple[str, int]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    status: int | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def add(self, name: str, directory: Path, **options: Any) -> Repo:
        """Serve the files of a directory under this name."""
        files = {
            str(file.relative_to(directory)): file.read_bytes()
            for file in sorted(directory.rglob("*"))
            if file.is_file()
        }
        self.repos[name] = Repo(files, **options)
        return self.repos[name]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubServer":
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._route(body=False)

    def do_GET(self) -> None:
        self._route(body=True)

    def _route(self, *, body: bool) -> None:
        path = unquote(urlparse(self.path).path)
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+?))?/?", path)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = api or resolve
        if self.server_hub.status is not None:
            self._json({"error": "broken"}, self.server_hub.status)
            return
        if match is None:
            self._json({"error": "not here"}, 404)
            return
        repo = self.server_hub.repos.get(match[1])
        if not self._allowed(repo):
            return
        assert repo is not None
        revision = match[3] if api else match[2]
        if revision not in (None, repo.commit, *repo.branches):
            self._json({"error": "no revision"}, 404, {"X-Error-Code": "RevisionNotFound"})
        elif api:
            self._json(self._tree(repo) if api[2] == "tree" else self._info(api[1], repo))
        elif match[3] not in repo.files:
            self._json({"error": "no file"}, 404, {"X-Error-Code": "EntryNotFound"})
        else:
            self._file(repo, match[3], body)

    def _allowed(self, repo: Repo | None) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repo is None or (repo.token and given != repo.token and not repo.gated):
            code = {"X-Error-Code": "RepoNotFound"}
            self._json({"error": "Repository not found"}, 404 if given else 401, code)
            return False
        if repo.gated and given != repo.token:
            self._json({"error": "gated"}, 403 if given else 401, {"X-Error-Code": "GatedRepo"})
            return False
        return True

    def _info(self, name: str, repo: Repo) -> dict[str, Any]:
        siblings = [
            {"rfilename": file, "size": len(data), "blobId": _sha1(data)} | _lfs(data, "sha256")
            for file, data in repo.files.items()
        ]
        about = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings}
        return about | ({"gguf": repo.gguf} if repo.gguf else {})

    def _tree(self, repo: Repo) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": file, "size": len(data), "oid": _sha1(data)}
            | _lfs(data, "oid")
            for file, data in repo.files.items()
        ]

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for key, text in (headers or {}).items():
            self.send_header(key, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _file(self, repo: Repo, name: str, body: bool) -> None:
        hub, data = self.server_hub, repo.files[name]
        etag = hashlib.sha256(data).hexdigest() if len(data) >= _LFS_BYTES else _sha1(data)
        first = 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted:
            first = int(wanted[1])
        self.send_response(206 if first else 200)
        self.send_header("X-Repo-Commit", repo.commit)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if not body:
            hub.heads.append(name)
            return
        hub.gets.append((name, first))
        breaks = hub.break_after.get(name)
        if breaks:
            self.wfile.write(data[first : first + breaks.pop(0)])
            self.close_connection = True
            self.connection.close()
            return
        stop = hub.stall_after.pop(name, None)
        try:
            if stop is not None:
                self.wfile.write(data[first : first + stop])
                self.wfile.flush()
                hub.stalled.set()
                hub.release.wait(60)
                self.close_connection = True
                return
            self.wfile.write(data[first:])
        except OSError:
            self.close_connection = True


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _lfs(data: bytes, key: str) -> dict[str, Any]:
    if len(data) < _LFS_BYTES:
        return {}
    digest = hashlib.sha256(data).hexdigest()
    return {"lfs": {key: digest, "size": len(data), "pointerSize": 134}}
