"""A GGUF file in other types, made by llama.cpp. Runs under the interpreter that has llama-cpp-python:

    ~/llama/bin/python -m ops.bench.models.quantized_file bf16.gguf q4.gguf Q4_K_M

A type is what follows `LLAMA_FTYPE_MOSTLY_` in llama.cpp's header. The project does not install llama.cpp: no
test runs this.
"""

from __future__ import annotations

import argparse

import llama_cpp  # type: ignore[import-not-found]

_TYPES = "LLAMA_FTYPE_MOSTLY_"


def main() -> None:
    types = {name.removeprefix(_TYPES): name for name in dir(llama_cpp) if name.startswith(_TYPES)}
    parser = argparse.ArgumentParser(prog="python -m ops.bench.models.quantized_file")
    parser.add_argument("source", help="a GGUF file")
    parser.add_argument("to", help="the file to write")
    parser.add_argument("type", choices=types)
    chosen = parser.parse_args()
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, types[chosen.type])
    options.allow_requantize = True
    failed = llama_cpp.llama_model_quantize(chosen.source.encode(), chosen.to.encode(), options)
    if failed:
        parser.exit(1, f"llama.cpp could not write {chosen.to} as {chosen.type}: error {failed}\n")


if __name__ == "__main__":
    main()
