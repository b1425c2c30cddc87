# kafkadur, for `kafkadur run` (the default), `kafkadur serve`, `kafkadur gateway`, `kafkadur metrics` and the others.
#   docker build -t kafkadur .
#   docker build -t kafkadur --build-arg PYTHON=python:3.12-slim-bookworm .    # on the newest base
# An app is mounted at /app, or comes with an image made from this one: FROM kafkadur, COPY handlers.py /app/.
# The index of all platforms; a newer one: docker buildx imagetools inspect python:3.12-slim-bookworm
ARG PYTHON=python:3.12.14-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254

FROM ${PYTHON} AS build
WORKDIR /src
# For the compiled client of Kafka, and the AMQP engine of the gateway.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY requirements.lock pyproject.toml hatch_build.py README.md LICENSE ./
RUN python -m venv /opt/build \
    && sed -n '/^uv==/,/^    # via/p' requirements.lock > uv.lock \
    && /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes -r uv.lock \
    && python -m venv --without-pip /opt/kafkadur
COPY kafkadur kafkadur
COPY coordinators coordinators
COPY sharing sharing
COPY spark spark
# Each package has the version and hash of the lock; --reload of the extra `worker` is not for containers.
RUN /opt/build/bin/uv pip install --no-cache --compile-bytecode --python /opt/kafkadur/bin/python \
        --constraints requirements.lock --build-constraints requirements.lock \
        '.[cli,gateway,metrics,serve,tracing]'

FROM ${PYTHON}
LABEL org.opencontainers.image.title="kafkadur" \
    org.opencontainers.image.description="Durable subscriptions for Apache Kafka" \
    org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/kafkadur /opt/kafkadur
# A number, so that an orchestrator can see that it is not root; nothing on the image belongs to it.
USER 10001:10001
ENV PATH=/opt/kafkadur/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
WORKDIR /app
EXPOSE 9465
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9465/livez', timeout=4)"]
ENTRYPOINT ["kafkadur"]
CMD ["run", "app:app", "--host", "0.0.0.0", "--log-format", "json"]
