"""A server that answers as an Elasticsearch would, with chosen errors first; no cluster needed."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, Any]]
BUSY: dict[str, Any] = {
    "error": {"type": "es_rejected_execution_exception", "reason": "queue is full"}
}


class FakeCluster:
    """`stored` has the documents by id; `answers` are given first, one a request."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.answers: deque[Answer] = deque()
        self.refused: Callable[[str, int], int] = lambda image_id, attempt: 0  # status, or 0
        self.requests: list[str] = []
        self.attempts: dict[str, int] = {}
        self.url, self.product = "", "Elasticsearch"

    def answer(self, path: str, body: bytes) -> Answer:
        self.requests.append(path)
        if self.answers:
            return self.answers.popleft()
        if not path.partition("?")[0].endswith("_bulk"):
            return 200, {"acknowledged": True, "count": len(self.stored)}
        lines = [json.loads(line) for line in body.decode().splitlines() if line]
        items = []
        while lines:
            [(operation, meta)] = lines.pop(0).items()
            source = None if operation == "delete" else lines.pop(0)
            items.append({operation: self._item(operation, meta["_id"], source)})
        return 200, {"errors": any("error" in next(iter(one.values())) for one in items),
                     "items": items}  # fmt: skip

    def _item(self, operation: str, image_id: str, source: Any) -> dict[str, Any]:
        self.attempts[image_id] = self.attempts.get(image_id, 0) + 1
        status = self.refused(image_id, self.attempts[image_id])
        if status:
            return {"_id": image_id, "status": status, **BUSY}
        if operation == "create" and image_id in self.stored:
            return {"_id": image_id, "status": 409, "error": {"type": "conflict", "reason": "x"}}
        self.stored[image_id] = source
        return {"_id": image_id, "status": 201}


@contextmanager
def running_fake() -> Iterator[FakeCluster]:
    fake = FakeCluster()

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, said = fake.answer(self.path, body)
            content = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("X-Elastic-Product", fake.product)
            self.send_header("Content-Type", "application/vnd.elasticsearch+json;compatible-with=8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _reply

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
