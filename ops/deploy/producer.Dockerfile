# The light client, its command line and the gateway: no torch.
FROM python:3.12-slim
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md constraints.txt ./
COPY producer producer
COPY worker worker
RUN pip install --no-cache-dir -c constraints.txt '.[cli,gateway]' \
    && useradd --create-home --uid 1000 millstream \
    && install -d -o millstream -g millstream /data /files
WORKDIR /data
USER millstream
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["millstream"]
