"""The files of a batch run: input, output, errors, journal. Knows no client."""
