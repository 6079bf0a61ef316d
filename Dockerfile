# Recovery on a CPU. Build: docker build -t recovery .   Run: docker run -v recovery:/data recovery recover demo
ARG BASE=python:3.11-slim
FROM ${BASE}

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
# An index with CPU builds of torch keeps gigabytes of GPU libraries out of the image.
ARG TORCH_INDEX=
RUN python3 -m venv /opt/recovery
ENV PATH=/opt/recovery/bin:$PATH

COPY requirements/lock.txt /tmp/lock.txt
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} $(grep '^torch==' /tmp/lock.txt) \
    && pip install -r /tmp/lock.txt

COPY . /tmp/source
RUN pip install --no-deps /tmp/source && rm -rf /tmp/source

RUN useradd --create-home --uid 1000 recovery && mkdir /data && chown recovery /data
USER recovery
WORKDIR /data
VOLUME /data
ENV RECOVER_WORKSPACE=/data/recovery-workspace
CMD ["recover", "--help"]
