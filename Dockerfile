# An image for a coordinator or a site, on the CPU: docker build --tag phalanx .
#
# It runs as user 10001.  `compose.yaml` of `phalanx flower kit` mounts its root as read only; compiled loops lie in a
# volume, which begins with those of the image.
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends openssh-client && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu
COPY . /usr/src/phalanx
RUN pip install --no-cache-dir '/usr/src/phalanx[flower,tables,metrics]'
ENV HOME=/srv/phalanx NUMBA_CACHE_DIR=/var/cache/phalanx FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
RUN useradd --system --uid 10001 --home-dir /srv/phalanx phalanx \
    && mkdir --parents /srv/phalanx /var/cache/phalanx && phalanx doctor --compile \
    && chown --recursive phalanx /srv/phalanx /var/cache/phalanx
USER phalanx
WORKDIR /srv/phalanx
