"""Jobs after their submission: streams, ends, cancellation, deletion, dead letters."""
