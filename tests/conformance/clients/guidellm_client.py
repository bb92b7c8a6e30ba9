"""guidellm: `guidellm_client.py URL CHECKPOINT`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path


def main(url: str, checkpoint: str) -> None:
    print(f"guidellm {version('guidellm')}")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console",
            "--backend", f"kind=openai_http,target={url}", "--profile", "kind=synchronous",
            "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
            "--tokenizer", f"kind=huggingface_auto,model={checkpoint}",
            "--constraint", "kind=max_requests,count=4", "--output", f"kind=json,path={folder}/report.json",
        ]  # fmt: skip
        done = subprocess.run(command, check=False, timeout=240, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        [benchmark] = json.loads((Path(folder) / "report.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (4, 0), totals
    print("  4 requests passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
