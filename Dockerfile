# Recovery in a container. How to use it: docs/container.md.
#   docker build -t recovery .                            for a CPU
#   docker build -t recovery:cuda --target cuda .         for an NVIDIA GPU, with vLLM
# BASE can be any Debian image with Python 3.11 or later and venv.
ARG BASE=python:3.11-slim

FROM ${BASE} AS base
# The volume is also the home: caches and models from the hub are stored with the workspace; nothing else is written.
ENV PATH=/opt/recovery/bin:$PATH \
    HOME=/workspace \
    RECOVER_WORKSPACE=/workspace/recovery-workspace \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
RUN python3 -m venv /opt/recovery \
    && useradd --uid 1000 --home-dir /workspace --no-create-home recovery \
    && install -d -o recovery -g recovery /workspace

# Recovery and its list of requirements, built in a separate stage: while the list and the lock are unchanged, a source
# change does not invalidate the layers with the packages.
FROM base AS source
WORKDIR /source
COPY . .
RUN pip install --no-deps --root /image/recovery . \
    && mkdir -p /image/needs && sed -nE 's/^([a-z0-9._-]+==[^ ;]+).*/\1/p' requirements/lock.txt requirements/torch.txt \
        > /image/needs/lock.txt \
    && python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = project['optional-dependencies']; \
print(*project['dependencies'], *extras['docs'], *extras['gguf'], *extras['postgres'], sep='\n', file=open('/image/needs/cpu.txt', 'w')); \
print(*extras['vllm'], sep='\n', file=open('/image/needs/cuda.txt', 'w'))"

# Settings common to all images.
FROM base AS packages
COPY --from=source /image/needs /opt/recovery/needs
WORKDIR /workspace
VOLUME /workspace
EXPOSE 7860
HEALTHCHECK --start-period=60s CMD ["python", "-P", "-m", "dashboard.health"]
# SIGINT, as Ctrl-C: the kernel ignores SIGTERM for a process with id 1 that has no handler for it.
STOPSIGNAL SIGINT
CMD ["recover", "--help"]

# The lock applies to the GPU image too, except where vLLM requires other versions. Triton needs gcc at run time.
FROM packages AS cuda
RUN apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && cd /opt/recovery/needs && pip install -c lock.txt -r cpu.txt && pip install -r cpu.txt -r cuda.txt
COPY --from=source /image/recovery /
USER recovery

# torch first, from an index with CPU builds, so that no other package pulls gigabytes of GPU libraries. An empty
# TORCH_INDEX takes the registry's build, for machines where that is a CPU build.
FROM packages AS cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN cd /opt/recovery/needs \
    && pip install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} $(grep '^torch==' lock.txt) \
    && pip install -c lock.txt -r cpu.txt
COPY --from=source /image/recovery /
USER recovery
