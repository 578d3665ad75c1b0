"""Figures of a run for Prometheus, optional: `Coordinator(metrics=9464)`.

They are served on the loopback address, without TLS and without a password, for a Prometheus on the same machine or
behind the reverse proxy.  They hold counts and times, and no name and no id of a client.
"""

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.core import InfeasibleError
from phalanx.engine.observer import Progress
from phalanx.flower.status import STANDINGS, Standing
from phalanx.installation import optional

HOST = "127.0.0.1"
SECONDS = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)  # borders of the histogram
FATES = ("accepted", "filtered", "invalid", "lost")


class PrometheusMetrics:
    """An observer that counts, and serves what it has counted.

    * `phalanx_steps_total`: rounds, or arrivals of an asynchronous algorithm;
    * `phalanx_updates_total{fate}`: accepted, filtered, invalid, lost;
    * `phalanx_step_seconds`: a histogram of the time from one step to the next;
    * `phalanx_clients{standing}`: here, missing, suspended, excluded, revoked;
    * `phalanx_version`: of the model;
    * `phalanx_outlying_updates_total` and `phalanx_suspicious_clients`: see `phalanx.engine.suspicion`.

    Counters begin with the process, as is usual: after a resumption at zero.

    Args:
        counts: returns the number of clients with each standing.
        suspicious: returns the number of suspicious clients.

    Raises:
        ModuleNotFoundError: `prometheus_client` is not installed.
    """

    def __init__(self, counts: Callable[[], Mapping[Standing, int]], suspicious: Callable[[], int]) -> None:
        prometheus = optional("prometheus_client", "The metrics of a coordinator", "metrics")
        self.registry = prometheus.CollectorRegistry()
        kept: dict[str, Any] = {"registry": self.registry}
        self._steps = prometheus.Counter("phalanx_steps", "Rounds, or arrivals.", **kept)
        self._updates = prometheus.Counter("phalanx_updates", "Updates by what became of them.", ["fate"], **kept)
        self._seconds = prometheus.Histogram(
            "phalanx_step_seconds", "Seconds from one step to the next.", buckets=SECONDS, **kept
        )
        self._version = prometheus.Gauge("phalanx_version", "Version of the model.", **kept)
        clients = prometheus.Gauge("phalanx_clients", "Clients by standing.", ["standing"], **kept)
        for standing in STANDINGS:
            clients.labels(standing).set_function(lambda standing=standing: counts()[standing])
        for fate in FATES:
            self._updates.labels(fate)
        self._outlying = prometheus.Counter("phalanx_outlying_updates", "Updates that stand out.", **kept)
        doubted = prometheus.Gauge("phalanx_suspicious_clients", "Clients that are suspicious.", **kept)
        doubted.set_function(suspicious)
        self._last: float | None = None
        self._server: Any = None

    def __call__(self, progress: Progress, /) -> None:
        """See `Observer`."""
        self._version.set(progress.state.version)
        self._updates.labels("invalid").inc(len(progress.invalid.keys() & progress.enrolled))
        self._updates.labels("lost").inc(len(progress.lost))
        if progress.updates is not None:
            decided = [verdict for verdict in progress.state.verdicts.values() if not verdict.waits]
            used = sum(verdict.accepted for verdict in decided)
            self._updates.labels("accepted").inc(used)
            self._updates.labels("filtered").inc(len(decided) - used)
            self._steps.inc()
            self._outlying.inc(sum(bool(found.outlying) for found in progress.conduct.values()))
            if self._last is not None:
                self._seconds.observe(progress.now - self._last)
        if progress.updates is not None or self._last is None:
            self._last = progress.now

    def serve(self, port: int) -> int:
        """Serve them at http://127.0.0.1:PORT/metrics; return the port, a free one for port 0.

        Raises:
            InfeasibleError: the port is taken.
        """
        import prometheus_client as prometheus  # noqa: PLC0415

        try:
            self._server, _ = prometheus.start_http_server(port, addr=HOST, registry=self.registry)
        except OSError as error:
            raise InfeasibleError(f"Metrics cannot be served at port {port}: {error}. Choose another one.") from error
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
