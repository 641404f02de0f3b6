# syntax=docker/dockerfile:1.7
# Braid in a container:   docker build -t braid .                            with CUDA
#                         docker build -t braid:cpu --build-arg VARIANT=cpu .
#
# Two stages: the first has pip and caches, the second has what runs. The wheels of torch bring
# CUDA's libraries with them, so the base needs the driver's interface only, not a toolkit.
#
# Build arguments beside VARIANT: CPU_BASE, CUDA_BASE (any Debian or Ubuntu with Python 3.11 or newer),
# EXTRAS (of setup.py, as fleet,tracing, beside server and openvino), COMMIT (for the metric braid_build_info), and pip's
# PIP_INDEX_URL, PIP_NO_INDEX, PIP_FIND_LINKS.
ARG VARIANT=cuda
ARG CPU_BASE=ubuntu:24.04
ARG CUDA_BASE=nvidia/cuda:13.0.2-base-ubuntu24.04

FROM ${CPU_BASE} AS base-cpu
FROM ${CUDA_BASE} AS base-cuda

FROM base-${VARIANT} AS base
ARG VARIANT
# ONNX's StringNormalizer changes case by the locale en_US unless it names another one.
# With CUDA, Triton compiles the launchers of its kernels when they first run.
RUN packages="python3 libgomp1 ca-certificates locales"; \
    if [ "$VARIANT" = cuda ]; then packages="$packages gcc libc6-dev python3-dev"; fi; \
    apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages \
 && localedef -i en_US -f UTF-8 en_US.UTF-8 \
 && rm -rf /var/lib/apt/lists/*

FROM base AS build
ARG VARIANT
ARG EXTRAS=""
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      python3-venv python3-dev gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv /opt/braid
ENV PATH=/opt/braid/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# The large wheels first: a change of the sources does not fetch them again.
COPY constraints.txt .
RUN --mount=type=cache,target=/root/.cache/pip \
    if [ "$VARIANT" = cpu ]; then index="--index-url https://download.pytorch.org/whl/cpu"; fi; \
    pip install ${index:-} -c constraints.txt torch
COPY pyproject.toml setup.py README.md LICENSE ./
COPY core core
COPY braid braid
COPY charts charts
COPY scheduler scheduler
COPY compiler compiler
COPY engine engine
COPY server server
COPY library library
COPY client client
RUN --mount=type=cache,target=/root/.cache/pip \
    extras="server,openvino${EXTRAS:+,$EXTRAS}"; \
    if [ "$VARIANT" = cuda ]; then extras="gpu,$extras"; fi; \
    pip install -c constraints.txt ".[$extras]" \
 && find /opt/braid -depth \( -name tests -o -name test \) -path '*/site-packages/torch/*' \
      -exec rm -rf {} + \
 && rm -rf /opt/braid/lib/python3*/site-packages/torch/include \
 && python -m compileall -q /opt/braid/lib/python3*/site-packages/braid
# What the image holds, with versions and licences (CycloneDX).
COPY deploy/sbom.py .
RUN python sbom.py > /opt/braid/sbom.cdx.json

FROM base AS runtime
LABEL org.opencontainers.image.title=braid \
      org.opencontainers.image.description="Inference server that schedules operators side by side" \
      org.opencontainers.image.licenses=Apache-2.0
RUN groupadd --gid 10001 braid \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
      --shell /usr/sbin/nologin braid \
 && install -d -o 10001 -g 10001 -m 700 /var/lib/braid
COPY --from=build /opt/braid /opt/braid
ARG COMMIT=""
# Nothing is written outside the volume and /tmp: the root file system may be read-only. Triton would
# write into a home, and loads what it compiles, so a /tmp that is mounted noexec is not for its cache.
ENV PATH=/opt/braid/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TRITON_CACHE_DIR=/tmp/triton \
    BRAID_STORE=/var/lib/braid \
    BRAID_HOST=0.0.0.0 \
    BRAID_LOG_FORMAT=json \
    BRAID_COMMIT=${COMMIT}
USER 10001:10001
VOLUME /var/lib/braid
EXPOSE 8001 8002
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["braid", "health", "--service", "liveness"]
ENTRYPOINT ["braid"]
CMD ["serve"]
