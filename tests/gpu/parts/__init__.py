"""The parts of the survey, in the order in which they are worth their time on a GPU lent for minutes."""

from __future__ import annotations

from gpu.parts.running import Part

PARTS = (
    Part("machine", "versions, compilers, a Triton kernel of one line, memory", 60, "gpu.parts.machine:look"),
    Part("attention", "our kernels in bfloat16 beside torch's", 100, "gpu.parts.attention:bfloat16"),
    Part("narrow", "the same in float16, one layer in float32", 90, "gpu.parts.attention:others"),
    Part("memcheck", "the smallest under compute-sanitizer", 60, "gpu.parts.attention:memcheck"),
    Part("graphs", "tiny qwen3 and llama: tokens, test_graphs_on_cuda.py", 100, "gpu.parts.graphs:check"),
    Part("steps", "8B shape: steps eager and as graphs, profiles", 110, "gpu.parts.steps:eager"),
    Part("compiled", "8B shape: steps compiled and as graphs, profiles", 150, "gpu.parts.steps:compiled"),
    Part("kernels", "decode, prefill, shared timed; flash beside them", 90, "gpu.parts.kernels:as_they_are"),
    Part("variants", "the same with other warps, stages and tiles", 100, "gpu.parts.kernels:variants"),
    Part("sampler", "256 draws from 128,256 tokens in each way", 60, "gpu.parts.sampler:draw"),
    Part("engine", "8B shape: workloads of ops.bench, top_p", 200, "gpu.parts.serving:serve"),
)
