# distdoctor as a command, with the CPU build of torch: docs/ci.md tells how it is run.
ARG PYTHON=3.12.11-slim-bookworm

FROM python:${PYTHON} AS built
# The part that each call of communication passes is compiled, where there is a compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:${PYTHON}
COPY .ci/constraints.txt /tmp/constraints.txt
# A layer of its own: it is by far the largest, and changes least.
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt \
    --index-url https://download.pytorch.org/whl/cpu torch
RUN --mount=type=bind,from=built,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /tmp/constraints.txt /wheels/*.whl \
    && useradd --create-home --uid 1000 doctor
USER 1000
WORKDIR /work
ENTRYPOINT ["distdoctor"]
CMD ["--help"]
