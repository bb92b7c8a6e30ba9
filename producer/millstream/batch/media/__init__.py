"""Files below the folder of a run's images, whole or page by page. Knows no jobs and no journal."""
