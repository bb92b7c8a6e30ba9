"""Agent turns over plain HTTP, many of them cut, whole and streamed; judged by the tokens that were drawn."""
