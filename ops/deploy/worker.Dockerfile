# The worker. TORCH picks the build: "cpu", or "cuda" for the registry's default CUDA wheel.
FROM python:3.12-slim AS build
ARG TORCH=cpu
ARG TORCH_CPU_INDEX=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md constraints.txt ./
COPY producer producer
COPY worker worker
RUN python -m venv /opt/millstream
ENV PATH=/opt/millstream/bin:$PATH
# For a CPU build pass --build-arg TORCH_CPU_INDEX=<the index PyTorch's install page shows for "CPU">.
RUN if [ "$TORCH" = cpu ] && [ -n "$TORCH_CPU_INDEX" ]; then \
        pip install --no-cache-dir -c constraints.txt --index-url "$TORCH_CPU_INDEX" torch; fi \
    && pip install --no-cache-dir -c constraints.txt '.[cli,worker]'

FROM python:3.12-slim
# Attention is compiled where it runs: C++ on a CPU, on a GPU the launcher of Triton's kernels (C).
RUN apt-get update && apt-get install -y --no-install-recommends g++ libc6-dev && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 millstream \
    && install -d -o millstream -g millstream /models
COPY --from=build /opt/millstream /opt/millstream
ENV PATH=/opt/millstream/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/models/hub \
    MILLSTREAM_CACHE_DIR=/models/millstream
USER millstream
VOLUME /models
EXPOSE 9400
STOPSIGNAL SIGTERM
ENTRYPOINT ["millstream-worker"]
