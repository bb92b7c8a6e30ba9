"""The routes of files: uploads, lists, content."""
