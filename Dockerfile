# The server with its embedded model. Build: docker build -t cfs .   Run: docker run -p 127.0.0.1:8000:8000 -v cfs:/data cfs
# Sessions and workspaces are in /data.

FROM python:3.12-slim AS pins

# llama.cpp takes minutes to compile. It is compiled from a file that names its version and nothing else, so that its
# layer stays as it is when other versions change.
COPY constraints.txt /
RUN grep -i '^llama' /constraints.txt > /llama.txt


FROM python:3.12-slim AS builder

RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ gcc \
    && rm -rf /var/lib/apt/lists/*

# Without GGML_NATIVE the image runs on any x86-64 machine with AVX2, not only on one like the builder's, and on any
# 64-bit Arm machine with dot products (untested); each architecture ignores the flags of the other. For the machine you
# build on: --build-arg CMAKE_ARGS=-DGGML_NATIVE=ON
# LLAVA_BUILD is for pictures and sound, which CFS has no use for.
ARG CMAKE_ARGS="-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod"

# The environment gets no pip of its own: the image has no use for it.
ENV PIP_PYTHON=/opt/cfs PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv --without-pip /opt/cfs
WORKDIR /src
COPY --from=pins /llama.txt ./
RUN CMAKE_ARGS="$CMAKE_ARGS" pip install --no-deps -r llama.txt

# The other dependencies, and last what changes with every commit.
COPY pyproject.toml constraints.txt ./
RUN python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; extra = p["optional-dependencies"]; \
        wanted = [*p["dependencies"], *extra["server"], *extra["webdav"], *extra["cluster"], *extra["otel"]]; \
        print(*(each for each in wanted if not each.startswith(p["name"])), sep="\n")' > requirements.txt \
    && pip install -c constraints.txt -r requirements.txt

# Smaller: a wheel cannot hold links, so it has each library of llama.cpp three times, and all of it twice. NumPy's own
# tests are a third of it. Its libraries stay as they are: they cannot be stripped after they were patched.
WORKDIR /opt/cfs/lib/python3.12/site-packages
RUN rm -rf lib include bin \
    && for library in llama_cpp/lib/*.so; do \
        for twin in "$library".*; do cmp -s "$library" "$twin" && ln -sf "${library##*/}" "$twin"; done; \
    done \
    && find numpy -type d -name tests -prune -exec rm -r {} + \
    && find . -name '*.so' -type f ! -path './numpy*' -exec strip --strip-unneeded {} +
WORKDIR /src
COPY . .
RUN pip install --no-deps .


FROM python:3.12-slim

# libgomp1: the threads of llama.cpp.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 cfs \
    && useradd --uid 10001 --gid cfs --no-log-init --create-home --home-dir /home/cfs cfs \
    && install -d -m 0700 -o cfs -g cfs /data

COPY --from=builder /opt/cfs /opt/cfs

# A container is reached from outside only through the ports that are published for it, so the server listens on all
# of the container's own addresses. Without tokens (CFS_TOKENS) publish them on the host's loopback only.
ENV PATH=/opt/cfs/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CFS_HOST=0.0.0.0 \
    CFS_PORT=8000 \
    CFS_DATA_DIR=/data \
    CFS_ALLOW_REMOTE_WITHOUT_TOKENS=1

USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000

HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --start-interval=1s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['CFS_PORT'] + '/healthz', timeout=4)"]

ENTRYPOINT ["cfs"]
CMD ["serve"]
