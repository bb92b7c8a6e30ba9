"""From a job's message to what an engine needs: token ids within bounds, and choices that go on."""
