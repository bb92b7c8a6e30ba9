"""A GGUF file in other types, made by llama.cpp. Runs under the interpreter that has llama-cpp-python:

~/llama/bin/python -m ops.bench.models.quantized_file bf16.gguf q4.gguf Q4_K_M
"""

from __future__ import annotations

import sys

import llama_cpp  # type: ignore[import-not-found]


def main() -> None:
    source, to, kind = sys.argv[1:]
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    how.allow_requantize = True
    if failed := llama_cpp.llama_model_quantize(source.encode(), to.encode(), how):
        sys.exit(f"llama.cpp could not write {to} as {kind}: error {failed}")


if __name__ == "__main__":
    main()
