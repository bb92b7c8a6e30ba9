"""Reading a quantised checkpoint into the model's type: layers of gpt-oss-20b's shape, experts in MXFP4.

    python -m ops.bench reading [--layers 4] [--threads 2]

Numbers are those of experts. Beside the model is what the process holds at its peak and the model is not:
Python and its libraries, too.
"""

from __future__ import annotations

import argparse
import time

from ops.bench import memory, plots
from ops.bench.models.quantized_checkpoint import experts_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m ops.bench reading", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as it chooses")
    options = parser.parse_args()
    folder = experts_checkpoint(options.layers)
    print("\n".join(plots.caption("reading")), end="\n\n")
    print(plots.markdown([measure(str(folder), options.threads)]))


def measure(folder: str, threads: int) -> plots.Row:
    """The rates of a load, and its peak."""
    import torch

    from millstream_worker.engine.runner.model.weights import load_weights
    from millstream_worker.engine.runner.model_config.config_file import load_config
    from millstream_worker.engine.runner.model_config.quantization import without_quantization

    if threads:
        torch.set_num_threads(threads)
    config = load_config(folder)
    settings = without_quantization(config)
    memory.reset_peak()
    begun, cpu = time.perf_counter(), time.process_time()
    read = load_weights(
        folder, config, torch.bfloat16, torch.device("cpu"), "eager", print, lambda: None, config, settings
    )
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    parameters = dict(read.model.named_parameters())
    for weight in parameters.values():  # one that stays in its mapped file is not resident before
        weight.sum()
    peak = memory.peak_bytes()
    numbers = sum(one.numel() for name, one in parameters.items() if one.ndim == 3)
    held = sum(one.nbytes for one in parameters.values())
    return {
        "format": read.forms,
        "GB": round(held / 1e9, 1),
        "seconds": round(seconds, 1),
        "CPU seconds": round(cpu_s, 1),
        "million numbers a CPU second": round(numbers / cpu_s / 1e6),
        "GiB beside the model at most": round((peak - held) / 2**30, 2),
    }


if __name__ == "__main__":
    main()
