"""Finding a checkpoint's files, and which files can be trusted."""
