"""OpenAI's API as data: bodies to requests, results to responses. It knows no HTTP and no files."""
