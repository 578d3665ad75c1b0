"""Rules, weights and the guard in a job of NVFlare: `PhalanxAggregator`."""

from phalanx.installation import installation

try:
    import nvflare  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"Jobs of NVFlare need NVFlare: {installation('nvflare')}.") from error

from phalanx.nvflare.model_aggregator import PhalanxAggregator

__all__ = ["PhalanxAggregator"]
