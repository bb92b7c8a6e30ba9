"""One line of the input into a request, and a result into a line of the output. Knows no files."""
