"""What a worker's port of metrics answers."""

from __future__ import annotations

import urllib.error
import urllib.request


def fetch(port: int, path: str = "/metrics") -> tuple[int, str]:
    """Status and page; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:  # not there yet, or not any more
        return 0, ""
