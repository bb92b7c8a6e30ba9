"""HTTP for all routes: errors, bodies, headers, pages, event streams. It knows no queue."""
