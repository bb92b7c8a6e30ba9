"""HTTP for all routes: bodies, headers, pages, event streams. It knows no queue."""
